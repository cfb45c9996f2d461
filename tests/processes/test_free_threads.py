"""Threads for calls: few for quick ones, enough for slow ones, and none that anybody has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from manyhands.processes.python_functions import MAX_IDLE, PATIENCE, FreeThreads


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets calls go that hang."""
    event = threading.Event()
    yield event
    event.set()


async def test_quick_calls_follow_each_other_in_few_threads() -> None:
    threads = FreeThreads()
    found = await asyncio.gather(*(threads.call(threading.get_ident) for _ in range(500)))
    assert len(set(found)) <= MAX_IDLE  # a few, but on a busy machine a quick call may be taken for one that hangs
    assert threading.get_ident() not in found


async def test_results_and_errors_go_to_whoever_asked() -> None:
    threads = FreeThreads()

    def half(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number // 2

    found = await asyncio.gather(*(threads.call(half, number) for number in range(100)), return_exceptions=True)
    assert found[::2] == list(range(50))
    assert [error.args for error in found[1::2] if isinstance(error, ValueError)] == [(n,) for n in range(1, 100, 2)]


async def test_slow_calls_are_performed_at_the_same_time() -> None:
    threads, count = FreeThreads(), MAX_IDLE + 40
    for _ in range(2):  # the second time there are threads, but not for all
        meeting = threading.Barrier(count)
        await asyncio.wait_for(asyncio.gather(*(threads.call(meeting.wait, 10) for _ in range(count))), 20)


async def test_calls_that_hang_hold_up_nobody(release: threading.Event) -> None:
    threads = FreeThreads()
    hanging = [asyncio.create_task(threads.call(release.wait, 30)) for _ in range(3)]
    await asyncio.sleep(10 * PATIENCE)
    for number in range(50):
        assert await asyncio.wait_for(threads.call(lambda n=number: n), 20) == number
    assert not any(task.done() for task in hanging)
    release.set()
    assert await asyncio.gather(*hanging) == [True] * 3
    assert await threads.call(lambda: "still there") == "still there"


async def test_a_call_behind_one_that_hangs_gets_a_thread_of_its_own(release: threading.Event) -> None:
    threads = FreeThreads()
    hanging = asyncio.create_task(threads.call(release.wait, 30))
    behind = asyncio.create_task(threads.call(threading.get_ident))  # before anybody can know that the first one hangs
    assert await asyncio.wait_for(behind, 5) != threading.get_ident()
    assert not hanging.done()
    release.set()
    await hanging


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun(release: threading.Event) -> None:
    threads = FreeThreads()
    begun: list[int] = []
    hanging = asyncio.create_task(threads.call(release.wait, 30))
    given_up = asyncio.create_task(threads.call(begun.append, 1))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(5 * PATIENCE)
    assert await threads.call(lambda: 2) == 2
    release.set()
    await hanging
    assert begun == []


def test_a_call_that_ends_after_its_loop_harms_nobody(release: threading.Event) -> None:
    threads, ended = FreeThreads(), threading.Event()

    def late() -> None:
        release.wait(10)
        ended.set()

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.call(late), 0.05)

    asyncio.run(given_up())
    release.set()
    assert ended.wait(10)
