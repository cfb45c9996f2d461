"""What the engine and a workload promise each other: items, steps and their context, and what a workload brings."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from asyncio import Timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome, OutputLine
from manyhands.core.usage import ZERO, Reserve, Usage


@dataclass(slots=True)  # not frozen: see Outcome
class Item:
    """One unit of work."""

    number: int
    """Counts from 1 in order of planning."""
    key: str
    """Its identity in the run: the same in every session."""
    payload: Json
    """The workload's own."""


@dataclass(slots=True)  # not frozen: see Outcome
class Effect:
    """What a step's effect came to."""

    output: Json
    usage: Usage = ZERO
    """What it cost; counts for the run's bill and budget."""
    account: str = ""
    """What of the run that was used for, such as a tool by its name: summed up for each, besides."""


class Limits(Protocol):
    """The limits that all attempts of a run share: one adaptive limiter per key, and the run's budget.

    Every paid call happens between ``acquire`` and ``release``::

        permit = await limits.acquire(key, reserve)
        try: ...
        finally: limits.release(permit, CallReport(...))
    """

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        """Wait for a call's turn, with its worst case reserved; the permit is for ``release``. ``key``: the endpoint and key that it is
        made with. Raises ItemError(OVER_BUDGET) for what the budget will never allow, Interrupted if the run is stopping (neither for an
        ``OwnLimit``)."""
        ...

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        """As ``acquire``, where several keys will do: the permit, and the key that the call is to be made with."""
        ...

    def release(self, permit: int, report: CallReport) -> None:
        """End a call, and say how it went. Once for each permit."""
        ...


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Outcome
class OneOf:
    """Keys of which a call may be made with any: replicas of one endpoint, several API keys, or both. Not to be changed."""

    keys: tuple[str, ...]
    avoid: tuple[str, ...] = ()
    """Those that this very call failed with, which are used only if there is no other."""
    last: str | None = None
    """The one to go on with while that is healthy: what the conversation used last, unless the call says otherwise. A context's limits fill
    it in."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Outcome
class OwnLimit:
    """A limit of the workload's own (``Workload.own_limit``), in place of a key: a permit is for one of so many that do something at once
    in the whole run, wherever it is executed. It bounds no call, so it is acquired with ``NOTHING`` and released as ``GIVEN_BACK``."""

    name: str

    @asynccontextmanager
    async def held(self, limits: Limits) -> AsyncIterator[None]:
        """Wait for a permit, and hold it."""
        permit = await limits.acquire(self, NOTHING)
        try:
            yield
        finally:
            limits.release(permit, GIVEN_BACK)


NOTHING = Reserve()
"""What is reserved for an ``OwnLimit``."""


@dataclass(slots=True)  # not frozen: see Outcome
class CallReport:
    """How a limited call went. Not to be changed."""

    usage: Usage = ZERO
    """What it used; settles its reserve."""
    rate_limited: bool = False
    """It was refused for its rate (429, 529): cuts the concurrency of its key and holds all calls of the key."""
    failed: bool = False
    retry_after: float | None = None
    """Seconds for which a rate limit holds the key (None: a growing pause of the limiter's own choosing)."""
    remaining: int | None = None
    """Calls that the server still allows, by its ``x-ratelimit-*`` headers, where it sends them."""
    reset_after: float | None = None
    """Seconds until the server allows more calls, by the same headers."""
    unknown: bool = False
    """The call was made, and what it used is not known, or only ``usage`` of it: its whole reserve counts as used."""
    remark: str | None = None
    """For the person: a line, or several, each reported once however many calls have it."""
    said: str | None = None
    """Of a call that failed: why, in one line."""
    refused: bool = False
    """It would be refused again, whatever the request."""
    by_content: bool = False
    """Of a call that was refused: perhaps only because of its content."""
    again_in: float | None = None
    """Seconds until a call that failed is made again by whoever made it."""
    unhealthy: bool = False
    """Of a call that failed: the endpoint or the key is to blame, not the request."""


GIVEN_BACK = CallReport(failed=True)
"""For a permit with which no call was made."""


class Context(Protocol):
    """One attempt at an item. The only way to have an effect is ``step``."""

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
    def facts(self) -> Json:
        """What ``Workload.facts`` said of the item before this execution."""
        ...

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
        """Whether this attempt goes on from recorded steps."""
        ...

    @property
    def address(self) -> str:
        """``scope/seq`` of this scope's next step, as text."""
        ...

    def time_limit(self, seconds: float | None) -> AbstractAsyncContextManager[Timeout]:
        """As ``asyncio.timeout``, for work of several steps: the time in which the run is paused does not count."""
        ...

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        """Do something once and for all.

        The step's address is this scope and its next number, taken before anything is awaited. If the journal holds the address
        with the same kind and request, the recorded output is returned and ``effect`` is not called; if it holds another
        request, Divergence is raised for the engine to handle (a workload lets it pass). Otherwise ``effect`` runs and its
        output is durable before it is returned. An exception from ``effect`` is not recorded and passes through. Where nothing new may
        begin because the run is stopping, Interrupted is raised; that, too, a workload lets pass.

        The request identifies the effect; as all earlier steps of the scope are known to match, it need only hold what
        is new since the previous step. The output returned may be shared: treat it as read-only.
        """
        ...

    def scope(self, name: str) -> Context:
        """A branch with addresses of its own, for code that runs concurrently with other code of the item. The name must be
        the same on replay, and unique in the item."""
        ...

    def parts(self, address: str) -> Context:
        """A branch for steps that another step of this scope is made of; only for use within that step's effect. ``address``: that
        step's, as ``address`` gave it before the step began.

        Each part is durable when it has ended, so that after a crash in the middle of the step the parts that were recorded are replayed
        and only the others happen again. Once the step itself is recorded, its parts are not come to any more. A part's usage counts
        where it is recorded; the step's own must not contain it.
        """
        ...

    def random(self, purpose: str) -> Random:
        """A random source that depends on the run's seed, the item's key and the purpose, and on nothing else."""
        ...

    def seed(self, purpose: str) -> int:
        """A number in 0 … 2**31 - 1 that depends on the run's seed, the item's key and the purpose, and on nothing else."""
        ...

    def new_attempt_needed(self, reason: str) -> Exception:
        """An exception to raise when this attempt can't go on (its world is gone): the engine starts a fresh attempt at once
        and keeps the old one for audit."""
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run is executed: everything about it that may differ between sessions without changing what comes out."""

    executor: str = "processes"
    """``processes``: worker processes on this machine; ``ray``: on the nodes of a Ray cluster; ``local``: all in this process."""
    workers: int = 4
    """Worker processes."""
    ray_address: str | None = None
    """``HOST:PORT`` of the cluster's head node (None: the cluster that Ray finds, of ``RAY_ADDRESS`` or of this machine)."""
    ray_resources: Mapping[str, float] = field(default_factory=dict)
    """What Ray reserves for each worker, by the resource's name (``num_cpus`` is 1 unless it is named)."""
    ray_listen: str | None = None
    """``HOST`` or ``HOST:PORT`` at which workers reach the owner (None: the address by which Ray knows this machine)."""
    concurrency: int = 1
    """Items in flight in each worker process."""
    max_in_flight: int | None = None
    """Items in flight in all (None: ``workers`` times ``concurrency``)."""
    one_item_a_process: bool = False
    """A worker process never has more than one item: more items at once need more processes."""
    calls_wanted: int = 0
    """Calls that a person wants in flight at once, with which an endpoint is tried first; how many it bears, the limiter finds out."""
    limit: int | None = None
    """How many items, from the beginning of the input, are executed; those behind stay pending. None: all."""
    max_attempts: int | None = None
    """How often an item may be executed where the failure table retries at all (None: as the table says)."""
    item_timeout: float | None = None
    """Wall-clock seconds for one attempt."""
    max_cost: float | None = None
    """US dollars for the run, over all sessions."""
    max_total_tokens: int | None = None
    """Tokens for the run, over all sessions."""
    max_seconds: float | None = None
    """Seconds of work on the run, over all sessions."""
    keep_workspaces: bool = False
    """The folders of all attempts stay. Without this or the next, those of failed items stay."""
    remove_workspaces: bool = False
    """No folder of an attempt stays once its item has ended."""
    claim_first: bool = False
    """That an item is being executed is on disk before anything is done about it, so that its count holds whatever happens."""
    on_divergence: str = "fresh"
    """What follows where recorded steps do not fit any more: ``fresh`` starts a fresh attempt, ``stop`` stops the run."""
    seed: int = 0
    """What ``Context.random`` and ``Context.seed`` depend on."""


BEHIND_INPUT = 1_000_000_000_000
"""Positions of items that left the input begin here (as in the queries)."""


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """An item to be, as ``plan`` yields it."""

    key: str
    payload: Json
    outcome: Outcome | None = None
    """Of an item that has ended elsewhere already (an adopted folder), and is only to be entered."""
    afresh: str | None = None
    """Why an item that the run has already is executed from nothing: its content was edited, for example."""
    size: int = 0
    """About how many bytes its payload has, where that may be many: of large ones fewer are held in memory at once."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step as the journal holds it. Times are seconds since 1970 UTC."""

    attempt: int
    scope: str
    """With ``seq``: its address in the attempt."""
    seq: int
    kind: str
    request: Json
    output: Json
    started_at: float
    finished_at: float
    usage: Mapping[str, Any]
    """As ``Usage.to_json`` has it; empty for a step that cost nothing."""


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
    """The number of its present attempt, from 1."""
    performances: int
    """How often it was executed, over all attempts, interrupted and failed times included."""
    failures: int
    reason: str | None
    """Why it was discarded, or ``removed`` if it was cancelled because the input does not have it any more."""
    cause: str | None
    """Why it failed, or was cancelled otherwise: a value of ``Cause``."""
    message: str | None
    record: Any
    """The outcome's, None before the end."""
    started_at: float | None
    finished_at: float | None
    position: int
    """Where it stands in the input, from 0."""

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


@dataclass(slots=True)
class ItemResult:
    """What a table of the items shows of one. Times are seconds since 1970 UTC."""

    key: str
    payload: Json
    state: ItemState
    performances: int
    """How often it was executed, over all attempts."""
    message: str | None
    """Why it failed; of one that waits or is executed again: why it last failed."""
    record: Any
    """Of one that is completed or failed."""
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class ReplacedOutcome:
    """What an item had come to before it was executed again on request."""

    number: int
    """The item's."""
    attempt: int
    state: ItemState
    reason: str | None
    cause: str | None
    message: str | None
    record: Any
    finished_at: float | None
    why: str | None
    """Of the request, where the item was to start from nothing."""


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

    def replaced_outcomes(self) -> list[ReplacedOutcome]:
        """What items had come to before they were executed again on request, in order of items and times."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that is read inside is of one moment, where the journal allows for that."""
        ...

    def results(self) -> Iterator[ItemResult]:
        """Every item that is still in the input, in its order, streamed."""
        ...

    def completed_records(self) -> Iterator[Any]:
        """The records of completed items that are still in the input, in its order, streamed."""
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


class Worlds(Protocol):
    """What a run's attempts keep elsewhere than in their folders, such as containers; in the run's owner process, for one session."""

    async def sweep(self, needed: Callable[[Path], bool]) -> Sequence[str]:
        """A session begins: remove what belongs to ended items and to attempts that were given up. ``needed``: whether an attempt may still
        need what belongs to its folder. The result is for the person, a line each."""
        ...

    async def discard(self, folders: Sequence[Path]) -> None:
        """Remove what belongs to these folders of attempts, which are removed next."""
        ...

    async def kept(self) -> str | None:
        """What is left at the end of a session, in one line; None if there is nothing."""
        ...

    async def close(self) -> None: ...


class Workload(ABC):
    """One kind of work. One instance lives in the owner process and one in each worker process.

    A workload is made from its spec: a JSON object without secrets, recorded with the run. The engine asks the owner's instance for
    everything but ``opened`` and ``run``, which belong to the processes that execute items.
    """

    name: str
    """As it is registered, and recorded with its runs."""
    spec: dict[str, Any]
    """What it was made from."""
    remedies: ClassVar[Mapping[str, str]] = {}
    """For the reasons why items are discarded, what a person can do about that: a sentence that names the setting."""
    concurrency_setting: ClassVar[str] = "max_concurrency"
    """The setting of its own that says how many items are executed at once."""
    worker_files: ClassVar[tuple[str, ...]] = ("settings", "artifacts")
    """What its ``opened`` and ``run`` read of the run's folder, but for workspaces: names of files and folders there. A worker on another
    machine gets copies."""
    worker_results: ClassVar[tuple[str, ...]] = ("artifacts",)
    """The folders in the run's folder in which its ``run`` leaves files that belong to the run. What a worker on another machine leaves
    there is brought back before its item ends."""
    reads_items: ClassVar[bool] = False
    """Whether its ``opened`` or ``run`` reads the journal's items. A worker on another machine gets a copy of them, as they are when it
    begins; it never has a copy of the steps."""
    plans_in_parts: ClassVar[bool] = False
    """Whether ``plan`` may leave out items of the run on purpose, so that those are not reported as missing."""
    _secrets: Mapping[str, str] = MappingProxyType({})

    # What the work is

    @property
    @abstractmethod
    def execution(self) -> Execution:
        """How to execute the run."""

    @abstractmethod
    def input_identity(self) -> str | None:
        """Changes when what ``plan`` would yield may have changed; None if the input is gone (the run goes on with what was planned)."""

    @abstractmethod
    def plan(self) -> Iterable[PlannedItem]:
        """All items in order, streamed. Called at creation and again at each resume; must raise UserError before it yields
        the first item if the input can't be used."""

    @property
    def late_imports(self) -> Sequence[str]:
        """Modules that are imported by ``opened`` and ``run`` alone. Worker processes are forked by a process that has imported them."""
        return ()

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        """The person's own Python modules that ``opened`` and ``run`` load: each as it is written (``module`` or ``path/file.py``), and the
        folder in which it is looked for first."""
        return ()

    def group(self, item: Item) -> str | None:
        """The name of a group of items that share something in memory, so that all of them are to be executed by one worker process; None
        where any will do. Called in the owner process."""
        return None

    def facts(self, item: Item, attempt: int, *, begun: bool) -> Json:
        """What ``run`` is to know of an item that may have changed since the run was planned, such as how others have ended: its context
        hands it on (``Context.facts``). Called in the owner process each time before the item is executed, inside ``session``.
        ``begun``: whether the journal holds steps of the attempt."""
        return None

    def own_limit(self, name: str) -> int | None:
        """How many permits there are at once for an ``OwnLimit`` of this name; None: any number. Called in the owner process."""
        return None

    def session(self, *, replay: bool = False) -> AbstractAsyncContextManager[None]:
        """Entered once in the owner process for a session, around all that is executed. ``replay``: as of ``opened``. Raises UserError if
        the workload can't be used as configured."""
        return _nothing_to_open()

    def opened(self, *, replay: bool = False) -> AbstractAsyncContextManager[None]:
        """Entered once in each process that executes items: opens clients, checks keys. ``replay``: nothing will happen outside, so
        nothing need be there."""
        return _nothing_to_open()

    @abstractmethod
    async def run(self, context: Context) -> Outcome:
        """Run one item. Raises ItemError for a failure (the engine applies the failure table); any other exception
        is recorded as ``internal``."""

    def worlds(self) -> Worlds | None:
        """What its attempts keep elsewhere than in their folders; None if there is nothing of the kind. Called in the owner process."""
        return None

    def secrets(self) -> Mapping[str, str]:
        """Secrets that worker processes need (by name), passed to them over a pipe and written nowhere."""
        return self._secrets

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        """Take the secrets of whoever executes the run; in a worker process, those that the owner's instance has."""
        self._secrets = dict(secrets)

    # What people change in it while it goes on

    def changed_spec(
        self, spec: Mapping[str, Any], changes: Mapping[str, Any], *, is_executed: bool = False
    ) -> dict[str, Any]:
        """The recorded spec with other settings: of ``max_concurrency``, ``max_cost``, ``max_total_tokens`` and ``max_seconds`` those in
        ``changes``. ``is_executed``: they are to count at once. Raises UserError for those that the run does not heed (then)."""
        options = spec.get("options")
        if not isinstance(options, dict):
            raise UserError(f"runs of the workload {self.name!r} record no settings that could be changed")
        named = {
            self.concurrency_setting if name == "max_concurrency" else name: value for name, value in changes.items()
        }
        return {**spec, "options": {**options, **named}}

    def resize(self, max_concurrency: int) -> int:
        """So many items are wanted at once from now on; how many the engine is to claim for that. Called in the owner process while
        the run is executed."""
        return max_concurrency

    def reopened(self, reader: RunReader, numbers: Sequence[int]) -> None:
        """Items of these numbers that had ended are executed again. Called in the owner process while the run is executed."""
        return

    # What is shown and written of it

    def describe_item(self, row: ItemRow) -> Iterable[tuple[str, str]]:
        """What people are shown of an item before its steps, in the form of ``describe_step``: what it holds that no step shows."""
        return []

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        """A step for people: pairs of a label (``user``, ``assistant``, ``terminal`` …) and text."""
        return [(step.kind, str(step.output))]

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> OutputLine | None:
        """The line that ``run`` gave in its outcome (file, text), written again from the journal; None where it gave none."""
        return None

    def export(self, reader: RunReader) -> None:
        """Write the files that exist once per run. Called at the end of every session of the run, however it ended."""
        return

    # Rules of its own for a session. All are called in the owner process.

    @property
    def counts_failures(self) -> bool:
        """Whether ``stop_reason`` looks at failures, so that it must hear of each at once, also where an endpoint refuses everything
        (else the ends of refused items stay open until it is known whose fault it is)."""
        return False

    def begin(self, reader: RunReader) -> None:
        """A session begins; nothing is claimed yet."""
        return

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        """How often an item may be executed in all before such a failure ends it; None: as the failure table and
        ``Execution.max_attempts`` say."""
        return None

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        """Called at every end of an item; a reason stops the run."""
        return None

    def must_wait(self, item: Item) -> bool:
        """Whether an item that could be executed waits for others. It takes no slot then, and is looked at again once ``freed``
        gives its number."""
        return False

    def freed(self) -> Sequence[int]:
        """The numbers of items that need not wait any more. Called after every end of an item."""
        return ()


@asynccontextmanager
async def _nothing_to_open() -> AsyncIterator[None]:
    yield


class WorkloadFactory(Protocol):
    """Makes a workload of its spec: the workload's class. It is named as ``module:attribute``."""

    def __call__(self, spec: dict[str, Any], run_folder: Path) -> Workload: ...


def import_attribute(target: str) -> Any:
    """What ``module:attribute`` names. What is imported is no garbage, and to look for some meanwhile takes a fifth of the time."""
    module, _, attribute = target.partition(":")
    collects = gc.isenabled()
    gc.disable()
    try:
        found: Any = import_module(module)
    finally:
        if collects:
            gc.enable()
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
