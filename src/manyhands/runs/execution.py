"""A run from outside: made, opened, performed, checked."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import ManyhandsError, RunError, StorageError
from manyhands.core.jsonio import pretty
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import protect, protect_environment
from manyhands.core.usage import Usage
from manyhands.engine.attempt import WORKSPACES, Surroundings
from manyhands.engine.contract import Execution, Item, Limits, Workload
from manyhands.engine.discards import Remedies, nothing_kept
from manyhands.engine.executors import wire
from manyhands.engine.executors.local import Executor, LocalExecutor
from manyhands.engine.executors.processes import ProcessExecutor
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.store import LOCK, REWRITE, Store
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.limits.spending_mark import SpendingMark
from manyhands.engine.limits.waits import Wait, WaitLines
from manyhands.engine.outputs import OutputFiles, repair
from manyhands.engine.scheduler import Ending, Engine, sweep_workspaces
from manyhands.io.files import keep_private, remove_asides, written_aside
from manyhands.processes.strays import kill_strays
from manyhands.runs.folders import is_made
from manyhands.runs.ledger import ledger, summarise
from manyhands.runs.notes import Notes

HEARTBEAT_SECONDS = 5.0
SUMMARY = "summary.json"
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. ``counts``: items by (state, reason or cause); ``seconds`` of the present session."""

    counts: dict[tuple[str, str], int]
    usage: Usage
    in_flight: int
    seconds: float
    finished_before: int
    """Items that had ended when the session began, for an honest rate."""
    waits: tuple[Wait, ...] = ()
    """What keeps it from going on, of all that takes more than some seconds."""

    @property
    def items(self) -> int:
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        return sum(n for (state, _), n in self.counts.items() if ItemState(state).final)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a session of a run ended, with the run's summary. ``done``: nothing is left to do.

    ``stopped``: why it ended before the work was done; ``error``: what broke it; ``notes``: what a person was told meanwhile, a line each;
    ``nothing_kept``: if the run is over and everything was discarded, why, and what can be done about it.
    """

    folder: Path
    summary: dict[str, Any]
    stopped: str | None
    interrupted: bool
    error: Exception | None
    notes: tuple[str, ...] = ()
    nothing_kept: str | None = None

    @property
    def ledger(self) -> dict[str, Any]:
        """``items``, the count of each state, ``by_cause``."""
        value: dict[str, Any] = self.summary["ledger"]
        return value

    @property
    def done(self) -> bool:
        return bool(self.ledger["pending"] == 0)

    @property
    def exit_code(self) -> int:
        """0 when everything asked for was done, 1 when items failed or are left, or all were discarded, 130 when interrupted."""
        if self.interrupted and not self.done:
            return 130
        well = self.done and not self.ledger["failed"] and not self._cancelled_by_person
        return 0 if well and self.error is None and self.nothing_kept is None else 1

    @property
    def _cancelled_by_person(self) -> int:
        cancelled: dict[str, int] = self.ledger["by_cause"].get("cancelled", {})
        return sum(n for reason, n in cancelled.items() if reason != "removed")


class Controls:
    """A hold on a run in progress, for signal handlers, callbacks and tests."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._stopped: str | None = None
        self._progress: Callable[[], Progress] | None = None

    def attach(self, engine: Engine, progress: Callable[[], Progress]) -> None:
        self._engine, self._progress = engine, progress
        if self._stopped is not None:
            engine.stop(self._stopped, interrupted=True)

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stopped is not None

    def progress(self) -> Progress | None:
        """Where the run stands now; None before it began. Only from the loop that performs it."""
        return self._progress() if self._progress else None

    def stop(self, reason: str = "interrupted") -> None:
        """Claim no more, finish the calls in flight. A second call stops at once."""
        again = self._stopped is not None
        self._stopped = self._stopped or reason
        if self._engine is not None:
            self._engine.stop(reason, interrupted=True)
            if again:
                self._engine.abort()


