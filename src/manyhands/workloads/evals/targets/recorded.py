"""Answers of earlier runs: of a run that is graded again (``--regrade``), and of the cache (``--cache``).

The cache has a file for each answer, ``<2 hex digits>/<digest>.json``. The digest is of everything that an answer depends on
(``question_key``), down to the files that a command names and the content of input files.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, RunError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.engine.contract import Context, Effect, ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.files import bytes_written_aside
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.items import FAILED_DEPENDENCIES, NEEDLESS, TestItem, item_key
from manyhands.workloads.evals.targets.answer_figures import FIGURES
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json, read_record, read_text
from manyhands.workloads.evals.targets.live import LiveTarget
from manyhands.workloads.evals.workspaces.workspace import WORKSPACE_KEY, Seen, TestWorkspace

WORKLOAD = "evals"
"""What journals of such runs say."""


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """A sample as it ended in the other run."""

    reason: str | None
    """Why it was left out; None if it was not."""
    stops_early: bool
    """Whether it would have been the last if it passed."""


class RecordedTarget:
    """A ``LiveTarget`` whose answers are those in the journal of another run, for items of the same key."""

    def __init__(self, reader: JournalReader, dataset: str, target: str) -> None:
        """``reader``: of the other run, closed by whoever opened it."""
        self._reader = reader
        self._dataset = dataset
        self._target = target
        self.simulated = False
        """Whether the latest answer was made up."""

    def for_item(self) -> RecordedTarget:
        """The like for one item, whose ``simulated`` answers to other items do not change."""
        return RecordedTarget(self._reader, self._dataset, self._target)

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        key = item_key(self._dataset, test.id, self._target, sample)
        row = self._reader.item_by_key(key)
        if row is None or not row.state.final:
            run = self._reader.folder.name
            raise ItemError(Cause.TARGET_ERROR, f"run {run} has no answer to test {test.id} by target {self._target}")
        self.simulated = bool((row.record or {}).get("simulated"))
        answer = self._answer(row)
        before = row.payload["test"]
        if before["input"] != list(test.input):
            answer = self._changed(answer, "the input")
        if test.task and (before.get("task") or {}).get("digest") != test.task["digest"]:
            answer = self._changed(answer, "the task's folder")
        return answer

    def turn(self, item: TestItem, number: int) -> Answer:
        """The answer to one turn of a conversation, which counts from 1."""
        row = self._reader.item_by_key(item.key)
        record: Mapping[str, Any] = (row.record if row is not None else None) or {}
        self.simulated = bool(record.get("simulated"))
        turns: Sequence[Mapping[str, Any]] = record.get("turns") or ()
        found: Mapping[str, Any] = next((turn for turn in turns if turn["turn"] == number), {})
        if row is None or "answer" not in found:
            why = self._why_unanswered(row) or f"run {self._reader.folder.name} has no answer to this turn"
            return read_text("", error=found.get("error") or why)
        said = item.written["conversation"]["turns"][number - 1]["input"]
        if number == 1 and row.payload["test"]["input"] != item.written["input"]:
            return self._changed(_given(found), "the input")
        return _given(found) if found["input"] == said else self._changed(_given(found), f"the input of turn {number}")

    def _answer(self, row: ItemRow) -> Answer:
        record: Mapping[str, Any] = row.record or {}
        if "answer" not in record or record.get("status") == "error":
            error = self._why_unanswered(row) or record.get("error") or row.message or "the target gave no answer"
            return read_text("", error=error)
        return _given(record)

    def _why_unanswered(self, row: ItemRow | None) -> str | None:
        """Why the target did not run, if that is because of a dependency."""
        if row is None or FAILED_DEPENDENCIES not in (row.record or {}):
            return None
        return f"run {self._reader.folder.name} has no answer, as this was not executed there: {row.message}"

    def _changed(self, answer: Answer, what: str) -> Answer:
        notice = f"{what} has changed since run {self._reader.folder.name}, whose answer this is"
        return replace(answer, notices=(*answer.notices, notice))

    def seen(self, item: TestItem) -> Seen | None:
        """The workspace in which the target worked, as far as it was kept."""
        row = self._reader.item_by_key(item.key)
        record = (row.record if row is not None else None) or {}
        if WORKSPACE_KEY not in record:
            return None
        folder = self._reader.folder.absolute()
        path = folder / record[WORKSPACE_KEY]
        kept = path.is_relative_to(folder) and path.is_dir()  # a person's own folder has gone on
        return Seen(path if kept else None, record.get("file_changes"))

    def sample(self, item: TestItem) -> RecordedSample | None:
        """The item as it ended in the other run; None if that has nothing of it."""
        row = self._reader.item_by_key(item.key)
        if row is None:
            return None
        return RecordedSample(
            row.reason if row.reason in NEEDLESS else None, bool((row.record or {}).get("stops_early"))
        )


def open_recorded(folder: Path) -> JournalReader:
    """The journal of a run to grade again. Raises UserError if there is no such run, or it is of another workload."""
    try:
        reader = JournalReader(folder)
    except RunError as error:
        raise UserError(f"--regrade: {error}") from error
    if reader.meta("workload") != WORKLOAD:
        reader.close()
        raise UserError(f"--regrade: {folder} is no run of evaluations")
    return reader


def _given(record: Mapping[str, Any]) -> Answer:
    """The answer in an item's record."""
    given = {"text": record["answer"], "output": record["output"]}
    figures = {each.name: value for each in FIGURES if (value := record.get(each.name)) is not None}
    answer = read_record({**{name: value for name, value in given.items() if value is not None}, **figures})
    return replace(answer, verified=record.get("verified"))


