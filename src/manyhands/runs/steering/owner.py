"""What the process that executes a run does when it is asked to change something, and what is done where no process executes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import ManyhandsError, RunError
from manyhands.core.redaction import describe
from manyhands.engine.contract import Workload
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.scheduler import Scheduler
from manyhands.runs.folders import load_recorded
from manyhands.runs.progress import Notice
from manyhands.runs.steering.changes import BUDGET, Change, RunChanges, order_text
from manyhands.runs.steering.control import ENDING, Message

SET, RETRY, CANCEL = "set", "retry", "cancel"
DONE = {RETRY: "retried", CANCEL: "cancelled"}
_FLAGS = {SET: "", RETRY: "fresh", CANCEL: "firm"}


@dataclass(frozen=True, slots=True)
class _Order:
    """An order, as it was understood."""

    command: str
    given_by: str
    changes: RunChanges | None = None
    """Of ``set``."""
    numbers: Sequence[int] = ()
    """Of items."""
    thorough: bool = False
    """``fresh`` of ``retry``, ``firm`` of ``cancel``."""
    select: str = ""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> _Order:
        """Raises RunError for a message that another version may understand, UserError for settings that can't be."""
        command, given_by = str(message.get("command")), str(message.get("given_by"))
        if command not in _FLAGS:
            raise RunError(f"unknown request {command!r}")
        try:
            if command == SET:
                return cls(command, given_by, RunChanges.make(message["changes"], lambda name: f"--{name}"))
            numbers, flag = [int(number) for number in message["numbers"]], bool(message[_FLAGS[command]])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"this version does not understand the order ({error!r})") from error
        return cls(command, given_by, None, numbers, flag, str(message.get("select", "")))

    @property
    def why(self) -> str:
        """Why its items are cancelled, or executed again."""
        return f"{DONE[self.command]} by {self.given_by}"


class Steering:
    """Carries out orders while items are executed, one after another."""

    def __init__(
        self, store: Store, workload: Workload, engine: Scheduler, limits: SharedLimits, notice: Notice
    ) -> None:
        self._store = store
        self._workload = workload
        self._engine = engine
        self._limits = limits
        self._notice = notice
        self._lock = asyncio.Lock()

    async def answer(self, message: Message) -> Message:
        """Carry an order out: what was done, or ``error``; with ``later`` if it may be possible in a moment."""
        async with self._lock:
            if self._engine.over:
                return {"error": ENDING, "later": True}
            try:
                order = _Order.of(message)
            except ManyhandsError as error:
                return {"error": str(error)}
            try:
                details = await self._carried_out(order)
            except ManyhandsError as error:
                return {"error": str(error), "later": self._engine.over}
            except Exception as error:  # noqa: BLE001 - whoever gave the order must hear of it, and not give it again
                self._notice(problem := f"{order.command}: broke while it was carried out: {describe(error)}")
                return {"error": problem}
            if text := order_text(order.command, details):
                self._store.note_order(order.given_by, order.command, details)
                await self._store.writer.committed()
                self._notice(f"{text} (by {order.given_by})")
            return {"ok": True, **details}

    async def _carried_out(self, order: _Order) -> dict[str, Any]:
        if order.changes is not None:
            return {"changes": self._set(order.changes)}
        if order.command == RETRY:
            reopened = await self._engine.reopen(order.numbers, order.why, fresh=order.thorough)
            self._workload.reopened(self._store.reader, reopened)
            return {"items": len(reopened), "select": order.select}
        ended, in_flight = await self._engine.cancel(order.numbers, order.why, firm=order.thorough)
        return {"items": ended + in_flight, "in_flight": in_flight, "select": order.select}

    def _set(self, changes: RunChanges) -> list[Change]:
        values = changes.recorded_changes()
        spec = self._store.reader.meta("spec")
        if values:  # what it does not heed is refused before anything is changed
            self._store.note_meta("spec", self._workload.changed_spec(spec, values, is_executed=True))
        engine, budget = self._engine, self._limits.budget
        made: list[Change] = []
        if (wanted := values.get("max_concurrency")) is not None:
            before, slots = _concurrency(self._workload, spec, engine.max_slots), self._workload.resize(wanted)
            engine.resize(slots)
            self._limits.want(wanted)
            made.append({"name": "max_concurrency", "before": before, "now": min(wanted, slots)})
        bounds = {name: value for name, value in values.items() if name in BUDGET}
        made += [{"name": name, "before": getattr(budget, name), "now": value} for name, value in bounds.items()]
        if bounds:
            self._limits.change_budget(**bounds)
        if changes.pause and not engine.paused:
            engine.pause()
            made.append({"name": "paused", "before": None, "now": None})
        if changes.go_on and engine.paused:
            engine.go_on()
            made.append({"name": "gone on", "before": None, "now": None})
        engine.check_limits()
        return made


def carry_out(store: Store, message: Mapping[str, Any]) -> Message:
    """Carry an order out where no process executes the run. Raises RunError, UserError, StorageError."""
    order = _Order.of(message)
    with store.together():
        details = _changed(store, order)
        store.add_order(order.given_by, order.command, details)
    return {"ok": True, **details}


def _changed(store: Store, order: _Order) -> dict[str, Any]:
    if (changes := order.changes) is not None:
        if changes.pause or changes.go_on:
            what = "pause" if changes.pause else "go on with"
            raise RunError(f"{store.folder}: no process executes the run, so that there is nothing to {what}")
        values, workload = changes.recorded_changes(), load_recorded(store.reader)
        execution, spec = workload.execution, store.reader.meta("spec")
        store.set_meta(spec=workload.changed_spec(spec, values))
        present = {name: getattr(execution, name) for name in BUDGET}
        slots = execution.max_in_flight or execution.workers * execution.concurrency
        present["max_concurrency"] = _concurrency(workload, spec, slots)
        return {"changes": [{"name": name, "before": present[name], "now": now} for name, now in values.items()]}
    if order.command == RETRY:
        items = len(store.reopen_items(order.numbers, order.why, fresh=order.thorough))
    else:
        items = store.cancel_items(order.numbers, order.why)
    return {"items": items, "select": order.select}


def _concurrency(workload: Workload, spec: Mapping[str, Any], slots: int) -> int:
    """The maximum of items at once as a person gave it: the engine may need more ``slots`` for that."""
    given: int | None = (spec.get("options") or {}).get(workload.concurrency_setting)
    return min(given or slots, slots)
