"""One invocation of a batch command, and everything about it in one folder, from which it can be opened again.

``state.json`` says how it went, ``test_ids.txt`` and ``tests.jsonl`` what it was asked, ``output.jsonl`` is its output
(``records.jsonl`` the same as lines, where it is none), ``stdout.txt`` and ``stderr.txt`` what it printed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.jsonio import Json, dumps, exact_line, loads
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.io.files import bytes_written_aside, mask_secrets
from manyhands.processes.children import to_the_end
from manyhands.processes.commands import CommandRunner, RunningCommand, failure_of
from manyhands.processes.output import KeptStream
from manyhands.workloads.evals.batch.output import OutputFile, Progress
from manyhands.workloads.evals.batch.records import NoRecord, RecordIndex, meaning_of, parse_line
from manyhands.workloads.evals.targets.command import PROMPT
from manyhands.workloads.evals.targets.command_lines import CommandSettings, Values

STATE, OUTPUT, RECORDS, STDOUT, STDERR = "state.json", "output.jsonl", "records.jsonl", "stdout.txt", "stderr.txt"
TEST_IDS, TESTS = "test_ids.txt", "tests.jsonl"
MIN_PAUSE, MAX_PAUSE = 0.02, 0.25
"""Seconds between looks at the output while it is written."""
_SLOWER = 1.5
_IN_MEMORY = 4096
Tell = Callable[[list[int]], None]
"""Called with the tests that can be answered now, by their numbers."""


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

    def written(self, folder: Path) -> None:
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
    """An invocation that runs, or ran. Its records are found in ``index``."""

    def __init__(self, folder: Path, output: OutputFile, index: RecordIndex, state: State) -> None:
        self.folder = folder
        self.output = output
        self.index = index
        self.state = state
        self.running = False
        self._hints: dict[int, str] | None = None

    @property
    def failure(self) -> str | None:
        """What went wrong with the whole of it, in one line."""
        reasons = [reason for reason in (self.state.failure, self.output.problem) if reason is not None]
        return "; ".join(reasons) if self.state.ended and reasons else None

    def record(self, number: int) -> dict[str, Json] | None:
        """A test's record; None if there is none (any more)."""
        entry = self.index.entry(number)
        if entry is None:
            return None
        try:
            record = parse_line(KNOWN.masked(self.output.read(entry.offset, entry.length)))
        except NoRecord:
            return None
        return record if meaning_of(record) == entry.meaning else None

    def hints(self, names: Sequence[str]) -> dict[int, str]:
        """Unknown ids that tests without a record may be meant by. Known at the end."""
        if self._hints is None:
            self._hints = self.index.hints(names)
        return self._hints

    def take(self, progress: Progress) -> list[int]:
        """Take note of what was read; the tests that can be answered now."""
        if progress.anew:
            self.index.forget()
        return [number for event in progress.events if (number := self.index.add(event)) is not None]

    async def read_to_the_end(self, tell: Tell) -> None:
        """Read all that is left of an output that nobody writes to. Raises StorageError."""
        try:
            progress = Progress(more=True)
            while progress.more:
                progress = await to_the_end(asyncio.to_thread(self.output.read_on))
                tell(self.take(progress))
            tell(self.take(await to_the_end(asyncio.to_thread(self.output.read_to_the_end))))
        except OSError as error:
            raise StorageError(f"{self.output.path}: can't be read ({error.strerror or error})") from error
        self.index.finish()

    def close(self) -> None:
        """Idempotent."""
        self.output.close()


TestLines = Callable[[Collection[str]], Iterable[bytes]]
"""For ids of tests a line of JSON each, without its end, that says what the test is."""


def only_ids(ids: Collection[str]) -> Iterable[bytes]:
    """Lines that say of tests nothing but their ids."""
    return (exact_line({"id": test_id})[:-1] for test_id in ids)


@dataclass(frozen=True, slots=True)
class Request:
    """What an invocation is to answer."""

    ids: Collection[str]
    tests: TestLines
    files: Collection[Path]
    """The tests' input files."""
    attempt: int
    """How many invocations there were before."""

    def values(self, settings: CommandSettings, folder: Path, workspace: Path | None = None) -> Values:
        """Raises StorageError if its files can't be written, UserError for an id that can't be on a line."""
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


