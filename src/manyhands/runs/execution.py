"""One session of a run: what is left of it is executed, then exports and the summary are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import ManyhandsError, RunError, StorageError
from manyhands.core.jsonio import pretty
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.attempt import AttemptSettings
from manyhands.engine.contract import Execution, Item, Workload, Worlds
from manyhands.engine.discards import nothing_kept
from manyhands.engine.executors import wire
from manyhands.engine.executors.local import Executor, LocalExecutor
from manyhands.engine.executors.processes import WORKER, ProcessExecutor
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.store import REWRITE, Store
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits, SpendingMark
from manyhands.engine.limits.waits import WaitLines
from manyhands.engine.outputs import OutputFiles, repair
from manyhands.engine.scheduler import Ending, Scheduler
from manyhands.engine.workspaces import WORKSPACES, Workspaces
from manyhands.io.files import keep_private, written_aside
from manyhands.processes.fork_server import ForkServer, fork_server
from manyhands.processes.strays import kill_strays, remove_asides
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.ledger import (
    LIMIT,
    REMOVED,
    REPLICAS,
    Ledger,
    Summary,
    interruptions_text,
    ledger_of,
    left_to_do,
    summarise,
)
from manyhands.runs.making import Opened, plan, protect_secrets
from manyhands.runs.progress import Notes, Notice, Progress, image_progress
from manyhands.runs.registry import workload_target
from manyhands.runs.steering.control import ControlServer, Message
from manyhands.runs.steering.owner import Steering

HEARTBEAT_SECONDS = 5.0
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a session of a run ended, with the run's summary."""

    folder: Path
    summary: Summary
    stopped: str | None
    """Why it ended before the work was done."""
    interrupted: bool
    """Whether somebody stopped it."""
    error: Exception | None
    """What broke it."""
    notes: tuple[str, ...] = ()
    """Notices that were shown meanwhile, a line each."""
    nothing_kept: str | None = None
    """If the run is over and everything was discarded: why, and what can be done about it."""
    commonest_failure: tuple[str, int] | None = None
    """The message that most failed items have, and how many."""

    @property
    def ledger(self) -> Ledger:
        """``items``, the count of each state, ``by_cause``."""
        return self.summary["ledger"]

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return left_to_do(self.ledger) == 0

    @property
    def exit_code(self) -> ExitCode:
        """Of a command that executed the run and nothing else."""
        if self.interrupted and not self.done:
            return ExitCode.INTERRUPTED
        well = self.done and not self.ledger["failed"] and not self._cancelled_by_person
        return ExitCode.DONE if well and self.error is None and self.nothing_kept is None else ExitCode.FAILED

    @property
    def _cancelled_by_person(self) -> int:
        cancelled: dict[str, int] = self.ledger["by_cause"].get("cancelled", {})
        return sum(n for reason, n in cancelled.items() if reason != REMOVED)


