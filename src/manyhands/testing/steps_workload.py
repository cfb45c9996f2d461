"""A workload made of nothing but steps, to test and measure the engine by itself.

Every item takes ``steps`` steps; each effect appends one line ``ITEM/STEP`` to a log file, so that a test can count what really
happened outside, however often the process was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.contract import Context, Effect, Execution, FinishedItem, PlannedItem, RecordedStep, Workload


class StepsWorkload(Workload):
    """The fields of ``spec``:

    ``items`` (a number, or a list of keys), ``steps`` per item, ``delay`` of an effect in seconds, ``filler`` (characters in every
    request), ``lines`` (whether items write output), ``batch`` (lines of an output file), ``log`` (file or none), ``execution`` (fields of
    Execution), ``tag`` (part of every request: another tag makes recorded steps diverge);
    and trouble to order: ``failures`` ({item key: [cause of the first failure, of the second, …]}; the cause ``die`` ends the process),
    ``blocks`` ({item key: seconds for which its first effect blocks the process}), ``unusable`` (a message with which no process can
    begin, or ``die``).
    """

    name = "steps"

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._failed: dict[str, int] = {}

    @property
    def execution(self) -> Execution:
        return Execution(**self.spec.get("execution", {}))

    def changed_spec(
        self, spec: Mapping[str, Any], changes: Mapping[str, Any], *, is_executed: bool = False
    ) -> dict[str, Any]:
        named = {"max_in_flight" if name == "max_concurrency" else name: value for name, value in changes.items()}
        return {**spec, "execution": {**spec.get("execution", {}), **named}}

    def input_identity(self) -> str | None:
        return json.dumps([self.spec["items"], self.spec.get("batch", 10)])

    def plan(self) -> Iterable[PlannedItem]:
        items = self.spec["items"]
        keys = (f"item-{number}" for number in range(items)) if isinstance(items, int) else items
        return (PlannedItem(key, {"position": position}) for position, key in enumerate(keys))

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        unusable = self.spec.get("unusable")
        if unusable == "die":
            os._exit(4)
        if unusable is not None:
            raise UserError(unusable)
        yield

    async def run(self, context: Context) -> Outcome:
        total = 0
        for number in range(self.spec.get("steps", 1)):
            request = {
                "number": number,
                "tag": self.spec.get("tag", ""),
                "total": total,
                "filler": self._filler(context),
            }
            total = await context.step("count", request, partial(self._effect, context, number, total))
        return Outcome(ItemState.COMPLETED, {"total": total}, self._line(context.item.key, context.item.payload, total))

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return [("number", str(step.request["number"])), ("total", str(step.output))]

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        if finished.outcome.state is not ItemState.COMPLETED:
            return None
        return self._line(finished.item.key, finished.item.payload, steps[-1].output if steps else 0)

    async def _effect(self, context: Context, number: int, total: int) -> Effect:
        key = context.item.key
        self._log(f"{key}/{number}")
        if number == 0 and (seconds := self.spec.get("blocks", {}).get(key)):
            time.sleep(seconds)  # noqa: ASYNC251 - to block is the point
        if delay := self.spec.get("delay", 0.0):
            await asyncio.sleep(delay)
        self._fail_if_requested(key)
        return Effect(total + number, Usage(calls=1, input_tokens=10, output_tokens=1))

    def _filler(self, context: Context) -> str:
        return f"{context.item.key:{self.spec.get('filler', 0)}}"

    def _fail_if_requested(self, key: str) -> None:
        causes = self.spec.get("failures", {}).get(key, [])
        if causes == ["die"]:
            os._exit(3)
        done = self._failed.get(key, 0)
        self._failed[key] = done + 1
        if done < len(causes):
            raise ItemError(Cause(causes[done]), f"asked to fail with {causes[done]}")

    def _log(self, text: str) -> None:
        if path := self.spec.get("log"):
            with open(path, "a", encoding="utf-8") as handle:
                handle.write(text + "\n")

    def _line(self, key: str, payload: Any, total: int) -> tuple[str, str] | None:
        if not self.spec.get("lines", True):
            return None
        number = payload["position"] // self.spec.get("batch", 10)
        return f"part_{number}.jsonl", json.dumps({"key": key, "total": total})
