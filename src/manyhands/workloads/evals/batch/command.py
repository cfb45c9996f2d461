"""A command that answers all tests at once.

It is invoked once; each test's answer is there as soon as its record is in the output. Every fault belongs to the test that it
concerns, good records always count, and nothing is invoked again unless that was requested.

An answer that was taken while the command was still writing may be contradicted by what it wrote later: see ``BatchReport.retracted``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import StorageError, UserError
from manyhands.core.redaction import Redactor
from manyhands.io.files import make_private
from manyhands.processes.children import to_the_end
from manyhands.processes.commands import CommandRunner
from manyhands.workloads.evals.batch.invocation import (
    OUTPUT,
    RECORDS,
    STDERR,
    STDOUT,
    Invocation,
    InvocationWorkspaces,
    Request,
    State,
    TestLines,
    only_ids,
    requested_ids,
)
from manyhands.workloads.evals.batch.output import OutputFile
from manyhands.workloads.evals.batch.records import RecordIndex
from manyhands.workloads.evals.batch.reports import BatchReport, Fault
from manyhands.workloads.evals.targets.answers import Answer, shown
from manyhands.workloads.evals.targets.command import CommandSettings

_FOLDER = "invocation_"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A batch command and what it is to answer."""

    folder: Path
    """Of the command in the run folder; what its invocations write goes below it."""
    ids: Sequence[str]
    """The tests to be answered."""
    known: Collection[str] = ()
    """Further ids of the eval file, whose records are no surprise."""
    settings: CommandSettings | None = None
    """The command; None where there is only its output."""
    runner: CommandRunner | None = None
    """Starts the command; None where nothing may be started."""
    tests: TestLines = only_ids
    """What the command reads about tests."""
    files: Collection[Path] = ()
    """All input files of the tests."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Whose secrets are kept out of what is stored."""
    clock: Clock = field(default_factory=SystemClock)
    workspaces: InvocationWorkspaces | None = None
    """Where invocations work, if not in the folder that the command's settings say."""
    notice: Callable[[str], None] | None = None
    """Called with every command that is run."""