STEP = "cache"
"""The kind of a step that looks into the cache: a resumed run goes on with what was there when it looked."""
FOUND = "answer of an earlier run (--cache)"


class CachedTarget:
    """A ``LiveTarget``. Errors are not kept, and where tests have a workspace the target answers every one: what an answer left there is
    not in the cache.
    """

    def __init__(self, target: LiveTarget, cache: AnswerCache, identity: Json, fields: tuple[str, ...] = ()) -> None:
        """``identity``: all that makes the target another one if it changes; ``fields``: see ``question_key``."""
        self.target = target
        self._cache = cache
        self._identity = identity
        self._fields = fields

    @property
    def simulated(self) -> bool:
        return self.target.simulated

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            return await self.target.answer(context, test, sample, workspace)
        key = await asyncio.to_thread(question_key, self._identity, test, self._fields)

        async def effect() -> Effect:
            return Effect({"found": await asyncio.to_thread(self._cache.find, key)})

        looked = await context.scope(STEP).step(STEP, {"test": test.id}, effect)
        if looked["found"] is not None:
            found = answer_from_json(looked["found"])
            return replace(found, notices=(*found.notices, FOUND))
        answer = await self.target.answer(context, test, sample, workspace)
        if answer.error is None:
            await asyncio.to_thread(self._cache.keep, key, answer)
        return answer


CACHE_FOLDER = "eval_cache"
"""Its name in the data folder."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """A cache in a folder, which is made with the first answer."""

    folder: Path

    def find(self, key: str) -> Json:
        """An answer in the form of ``Answer.to_json``; None if there is none, or none that can be read."""
        try:
            value = loads(self._path(key).read_bytes())
            answer_from_json(value)
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return value

    def keep(self, key: str, answer: Answer) -> None:
        """Write an answer. Raises StorageError."""
        with bytes_written_aside(self._path(key)) as file:
            file.write(dumps(answer.to_json()))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def question_key(identity: Json, test: Test, fields: tuple[str, ...] = ()) -> str:
    """What an answer depends on, as one digest. ``identity``: the target's; ``fields``: those of the test that the target gets besides its
    prompt, input and files."""
    files = {str(path): content(path) for path in (*test.files, *test.guideline_files)}
    question = {"id": test.id, "prompt": test.prompt(), "guidelines": test.guidelines, "files": files}
    more = {name: getattr(test, name) for name in ("input", *fields)}
    return digest("cached answer", {"asked": identity, **question, **more}).hex()


def named_files(template: CommandTemplate, folder: Path) -> dict[str, Json]:
    """Digests of the files that a command's words name, from the folder where it starts, by path."""
    words = template.words if template.line is None else _line_words(template.line)
    return _contents(folder / word for word in words if word)


def source_file(function: Callable[..., Any]) -> dict[str, Json]:
    """The digest of the file that defines a function, by path."""
    try:
        named = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        named = None
    return _contents([Path(named)] if named else [])


def content(path: Path) -> str | None:
    """A digest of a file's content; None if it can't be read."""
    found = blake2b(digest_size=20)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    except (OSError, ValueError):
        return None
    return found.hexdigest()


def _contents(paths: Iterable[Path]) -> dict[str, Json]:
    found = {str(path): content(path) for path in paths}
    return {path: value for path, value in found.items() if value is not None}


def _line_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
