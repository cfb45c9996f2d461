"""The first process of a fake world: starts commands in it on order, and reaps whatever ends there.

It runs by itself (``python -I -S``), within the world's namespaces but outside of its root, into which each command is brought by
chroot(2). Orders come over the Unix socket that is its standard input: as JSON, each in a file of its own, which comes with the three
descriptors of the command.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

_NO_NEW_PRIVILEGES, _DROP_BOUNDING, _LAST_CAPABILITY = 38, 24, 40
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    orders = socket.socket(fileno=os.dup(0))
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, int] = {}
    orders.sendall(b"{}")
    while True:
        ready, _, _ = select.select([orders.fileno(), read_end], [], [], 1.0)
        if orders.fileno() in ready:
            message, found, _, _ = socket.recv_fds(orders, 1, 4)
            if not message:
                os._exit(0)
            written, *descriptors = found
            with open(written, "rb") as file:
                order = json.load(file)
            try:
                running[_started(order, descriptors)] = order["number"]
            except BlockingIOError as error:  # the limit on processes
                os.write(descriptors[2], f"{error}\n".encode())
                orders.sendall(json.dumps({"number": order["number"], "code": 126}).encode())
            for descriptor in descriptors:
                os.close(descriptor)
        if read_end in ready:
            os.read(read_end, 1000)
        for number, code in _reaped(running):
            orders.sendall(json.dumps({"number": number, "code": code}).encode())


def _reaped(running: dict[int, int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            found.append((running.pop(pid), code if code >= 0 else 128 - code))


def _started(order: dict[str, Any], descriptors: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.closerange(3, 1000)
        for name, value in order["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.chroot(order["root"])
        os.chdir("/")
        for capability in range(_LAST_CAPABILITY + 1):
            if capability not in order["capabilities"]:
                _LIBC.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
        _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if order["group"] != os.getegid():
            os.setgroups([])
            os.setgid(order["group"])
        if order["user"] != os.geteuid():
            os.setuid(order["user"])
        try:
            os.chdir(order["directory"])
        except OSError as error:
            os.write(2, f"{order['directory']}: {error.strerror}\n".encode())
            os._exit(126)
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except (OSError, ValueError, TypeError) as error:
        os.write(2, f"{order['command'][0]}: {error}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("takes no arguments")
    main()