class BatchCommand:
    """A batch command and its output, for all tests of a target in an eval file. Made by ``opened`` or ``replayed``; must be closed."""

    def __init__(self, job: BatchJob) -> None:
        self._job = job
        self._ids = tuple(dict.fromkeys(job.ids))
        self._own = frozenset(self._ids)
        self._known = self._own.union(job.known)
        self._redactor = Redactor.of(job.environ)
        self._invocations: list[Invocation] = []
        self._task: asyncio.Task[None] | None = None
        """Runs the last invocation."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """Done when a test can be answered, by its id."""
        self._turn = asyncio.Lock()
        self._last_number = 0

    @classmethod
    async def opened(cls, job: BatchJob) -> BatchCommand:
        """What earlier invocations left in the job's folder is read again, and nothing is started. Raises StorageError."""
        batch = cls(job)
        try:
            await batch._read_kept()
        except BaseException:
            batch._close_outputs()
            raise
        return batch

    @classmethod
    async def replayed(cls, file: Path, job: BatchJob) -> BatchCommand:
        """An output that exists already, as if a command had just written it. If it has to be turned into lines these go to the job's
        folder. Raises UserError if it can't be read."""
        if not file.is_file():
            raise UserError(f"{file}: there is no such output file to replay")
        batch = cls(job)
        await asyncio.to_thread(_make_folder, job.folder)
        output = OutputFile(file, job.folder / RECORDS)
        invocation = Invocation(file.parent, output, batch._index(batch._ids), State("", 0.0, ended=True))
        batch._invocations.append(invocation)
        try:
            await invocation.read_to_the_end(batch._notify)
            if output.problem is not None and "can't be read" in output.problem:
                raise UserError(f"{file}: {output.problem}")
        except BaseException:
            batch._close_outputs()
            raise
        return batch

    @property
    def running(self) -> bool:
        """Whether the command runs."""
        return self._task is not None and not self._task.done()

    @property
    def missing(self) -> list[str]:
        """The tests that have no usable record now, in their order."""
        indexes = [invocation.index for invocation in reversed(self._invocations)]
        return [test_id for test_id in self._ids if not any(index.answers(test_id) for index in indexes)]

    async def start(self) -> bool:
        """Invoke the command for the tests that were not requested yet, or whose answers were cut off. Returns whether that was
        needed: a second call, or one after a finished invocation, starts nothing. Raises StorageError, UserError."""
        async with self._turn:
            if self.running:
                return False
            ids = [test_id for test_id in self._ids if self._is_open(test_id)]
            if ids:
                await self._invoke(ids)
            return bool(ids)

    async def rerun(self, ids: Iterable[str]) -> None:
        """Invoke the command again, for these tests only; their answers are then those of this invocation. What it writes about other
        tests does not count. Raises StorageError, UserError; ValueError for an unknown id, or while it runs."""
        async with self._turn:
            if self.running:
                raise ValueError("the command runs: it can't be invoked again now")
            wanted = list(dict.fromkeys(ids))
            for test_id in wanted:
                self._check(test_id)
            if wanted:
                await self._invoke(wanted)

    async def answer(self, test_id: str) -> Answer | Fault:
        """A test's answer, or why there is none, as soon as that is known.

        Raises ValueError for an id that is none of its tests', or if the command was not started; StorageError if its files can't be
        written.
        """
        self._check(test_id)
        while True:
            found = self._answer_so_far(test_id)
            if found is not None:
                return found
            if not self.running:
                self._raise_failure()
                raise ValueError(f"test {shown(test_id)}: the batch command was not started")
            await asyncio.shield(self._waiting.setdefault(test_id, asyncio.get_running_loop().create_future()))

    def invocation_folder(self, test_id: str) -> Path | None:
        """The folder of the invocation that a test's answer is of; None if it has none yet."""
        self._check(test_id)
        answering = (each.folder for each in reversed(self._invocations) if each.index.answers(test_id))
        return next(answering, None)

    async def wait(self) -> BatchReport:
        """Wait for the command's end, if it runs. Raises StorageError."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self._raise_failure()
        return self.report()

    def report(self) -> BatchReport:
        """How it went, so far."""
        last = self._invocations[-1] if self._invocations else None
        state = State("", 0.0) if last is None else last.state
        kept = None if last is None or self._job.settings is None else last.folder
        return BatchReport(
            invocations=len(self._invocations),
            command=state.command,
            exit_code=state.exit_code,
            timed_out=state.timed_out,
            seconds=round(sum(each.state.seconds for each in self._invocations), 3),
            failure=None if last is None else last.failure,
            notices=tuple(self._notices()),
            records=sum(each.index.records for each in self._invocations),
            missing=tuple(self.missing),
            retracted=self._retracted(),
            output=None if last is None else last.output.path,
            stdout=None if kept is None else kept / STDOUT,
            stderr=None if kept is None else kept / STDERR,
        )

    async def close(self) -> None:
        """End it. A command that still runs is killed, with all that it started; opened again, it counts as cut off. Idempotent."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await to_the_end(_ended(task))
        self._close_outputs()

    def _answer_so_far(self, test_id: str) -> Answer | Fault | None:
        """The answer by the latest invocation that requested the test; of one that was cut off only what it had written."""
        for invocation in reversed(self._invocations):
            if invocation.index.requests(test_id):
                found = invocation.answer(test_id)
                if found is not None or invocation.running:
                    return found
        return None

    def _is_open(self, test_id: str) -> bool:
        """Whether nothing is known about a test, and no invocation that has ended requested it."""
        requested = [each for each in self._invocations if each.index.requests(test_id)]
        return not any(each.state.ended or each.index.entry(test_id) is not None for each in requested)

    def _retracted(self) -> dict[str, str]:
        """What counts against tests by the latest invocation that requested them, in their order."""
        reasons: dict[str, str] = {}
        for invocation in self._invocations:
            reasons = {test_id: why for test_id, why in reasons.items() if not invocation.index.requests(test_id)}
            reasons |= {**invocation.state.retracted, **invocation.index.retracted}
        return {test_id: reasons[test_id] for test_id in self._ids if test_id in reasons} if reasons else {}

    def _notices(self) -> Iterator[str]:
        for number, invocation in enumerate(self._invocations, 1):
            prefix = f"invocation {number}: " if len(self._invocations) > 1 else ""
            for notice in invocation.notices():
                yield prefix + notice

    async def _invoke(self, ids: Sequence[str]) -> None:
        job, settings, runner = self._job, self._job.settings, self._job.runner
        if settings is None or runner is None:
            raise ValueError("nothing may be started here")
        number = self._last_number + 1
        folder = job.folder / f"{_FOLDER}{number}"
        await asyncio.to_thread(_make_folder, folder)
        workspace = None if job.workspaces is None else await job.workspaces.make(folder)
        settings = settings.within(workspace)
        request = Request(ids, job.tests, job.files, attempt=number - 1)
        values = await asyncio.to_thread(request.values, settings, folder, workspace)
        state = State(self._redactor.text(values.shown(settings.template)), job.clock.now(), settings.seconds)
        if job.notice is not None:
            job.notice(state.command)
        await asyncio.to_thread(state.write, folder)
        invocation = Invocation(folder, _output_in(folder), self._index(ids), state)
        invocation.running = True
        self._last_number = number
        self._invocations.append(invocation)
        run = partial(invocation.run, settings, values, runner, self._redactor, self._notify)
        self._task = asyncio.create_task(self._to_its_end(invocation, run))

    async def _to_its_end(self, invocation: Invocation, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
            if self._job.workspaces is not None:
                await self._job.workspaces.note_changes(invocation.folder)
        finally:
            invocation.running = False
            self._notify(list(self._waiting))

    async def _read_kept(self) -> None:
        for number, folder in await asyncio.to_thread(_kept_folders, self._job.folder):
            self._last_number = number
            ids = await asyncio.to_thread(requested_ids, folder)
            state = await asyncio.to_thread(State.read, folder)
            index = self._index(test_id for test_id in ids if test_id in self._own)
            invocation = Invocation(folder, _output_in(folder), index, state)
            self._invocations.append(invocation)
            await invocation.read_to_the_end(self._notify)

    def _index(self, requested: Iterable[str]) -> RecordIndex:
        return RecordIndex(self._ids, requested, self._known)

    def _notify(self, ids: Iterable[str]) -> None:
        for test_id in ids:
            waiting = self._waiting.pop(test_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _check(self, test_id: str) -> None:
        if test_id not in self._own:
            raise ValueError(f"{shown(test_id)} is none of this command's tests")

    def _raise_failure(self) -> None:
        """Raise what broke the last invocation, if anything did but its cancellation."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    def _close_outputs(self) -> None:
        for invocation in self._invocations:
            invocation.close()
        self._notify(list(self._waiting))


def _output_in(folder: Path) -> OutputFile:
    return OutputFile((folder / OUTPUT).absolute(), folder / RECORDS)


def _make_folder(folder: Path) -> None:
    try:
        make_private(folder)
    except OSError as error:
        raise StorageError(f"{folder}: can't be made ({error.strerror})") from error


def _kept_folders(folder: Path) -> list[tuple[int, Path]]:
    """The invocations' folders, by their numbers."""
    names = {path.name.removeprefix(_FOLDER): path for path in folder.glob(f"{_FOLDER}*") if path.is_dir()}
    return sorted((int(number), path) for number, path in names.items() if number.isdecimal())


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # whoever waits for an answer has met it