class Controls:
    """Stops a run in progress, steers it and asks how far it is, for signal handlers, callbacks and tests."""

    def __init__(self) -> None:
        self._engine: Scheduler | None = None
        self._stopped: str | None = None
        self._stop = asyncio.Event()
        self._progress: Callable[[], Progress] | None = None
        self._steering: Steering | None = None

    def attach(self, engine: Scheduler, progress: Callable[[], Progress], steering: Steering) -> None:
        self._engine, self._progress, self._steering = engine, progress, steering
        if self._stopped is not None:
            engine.stop(self._stopped, interrupted=True)

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stopped is not None

    async def started(self, executor: Executor) -> None:
        """Have an executor started, unless a stop is requested meanwhile: it may have to wait for other machines."""
        starting, stop = asyncio.ensure_future(executor.start()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
        finally:
            for each in (starting, stop):
                each.cancel()
            await asyncio.gather(starting, stop, return_exceptions=True)

    def progress(self) -> Progress | None:
        """Where the run stands now; None before it began. Only from the loop that executes it."""
        return self._progress() if self._progress else None

    async def steer(self, message: Message) -> Message:
        """Carry out an order, see ``Steering.answer``."""
        if self._steering is None:
            return {"error": "the run is just beginning", "later": True}
        return await self._steering.answer(message)

    def stop(self, reason: str = "interrupted") -> None:
        """Claim no more, finish the calls in flight. A second call stops at once."""
        again = self._stopped is not None
        self._stopped = self._stopped or reason
        self._stop.set()
        if self._engine is not None:
            self._engine.stop(reason, interrupted=True)
            if again:
                self._engine.abort()


async def execute_run(
    opened: Opened[Workload],
    *,
    notice: Notice = lambda text: None,
    controls: Controls | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_outcome: Callable[[Item, Outcome], None] | None = None,
    on_wait: Notice = lambda text: None,
    clock: Clock | None = None,
    store: Store | None = None,
    forks: ForkServer | None = None,
) -> RunResult:
    """Execute what is left of a run, then write its exports and its summary.

    ``store``: the run as its owner has opened it already; it is left open, and its owner takes orders for it (``Controls.steer``).
    ``forks``: what makes worker processes quickly, see ``forks_for``. ``on_progress`` is called at most twice a second, ``on_outcome`` at
    every end of an item; what they raise stops the run. ``notice`` gets what a person should know, also while the run goes on;
    ``on_wait`` gets long waits, now and then. The result holds what both got.

    Raises RunError (locked, not a run), UserError (not usable as configured), StorageError.
    """
    clock = clock or SystemClock()
    protect_secrets(opened.workload)
    if not (opened.folder / JOURNAL).is_file():
        raise RunError(f"{opened.folder}: not a run folder (it has no {JOURNAL})")
    notes, controls = Notes(notice), controls or Controls()
    async with AsyncExitStack() as closing:
        if store is None:
            store = Store(opened.folder, clock, notes)
            closing.callback(store.close)
            await closing.enter_async_context(_listening(store.folder, controls, notes))
        worlds = opened.workload.worlds()
        if worlds is not None:
            closing.push_async_callback(worlds.close)
        session = _Session(store, opened.workload, clock, notes, on_outcome, forks, worlds)
        for reason in opened.judge_again:
            store.release_discarded(reason)
        session.prepare(opened)
        await session.sweep()
        ending = await session.execute(controls, on_progress, on_wait)
        return await session.finish(ending)


@asynccontextmanager
async def _listening(folder: Path, controls: Controls, notice: Notice) -> AsyncIterator[None]:
    """Take orders over a socket."""
    server = ControlServer(folder, controls.steer)
    try:
        await server.open()
    except StorageError as error:
        notice(f"the run can't be steered from another terminal: {error}")
        yield
        return
    try:
        yield
    finally:
        server.withdraw()
        await server.close(ended=True)


@contextmanager
def forks_for(*workloads: Workload) -> Iterator[ForkServer | None]:
    """What makes the worker processes of these workloads quickly, if they have some; for ``execute_run``. To be entered before there is an
    event loop."""
    if all(workload.execution.executor != "processes" for workload in workloads):
        yield None
        return
    with early_forks(module for workload in workloads for module in workload.late_imports) as forks:
        yield forks


@contextmanager
def early_forks(late_imports: Iterable[str]) -> Iterator[ForkServer | None]:
    """The same for a run that is not opened yet, so that workers are being imported while it is. ``late_imports``: of its workload."""
    with fork_server([WORKER, *dict.fromkeys(late_imports)]) as forks:
        yield forks


class _Session:
    """One opening of a run to execute it."""

    def __init__(
        self,
        store: Store,
        workload: Workload,
        clock: Clock,
        notice: Notes,
        on_outcome: Callable[[Item, Outcome], None] | None,
        forks: ForkServer | None,
        worlds: Worlds | None,
    ) -> None:
        self._store = store
        self._worlds = worlds
        self._forks = forks
        self._workload = workload
        self._clock = clock
        self._notice = notice
        self._on_outcome = on_outcome
        self._replicas: list[dict[str, Any]] = store.reader.meta(REPLICAS, [])
        self._run_id: str = store.reader.meta("run_id")
        if self._run_id is None:
            raise RunError(f"{store.folder}: making this run was cut short before anything began; make it again")

    def prepare(self, opened: Opened[Workload]) -> None:
        store, rewrite = self._store, opened.rewrite_outputs
        if (last := store.reader.last_session()) is not None and last.paused_at is not None:
            self._notice("the last session was paused when it ended; this one is not")
        if store.missing:
            self._notice(
                f"this copy was made while the run was being executed: {store.missing} commits are not in it, and what "
                "they recorded is done again"
            )
        if store.reader.last_session() is not None and (strays := kill_strays(self._run_id)):
            self._notice(f"{strays} processes of a session that crashed were still running, and were stopped")
        if opened.spec_changed:  # in one transaction with what follows from it
            store.set_meta(spec=self._workload.spec, **({REWRITE: True} if rewrite else {}))
        if (workspaces := store.folder / WORKSPACES).is_dir():
            keep_private(workspaces)  # an older version may have made it for everybody
        plan(store, self._workload, self._notice)
        if store.reader.meta(LIMIT) != self._workload.execution.limit:
            store.set_meta(**{LIMIT: self._workload.execution.limit})
        store.release_items(failed=opened.retry_failed)
        if opened.retry_cancelled:
            outlines = (each for page in store.reader.outlines() for each in page)
            store.reopen_items(
                [each.number for each in outlines if each.state == ItemState.CANCELLED], "the run was resumed"
            )
        if opened.rerun:
            store.reopen_items(opened.rerun, opened.rerun_for, fresh=True)
        remove_asides(store.folder)
        if written := repair(store, self._workload, self._notice, rebuild=rewrite):
            self._notice(f"{written} output lines were written again from the journal")

    async def sweep(self) -> None:
        """Remove what earlier sessions left behind of attempts that nobody goes on with."""
        workspaces = self._workspaces()
        if self._worlds is not None:
            for line in await self._worlds.sweep(workspaces.still_needed):
                self._notice(line)
        await workspaces.sweep()

    async def execute(
        self, controls: Controls, on_progress: Callable[[Progress], None] | None, on_wait: Notice
    ) -> Ending:
        store, execution = self._store, _with_room(self._workload.execution)
        if not _left_to_do(store.reader):
            return Ending()
        mark = SpendingMark(store)
        limits = self._limits(execution, mark)
        store.begin()
        self._workload.begin(store.reader)
        outputs = OutputFiles(store, self._clock, self._notice)
        ending = Ending(stopped="crashed")
        try:
            async with self._workload.session(), _executor(self._executor(execution, limits), controls) as executor:
                engine = Scheduler(
                    store,
                    executor,
                    outputs,
                    self._clock,
                    self._workload,
                    limits,
                    self._on_outcome,
                    notice=self._notice,
                    worlds=self._worlds,
                )
                progress = self._progress(engine)
                controls.attach(engine, progress, Steering(store, self._workload, engine, limits, self._notice))
                watcher = asyncio.create_task(self._watch(engine, progress, on_progress, on_wait))
                try:
                    ending = await engine.run()
                finally:
                    watcher.cancel()
                    await asyncio.gather(watcher, return_exceptions=True)
            self._note_replicas(engine.replicas())
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

    async def finish(self, ending: Ending) -> RunResult:
        """Exports and summary. A storage failure here is reported like one before."""
        error = ending.error
        if error is not None and not isinstance(error, ManyhandsError):
            raise error
        try:
            self._store.release_running()  # what was stopped is executed by nobody any more
            self._workload.export(self._store.reader)
            if self._store.reader.interruptions()[0]:  # what lost workers had may be noted in no folder
                await self.sweep()
            else:
                await self._workspaces().sweep()
            if self._worlds is not None and (line := await self._worlds.kept()) is not None:
                self._notice(line)
            summary = self._summary()
            if (cut_off := interruptions_text(summary)) is not None:
                self._notice(cut_off)
            with written_aside(self._store.folder / SUMMARY) as handle:
                handle.write(pretty(summary) + "\n")
        except StorageError as failure:
            error = error or failure
            summary = self._summary()
        return RunResult(
            self._store.folder,
            summary,
            ending.stopped,
            ending.interrupted,
            error,
            self._notice.lines,
            nothing_kept(summary["ledger"], self._workload.remedies),
            self._store.reader.commonest_failure(),
        )

    def _summary(self) -> Summary:
        reader = self._store.reader
        return summarise(reader, reader.meta("spec"))

    def _workspaces(self) -> Workspaces:
        return Workspaces(self._store, self._workload.execution, worlds=self._worlds)

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
        return SharedLimits(
            self._clock,
            budget=budget,
            wanted=execution.calls_wanted,
            mark=mark,
            notice=self._notice,
            own_limit=self._workload.own_limit,
        )

    def _tell_assumed(self, budget: Budget) -> None:
        cost, tokens = budget.assumed.cost, budget.assumed.total_tokens
        if (budget.max_cost is not None and cost) or (budget.max_total_tokens is not None and tokens):
            self._notice(
                f"up to ${cost:.4f} and {tokens:,} tokens count as spent for calls of earlier sessions whose answers are not known "
                "(unreadable, or in flight when the run was killed)"
            )

    def _executor(self, execution: Execution, limits: SharedLimits) -> Executor:
        if execution.executor == "local":
            settings = AttemptSettings(self._store, limits, self._clock, execution.seed, self._store.folder)
            return LocalExecutor(self._workload, settings, execution.item_timeout)
        begin = wire.Begin(
            workload_target(self._store.reader.meta("workload")),
            self._workload.spec,
            dict(self._workload.secrets()),
            str(self._store.folder.resolve()),
            execution.seed,
            execution.item_timeout,
        )
        options: dict[str, Any] = {
            "workers": execution.workers,
            "concurrency": execution.concurrency,
            "items": _left_to_do(self._store.reader),
            "max_in_flight": execution.max_in_flight,
            "one_item_a_process": execution.one_item_a_process,
        }
        if execution.executor != "ray":
            return ProcessExecutor(begin, self._run_id, self._store, limits, forks=self._forks, **options)
        from manyhands.engine.executors.cluster import ClusterLauncher  # TLS and more that only this needs
        from manyhands.engine.executors.workers.executor import WorkerExecutor

        workspaces = self._workspaces()
        launcher = ClusterLauncher(self._store.folder, self._run_id, self._workload, execution, self._notice)
        return WorkerExecutor(
            launcher,
            begin,
            self._store,
            limits,
            begun=self._store.reader.begun(),
            state_of=workspaces.state_of,
            notice=self._notice,
            **options,
        )

    def _progress(self, engine: Scheduler) -> Callable[[], Progress]:
        reader, folder, began = self._store.reader, self._store.folder, self._clock.monotonic()
        before = Progress(reader.counts(), Usage(), 0, 0.0, 0).finished

        def progress() -> Progress:
            seconds = self._clock.monotonic() - began
            images = image_progress(folder)
            return Progress(reader.counts(), reader.usage(), engine.in_flight, seconds, before, engine.waits(), images)

        return progress

    def _note_replicas(self, replicas: list[dict[str, Any]]) -> None:
        """Keep for other processes where the replicas stand."""
        if replicas != self._replicas:
            self._replicas = replicas
            self._store.note_meta(REPLICAS, replicas)

    async def _watch(
        self,
        engine: Scheduler,
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
                engine.report_refusals()
                self._note_replicas(engine.replicas())
                for line in lines.news(engine.waits(), self._clock.now()):
                    self._notice.keep(line)
                    on_wait(line)
                if self._clock.monotonic() - beat_at >= HEARTBEAT_SECONDS:
                    beat_at = self._clock.monotonic()
                    self._store.beat()
        except Exception as error:  # noqa: BLE001 - a caller's callback may raise anything; unwatched, the run must not go on
            engine.fail(error)


@asynccontextmanager
async def _executor(executor: Executor, controls: Controls) -> AsyncIterator[Executor]:
    """An executor, started, and closed whatever happens; the closing itself can't be interrupted."""
    try:
        if isinstance(executor, LocalExecutor):
            await executor.start()
        else:
            await controls.started(executor)
        yield executor
    finally:
        await asyncio.shield(executor.close())


def _with_room(execution: Execution) -> Execution:
    """With as much capacity as ``max_in_flight`` asks for."""
    wanted = execution.max_in_flight or 0
    if wanted <= execution.workers * execution.concurrency:
        return execution
    if execution.one_item_a_process:
        return replace(execution, workers=wanted)
    return replace(execution, concurrency=-(-wanted // execution.workers))


def _left_to_do(reader: JournalReader) -> int:
    return left_to_do(ledger_of(reader))
