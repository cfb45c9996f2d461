"""Permits that cross the border between worker and owner are never lost, whenever a wait is given up."""

from __future__ import annotations

import asyncio
import socket

import pytest

from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import GIVEN_BACK, CallReport
from manyhands.engine.executors import wire
from manyhands.engine.executors.worker import Owner


class Sent:
    """A channel that keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def send(self, message: object) -> None:
        self.messages.append(message)

    def of(self, kind: type) -> list[object]:
        return [message for message in self.messages if isinstance(message, kind)]


async def asked(owner: Owner) -> asyncio.Task[int]:
    task = asyncio.create_task(owner.acquire("key", Reserve()))
    await asyncio.sleep(0)
    return task


async def test_a_wait_that_is_given_up_is_told_to_the_owner() -> None:
    sent = Sent()
    owner = Owner(sent)  # type: ignore[arg-type]
    task = await asked(owner)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sent.of(wire.Forget) == [wire.Forget(1)]
    owner.granted(wire.Granted(1, permit=7))
    assert sent.of(wire.Release) == [wire.Release(7, GIVEN_BACK)]


async def test_a_permit_that_arrives_in_the_turn_of_the_cancellation_is_given_back() -> None:
    sent = Sent()
    owner = Owner(sent)  # type: ignore[arg-type]
    task = await asked(owner)
    owner.granted(wire.Granted(1, permit=7))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert sent.of(wire.Release) == [wire.Release(7, GIVEN_BACK)]


async def test_an_error_of_the_owner_is_raised_where_the_request_was_made() -> None:
    owner = Owner(Sent())  # type: ignore[arg-type]
    task = await asked(owner)
    owner.granted(wire.Granted(1, error=ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        await task


async def test_messages_survive_the_channel_whatever_their_size() -> None:
    ours, theirs = socket.socketpair()
    here, there = await wire.Channel.over(ours), await wire.Channel.over(theirs)
    messages = [wire.Ready(), wire.Release(3, CallReport(Usage(calls=1))), wire.Unusable("x" * 5_000_000)]
    for message in messages:
        here.send(message)
    assert [await there.receive() for _ in messages] == messages
    here.close()
    assert await there.receive() is None
    there.close()
