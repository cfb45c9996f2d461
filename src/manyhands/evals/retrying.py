"""Which failures of tests are tried again, how often, and what time tests have.

What took too long is tried again, and what may pass by itself: an endpoint that is down or limits
the rate, a sandbox that was lost. A command that ends with an error, an answer that can't be read and a grader that breaks would do so
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from types import TracebackType

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.evals.spec import RETRIES, EvalSpec

FINAL = frozenset((Cause.WORKER_ERROR, Cause.INVALID_OUTPUT, Cause.TARGET_ERROR, Cause.GRADER_ERROR))
OF_ENDPOINTS = frozenset((Cause.MODEL_ERROR, Cause.RATE_LIMIT))


def tries(options: EvalSpec, cause: Cause, *, calls_retried: bool = False) -> int | None:
    """How often a test may be performed in all before such a failure ends it; None: as the failure table says. ``calls_retried``: the
    target says itself how often a failed call is tried again, which has been done."""
    if cause in FINAL or (cause in OF_ENDPOINTS and calls_retried):
        return 1
    retries = options.retries
    if cause is Cause.TIMEOUT:
        return 1 + (RETRIES if retries is None else retries)
    return None if retries is None or not FAILURES[cause].retried else 1 + retries


class Time:
    """The time that tests have, over all tries of a session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._used: dict[int, float] = {}

    def is_over(self, item: int) -> bool:
        """Whether a test, by the number of its item, has used up its time."""
        return self._used.get(item, 0.0) >= self._seconds

    def forget(self, item: int) -> None:
        """A test has ended."""
        self._used.pop(item, None)

    def running(self, item: int) -> AbstractAsyncContextManager[None]:
        """What is done for a test. Raises ItemError(TIMEOUT) when its time is over."""
        return _Running(self._seconds, self._used, item)


class _Running:
    """See ``Time.running``. (No generator, because every test comes here: this takes half the time.)"""

    __slots__ = ("_before", "_began", "_item", "_limit", "_seconds", "_used")

    def __init__(self, seconds: float, used: dict[int, float], item: int) -> None:
        self._seconds = seconds
        self._used = used
        self._item = item
        self._before = used.get(item, 0.0)
        self._began = asyncio.get_running_loop().time()
        self._limit = asyncio.timeout(seconds - self._before)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as over:
            error = over
        used = self._before + asyncio.get_running_loop().time() - self._began
        self._used[self._item] = inf if self._limit.expired() else used
        if isinstance(error, TimeoutError):
            raise _ended(self._limit, error, f"took longer than {self._seconds:g} s (--item_timeout)") from None


@asynccontextmanager
async def within(seconds: float | None, message: str) -> AsyncIterator[None]:
    """A time limit; None: none. Raises ItemError(TIMEOUT) with the message."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        raise _ended(limit, error, message) from None


def _ended(limit: asyncio.Timeout, error: TimeoutError, message: str) -> Exception:
    """What a TimeoutError means, which may be of somebody else's making."""
    return ItemError(Cause.TIMEOUT, message) if limit.expired() else error
