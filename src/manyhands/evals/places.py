"""How many tests are in work at once: for the run, for each eval file, and for each target, all of which hold beside each other.

A test takes the place at its target first and gives it back with the answer; its places in the file and in the run it keeps until it is
graded. So nobody who waits for a busy target keeps others from an idle one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from manyhands.evals.prepared import PreparedEval
from manyhands.evals.targets import Target

FOR_COMMANDS = 3
FOR_MODELS = 16
"""Tests that a target answers at once where nobody says, by what they wait for."""
FOR_BATCHES = 1000
"""Tests that wait at once for the records of commands that answer all of them."""
MOST_SLOTS = 10_000


class Places:
    """The places of one session."""

    def __init__(self, prepared: PreparedEval) -> None:
        self._prepared = prepared
        workers = prepared.options.workers
        self._run = None if workers is None else asyncio.Semaphore(workers)
        self._files = [None if file.workers is None else asyncio.Semaphore(file.workers) for file in prepared.files]
        self._targets: dict[tuple[str, str], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def at_target(self, file: int, target: Target) -> AsyncIterator[None]:
        """A place at a target, which is the same one for all files that name it."""
        most = most_at(self._prepared, file, target)
        if most is None:
            yield
            return
        key = (str(target.place), target.name)
        async with self._targets.setdefault(key, asyncio.Semaphore(most)):
            yield

    def in_work(self, file: int) -> AbstractAsyncContextManager[None] | None:
        """A place among the tests of a file, and of the run; None where nobody has to wait for one."""
        of_file = self._files[file]
        if of_file is None and self._run is None:
            return None
        return _all_of([each for each in (of_file, self._run) if each is not None])


@asynccontextmanager
async def _all_of(places: Sequence[asyncio.Semaphore]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for semaphore in places:
            await stack.enter_async_context(semaphore)
        yield


def most_at(prepared: PreparedEval, file: int, target: Target) -> int | None:
    """How many tests a target answers at once; None if only the file's or the run's number counts."""
    regraded = prepared.options.regrade is not None
    if target.workers is not None and not regraded:
        return target.workers
    if prepared.options.workers is not None or prepared.files[file].workers is not None:
        return None
    return FOR_COMMANDS if target.kind in COMMANDS and not regraded else FOR_MODELS


def slots(prepared: PreparedEval) -> int:
    """How many tests are claimed at once, so that all places can be taken: also where tests wait for their turn."""
    options = prepared.options
    total = 0
    for index, file in enumerate(prepared.files):
        for target in file.targets:
            if answers_all(target) and options.regrade is None:
                total += FOR_BATCHES
            else:
                said = (most_at(prepared, index, target), file.workers, options.workers)
                total += min(number for number in said if number is not None) * file.in_turn
    return max(1, min(total, MOST_SLOTS))


def answers_all(target: Target) -> bool:
    """Whether a target's answers come from one file, for all tests."""
    return target.batching or target.kind == "replay"


COMMANDS = frozenset(("cli", "claude", "codex", "copilot", "gemini-cli", "pi"))
"""Kinds of targets that start a program for each test."""
