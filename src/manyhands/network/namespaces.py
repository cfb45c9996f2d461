"""Listening sockets in the network namespaces of sandboxes, and what tells programs there to use them.

A socket belongs to the namespace in which it was made, whoever holds it: so a process outside can serve a program inside that has no other
way out. Root enters a namespace with a thread. Anybody else can enter only those that belong to a user namespace of their own, by a
program that has nothing else to do, and that hands the socket over.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause

ADDRESS, PORT = "127.0.0.1", 13128
"""Where the proxy is, as programs inside see it. Always the same, since a shell that is brought back keeps its variables."""
_BACKLOG = 256
_SECONDS = 15.0
_CLONE_NEWNET = 0x40000000
_URL = f"http://{ADDRESS}:{PORT}"
_DIRECT = "localhost,127.0.0.1,::1"
_HELPER = """\
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
listener = socket.socket()
listener.bind((sys.argv[2], int(sys.argv[3])))
listener.listen(int(sys.argv[4]))
socket.send_fds(channel, [b"1"], [listener.fileno()])
"""


def proxy_variables() -> dict[str, str]:
    """What programs inside are given, so that they ask the proxy."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _URL) | {"NO_PROXY": _DIRECT}
    return {name: value for upper, value in proxies.items() for name in (upper, upper.lower())}


async def listening_inside(process: int, user_namespace: int | None = None) -> socket.socket:
    """A socket that listens at ``ADDRESS`` and ``PORT`` in the network namespace of a process.

    ``user_namespace``: a descriptor of the user namespace that this namespace belongs to; None: that of the process itself. Raises
    ItemError(SANDBOX_LOST) if the namespace can't be entered.
    """
    try:
        return await asyncio.to_thread(_by_thread, process)
    except PermissionError:
        return await asyncio.to_thread(_by_helper, process, user_namespace)
    except OSError as error:
        raise _failure(error.strerror or str(error)) from error


def _by_thread(process: int) -> socket.socket:
    """For root. Raises OSError."""
    made: list[socket.socket] = []
    failures: list[OSError] = []

    def work() -> None:
        try:
            made.append(_listener_in(process))
        except OSError as error:
            failures.append(error)

    # A thread that has entered another namespace is of no further use.
    thread = threading.Thread(target=work, name="manyhands-listen")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made[0]


def _listener_in(process: int) -> socket.socket:
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(namespace)
    listener = socket.socket()
    try:
        listener.bind((ADDRESS, PORT))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _by_helper(process: int, user_namespace: int | None) -> socket.socket:
    """For everybody else. Raises ItemError(SANDBOX_LOST)."""
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise _failure("nsenter is missing (install the package util-linux)")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = _helper_words(nsenter, process, user_namespace, theirs.fileno())
        kept = (theirs.fileno(), *(() if user_namespace is None else (user_namespace,)))
        try:
            done = subprocess.run(
                words,
                pass_fds=kept,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"PATH": os.defpath},
                cwd="/",
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failure(str(error)) from error
        ours.setblocking(False)
        descriptors: Sequence[int] = ()
        with suppress(BlockingIOError):
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise _failure(" ".join(done.stderr.decode(errors="replace").split())[-300:] or f"exit code {done.returncode}")
    return socket.socket(fileno=descriptors[0])


def _helper_words(nsenter: str, process: int, user_namespace: int | None, channel: int) -> list[str]:
    user = f"/proc/{process}/ns/user" if user_namespace is None else f"/proc/self/fd/{user_namespace}"
    enter = [nsenter, "--preserve-credentials", f"--user={user}", f"--net=/proc/{process}/ns/net", "--"]
    python = [sys.executable, "-I", "-S", "-c", _HELPER]
    return [*enter, *python, str(channel), ADDRESS, str(PORT), str(_BACKLOG)]


def _failure(why: str) -> ItemError:
    return ItemError(Cause.SANDBOX_LOST, f"can't listen in the network of a sandbox: {why}")
