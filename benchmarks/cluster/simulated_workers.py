"""A child: many workers of a cluster in one process, without a model, a sandbox or a wait. Each has a connection of its own.

Standard input: a line of JSON with ``port``, ``secret``, ``names``, and ``descriptors`` of sockets in place of all these for workers of
this machine; ``sampled`` (of so many steps, one is timed). Once all have lost their owner, reports ``acknowledged`` (steps by
the half second of the system's monotonic clock in which they were), ``seconds`` (a sample of what that took each, by the same)
and ``sent`` and ``received`` (bytes on the wire of all messages, by the sizes of those that are alike).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from benchmarks.children import report
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.attempt import Ended
from manyhands.engine.contract import CallReport
from manyhands.engine.executors import wire
from manyhands.engine.executors.handshake import reach
from manyhands.engine.journal.records import StepRow
from manyhands.processes.event_loop import run_on_loop

HOST = "127.0.0.1"
KEY = "http://127.0.0.1:1/v1#00"
HALF_SECONDS = 2
MODEL_REQUEST, MODEL_OUTPUT = os.urandom(900), os.urandom(900)
"""What is recorded of a call: new messages and the answer, as large as they are after they were packed."""
TOOL_REQUEST, TOOL_OUTPUT = os.urandom(200), os.urandom(2000)
USED = Usage(calls=1, input_tokens=3000, output_tokens=300)
RESERVED = Reserve(4000, 0.01, "simulated")
LINE = json.dumps({"conversations": [{"from": "gpt", "value": "An answer of ordinary length. " * 100}]})


def steps_of(number: int) -> int:
    """How many steps an item has, calls and tools in turns: three to nine."""
    return 3 + number % 7


class Counts:
    """What all workers of this process have seen."""

    def __init__(self, sampled: int) -> None:
        self.sampled = sampled
        self.acknowledged: Counter[int] = Counter()
        self.seconds: defaultdict[int, list[float]] = defaultdict(list)
        self.sent = self.received = 0


@dataclass(slots=True)
class _Item:
    ticket: int
    number: int
    attempt: int
    seq: int = 0
    asked: float = 0.0


class SimulatedWorker:
    """Says what a worker says whose items need no time."""

    def __init__(self, channel: wire.Channel, counts: Counts) -> None:
        self._channel = channel
        self._counts = counts
        self._items: dict[int, _Item] = {}
        """By the requests that they wait for."""
        self._request = 0
        self._sizes: dict[Any, int] = {}

    async def work(self) -> None:
        if await self._channel.receive() is None:
            return
        self._say(wire.Ready())
        while (message := await self._channel.receive()) is not None:
            self._heard(message)
            match message:
                case wire.Granted(request, permit):
                    item = self._items.pop(request)
                    if permit:
                        self._say(wire.Release(permit, CallReport(USED)))
                        self._record(item, "model", MODEL_REQUEST, MODEL_OUTPUT, USED)
                    else:
                        self._acknowledged(item)
                case wire.Execute(ticket, claim):
                    self._next_step(_Item(ticket, claim.item.number, claim.attempt))
                case wire.Farewell():
                    break
        self._channel.close()

    def _next_step(self, item: _Item) -> None:
        if item.seq == steps_of(item.number):
            record = {"turns": item.seq, "answer": "done"}
            outcome = Outcome(ItemState.COMPLETED, record, ("trajectories.jsonl", LINE))
            self._say(wire.Done(item.ticket, Ended(outcome)))
        elif item.seq % 2:
            self._record(item, "tool", TOOL_REQUEST, TOOL_OUTPUT, ZERO)
        else:
            self._say(wire.Acquire(self._wait(item), KEY, RESERVED))

    def _record(self, item: _Item, kind: str, request: bytes, output: bytes, usage: Usage) -> None:
        item.asked = now = time.monotonic()
        digest = item.number.to_bytes(16)
        row = StepRow(item.number, item.attempt, "", item.seq, kind, digest, request, output, usage, now, now)
        self._say(wire.Record(self._wait(item), row), kind)

    def _acknowledged(self, item: _Item) -> None:
        now = time.monotonic()
        half = int(now * HALF_SECONDS)
        self._counts.acknowledged[half] += 1
        if self._request % self._counts.sampled == 0:
            self._counts.seconds[half].append(now - item.asked)
        item.seq += 1
        self._next_step(item)

    def _wait(self, item: _Item) -> int:
        self._request += 1
        self._items[self._request] = item
        return self._request

    def _say(self, message: wire.Message, kind: str = "") -> None:
        self._counts.sent += self._size(message, kind)
        self._channel.send(message)

    def _heard(self, message: wire.Message) -> None:
        self._counts.received += self._size(message, "")

    def _size(self, message: wire.Message, kind: str) -> int:
        known = self._sizes.get((type(message), kind))
        if known is None:
            known = self._sizes[type(message), kind] = len(wire.packed(message))
        return known


async def worked(given: dict[str, Any], counts: Counts) -> None:
    async def on_node(name: str) -> None:
        channel = await reach(HOST, given["port"], bytes.fromhex(given["secret"]), bytes.fromhex(name))
        await SimulatedWorker(channel, counts).work()

    async def local(descriptor: int) -> None:
        channel = await wire.Channel.over(socket.socket(fileno=descriptor))
        await SimulatedWorker(channel, counts).work()

    await asyncio.gather(*map(on_node, given["names"]), *map(local, given["descriptors"]))


def main() -> None:
    given = json.loads(sys.stdin.readline())
    counts = Counts(given["sampled"])
    gc.disable()  # what it costs the workers is not measured here, and they share the machine with their owner
    run_on_loop(worked(given, counts))
    report(acknowledged=counts.acknowledged, seconds=counts.seconds, sent=counts.sent, received=counts.received)


if __name__ == "__main__":
    main()
