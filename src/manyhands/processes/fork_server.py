"""Processes of our own code that need not import it anew: a server is forked before any thread is at work, and forks itself for each.

An interpreter takes half a second of processor time to import what executes items; a fork takes a few milliseconds and shares the
memory. What a fork inherits of this process is what it had imported: its files are closed but for those that it is given, and nothing of
a thread's state can be torn, because a process with threads that may be at work is never forked. Where it can't be done (another system
than Linux, or a process that has such threads), callers start interpreters.

The server dies with the process that made it, and what it forked dies with the server.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

from manyhands.processes import system
from manyhands.processes.event_loop import keep_exit_codes
from manyhands.processes.interpreters import end_process, flush_output, freeze_objects, module_path

MAX_ORDER = 1 << 20
"""Bytes of one order: the environment is in it."""
ANSWER_SECONDS = 20.0
_LOOKS, _LOOK_SECONDS = 20, 0.002
"""How often the threads of this process are counted until one that has ended must be gone."""


_IDLE: list[threading.Thread] = []


def may_be_lost(thread: threading.Thread) -> None:
    """Say of a thread that it holds nothing while it waits for work, and that a fork can do without it."""
    _IDLE.append(thread)


def _is_safe() -> bool:
    """Whether no thread of this process could be in the middle of something. The system counts a thread for an instant after it has
    ended, so where Python knows of no other, it is asked again."""
    for _ in range(_LOOKS):
        others = 1 + sum(thread.is_alive() for thread in _IDLE)
        if system.threads() == others:
            return True
        if threading.active_count() > others or not system.threads():
            return False
        time.sleep(_LOOK_SECONDS)
    return False


class ForkedProcess:
    """A process that the server forked."""

    def __init__(self, pid: int, handle: int, status: socket.socket, patience: float) -> None:
        """``handle``: a descriptor of the process; ``status``: where the server says how it ended, ``patience`` seconds later at most."""
        self.pid = pid
        self._handle = handle
        self._status = status
        self._patience = patience
        self._ended = asyncio.ensure_future(self._end())

    def kill(self) -> None:
        """Send SIGKILL. Raises ProcessLookupError if it has ended."""
        if self._handle < 0:
            raise ProcessLookupError(self.pid)
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    async def wait(self) -> int:
        """The exit code; negative for a signal."""
        return await asyncio.shield(self._ended)

    async def _end(self) -> int:
        await _readable(self._handle)
        try:
            async with asyncio.timeout(self._patience):
                said = await asyncio.get_running_loop().sock_recv(self._status, 64)
        except (OSError, TimeoutError):
            said = b""
        os.close(self._handle)
        self._handle = -1
        self._status.close()
        return int(said) if said else -signal.SIGKILL  # the server was killed, and everything that it forked with it


class ForkServer:
    """Forks processes on request. Made by ``fork_server``."""

    def __init__(self, channel: socket.socket, pid: int, patience: float) -> None:
        self._channel = channel
        self._pid = pid
        self._patience = patience

    async def start(
        self, target: str, name: str, given: int, output: int, variables: Mapping[str, str]
    ) -> ForkedProcess:
        """Have ``target`` (``module:attribute``, a function of one descriptor) called in a new process with a session of its own.

        ``name``: what lists of processes show, at most 15 characters. ``given``: the descriptor that the function gets a copy of;
        ``output``: the descriptor of its standard output and error. ``variables``: what its environment has besides, or instead.
        Raises OSError if the server can't fork or is gone, or the order is too long.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                order = json.dumps(
                    {"target": target, "name": name, "path": module_path(), "variables": dict(variables)}
                )
                socket.send_fds(self._channel, [order.encode()], [given, output, theirs.fileno()])
            ours.setblocking(False)
            async with asyncio.timeout(self._patience):
                pid, handle = await _forked(ours)
        except TimeoutError:
            ours.close()
            self._kill()  # or it might fork later, when another process has been given the same descriptor
            raise OSError("the server of worker processes does not answer") from None
        except BaseException:
            ours.close()
            raise
        return ForkedProcess(pid, handle, ours, self._patience)

    def close(self) -> None:
        """End the server, whatever state it is in, and what is left of its forks."""
        self._channel.close()
        self._kill()
        os.waitpid(self._pid, 0)

    def _kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


async def _forked(status: socket.socket) -> tuple[int, int]:
    """The id of a process that was just forked, and a descriptor of it."""
    await _readable(status.fileno())
    said, handles, *_ = socket.recv_fds(status, 64, 1)
    if not handles:
        raise OSError(int(said), os.strerror(int(said))) if said else OSError("the server of worker processes is gone")
    os.set_inheritable(handles[0], False)
    return int(said), handles[0]


