"""A child: the owner of a run whose items are executed by simulated workers, each on a connection that it made as one on a node does.

Arguments: ``folder``, ``items``, ``in_flight``, ``workers``, ``processes`` (that hold these workers), ``local`` (their connections are
socket pairs, as on this machine), ``sampled`` (of so many steps, one is timed). Reports what happened while all
slots had an item: ``seconds``, ``cpu`` (seconds of this process, all threads), ``steps`` acknowledged, ``median`` (of what that took, in
seconds); of the whole run ``all_steps``, ``sent`` and ``received`` (bytes on the wire), ``memory`` (the most, in
bytes), ``memory_before`` (before there was a worker), ``journal`` (bytes) and how many items were ``completed``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.children import arguments, peak_memory, report
from benchmarks.cluster.simulated_workers import HALF_SECONDS, HOST
from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Context, Execution, PlannedItem, Workload
from manyhands.engine.executors import wire
from manyhands.engine.executors.handshake import NAME_BYTES, SECRET_BYTES, Gate
from manyhands.engine.executors.workers.executor import WorkerExecutor
from manyhands.engine.executors.workers.launching import Death
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.outputs import OutputFiles
from manyhands.engine.scheduler import Scheduler
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.making import create_run

WORKERS_A_NODE = 10
FULL = 0.95
"""The share of slots with an item from which on all count as busy: an item's end and the next one's beginning are not the same instant."""
LOOK_SECONDS = 0.1
END_SECONDS = 30.0


class SimulatedWork(Workload):
    """Items for simulated workers."""

    name = "simulated"

    def __init__(self, items: int, in_flight: int, workers: int) -> None:
        self.spec: dict[str, Any] = {}
        self._items = items
        self._execution = Execution(
            "ray", workers, concurrency=-(-in_flight // workers), max_in_flight=in_flight, calls_wanted=in_flight
        )

    @property
    def execution(self) -> Execution:
        return self._execution

    def input_identity(self) -> str:
        return str(self._items)

    def plan(self) -> Iterator[PlannedItem]:
        task = "A task of ordinary length, which says what is to be done and how. " * 5
        return (PlannedItem(f"item-{number}", {"prompt": task, "number": number}) for number in range(self._items))

    async def run(self, context: Context) -> Outcome:
        raise NotImplementedError("its items are executed by simulated workers")


class SimulatedLauncher:
    """Starts processes with simulated workers, and gives these out as they connect."""

    places = True

    def __init__(self, workers: int, processes: int, *, local: bool, sampled: int) -> None:
        self._local = local
        self._sampled = sampled
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._gate = Gate(self._secret, self._admit)
        self._names = [secrets.token_hex(NAME_BYTES) for _ in range(workers)]
        self._parts = [self._names[number::processes] for number in range(processes)]
        self._arrived: asyncio.Queue[SimulatedOne] = asyncio.Queue()
        self._children: list[asyncio.subprocess.Process] = []
        self.counts: list[dict[str, Any]] = []
        """What the processes reported."""

    async def open(self, drain: Callable[[str], None]) -> None:
        given = {"port": await self._gate.open(HOST), "secret": self._secret.hex(), "sampled": self._sampled}
        for names in self._parts:
            if self._local:
                await self._with_descriptors({**given, "names": []}, len(names))
            else:
                await self._start_child({**given, "names": names, "descriptors": []}, [])

    async def _with_descriptors(self, given: dict[str, Any], count: int) -> None:
        pairs = [socket.socketpair() for _ in range(count)]
        descriptors = [theirs.fileno() for _, theirs in pairs]
        await self._start_child({**given, "descriptors": descriptors}, descriptors)
        for ours, theirs in pairs:
            theirs.close()
            self._arrived.put_nowait(SimulatedOne(await wire.Channel.over(ours), "local", ""))

    async def _start_child(self, given: dict[str, Any], descriptors: list[int]) -> None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.cluster.simulated_workers"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=descriptors,
        )
        self._children.append(child)
        assert child.stdin is not None
        child.stdin.write(json.dumps(given).encode() + b"\n")

    async def start(self, near: str) -> SimulatedOne:
        return await self._arrived.get()

    async def close(self) -> None:
        await self._gate.close()
        async with asyncio.timeout(END_SECONDS):
            said = await asyncio.gather(*(child.communicate() for child in self._children))
        self.counts = [json.loads(output) for output, _ in said]

    def _admit(self, name: bytes, channel: wire.Channel, address: str) -> None:
        number = self._names.index(name.hex())
        self._arrived.put_nowait(SimulatedOne(channel, name.hex(), f"node-{number // WORKERS_A_NODE}"))


@dataclass(slots=True)
class SimulatedOne:
    """A simulated worker, as its owner holds it."""

    channel: wire.Channel
    name: str
    node: str
    address: str = HOST
    attempts: frozenset[str] = frozenset()
    may_leave = ""

    def take(self, message: object) -> None:
        return

    def kill(self) -> None:
        self.channel.close()

    async def ended(self) -> Death:
        return Death("closed")


@dataclass(slots=True)
class Busy:
    """While all slots had an item: from when to when by the monotonic clock, and seconds of CPU meanwhile."""

    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0

    async def watch(self, engine: Scheduler, in_flight: int) -> None:
        """Look, for as long as the run takes."""
        cpu = 0.0
        while True:
            if engine.in_flight >= FULL * in_flight:
                now = time.monotonic()
                if not self.began:
                    self.began, cpu = now, time.process_time()
                self.ended, self.cpu = now, time.process_time() - cpu
            await asyncio.sleep(LOOK_SECONDS)

    def halves(self) -> range:
        """The whole half seconds of it."""
        return range(int(self.began * HALF_SECONDS) + 1, int(self.ended * HALF_SECONDS))


async def owned(given: dict[str, Any]) -> dict[str, Any]:
    folder, clock, workers = Path(given["folder"]), SystemClock(), given["workers"]
    workload = SimulatedWork(given["items"], given["in_flight"], workers)
    execution = workload.execution
    create_run(folder, workload.name, workload, version="", notice=print)
    store = Store(folder, clock, print)
    store.begin()
    limits = SharedLimits(clock, wanted=execution.calls_wanted)
    launcher = SimulatedLauncher(workers, given["processes"], local=given["local"], sampled=given["sampled"])
    busy = Busy()
    executor = WorkerExecutor(
        launcher,
        wire.Begin("", {}, {}, str(folder), 0, None),
        store,
        limits,
        workers=execution.workers,
        concurrency=execution.concurrency,
        items=given["items"],
        max_in_flight=execution.max_in_flight,
    )
    outputs = OutputFiles(store, clock, print)
    engine = Scheduler(store, executor, outputs, clock, workload, limits)
    memory_before = peak_memory()
    await executor.start()
    watching = asyncio.create_task(busy.watch(engine, given["in_flight"]))
    ending = await engine.run()
    watching.cancel()
    await executor.close()
    await outputs.sync()
    outputs.close()
    completed = sum(count for (state, _), count in store.reader.counts().items() if state == "completed")
    await store.end("finished")
    store.close()
    if ending.error is not None:
        raise ending.error
    found = {"completed": completed, "memory": peak_memory(), "memory_before": memory_before}
    return {**found, "journal": (folder / JOURNAL).stat().st_size, **figures(launcher.counts, busy)}


def figures(counts: list[dict[str, Any]], busy: Busy) -> dict[str, Any]:
    """What the workers saw, of the time in which all slots were busy and of the whole."""
    halves = [str(half) for half in busy.halves()]
    return {
        "seconds": len(halves) / HALF_SECONDS,
        "cpu": busy.cpu * len(halves) / HALF_SECONDS / (busy.ended - busy.began or 1),
        "steps": sum(each["acknowledged"].get(half, 0) for each in counts for half in halves),
        "median": median(
            [taken for each in counts for half in halves for taken in each["seconds"].get(half, ())] or [0.0]
        ),
        "all_steps": _total(sum(each["acknowledged"].values()) for each in counts),
        "sent": _total(each["received"] for each in counts),
        "received": _total(each["sent"] for each in counts),
    }


def _total(numbers: Iterable[int]) -> int:
    return sum(numbers)


if __name__ == "__main__":
    report(**run_on_loop(owned(arguments())))