def create_run(
    folder: Path, name: str, workload: Workload, *, version: str, notice: Notice, run_id: str | None = None
) -> None:
    """Make a run folder and plan all items. A crash in the middle leaves a run that the next opening plans again.

    ``run_id``: its identity where that is known already.

    Raises RunError if the folder holds a run already, UserError for unusable input, StorageError.
    """
    if is_made(folder):
        raise RunError(f"{folder}: there is a run here already")
    clock = SystemClock()
    _protect(workload)
    _make_folder(folder)
    store = Store(folder, clock, notice)
    if store.reader.meta("run_id") is not None:  # made by another process since we looked
        store.close()
        raise RunError(f"{folder}: there is a run here already")
    try:
        store.set_meta(
            run_id=run_id or uuid.uuid4().hex,
            workload=name,
            spec=workload.spec,
            seed=workload.execution.seed,
            created_at=clock.now(),
            version=version,
        )
        plan(store, workload, notice)
    except BaseException:  # nothing has been performed yet, so that nothing is lost by leaving no half-made run
        store.close()
        for leftover in (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LOCK):
            (folder / leftover).unlink(missing_ok=True)
        _remove_if_empty(folder)
        raise
    store.close()


def _protect(workload: Workload) -> None:
    """Whatever is recorded or written from now on has none of the secrets that are known."""
    protect_environment(os.environ)
    protect(workload.secrets().values())


def plan(store: Store, workload: Workload, notice: Notice) -> None:
    """Enter the items of the input, if it changed since it was last planned, or if that planning was cut short."""
    identity = workload.input_identity()
    planned = store.reader.meta("planned")
    latest = store.reader.meta("generation", planned["generation"] if planned else 0)
    if planned is not None and identity is None:
        notice("the input is not there any more; going on with the items that were planned from it")
        return
    if planned is not None and planned == {"identity": identity, "generation": latest}:
        return
    store.set_meta(generation=latest + 1)
    store.plan(workload.plan(), latest + 1)
    removed = store.removed(latest + 1)
    if not getattr(workload, "plans_in_parts", False):
        _name_removed(removed, notice)
    store.set_meta(planned={"identity": identity, "generation": latest + 1})


async def perform_run(
    folder: Path,
    workload: Workload,
    *,
    spec_changed: bool = False,
    rewrite_outputs: bool = False,
    retry_failed: bool = True,
    judge_again: Sequence[str] = (),
    notice: Notice = lambda text: None,
    controls: Controls | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_outcome: Callable[[Item, Outcome], None] | None = None,
    on_wait: Notice = lambda text: None,
    clock: Clock | None = None,
    store: Store | None = None,
) -> RunResult:
    """Perform what is left of a run, then write its exports and its summary.

    ``store``: the run as its owner has opened it already; it is left open. ``spec_changed``: record the workload's spec as the run's
    from now on. ``rewrite_outputs``: write all output lines again. ``retry_failed``: failed items are performed again. ``judge_again``:
    items discarded for these reasons are judged again, which replays what is recorded of them. ``on_progress`` is called at most
    twice a second, ``on_outcome`` at every end of an item; what they raise stops the run. ``notice`` is told what a person should know,
    also while the run goes on; ``on_wait`` is told of long waits, now and then. The result holds what both were told.

    Raises RunError (locked, not a run), UserError (not usable as configured), StorageError.
    """
    clock = clock or SystemClock()
    _protect(workload)
    if not (folder / JOURNAL).is_file():
        raise RunError(f"{folder}: not a run folder (it has no {JOURNAL})")
    notes = Notes(notice)
    with ExitStack() as closing:
        if store is None:
            store = Store(folder, clock, notes)
            closing.callback(store.close)
        session = _Session(store, workload, clock, notes, on_outcome)
        for reason in judge_again:
            store.execute("release_discarded", reason)
        session.prepare(spec_changed=spec_changed, retry_failed=retry_failed, rewrite=rewrite_outputs)
        ending = await session.perform(controls or Controls(), on_progress, on_wait)
        return session.finish(ending)


