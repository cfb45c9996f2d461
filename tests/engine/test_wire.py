"""What the owner and its workers say to each other arrives as it was said."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ItemError, StorageError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.attempt import Claim, Diverged, Ended, Failed, NeedsFreshAttempt, Stopped
from manyhands.engine.contract import CallReport, Item
from manyhands.engine.executors import wire
from manyhands.engine.journal.records import StepRow

PAYLOAD = {"row": ["a", None, 1.5, {"deep": ["ü"]}]}


def step(usage: Usage = ZERO) -> StepRow:
    return StepRow(7, 2, "call-/0-1", 3, "model", b"\x01\xff", b"request", b"output", usage, 10.25, 11.5)


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[wire.Channel, wire.Channel]]:
    ours, theirs = socket.socketpair()
    here, there = await wire.Channel.over(ours), await wire.Channel.over(theirs)
    try:
        yield here, there
    finally:
        here.close()
        there.close()


@pytest.mark.parametrize(
    "message",
    [
        wire.Execute(1, Claim(Item(5, "row-5", PAYLOAD), 2)),
        wire.Execute(1, Claim(Item(5, "row-5", PAYLOAD), 2, (("", 0, "model", b"\x00", b"out"),), alone=True)),
        wire.Record(9, step()),
        wire.Record(9, step(Usage(calls=1, cost=0.25))),
        wire.Done(3, Ended(Outcome(ItemState.COMPLETED, {"result": PAYLOAD}, ("batch_0.jsonl", "line")))),
        wire.Done(3, Ended(Outcome(ItemState.DISCARDED, reason="no_reasoning", message="said nothing"))),
        wire.Done(3, Ended(Outcome(ItemState.FAILED, {"a": 1}, cause=Cause.TIMEOUT, message="too long"))),
        wire.Done(3, NeedsFreshAttempt("gone")),
        wire.Done(3, Diverged("step /0")),
        wire.Done(3, Stopped()),
        wire.Granted(4, permit=6),
        wire.Release(4, CallReport(Usage(calls=1), rate_limited=True)),
        wire.Release(4, CallReport(remaining=3, remark="slow", again_in=1.5)),
        wire.Acquire(5, "http://127.0.0.1/v1#00", Reserve(1000, 0.5, "a model", 100, 0.25, open=True, within=3)),
        wire.Begin("module:Class", {"options": {}}, {"key": "secret"}, "folder", 7, None),
        wire.Ready(),
        wire.Forget(6),
        wire.Stop(),
    ],
)
async def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    async with channels() as (here, there):
        here.send(message)
        received = await there.receive()
        assert received == message
        assert type(received) is type(message)


_NAMES = st.text(max_size=20)
_TABLES = st.dictionaries(_NAMES, _NAMES, max_size=3)
_SEVERAL = st.lists(_NAMES, max_size=3).map(tuple)
_MANIFESTS = st.dictionaries(_NAMES, st.tuples(st.integers(0), st.binary(max_size=16)), max_size=3)
_OF_NODES = st.one_of(
    st.builds(wire.Furnish, _NAMES, _SEVERAL, _MANIFESTS, _TABLES, _TABLES, _SEVERAL, _NAMES),
    st.builds(wire.Missing, _SEVERAL, _SEVERAL, st.integers(0, 1 << 22), _NAMES),
    st.builds(wire.Content, _NAMES, st.binary(max_size=100), st.booleans(), st.booleans(), st.integers(0, 1 << 64)),
    st.builds(wire.Over, _NAMES, st.none() | st.booleans()),
    st.builds(wire.Stays, _NAMES, _NAMES),
    st.builds(wire.Notice, _NAMES),
    st.builds(wire.Farewell, st.booleans()),
)


@given(st.lists(_OF_NODES, max_size=5), st.data())
def test_what_is_said_of_nodes_arrives_as_it_was_said_in_whatever_pieces(
    messages: list[wire.Message], data: st.DataObject
) -> None:
    sent = b"".join(map(wire.packed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=4)))

    async def arrive() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            there = await wire.Channel.over(theirs)
            ours.setblocking(False)
            for begin, end in pairwise([0, *cuts, len(sent)]):
                await asyncio.get_running_loop().sock_sendall(ours, sent[begin:end])
                await asyncio.sleep(0)
            ours.shutdown(socket.SHUT_WR)
            assert [await there.receive() for _ in messages] == messages
            assert await there.receive() is None
            there.close()

    asyncio.run(arrive())


async def test_no_usage_stays_what_is_not_even_recorded() -> None:
    async with channels() as (here, there):
        here.send(wire.Record(1, step()))
        received = await there.receive()
    assert received.row.usage is ZERO
    assert received.row.columns() == step().columns()


async def test_failures_and_errors_arrive() -> None:
    failure = ItemError(Cause.RATE_LIMIT, "slow down", retry_after=3.0, record={"last": 1})
    async with channels() as (here, there):
        here.send(wire.Done(3, Failed(failure, shared_crash=True)))
        here.send(wire.Done(4, None, StorageError("disk full")))
        here.send(wire.Granted(5, error=StorageError("disk full")))
        first, second, third = [await there.receive() for _ in range(3)]
    assert isinstance(first.result, Failed)
    found = first.result.failure
    assert (found.cause, found.message, found.retry_after, found.record) == (
        Cause.RATE_LIMIT,
        "slow down",
        3.0,
        {"last": 1},
    )
    assert first.result.shared_crash
    assert [type(second.error), str(second.error)] == [StorageError, "disk full"]
    assert [type(third.error), str(third.error)] == [StorageError, "disk full"]


async def test_what_is_sent_at_once_arrives_in_order_whatever_its_size() -> None:
    texts = [str(number) * (200_000 if number % 50 == 0 else 1) for number in range(300)]
    async with channels() as (here, there):
        for text in texts:
            here.send(wire.Unusable(text))
        assert [(await there.receive()).message for _ in texts] == texts


async def test_what_follows_from_the_first_message_does_not_wait_for_the_last() -> None:
    received: list[Any] = []

    async def work(channel: wire.Channel) -> None:
        while len(received) < 1000:
            received.append(await channel.receive())
            channel.send(wire.Ready())

    async with channels() as (here, there):
        for number in range(1000):
            here.send(wire.Granted(number))
        working = asyncio.create_task(work(there))
        await here.receive()
        assert len(received) < 1000
        await working
    assert [message.request for message in received] == list(range(1000))


async def test_messages_may_arrive_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    there = await wire.Channel.over(theirs)
    ours.setblocking(False)
    for byte in wire.packed(wire.Unusable("in pieces")) * 2:
        await asyncio.get_running_loop().sock_sendall(ours, bytes([byte]))
        await asyncio.sleep(0)
    assert [await there.receive() for _ in range(2)] == [wire.Unusable("in pieces")] * 2
    ours.close()
    assert await there.receive() is None
    there.close()


async def test_what_can_not_be_sent_is_refused_at_once_and_harms_nothing_else() -> None:
    async with channels() as (here, there):
        here.send(wire.Granted(1))
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            here.send(wire.Done(2, Ended(Outcome(ItemState.COMPLETED, {"result": lambda: None}))))
        here.send(wire.Granted(3))
        assert [await there.receive(), await there.receive()] == [wire.Granted(1), wire.Granted(3)]


async def test_the_last_words_arrive_before_the_end() -> None:
    async with channels() as (here, there):
        here.send(wire.Unusable("no such file"))
        here.close()
        assert await there.receive() == wire.Unusable("no such file")
        assert await there.receive() is None
        there.send(wire.Stop())  # nobody is there, which is nobody's fault
        assert await there.receive() is None


async def test_waiting_ends_when_the_other_end_goes() -> None:
    async with channels() as (here, there):
        waiting = asyncio.create_task(there.receive())
        await asyncio.sleep(0)
        here.close()
        assert await asyncio.wait_for(waiting, 10) is None
