"""What the process that executes a run does when it is asked to change something, and what is done where no process executes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from manyhands.core.errors import ManyhandsError, RunError
from manyhands.engine.contract import Workload
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.scheduler import Scheduler
from manyhands.runs.folders import load_recorded
from manyhands.runs.progress import Notice
from manyhands.runs.steering.changes import BUDGET, Change, RunChanges, order_text
from manyhands.runs.steering.control import ENDING, Message

SET, RETRY, CANCEL = "set", "retry", "cancel"


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
                details = await self._carried_out(message)
            except ManyhandsError as error:
                return {"error": str(error), "later": self._engine.over}
            except (KeyError, TypeError) as error:
                return {"error": f"this version does not understand the order ({error!r})"}
            command, given_by = str(message.get("command")), str(message.get("given_by"))
            if text := order_text(command, details):
                self._store.note_order(given_by, command, details)
                await self._store.writer.committed()
                self._notice(f"{text} (by {given_by})")
            return {"ok": True, **details}

    async def _carried_out(self, message: Message) -> dict[str, Any]:
        match message.get("command"):
            case "set":
                return {"changes": self._set(RunChanges.make(message["changes"], lambda name: f"--{name}"))}
            case "retry":
                numbers, why = message["numbers"], f"retried by {message.get('given_by')}"
                await self._engine.reopen(numbers, why, fresh=message["fresh"])
                self._workload.reopened(self._store.reader, numbers)
            case "cancel":
                numbers, why = message["numbers"], f"cancelled by {message.get('given_by')}"
                ended, in_flight = await self._engine.cancel(numbers, why, at_once=message["firm"])
                return {"items": ended + in_flight, "in_flight": in_flight, "select": message.get("select", "")}
            case other:
                raise RunError(f"unknown request {other!r}")
        return {"items": len(numbers), "select": message.get("select", "")}

    def _set(self, changes: RunChanges) -> list[Change]:
        values = changes.recorded_changes()
        if values:  # what it does not heed is refused before anything is changed
            spec = self._workload.changed_spec(self._store.reader.meta("spec"), values, is_executed=True)
            self._store.note_meta("spec", spec)
        engine, budget = self._engine, self._limits.budget
        made: list[Change] = []
        if (wanted := values.get("max_concurrency")) is not None:
            before, slots = engine.max_slots, self._workload.resize(wanted)
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
    command, given_by = str(message["command"]), str(message["given_by"])
    details: dict[str, Any]
    if command == SET:
        changes = RunChanges.make(message["changes"], lambda name: f"--{name}")
        if changes.pause or changes.go_on:
            what = "pause" if changes.pause else "go on with"
            raise RunError(f"{store.folder}: no process executes the run, so that there is nothing to {what}")
        values, workload = changes.recorded_changes(), load_recorded(store.reader)
        execution, spec = workload.execution, workload.changed_spec(store.reader.meta("spec"), values)
        store.set_meta(spec=spec)
        present = {name: getattr(execution, name) for name in BUDGET}
        present["max_concurrency"] = execution.max_in_flight or execution.workers * execution.concurrency
        details = {"changes": [{"name": name, "before": present[name], "now": now} for name, now in values.items()]}
    else:
        numbers = cast(list[int], message["numbers"])
        if command == RETRY:
            store.reopen_items(numbers, f"retried by {given_by}", fresh=message["fresh"])
        else:
            store.cancel_items(numbers, f"cancelled by {given_by}")
        details = {"items": len(numbers), "select": message.get("select", "")}
    store.add_order(given_by, command, details)
    return {"ok": True, **details}