class _Session:
    """One opening of a run to perform it."""

    def __init__(
        self,
        store: Store,
        workload: Workload,
        clock: Clock,
        notice: Notes,
        on_outcome: Callable[[Item, Outcome], None] | None,
    ) -> None:
        self._store = store
        self._workload = workload
        self._clock = clock
        self._notice = notice
        self._on_outcome = on_outcome
        self._run_id: str = store.reader.meta("run_id")
        if self._run_id is None:
            raise RunError(f"{store.folder}: making this run was cut short before anything began; make it again")

    def prepare(self, *, spec_changed: bool, retry_failed: bool, rewrite: bool) -> None:
        store = self._store
        if store.missing:
            self._notice(
                f"this copy was made while the run was being performed: {store.missing} commits are not in it, and what "
                "they recorded is done again"
            )
        if strays := kill_strays(self._run_id):
            self._notice(f"{strays} processes of a session that crashed were still running, and were stopped")
        if spec_changed:  # in one transaction with what follows from it
            store.set_meta(spec=self._workload.spec, **({REWRITE: True} if rewrite else {}))
        if (workspaces := store.folder / WORKSPACES).is_dir():
            keep_private(workspaces)  # an older version may have made it for everybody
        plan(store, self._workload, self._notice)
        store.release_items(failed=retry_failed)
        remove_asides(store.folder)
        if written := repair(store, self._workload, self._notice, rebuild=rewrite):
            self._notice(f"{written} output lines were written again from the journal")
        sweep_workspaces(store, self._workload.execution)

    async def perform(
        self, controls: Controls, on_progress: Callable[[Progress], None] | None, on_wait: Notice
    ) -> Ending:
        store, execution = self._store, self._workload.execution
        if not _left_to_do(store.reader):
            return Ending()
        mark = SpendingMark(store)
        limits = self._limits(execution, mark)
        store.begin()
        outputs = OutputFiles(store, self._clock, self._notice)
        ending = Ending(stopped="crashed")
        try:
            async with _executor(self._executor(execution, limits)) as executor:
                engine = Engine(
                    store,
                    executor,
                    outputs,
                    self._clock,
                    execution,
                    limits,
                    self._on_outcome,
                    notice=self._notice,
                    remedies=_remedies(self._workload),
                )
                progress = self._progress(engine)
                controls.attach(engine, progress)
                watcher = asyncio.create_task(self._watch(engine, progress, on_progress, on_wait))
                try:
                    ending = await engine.run()
                finally:
                    watcher.cancel()
                    await asyncio.gather(watcher, return_exceptions=True)
            await outputs.sync()
            if on_progress is not None:
                on_progress(progress())
        finally:
            outputs.close()
            await store.end("finished" if ending.stopped is None else f"stopped: {ending.stopped}")
            mark.close(limits.budget)
        try:
            repair(store, self._workload, self._notice)  # lines that a stop at once, or a failing disk, left out
        except StorageError as error:
            ending.error = ending.error or error
        return ending

    def finish(self, ending: Ending) -> RunResult:
        """Exports and summary. A storage failure here is reported like one before."""
        error = ending.error
        if error is not None and not isinstance(error, ManyhandsError):
            raise error
        try:
            self._store.execute("release_running")  # what was stopped is performed by nobody any more
            self._workload.export(self._store.reader)
            sweep_workspaces(self._store, self._workload.execution)
            summary = summarise(self._store.reader)
            with written_aside(self._store.folder / SUMMARY) as handle:
                handle.write(pretty(summary) + "\n")
        except StorageError as failure:
            error = error or failure
            summary = summarise(self._store.reader)
        return RunResult(
            self._store.folder,
            summary,
            ending.stopped,
            ending.interrupted,
            error,
            self._notice.lines,
            nothing_kept(summary["ledger"], _remedies(self._workload)),
        )

    def _limits(self, execution: Execution, mark: SpendingMark) -> SharedLimits:
        reader = self._store.reader
        budget = Budget(
            execution.max_cost,
            execution.max_total_tokens,
            execution.max_seconds,
            spent=reader.usage(),
            assumed=mark.assumed,
            elapsed=reader.working_seconds(),
            clock=self._clock,
        )
        self._tell_assumed(budget)
        return SharedLimits(self._clock, budget=budget, mark=mark, notice=self._notice)

    def _tell_assumed(self, budget: Budget) -> None:
        cost, tokens = budget.assumed.cost, budget.assumed.total_tokens
        if (budget.max_cost is not None and cost) or (budget.max_total_tokens is not None and tokens):
            self._notice(
                f"up to ${cost:.4f} and {tokens:,} tokens count as spent for calls of earlier sessions whose answers are not known "
                "(unreadable, or in flight when the run was killed)"
            )

    def _executor(self, execution: Execution, limits: Limits) -> Executor:
        if execution.executor == "local":
            surroundings = Surroundings(self._store, limits, self._clock, execution.seed, self._store.folder)
            capacity = execution.workers * execution.concurrency
            return LocalExecutor(self._workload, surroundings, capacity, execution.item_timeout)
        begin = wire.Begin(
            self._store.reader.meta("workload"),
            self._workload.spec,
            self._workload.secrets(),
            str(self._store.folder.resolve()),
            execution.seed,
            execution.item_timeout,
        )
        workers = min(execution.workers, -(-_left_to_do(self._store.reader) // execution.concurrency))
        return ProcessExecutor(
            begin, self._run_id, self._store, limits, workers=workers, concurrency=execution.concurrency
        )

    def _progress(self, engine: Engine) -> Callable[[], Progress]:
        reader, began = self._store.reader, self._clock.monotonic()
        before = Progress(reader.counts(), Usage(), 0, 0.0, 0).finished

        def progress() -> Progress:
            seconds = self._clock.monotonic() - began
            return Progress(reader.counts(), reader.usage(), engine.in_flight, seconds, before, engine.waits())

        return progress

    async def _watch(
        self,
        engine: Engine,
        progress: Callable[[], Progress],
        on_progress: Callable[[Progress], None] | None,
        on_wait: Notice,
    ) -> None:
        beat_at, lines = self._clock.monotonic(), WaitLines()
        try:
            while True:
                if on_progress is not None:
                    on_progress(progress())
                await asyncio.sleep(0.5)
                engine.check_limits()
                engine.tell_refusals()
                for line in lines.news(engine.waits(), self._clock.now()):
                    self._notice.keep(line)
                    on_wait(line)
                if self._clock.monotonic() - beat_at >= HEARTBEAT_SECONDS:
                    beat_at = self._clock.monotonic()
                    self._store.beat()
        except Exception as error:  # noqa: BLE001 - a caller's callback may raise anything; unwatched, the run must not go on
            engine.fail(error)


@asynccontextmanager
async def _executor(executor: Executor) -> AsyncIterator[Executor]:
    """An executor, started, and closed whatever happens; the closing itself can't be interrupted."""
    try:
        await executor.start()
        yield executor
    finally:
        await asyncio.shield(executor.close())


def _remedies(workload: Workload) -> Remedies:
    """What a workload says can be done about what it discards, if it says so."""
    remedies: Remedies = getattr(workload, "remedies", {})
    return remedies


def _left_to_do(reader: JournalReader) -> int:
    pending: int = ledger(reader.counts())["pending"]
    return pending


def _name_removed(removed: list[tuple[int, str, str]], notice: Notice) -> None:
    if not removed:
        return
    numbers = ", ".join(str(number) for number, _, _ in removed[:10]) + (" …" if len(removed) > 10 else "")
    finished = sum(state == ItemState.COMPLETED for _, _, state in removed)
    notice(
        f"{len(removed)} items are no longer in the input (items {numbers}): "
        f"{finished} had finished and stay in the journal, the others are cancelled"
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: the folder can't be made ({error.strerror})") from error


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
