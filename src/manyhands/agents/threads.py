"""Threads for calls that may never come back.

asyncio's own threads are waited for when the program ends, and there is a fixed number of them: a few calls that hang would hold up
everybody. Of these there are as many as there are slow calls at a time, and nobody waits for them. Quick calls follow each other in
one thread, because waking another one costs more than such a call itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

MOST_IDLE = 64
"""Threads that are kept for further calls."""
PATIENCE = 0.005
"""Seconds that a call waits for a thread that is at work, before it gets one of its own."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]
    since: float
    """When it was asked for, on the loop's clock."""

    def perform(self) -> tuple[Any, Exception | None]:
        """What comes of it: a result or an error."""
        try:
            return self.function(*self.arguments), None
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it is the caller's
            return None, tame(raised)

    def end(self, result: Any, error: Exception | None) -> None:
        """On the loop: pass on what came of it."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class FreeThreads:
    """Calls functions, each in a thread that does nothing else meanwhile. For one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._quick: set[_Thread] = set()
        """Threads at work that are not known to be held up by a slow call."""
        self._idle: list[_Thread] = []
        self._news: deque[Callable[[], None]] = deque()
        self._told = False
        """Whether the loop knows that there is news."""
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """What the function returns or raises (RuntimeError in place of SystemExit and the like, which would end the loop). If the wait
        is cancelled, a call that has begun goes on."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = loop.create_future()
        self._waiting.append(_Call(function, arguments, answer, loop.time()))
        if not self._quick:
            self._set_to_work()
        elif self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._look)
        return await answer

    def _set_to_work(self) -> None:
        thread = self._idle.pop() if self._idle else _Thread(self)
        self._quick.add(thread)
        thread.orders.put(True)

    def _look(self) -> None:
        """If calls have waited for too long, the threads at work are slow, and others have to help."""
        self._timer = None
        try:
            oldest = self._waiting[0]
        except IndexError:
            return
        loop = oldest.answer.get_loop()
        left = oldest.since + PATIENCE - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._quick.clear()
        for _ in range(len(self._waiting)):
            self._set_to_work()

    # In the threads

    def next_call(self) -> _Call | None:
        """A call that somebody waits for."""
        with suppress(IndexError):
            while True:
                call = self._waiting.popleft()
                if not call.answer.done():
                    return call
        return None

    def tell(self, loop: asyncio.AbstractEventLoop, news: Callable[[], None]) -> None:
        """Have the loop do something soon. It is woken once for all news since it last listened."""
        self._news.append(news)
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._listen)

    # On the loop again

    def _listen(self) -> None:
        self._told = False
        while self._news:
            self._news.popleft()()

    def has_time(self, thread: _Thread) -> None:
        """A thread found no call. (One that came in the same instant is not overlooked, because it is the loop that decides.)"""
        self._quick.discard(thread)
        if self._waiting:
            self._quick.add(thread)
            thread.orders.put(True)
        elif len(self._idle) < MOST_IDLE:
            self._idle.append(thread)
        else:
            thread.orders.put(False)


class _Thread:
    """Performs calls for as long as there are any, then waits for an order: to go on, or to end."""

    def __init__(self, owner: FreeThreads) -> None:
        self.orders: SimpleQueue[bool] = SimpleQueue()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        Thread(target=self._work, name="manyhands worker", daemon=True).start()

    def _work(self) -> None:
        owner = self._owner
        while self.orders.get():
            while (call := owner.next_call()) is not None:
                owner.tell(self._loop, partial(call.end, *call.perform()))
            owner.tell(self._loop, partial(owner.has_time, self))


def tame(error: BaseException) -> Exception:
    """The error, or another in its place if a task or future can't hold it without harm."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    other = RuntimeError(f"{type(error).__name__}: {error}")
    other.__traceback__ = error.__traceback__
    return other
