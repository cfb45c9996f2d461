"""One invocation of a batch command, and everything about it in one folder, from which it can be opened again.

``state.json`` says how it ended, ``test_ids.txt`` and ``tests.jsonl`` what it was to answer, ``output.jsonl`` is its output
(``records.jsonl`` the same as lines, where it is none), ``stdout.txt`` and ``stderr.txt`` what it printed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.jsonio import Json, dumps, exact_line, loads
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.io.files import bytes_written_aside, mask_secrets, written_aside
from manyhands.processes.children import to_the_end
from manyhands.processes.commands import CommandRunner, RunningCommand, failure_of
from manyhands.processes.output import KeptStream
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import Tree
from manyhands.workloads.evals.batch.output import OutputFile, Progress
from manyhands.workloads.evals.batch.records import NoRecord, RecordIndex, meaning_of, parse_line
from manyhands.workloads.evals.batch.reports import Fault, FaultKind
from manyhands.workloads.evals.evalfile.contents import Workspace
from manyhands.workloads.evals.targets.answers import Answer, read_record, shown
from manyhands.workloads.evals.targets.command import PROMPT, CommandSettings, Values
from manyhands.workloads.evals.workspaces.changes import MAX_CHARACTERS
from manyhands.workloads.evals.workspaces.templates import TREE, inside
from manyhands.workloads.evals.workspaces.workspace import (
    BASELINE,
    SCRATCH,
    Seen,
    WorkspaceTools,
    baseline,
    fresh_copy,
    make_sure,
    workspace_changes,
)

STATE, OUTPUT, RECORDS, STDOUT, STDERR = "state.json", "output.jsonl", "records.jsonl", "stdout.txt", "stderr.txt"
TEST_IDS, TESTS = "test_ids.txt", "tests.jsonl"
MIN_PAUSE, MAX_PAUSE = 0.02, 0.25
"""Seconds between looks at the output while it is written."""
_SLOWER = 1.5
"""By how much a pause is longer than the one before."""
_IN_MEMORY = 4096
CHANGES = "file_changes.diff"
"""The file in an invocation's folder that says what it changed in its workspace."""
_MAX_CHANGES = 8 * MAX_CHARACTERS
"""Bytes of it that are read."""
Notify = Callable[[Iterable[str]], None]
"""Called with the ids of the tests that can be answered now."""


