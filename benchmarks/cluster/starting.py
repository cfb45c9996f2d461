"""A child: workers of a batch are started, until the first item begins.

Arguments: ``settings`` of ``BatchSpec``, with one item at least. Reports the seconds from one event to the next, by the names of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from benchmarks.batch import opened
from benchmarks.children import arguments, report
from manyhands.core.clock import SystemClock
from manyhands.engine.attempt import Claim, Ended
from manyhands.engine.contract import Workload
from manyhands.engine.executors import wire
from manyhands.engine.executors.cluster import ClusterLauncher
from manyhands.engine.executors.workers.executor import WorkerExecutor
from manyhands.engine.journal.records import StepRow
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import SharedLimits
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.making import Opened
from manyhands.runs.registry import workload_target


class Events:
    """What happened when, the first time that it did. Also the journal of the run, which is told when an item's first step began."""

    def __init__(self) -> None:
        self._at = {"": time.time()}

    def note(self, event: str, at: float | None = None) -> None:
        self._at.setdefault(event, time.time() if at is None else at)

    async def record(self, row: StepRow) -> None:
        self.note("begun", row.started_at)

    def seconds(self) -> dict[str, float]:
        """From each event to the next one."""
        times = list(self._at.items())
        return {name: at - before for (_, before), (name, at) in pairwise(times)}


class WatchedLauncher(ClusterLauncher):
    """Says when Ray is connected, has placed an actor, and when a worker has connected and has what it needs."""

    def __init__(self, events: Events, session: Opened[Workload], run_id: str) -> None:
        super().__init__(session.folder, run_id, session.workload, session.workload.execution, print)
        self._events = events

    async def open(self, drain: Callable[[str], None]) -> None:
        await super().open(drain)
        self._events.note("Ray connected")

    async def start(self, near: str) -> Any:
        launched = await super().start(near)
        self._events.note("furnished")
        return launched

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "placed" in message:
            self._events.note("placed")
        super()._heard(message)

    def _admit(self, name: bytes, channel: wire.Channel, address: str) -> None:
        self._events.note("worker connected")
        super()._admit(name, channel, address)


async def started(settings: dict[str, Any]) -> dict[str, float]:
    session = await opened(settings)
    store = Store(session.folder, SystemClock(), print)
    workload, execution = session.workload, session.workload.execution
    target = workload_target(store.reader.meta("workload"))
    begin = wire.Begin(target, workload.spec, {}, str(session.folder.resolve()), 0, None)
    first = store.reader.item("1")
    assert first is not None
    events = Events()
    executor = WorkerExecutor(
        WatchedLauncher(events, session, store.reader.meta("run_id")),
        begin,
        events,
        SharedLimits(),
        workers=execution.workers,
        concurrency=execution.concurrency,
    )
    try:
        await executor.start()
        result = await executor.execute(Claim(first.item, 1))
    finally:
        await executor.close()
        store.close()
    if not isinstance(result, Ended):
        raise RuntimeError(f"the item did not come to its end: {result}")
    return events.seconds()


if __name__ == "__main__":
    report(**run_on_loop(started(arguments()["settings"])))
