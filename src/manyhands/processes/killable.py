"""Calls that may take without end, made in a process that is killed at their limit.

What a person's pattern or schema makes of a model's text can take exponential time. A thread can't be ended, and holds up all others while
it works in Python, so such calls are made in helper processes: started when first needed, used again, and gone by themselves when idle or
when this process is. They know nothing of this process but the call's arguments.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.interpreters import PYTHONPATH, own_module_path, python_command

_Value = TypeVar("_Value")

_MAX_HELPERS = 4
_START_SECONDS = 60.0
_IDLE_SECONDS = 300.0
_GRACE = 30.0
"""Seconds beyond its limit after which a helper that did not end by itself is killed. Imports, which come first, are not in the limit."""
_MAX_MEMORY = 4 << 30
"""Bytes of address space of a helper."""
HELPER_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME")
"""What a helper has of this process's environment: no keys."""


async def killable(function: Callable[..., _Value], *arguments: Any, seconds: float) -> _Value:
    """What a module's function gives for the arguments. All of them, and what it gives or raises, must be what pickle takes.

    Raises TimeoutError if it takes longer than ``seconds`` or too much memory (the wait for a free helper does not count), and
    ItemError(SANDBOX_LOST) if no process can be started.
    """
    call = (function, arguments, seconds)
    good, value = await asyncio.wrap_future(_threads().submit(_in_helper, pickle.dumps(call), seconds))
    if not good:
        raise value
    return value  # type: ignore[no-any-return]


# --- This side


class _Helper:
    """A helper process, used by one thread."""

    def __init__(self) -> None:
        environ = {name: os.environ[name] for name in HELPER_ENVIRONMENT if name in os.environ}
        try:
            self._process = subprocess.Popen(
                python_command(__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**environ, PYTHONPATH: own_module_path(os.environ)},
                start_new_session=True,
            )
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't start a helper process: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: BinaryIO = self._process.stdin  # type: ignore[assignment]
        self._stdout: BinaryIO = self._process.stdout  # type: ignore[assignment]
        self._answer(_START_SECONDS)

    def call(self, order: bytes, seconds: float) -> tuple[bool, Any]:
        """Raises TimeoutError, and EOFError or OSError from a helper that is gone."""
        self._stdin.write(len(order).to_bytes(8) + order)
        self._stdin.flush()
        return pickle.loads(self._answer(seconds + _GRACE))  # type: ignore[no-any-return]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            try:
                stream.close()
            except OSError:  # what could not be written to one that is dead
                pass

    def ended_at_limit(self) -> bool:
        """Once it is killed."""
        return self._process.returncode == -signal.SIGALRM

    def _answer(self, seconds: float) -> bytes:
        if not select.select([self._stdout], [], [], seconds)[0]:
            raise TimeoutError
        return _read(self._stdout)


_local = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}
_helpers: set[_Helper] = set()


def _threads() -> ThreadPoolExecutor:
    """The threads that wait for helpers, one each. A process that was forked has its own."""
    pool = _pools.get(os.getpid())
    if pool is None:
        _helpers.clear()
        _pools.clear()
        pool = _pools[os.getpid()] = ThreadPoolExecutor(_MAX_HELPERS, "killable")
    return pool


def _in_helper(order: bytes, seconds: float) -> tuple[bool, Any]:
    for fresh in (False, True):
        helper = _helper(fresh)
        try:
            return helper.call(order, seconds)
        except (EOFError, OSError) as error:
            _forget(helper)
            # One that was idle for long has ended. One that was just started ends by its limit, or for want of memory.
            if fresh or helper.ended_at_limit() or isinstance(error, TimeoutError):
                break
    raise TimeoutError(f"not done within {seconds:g} s")


def _helper(fresh: bool) -> _Helper:
    helper: _Helper | None = getattr(_local, "helper", None)
    if helper is None or fresh:
        helper = _local.helper = _Helper()
        _helpers.add(helper)
    return helper


def _forget(helper: _Helper) -> None:
    _local.helper = None
    _helpers.discard(helper)
    helper.kill()


@atexit.register
def _end() -> None:
    if os.getpid() in _pools:
        for helper in list(_helpers):
            helper.kill()


# --- The helper's side


def _read(stream: BinaryIO) -> bytes:
    size = stream.read(8)
    data = stream.read(int.from_bytes(size)) if len(size) == 8 else b""
    if len(size) < 8 or len(data) < int.from_bytes(size):
        raise EOFError
    return data


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(len(data).to_bytes(8) + data)
    stream.flush()


def _serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Answer one call after another, until none comes for long. The alarm's default action ends this process, whatever it is at."""
    _write(answers, b"")
    while select.select([orders], [], [], _IDLE_SECONDS)[0]:
        function, arguments, seconds = pickle.loads(_read(orders))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = _answered(function, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answers, answer)


def _answered(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((True, function(*arguments)))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to handle, in its process
        return pickle.dumps((False, error))


def _limit_memory() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    max_memory = _MAX_MEMORY if hard == resource.RLIM_INFINITY else min(_MAX_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, hard))


if __name__ == "__main__":
    _limit_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may come between the answers
    try:
        _serve(sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError):
        pass