class InvocationRun:
    """An invocation's run: from its start to its end, its time limit, or its cancellation."""

    def __init__(
        self,
        invocation: Invocation,
        settings: CommandSettings,
        runner: CommandRunner,
        redactor: Redactor,
        names: Sequence[str],
    ) -> None:
        """``names``: the ids of all tests, by number."""
        self._names = names
        self._invocation = invocation
        self._settings = settings
        self._runner = runner
        self._redactor = redactor

    async def run(self, values: Values, tell: Tell) -> None:
        """Raises StorageError. Nothing that it started runs afterwards, whatever happens; cancelled, it leaves the invocation cut
        off."""
        invocation, began = self._invocation, time.monotonic()
        stdout = KeptStream(invocation.folder / STDOUT, self._redactor)
        stderr = KeptStream(invocation.folder / STDERR, self._redactor)
        try:
            timed_out, exit_code, problem = await self._executed(values, stdout, stderr, tell)
        finally:
            stdout.close()
            stderr.close()
        await invocation.read_to_the_end(tell)
        for path in (invocation.output.path, invocation.output.aside):
            await asyncio.to_thread(mask_secrets, path)
        await asyncio.to_thread(invocation.output.sync)
        seconds = round(time.monotonic() - began, 3)
        state = replace(
            invocation.state,
            ended=True,
            exit_code=exit_code,
            timed_out=timed_out,
            seconds=seconds,
            problem=problem,
            errors=stderr.tail,
            retracted={self._names[number]: why for number, why in invocation.index.retracted.items()},
        )
        await asyncio.to_thread(state.written, invocation.folder)
        invocation.state = state

    async def _executed(
        self, values: Values, stdout: KeptStream, stderr: KeptStream, tell: Tell
    ) -> tuple[bool, int | None, str | None]:
        settings = self._settings
        if not settings.folder.is_dir():
            return False, None, f"there is no folder {settings.folder} to start the command in"
        try:
            command = self._runner.start(
                values.filled(settings.template),
                folder=settings.folder,
                additions={**settings.additions, **values.environment()},
                max_output=_IN_MEMORY,
                on_output=stdout.feed,
                on_errors=stderr.feed,
            )
        except ItemError as error:
            return False, None, f"the command can't be started: {error.message}"
        try:
            timed_out = not await self._followed(command, tell)
            if timed_out:
                command.so_far()
            else:
                await command.gathered()
            return timed_out, None if timed_out else command.exit_code, None
        finally:
            await command.close()

    async def _followed(self, command: RunningCommand, tell: Tell) -> bool:
        """Read the output while the command runs. Returns False at the time limit."""
        deadline = None if self._settings.seconds is None else time.monotonic() + self._settings.seconds
        ended = asyncio.ensure_future(command.wait())
        pause = MIN_PAUSE
        try:
            while not ended.done():
                progress = await to_the_end(asyncio.to_thread(self._invocation.output.read_on))
                tell(self._invocation.take(progress))
                pause = MIN_PAUSE if progress.events else min(MAX_PAUSE, pause * _SLOWER)
                left = pause if deadline is None else min(pause, deadline - time.monotonic())
                if left <= 0:
                    return ended.done()
                await asyncio.wait([ended], timeout=0 if progress.more else left)
            return True
        finally:
            ended.cancel()


def _id_line(test_id: str) -> bytes:
    if "\n" in test_id or "\r" in test_id:
        raise UserError(f"test {test_id!r}: an id with a line break can't be asked of a batch command")
    return test_id.encode("utf-8", "surrogatepass")


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    with bytes_written_aside(path) as file:
        for line in lines:
            file.write(line + b"\n")


def requested_ids(folder: Path) -> Iterator[str]:
    """The tests that an invocation was asked for, as far as it came to that."""
    try:
        with (folder / TEST_IDS).open("rb") as file:
            yield from (line.rstrip(b"\n").decode("utf-8", "surrogatepass") for line in file)
    except OSError:
        return
