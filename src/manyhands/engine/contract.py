"""What a workload sees while it performs an item.

What a workload is to the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Protocol

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, RunError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO, Reserve, Usage


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work. ``number`` counts from 1 in order of planning; ``payload`` is the workload's own JSON."""

    number: int
    key: str
    payload: Json


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step's effect came to: its output (JSON) and what it cost."""

    output: Json
    usage: Usage = ZERO


class Limits(Protocol):
    """The limits that all performers of a run share: one adaptive limiter per key, and the run's budget.

    Every paid call happens between ``acquire`` and ``release``::

        permit = await limits.acquire(key, reserve)   # waits its turn; raises ItemError(OVER_BUDGET)
        try: ...
        finally: limits.release(permit, CallReport(...))
    """

    async def acquire(self, key: str, reserve: Reserve) -> int: ...

    def release(self, permit: int, report: CallReport) -> None: ...


@dataclass(frozen=True, slots=True)
class CallReport:
    """How a limited call went. ``usage`` settles the reserve; ``rate_limited`` (429, 529) cuts the concurrency of the key
    and holds all its calls for ``retry_after`` seconds (None: a growing pause of the limiter's own choosing);
    ``remaining`` and ``reset_after`` (seconds) are the server's ``x-ratelimit-*`` figures where it sends them. ``unknown``: the call was
    made, and what it used can't be told, or only ``usage`` of it; its whole reserve counts as used. ``remark``: a line for the person,
    who is told it once however many calls have it. Of a call that failed, ``said``: why, in one line; ``refused``: it would be refused
    again, whatever else is asked, or with ``by_content`` perhaps only because of what was asked; ``again_in``: seconds until it is made
    again."""

    usage: Usage = ZERO
    rate_limited: bool = False
    failed: bool = False
    retry_after: float | None = None
    remaining: int | None = None
    reset_after: float | None = None
    unknown: bool = False
    remark: str | None = None
    said: str | None = None
    refused: bool = False
    by_content: bool = False
    again_in: float | None = None


class Context(Protocol):
    """An item being performed. The only way to have an effect is ``step``."""

    @property
    def item(self) -> Item: ...

    @property
    def attempt(self) -> int:
        """Counts from 1. A new attempt starts from nothing; an interrupted one goes on where it was."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def workspace(self) -> Path:
        """A folder for this attempt alone. It is made by whoever first uses it, survives a crash, and is removed by the
        engine when the item has ended, unless the item failed, the run keeps workspaces, or a file ``keep`` is in it."""
        ...

    @property
    def replaying(self) -> bool:
        """Whether the next step of this scope is recorded, so that nothing will happen outside."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether this attempt had recorded steps when this performance of it began."""
        ...

    @property
    def place(self) -> str:
        """``scope/seq`` of this scope's next step, as text."""
        ...

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        """Do something once and for all.

        The step's place is this scope and its next number, taken before anything is awaited. If the journal holds the place
        with the same kind and request, the recorded output is returned and ``effect`` is not called; if it holds another
        request, Divergence is raised for the engine to handle (a workload lets it pass). Otherwise ``effect`` runs and its
        output is durable before it is returned. An exception from ``effect`` is not recorded and passes through.

        The request identifies the effect; as all earlier steps of the scope are known to match, it need only hold what
        is new since the previous step. The output returned may be shared: treat it as read-only.
        """
        ...

    def scope(self, name: str) -> Context:
        """A branch with places of its own, for code that runs concurrently with other code of the item. The name must be
        the same on replay, and unique in the item."""
        ...

    def random(self, purpose: str) -> Random:
        """A random source that depends on the run's seed, the item's key and the purpose, and on nothing else."""
        ...

    def seed(self, purpose: str) -> int:
        """The like as a number in 0 … 2**31 - 1."""
        ...

    def new_attempt_needed(self, reason: str) -> Exception:
        """An exception to raise when this attempt can't go on (its world is gone): the engine starts a fresh attempt at once
        and keeps the old one for audit."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run is performed: everything about it that may differ between sessions without changing what comes out.

    ``workers`` processes (or one, this one, with the ``local`` executor) with ``concurrency`` items in flight each, and never more than
    ``most_in_flight`` in all; limits in US dollars, tokens and seconds; ``max_attempts``: how often an item may be performed where the
    failure table retries at all (None: as the table says). ``keep_workspaces``: all attempts' folders stay, ``remove_workspaces``: none
    does when its item has ended; else those of failed items stay. ``claim_first``: it is on disk that an item is being performed
    before anything is done about it, so that its count of performances holds whatever happens. ``tries``: how often an item may be
    performed in all before such a failure ends it, where the workload has rules of its own (None: as the failure table and
    ``max_attempts`` say).
    ``stops``: told of every end of an item; if it gives a reason, the run stops for it. ``counts_failures``: it does so for failures, so
    that each is told at once, also where an endpoint refuses everything (else these stay open until that is known). ``holds``: whether an
    item that could be performed waits for others; it takes no slot then, and is looked at again once ``freed``, which is asked after
    every end, gives its number.
    """

    executor: str = "processes"
    workers: int = 4
    concurrency: int = 1
    most_in_flight: int | None = None
    max_attempts: int | None = None
    item_timeout: float | None = None
    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_seconds: float | None = None
    keep_workspaces: bool = False
    remove_workspaces: bool = False
    claim_first: bool = False
    on_divergence: str = "fresh"
    seed: int = 0
    tries: Callable[[Item, ItemError], int | None] | None = None
    stops: Callable[[Item, Outcome], str | None] | None = None
    counts_failures: bool = False
    holds: Callable[[Item], bool] | None = None
    freed: Callable[[], Sequence[int]] | None = None