async def _readable(descriptor: int) -> None:
    """Wait until there is something to read, or the process of this descriptor has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def fork_server(imports: Sequence[str] = (), patience: float = ANSWER_SECONDS) -> Iterator[ForkServer | None]:
    """A server for the time of a ``with`` block; None where processes can't be forked safely. Must be entered before an event loop is
    made: what runs there would be forked, too. ``imports``: modules that the server imports for all its forks, while this process goes on;
    they must start no thread. ``patience``: seconds in which the server must answer."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open") or not _is_safe():
        yield None
        return
    keep_exit_codes()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_ORDER)
    flush_output()
    parent, before = os.getpid(), _open_files()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those that there are may be lost
            pid = os.fork()
    except OSError:  # another process can't be started: whoever starts one says so
        ours.close()
        theirs.close()
        yield None
        return
    if not pid:
        _serve_and_exit(theirs, parent, before, imports)
    theirs.close()
    server = ForkServer(ours, pid, patience)
    try:
        yield server
    finally:
        server.close()


# --- The server


def _serve_and_exit(channel: socket.socket, parent: int, before: Mapping[int, str], imports: Sequence[str]) -> NoReturn:
    """``before``: the files that were open before the fork, of which none is kept but the standard ones and ``channel``."""
    try:
        system.die_with_parent()
        if os.getppid() == parent:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            _leave_files(before, {1, 2, channel.fileno()})
            system.name_process("manyhands-forks")
            _import(imports)
            freeze_objects()  # no fork looks at what there is already, which would copy it
            _serve(channel)
    except BaseException:  # noqa: BLE001 - never back into the code of the process that was forked
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)


def _import(modules: Sequence[str]) -> None:
    """Import what every fork will need. What can't be imported is reported by the fork that needs it."""
    gc.disable()  # what is imported is no garbage; each fork enables it again
    for module in modules:
        with suppress(Exception):
            import_module(module)


def _serve(channel: socket.socket) -> None:
    """Fork for each order, until nobody can order any more."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as events:
        events.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is channel:
                    message, files, *_ = socket.recv_fds(channel, MAX_ORDER, 3)
                    if not message:
                        return
                    others = [
                        channel.fileno(),
                        events.fileno(),
                        *running,
                        *(end.fileno() for _, end in running.values()),
                    ]
                    forked = _fork(json.loads(message), files, others)
                    if forked is not None:
                        running[forked[0]] = forked[1:]
                        events.register(forked[0], selectors.EVENT_READ)
                else:
                    events.unregister(key.fd)
                    _say_end(key.fd, *running.pop(key.fd))


def _fork(order: dict[str, Any], files: list[int], others: list[int]) -> tuple[int, int, socket.socket] | None:
    """A descriptor of the new process, its id, and where its end is to be reported; None if there can't be one, which was said.
    ``others``: the files of the server."""
    server = os.getpid()
    given, output, status = files[0], files[1], socket.socket(fileno=files[2])
    try:
        pid = os.fork()
    except OSError as error:
        with status:
            status.send(b"%d" % (error.errno or 0))
        pid = -1
    if pid == 0:
        _become(order, given, output, [*others, status.fileno()], server)
    os.close(given)
    os.close(output)
    if pid < 0:
        return None
    handle = os.pidfd_open(pid)
    with suppress(OSError):  # nobody wants to know
        socket.send_fds(status, [b"%d" % pid], [handle])
    return handle, pid, status


def _say_end(handle: int, pid: int, status: socket.socket) -> None:
    os.close(handle)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with status, suppress(OSError):
        status.send(b"%d" % code)


# --- A fork of the server


def _become(order: dict[str, Any], given: int, output: int, others: list[int], server: int) -> NoReturn:
    """Call what was ordered, and end as an interpreter does: threads first, then what was to be done at exit."""
    code: object = 1
    try:
        system.die_with_parent()
        if os.getppid() != server:
            os._exit(1)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for standard in (1, 2):
            os.dup2(output, standard)
        for file in (output, *others):
            os.close(file)
        atexit._clear()
        os.environ.update(order["variables"])
        sys.path[:] = order["path"].split(os.pathsep)
        random.seed()
        system.name_process(order["name"])
        gc.enable()
        module, _, function = order["target"].partition(":")
        code = getattr(import_module(module), function)(given)
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - as an interpreter says it
        traceback.print_exc()
    finally:
        end_process(code)


def _open_files() -> dict[int, str]:
    """What the descriptors of this process are, by their numbers."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one with which the list was read
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _leave_files(before: Mapping[int, str], kept: set[int]) -> None:
    """Let go of the files that were open before the fork, but for ``kept``.

    Their numbers become those of an empty file: objects that have them may still close them. What libraries opened because of the fork
    stays, as they close it and open it anew at the next fork.
    """
    empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, file in _open_files().items():
        if number == 0 or (before.get(number) == file and number not in kept):
            os.dup2(empty, number, inheritable=number == 0)
    os.close(empty)
