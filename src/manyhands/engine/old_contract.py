"""Workloads of others that were written for the contract of version 0.1.0, and what they import from it.

There a workload had ``performing`` and ``perform`` where it has ``opened`` and ``run`` now, derived from nothing, and gave its own rules as
functions in ``Execution``. The modules ``manyhands.engine.workload`` and ``manyhands.engine.context`` of that version lead here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

from manyhands.core.errors import ItemError
from manyhands.core.outcomes import Outcome, OutputLine
from manyhands.engine import contract
from manyhands.engine.contract import CallReport as CallReport
from manyhands.engine.contract import Context as Context
from manyhands.engine.contract import Effect as Effect
from manyhands.engine.contract import FinishedItem as FinishedItem
from manyhands.engine.contract import Item as Item
from manyhands.engine.contract import ItemRow as ItemRow
from manyhands.engine.contract import Limits as Limits
from manyhands.engine.contract import PlannedItem as PlannedItem
from manyhands.engine.contract import RecordedStep as RecordedStep
from manyhands.engine.contract import RunReader as RunReader


@dataclass(frozen=True, slots=True)
class Execution(contract.Execution):
    """How a run is executed, with the rules that are methods of ``Workload`` now."""

    most_in_flight: int | None = None
    """Now ``max_in_flight``."""
    tries: Callable[[Item, ItemError], int | None] | None = None
    """Now ``Workload.max_attempts``."""
    stops: Callable[[Item, Outcome], str | None] | None = None
    """Now ``Workload.stop_reason``."""
    counts_failures: bool = False
    holds: Callable[[Item], bool] | None = None
    """Now ``Workload.must_wait``."""
    freed: Callable[[], Sequence[int]] | None = None


class Workload:
    """What a workload could say that it is; nothing is inherited from it."""


def current(workload: Any) -> contract.Workload:
    """A workload as the engine takes it, whichever of the two contracts it was written for."""
    if isinstance(workload, contract.Workload) or not hasattr(workload, "perform"):
        return cast(contract.Workload, workload)
    return _Adapted(workload)


class _Adapted(contract.Workload):
    """A workload of the former contract."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload
        self._rules: Execution | None = None
        self.name, self.spec = workload.name, workload.spec
        optional = ("remedies", "plans_in_parts")
        vars(self).update({name: getattr(workload, name) for name in optional if hasattr(workload, name)})

    @property
    def execution(self) -> contract.Execution:
        execution: contract.Execution = self._workload.execution
        max_in_flight_then = getattr(execution, "most_in_flight", None)
        return execution if max_in_flight_then is None else replace(execution, max_in_flight=max_in_flight_then)

    def input_identity(self) -> str | None:
        identity: str | None = self._workload.input_identity()
        return identity

    def plan(self) -> Iterable[PlannedItem]:
        items: Iterable[PlannedItem] = self._workload.plan()
        return items

    def opened(self, *, replay: bool = False) -> AbstractAsyncContextManager[None]:
        opened: AbstractAsyncContextManager[None] = self._workload.performing(replay=replay)
        return opened

    async def run(self, context: Context) -> Outcome:
        outcome: Outcome = await self._workload.perform(_AdaptedContext(context))
        return outcome

    def secrets(self) -> Mapping[str, str]:
        secrets: Mapping[str, str] = self._workload.secrets()
        return secrets

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        self._workload.set_secrets(secrets)

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        described: Iterable[tuple[str, str]] = self._workload.describe_step(step)
        return described

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> OutputLine | None:
        line: OutputLine | None = self._workload.render(finished, steps)
        return line

    def export(self, reader: RunReader) -> None:
        self._workload.export(reader)

    @property
    def counts_failures(self) -> bool:
        return self._rules is not None and self._rules.counts_failures

    def begin(self, reader: RunReader) -> None:
        """Its rules are taken once a session: they may count."""
        execution = self._workload.execution
        self._rules = execution if isinstance(execution, Execution) else None

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        return self._rules.tries(item, failure) if self._rules and self._rules.tries else None

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        return self._rules.stops(item, outcome) if self._rules and self._rules.stops else None

    def must_wait(self, item: Item) -> bool:
        return self._rules.holds(item) if self._rules and self._rules.holds else False

    def freed(self) -> Sequence[int]:
        return self._rules.freed() if self._rules and self._rules.freed else ()


class _AdaptedContext:
    """A context with the former name of ``address``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def place(self) -> str:
        return self._context.address

    def scope(self, name: str) -> _AdaptedContext:
        return _AdaptedContext(self._context.scope(name))