@dataclass(frozen=True, slots=True)
class State:
    """How an invocation went."""

    command: str
    """As it was run, without secrets."""
    began: float
    """Seconds since 1970 UTC."""
    limit: float | None = None
    """Its time limit in seconds."""
    ended: bool = False
    """Its end is known; nobody cut it off."""
    exit_code: int | None = None
    """As shells count; None if it was stopped or never started."""
    timed_out: bool = False
    """Whether it was stopped at its time limit."""
    seconds: float = 0.0
    """How long it took."""
    problem: str | None = None
    """Why it could not be started."""
    errors: str = ""
    """The end of its standard error."""
    retracted: Mapping[str, str] = field(default_factory=dict)
    """Tests whose answers were contradicted, and how."""

    @property
    def failure(self) -> str | None:
        """Why it did not end as it should, in one line; None if it did."""
        if not self.ended or self.problem is not None:
            return self.problem
        return failure_of(self.exit_code, self.limit if self.timed_out else None, self.errors)

    def write(self, folder: Path) -> None:
        """Raises StorageError."""
        with bytes_written_aside(folder / STATE) as file:
            file.write(dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> State:
        """What is known; of one that was cut off very early, or whose file is damaged, nothing is."""
        try:
            value = loads((folder / STATE).read_bytes())
            return cls(**{name: value[name] for name in (each.name for each in fields(cls)) if name in value})
        except (OSError, ValueError, TypeError):
            return cls("", 0.0)


class Invocation:
    """An invocation that runs, or ran."""

    def __init__(self, folder: Path, output: OutputFile, index: RecordIndex, state: State) -> None:
        """``index``: takes the records of ``output``."""
        self.folder = folder
        self.output = output
        self.index = index
        self.state = state
        self.running = False

    @property
    def failure(self) -> str | None:
        """What went wrong with the whole of it, in one line."""
        reasons = [reason for reason in (self.state.failure, self.output.problem) if reason is not None]
        return "; ".join(reasons) if self.state.ended and reasons else None

    # --- Its answers

    def answer(self, test_id: str) -> Answer | Fault | None:
        """A test's answer, which counts as used then, or why there will be none; None while neither is known, and where it was cut off
        before it answered."""
        if (lines := self.index.conflicts.get(test_id)) is not None:
            where = f"{self.output.unit}s {lines[0]} and {lines[1]}"
            return Fault(test_id, FaultKind.CONTRADICTION, f"two different records for test {shown(test_id)} ({where})")
        record = self._record(test_id)
        if record is not None:
            self.index.use(test_id)
            return read_record(record)
        return self._fault(test_id) if self.state.ended and not self.running else None

    def notices(self) -> Iterator[str]:
        """What a person should know of it, a line each."""
        cut_off = not self.state.ended and not self.running
        if cut_off:
            yield f"it was cut off after {self.index.records} records"
        if self.output.note is not None:
            yield self.output.note
        yield from self.index.notices(self.output.unit, complete=not cut_off)

    def _record(self, test_id: str) -> dict[str, Json] | None:
        """A test's record; None if there is none (any more)."""
        entry = self.index.entry(test_id)
        if entry is None:
            return None
        try:
            record = parse_line(KNOWN.masked(self.output.read(entry.offset, entry.length)))
        except NoRecord:
            return None
        return record if meaning_of(record) == entry.meaning else None

    def _fault(self, test_id: str) -> Fault:
        without = f"no record for test {shown(test_id)}"
        if self.index.entry(test_id) is not None:
            return Fault(test_id, FaultKind.UNREADABLE, f"{without}: it is not in the output any more")
        if (broken := self.index.broken.get(test_id)) is not None:
            message = f"{without}: {self.output.unit} {broken.line}, which seems to be it, {broken.problem}"
            return Fault(test_id, FaultKind.UNREADABLE, message)
        if self.failure is not None:
            kind = FaultKind.TIMEOUT if self.state.timed_out else FaultKind.COMMAND_FAILED
            kind = kind if self.state.failure is not None else FaultKind.NO_OUTPUT
            return Fault(test_id, kind, f"{without}: {self.failure}")
        return Fault(test_id, FaultKind.MISSING, without + self._hint(test_id))

    def _hint(self, test_id: str) -> str:
        """What in the output may have been meant as a test's record, in brackets."""
        if (unknown := self._similar_ids.get(test_id)) is not None:
            return f" (there is one with the unknown id {shown(unknown)})"
        bad, unit = self.index.bad, self.output.unit
        if not bad.count:
            return ""
        first = bad.named[0]
        return f" ({unit} {first.line} {first.problem})" if bad.count == 1 else f" ({bad.count} {unit}s hold no record)"

    @cached_property
    def _similar_ids(self) -> dict[str, str]:
        """By tests without a record, the unknown id that is much like theirs. Known at the end."""
        return self.index.hints()

    # --- Its output

    def take(self, progress: Progress) -> list[str]:
        """Take note of what was read; the tests that can be answered now."""
        if progress.anew:
            self.index.forget()
        return [test_id for event in progress.events if (test_id := self.index.add(event)) is not None]

    async def read_to_the_end(self, notify: Notify) -> None:
        """Read all that is left of an output that nobody writes to. Raises StorageError."""
        try:
            progress = Progress(more=True)
            while progress.more:
                progress = await to_the_end(asyncio.to_thread(self.output.read_on))
                notify(self.take(progress))
            notify(self.take(await to_the_end(asyncio.to_thread(self.output.read_to_the_end))))
        except OSError as error:
            raise StorageError(f"{self.output.path}: can't be read ({error.strerror or error})") from error
        self.index.finish()

    def close(self) -> None:
        """Idempotent."""
        self.running = False
        self.output.close()

    # --- Its command

    async def run(
        self, settings: CommandSettings, values: Values, runner: CommandRunner, redactor: Redactor, notify: Notify
    ) -> None:
        """Run the command to its end or its time limit, and read its output meanwhile. Raises StorageError.

        Nothing that it started runs afterwards, whatever happens; cancelled, it leaves the invocation cut off.
        """
        began = time.monotonic()
        with (
            closing(KeptStream(self.folder / STDOUT, redactor)) as stdout,
            closing(KeptStream(self.folder / STDERR, redactor)) as stderr,
        ):
            state = await self._executed(settings, values, runner, (stdout, stderr), notify)
        await self.read_to_the_end(notify)
        for path in (self.output.path, self.output.aside):
            await asyncio.to_thread(mask_secrets, path)
        await asyncio.to_thread(self.output.sync)
        state = replace(
            state,
            ended=True,
            seconds=round(time.monotonic() - began, 3),
            errors=stderr.tail,
            retracted=dict(self.index.retracted),
        )
        await asyncio.to_thread(state.write, self.folder)
        self.state = state

    async def _executed(
        self,
        settings: CommandSettings,
        values: Values,
        runner: CommandRunner,
        streams: tuple[KeptStream, KeptStream],
        notify: Notify,
    ) -> State:
        """The state with how the command ended."""
        if not settings.folder.is_dir():
            return replace(self.state, problem=f"there is no folder {settings.folder} to start the command in")
        stdout, stderr = streams
        try:
            command = await runner.start(
                values.filled(settings.template),
                folder=settings.folder,
                additions={**settings.additions, **values.environment()},
                max_output=_IN_MEMORY,
                on_output=stdout.feed,
                on_errors=stderr.feed,
            )
        except ItemError as error:
            return replace(self.state, problem=f"the command can't be started: {error.message}")
        try:
            if not await self._followed(command, settings.seconds, notify):
                command.so_far()
                return replace(self.state, timed_out=True)
            await command.gathered()
            return replace(self.state, exit_code=command.exit_code)
        finally:
            await command.close()

    async def _followed(self, command: RunningCommand, seconds: float | None, notify: Notify) -> bool:
        """Read the output while the command runs. Returns False at the time limit."""
        deadline = None if seconds is None else time.monotonic() + seconds
        ended = asyncio.ensure_future(command.wait())
        pause = MIN_PAUSE
        try:
            while not ended.done():
                progress = await to_the_end(asyncio.to_thread(self.output.read_on))
                notify(self.take(progress))
                pause = MIN_PAUSE if progress.events else min(MAX_PAUSE, pause * _SLOWER)
                left = pause if deadline is None else min(pause, deadline - time.monotonic())
                if left <= 0:
                    return ended.done()
                await asyncio.wait([ended], timeout=0 if progress.more else left)
            return True
        finally:
            ended.cancel()


TestLines = Callable[[Collection[str]], Iterable[bytes]]
"""For ids of tests a line of JSON each, without its end, that says what the test is."""


def only_ids(ids: Collection[str]) -> Iterable[bytes]:
    """Lines that say of tests nothing but their ids."""
    return (exact_line({"id": test_id})[:-1] for test_id in ids)


@dataclass(frozen=True, slots=True)
class Request:
    """What an invocation is to answer."""

    ids: Collection[str]
    """The tests."""
    tests: TestLines
    """What the command reads about them."""
    files: Collection[Path]
    """The tests' input files."""
    attempt: int
    """How many invocations there were before."""

    def values(self, settings: CommandSettings, folder: Path, workspace: Path | None = None) -> Values:
        """Write what the command reads into the invocation's folder; what its placeholders stand for.

        Raises StorageError if the files can't be written, UserError for an id that can't be on a line.
        """
        _write_lines(folder / TEST_IDS, map(_id_line, self.ids))
        _write_lines(folder / TESTS, self.tests(self.ids))
        _write_lines(folder / PROMPT, ())
        return Values(
            eval_id="batch",
            attempt=self.attempt,
            files=tuple(dict.fromkeys(self.files)),
            files_format=settings.files_format,
            prompt_file=folder / PROMPT,
            output_file=folder / OUTPUT,
            eval_file=settings.eval_file,
            test_ids_file=folder / TEST_IDS,
            batch_input_file=folder / TESTS,
            workspace=workspace or settings.folder,
        )


def _id_line(test_id: str) -> bytes:
    if "\n" in test_id or "\r" in test_id:
        raise UserError(f"test {test_id!r}: an id with a line break can't be asked of a batch command")
    return test_id.encode("utf-8", "surrogatepass")


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    with bytes_written_aside(path) as file:
        for line in lines:
            file.write(line + b"\n")


def requested_ids(folder: Path) -> list[str]:
    """The tests that an invocation was to answer; none if it was cut off before that was written."""
    try:
        with (folder / TEST_IDS).open("rb") as file:
            return [line.rstrip(b"\n").decode("utf-8", "surrogatepass") for line in file]
    except OSError:
        return []


class InvocationWorkspaces:
    """The workspaces of a command's invocations: one for each, in its folder."""

    def __init__(self, eval_file: str, workspace: Workspace, tools: WorkspaceTools) -> None:
        self._eval_file = eval_file
        self._settings = workspace
        self._tools = tools

    async def make(self, folder: Path) -> Path:
        """A fresh one, or the existing folder. ``folder``: the invocation's. Raises UserError if it can't be made."""
        tree = self._tree(folder)
        try:
            source = await self._tools.templates.ready(self._eval_file, self._settings)
            if self._settings.in_place:
                before = folder.absolute() / BASELINE
                await asyncio.to_thread(baseline, source, before, self._tools.data_folder)
            else:
                await asyncio.to_thread(fresh_copy, source, tree)
        except OSError as error:
            raise UserError(f"{self._eval_file}: the workspace can't be made: {error}") from error
        except ItemError as error:
            raise UserError(f"{self._eval_file}: {error.message}") from error
        return tree

    async def note_changes(self, folder: Path) -> None:
        """Write down what the command changed, which has ended. Raises StorageError."""
        folder, tree = folder.absolute(), self._tree(folder)
        if self._settings.in_place:
            before, left_out = folder / BASELINE, inside(tree, self._tools.data_folder)
        else:
            await asyncio.to_thread(make_sure, tree)
            before, left_out = await self._tools.templates.ready(self._eval_file, self._settings), None
        changes, _ = await workspace_changes(before, tree, folder / SCRATCH, self._tools, left_out)
        if self._settings.in_place:
            await asyncio.to_thread(remove_tree, before)
        if changes is not None:
            await asyncio.to_thread(_write_changes, folder / CHANGES, changes)

    async def seen(self, folder: Path) -> Seen:
        """What graders get to know of it."""
        tree = self._tree(folder)
        try:
            changes = await asyncio.to_thread(_read_changes, folder.absolute())
        except (OSError, ValueError):
            return Seen(tree, None)  # the command was cut off
        return Seen(tree, changes)

    def _tree(self, folder: Path) -> Path:
        path = self._settings.path
        return path if self._settings.in_place and path is not None else folder.absolute() / TREE


def _read_changes(folder: Path) -> str:
    with Tree(folder) as tree:
        return tree.read(CHANGES, _MAX_CHANGES).decode()


def _write_changes(path: Path, text: str) -> None:
    with written_aside(path) as file:
        file.write(text)
