"""``manyhands …`` in processes of their own that need not import everything first.

Most of the time of a short command is the interpreter's: it imports. A server imports once, and then forks for each command: what
comes of it is a process like any other, with a session, a folder, an environment and an end of its own, which may be killed at any
instant. Only its command line, in ``/proc``, is the server's. There is one server for each process that runs tests; it ends with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select
from typing import Any

from manyhands.cli.main import COMMANDS, main
from manyhands.engine.workload import WORKLOADS

LONGEST_START = 60.0
"""Seconds that the server may take to begin a command, its imports included."""
_MOST_BYTES = 1 << 20
_IMPORTED = (
    "aiohttp.web",
    "manyhands.cli.performing",
    "manyhands.cli.plain",
    "manyhands.cli.report",
    *(place.partition(":")[0] for place in WORKLOADS.values()),
)
"""What is imported beside the modules of the commands that are asked for."""
_IMPORTED_FOR = {"mcp": ("manyhands.csv_jobs.mcp_server", "manyhands.csv_jobs.mcp_http")}
"""What a command imports late, because it is an extra."""


class ForkedProcess:
    """A command that was begun; has what tests need of ``subprocess.Popen``."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path | None,
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        stdin: int | None = None,
    ) -> None:
        """``stdout``, ``stderr``, ``stdin``: file descriptors; without the last, there is no input. Raises RuntimeError if it can't be
        begun."""
        self.args = ["manyhands", *words]
        self.returncode: int | None = None
        self._told, tell = os.pipe()
        order = {"words": list(words), "folder": str(folder or Path.cwd()), "environ": dict(environ)}
        try:
            files = [tell, stdout, stderr, *([] if stdin is None else [stdin])]
            socket.send_fds(_server(), [json.dumps(order).encode()], files)
        finally:
            os.close(tell)
        self.pid = self._next(LONGEST_START)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._next(timeout)
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next(self, timeout: float | None) -> int:
        """The next number that the server tells: the process's id, then its exit code."""
        if not select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        text = b""
        while not text.endswith(b"\n"):
            if not (byte := os.read(self._told, 1)):
                raise RuntimeError(f"the server of commands is gone: {self.args}")
            text += byte
        return int(text)


@cache
def _server() -> socket.socket:
    """The server of this process, begun at the first command."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        subprocess.Popen(
            [sys.executable, "-m", "manyhands.testing.forked", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return ours


# --- The server


def serve(channel: socket.socket) -> list[str] | None:
    """Fork for each order. Comes back in a child, with the words of its command, or, with None, when nobody can order any more."""
    for module in _IMPORTED:
        importlib.import_module(module)
    ends: dict[int, int] = {}
    with channel, selectors.DefaultSelector() as events:
        events.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is not channel:
                    events.unregister(key.fd)
                    _tell_end(key.fd, key.data, ends.pop(key.fd))
                    continue
                message, files, *_ = socket.recv_fds(channel, _MOST_BYTES, 4)
                if not message:
                    return None
                order = json.loads(message)
                _import_for(order["words"])
                gc.freeze()  # no child looks at what the server has imported, which would copy it
                if not (pid := os.fork()):
                    for end in (*ends, *ends.values()):
                        os.close(end)
                    return _become(order, files)
                for file in files[1:]:
                    os.close(file)
                end = os.pidfd_open(pid)
                ends[end] = files[0]
                events.register(end, selectors.EVENT_READ, pid)


def _import_for(words: list[str]) -> None:
    """Import the module of a command, and that of the command below it, if it has some."""
    for late in _IMPORTED_FOR.get(words[0] if words else "", ()):
        with suppress(ModuleNotFoundError):
            importlib.import_module(late)
    commands: Mapping[str, Any] = COMMANDS
    for word in words[:2]:
        if (found := commands.get(word)) is None:
            return
        module = importlib.import_module(found if isinstance(found, str) else found[0])
        commands = getattr(module, "COMMANDS", {})


def _become(order: dict[str, Any], files: list[int]) -> list[str]:
    """Turn a fork of the server into the process that was ordered; its words."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where tests run in the background, which ignores them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell, *standard = files
    for place, file in zip((1, 2, 0), standard, strict=False):
        os.dup2(file, place)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    asked = [order["folder"], *order["environ"].get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = list(dict.fromkeys([*filter(None, asked), *sys.path]))
    importlib.invalidate_caches()
    os.write(tell, b"%d\n" % os.getpid())
    os.close(tell)
    words: list[str] = order["words"]
    sys.argv = ["manyhands", *words]
    return words


def _tell_end(end: int, pid: int, tell: int) -> None:
    os.close(end)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(tell, b"%d\n" % code)
    os.close(tell)


if __name__ == "__main__":
    ordered = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(0 if ordered is None else main(ordered))
