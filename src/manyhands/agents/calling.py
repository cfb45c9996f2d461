"""Calling a person's own Python functions so that they hold up nobody, whatever they do."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from manyhands.agents.threads import FreeThreads, tame

STUCK = 1.0
"""Seconds after which a loop that does not answer is given up."""


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, awaited if need be, or raises (RuntimeError in place of SystemExit and the like).

    One that is not async runs in a thread (``threads``), an async one on an event loop that all of them share, in a thread of its own:
    so one that waits without ``await`` does not stop the program. Who stops waiting leaves it behind: it can't be ended, and does not
    keep this program from ending.
    """
    if _is_async(function):
        return await _awaited(lambda: function(*arguments))
    value = await _free_threads().call(function, *arguments)
    return await _awaited(lambda: value) if inspect.isawaitable(value) else value


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class _LoopAside:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._asked: float | None = None
        """When it was asked to answer, and has not yet."""
        threading.Thread(target=self._loop.run_forever, name="functions", daemon=True).start()

    async def awaited(self, work: Callable[[], Awaitable[Any]]) -> Any:
        future = asyncio.run_coroutine_threadsafe(_tamed(work), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._asked is None:
                self._asked = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            raise

    def _answer(self) -> None:
        self._asked = None

    @property
    def stuck(self) -> bool:
        """Whether a function keeps it from doing anything."""
        return self._asked is not None and time.monotonic() - self._asked > STUCK


async def _tamed(work: Callable[[], Awaitable[Any]]) -> Any:
    task = asyncio.current_task()
    try:
        return await work()
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("it cancelled itself") from error
    except BaseException as error:  # what is no Exception would end the loop
        tamed = tame(error)
        if tamed is error:
            raise
        raise tamed from error


_lock = threading.Lock()
_aside: list[_LoopAside] = []
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, FreeThreads] = WeakKeyDictionary()


async def _awaited(work: Callable[[], Awaitable[Any]]) -> Any:
    with _lock:
        if not _aside or _aside[-1].stuck:
            _aside[:] = [_LoopAside()]
        aside = _aside[-1]
    return await aside.awaited(work)


def _free_threads() -> FreeThreads:
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        _threads[loop] = FreeThreads()
    return _threads[loop]