WORKLOADS = {
    "trajectories": "manyhands.workloads.trajectories.workload:TrajectoryWorkload",
    "csv_jobs": "manyhands.workloads.csv_jobs.workload:CsvJobsWorkload",
    "evals": "manyhands.workloads.evals.workload:EvalsWorkload",
    "memory": "manyhands.workloads.memory.workload:MemoryWorkload",
    "memory_definitions": "manyhands.workloads.memory.generation:GenerationWorkload",
    "memory_scores": "manyhands.workloads.memory.published.rejudging:ScoresWorkload",
    "steps": "manyhands.testing.steps_workload:StepsWorkload",
}
"""The workloads of this package by name. Others come by the entry point group ``manyhands.workloads``."""


BEHIND_INPUT = 1_000_000_000_000
"""Positions of items that left the input begin here (as in the queries)."""


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """An item to be, as ``plan`` yields it. ``outcome``: already ended elsewhere (an adopted folder), so only to be entered."""

    key: str
    payload: Json
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step as the journal holds it. Times are seconds since 1970 UTC."""

    attempt: int
    scope: str
    seq: int
    kind: str
    request: Json
    output: Json
    started_at: float
    finished_at: float
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinishedItem:
    """An item with its outcome, as the journal holds it."""

    item: Item
    attempt: int
    outcome: Outcome


@dataclass(slots=True)  # not frozen: see Outcome
class ItemRow:
    """An item as the journal holds it. Times are seconds since 1970 UTC."""

    number: int
    key: str
    payload: Json
    state: ItemState
    attempt: int
    performances: int
    failures: int
    reason: str | None
    cause: str | None
    message: str | None
    record: Any
    started_at: float | None
    finished_at: float | None
    position: int

    @property
    def item(self) -> Item:
        return Item(self.number, self.key, self.payload)

    @property
    def left_input(self) -> bool:
        """Whether the input does not name it any more."""
        return self.position >= BEHIND_INPUT

    def finished(self) -> FinishedItem:
        """As an ended item. Raises ValueError if it has not ended."""
        cause = Cause(self.cause) if self.cause else None
        outcome = Outcome(self.state, self.record or {}, None, self.reason, cause, self.message)
        return FinishedItem(self.item, self.attempt, outcome)


class RunReader(Protocol):
    """Reads a run, for exports and reports."""

    @property
    def folder(self) -> Path: ...

    def finished(self, state: str | None = None) -> Iterator[FinishedItem]:
        """All items that ended (in that state), in order of their numbers, streamed."""
        ...

    def steps(self, item_number: int, attempt: int) -> Sequence[RecordedStep]:
        """An attempt's steps in order of recording."""
        ...

    def items(self) -> Iterator[ItemRow]:
        """All items in order of the input, streamed."""
        ...

    def states(self, position: int, limit: int) -> list[tuple[int, str, str | None]]:
        """(position, state, reason) of items behind a position, in order: cheap, for the largest runs. Items that left the input are left
        out."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that is read inside is of one moment, where the journal allows for that."""
        ...

    def streamed(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a named query by position, one at a time."""
        ...

    def counts(self) -> dict[tuple[str, str], int]:
        """How many items are in each state, by reason or cause."""
        ...

    def usage(self) -> Usage:
        """What the run has used since it began."""
        ...

    def working_seconds(self) -> float:
        """How long anyone worked on the run."""
        ...

    def meta(self, name: str, default: Json = None) -> Json:
        """A fact recorded with the run."""
        ...


class Workload(Protocol):
    """One kind of work. One instance lives in the owner process and one in each worker process.

    A workload is made from its spec: a JSON object without secrets, recorded with the run. It may have ``remedies``: for the reasons why
    it discards items, what a person can do about that, as a sentence that names the setting.
    """

    name: str
    spec: dict[str, Any]

    @property
    def execution(self) -> Execution:
        """How to perform the run."""
        ...

    def input_identity(self) -> str | None:
        """Changes when what ``plan`` would yield may have changed; None if the input is gone (the run goes on with what was planned)."""
        ...

    def plan(self) -> Iterable[PlannedItem]:
        """All items in order, streamed. Called at creation and again at each resume; must raise UserError before it yields
        the first item if the input can't be used."""
        ...

    def performing(self, *, replay: bool = False) -> AbstractAsyncContextManager[None]:
        """Entered once in each process that performs items: opens clients, checks keys. ``replay``: nothing will happen outside, so
        nothing need be there."""
        ...

    async def perform(self, context: Context) -> Outcome:
        """Perform one item. Raises ItemError for a failure (the engine applies the failure table); any other exception
        is recorded as ``internal``."""
        ...

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        """A step for people: pairs of a label (``user``, ``assistant``, ``terminal`` …) and text."""
        ...

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        """The same line that ``perform`` gave, written again from the journal."""
        ...

    def export(self, reader: RunReader) -> None:
        """Write the files that exist once per run. Called at the end of every session of the run, however it ended."""
        ...

    def secrets(self) -> dict[str, str]:
        """Secrets that worker processes need (by name), passed to them over a pipe and written nowhere."""
        ...

    def set_secrets(self, secrets: Mapping[str, str]) -> None: ...


class WorkloadFactory(Protocol):
    def __call__(self, spec: dict[str, Any], run_folder: Path) -> Workload: ...


def load_workload(name: str) -> WorkloadFactory:
    """The class of a workload by name.

    Raises RunError if there is none of that name.
    """
    target = WORKLOADS.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        factory: WorkloadFactory = getattr(import_module(module), attribute)
        return factory
    from importlib.metadata import entry_points  # here, because it takes long and is needed so rarely

    for entry in entry_points(group="manyhands.workloads", name=name):
        plugged: WorkloadFactory = entry.load()
        return plugged
    raise RunError(f"no workload is called {name!r}; known: {', '.join(sorted(WORKLOADS))}")
