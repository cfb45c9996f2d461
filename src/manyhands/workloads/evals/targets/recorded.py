"""Answers that were given before: those of a run that has ended, to be graded again (--regrade), and those that are kept in a cache
(--cache).

The cache has a file for each answer, ``<2 hex digits>/<digest>.json``. The digest is of everything that an answer depends on
(``question_key``): who is asked, down to the files that its command names, and what is asked, down to what is in the input files. So
whatever is changed there is asked anew.
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
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.items import TestItem, item_key
from manyhands.workloads.evals.order import FAILED_DEPENDENCIES, NEEDLESS
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json, read_record, read_text
from manyhands.workloads.evals.targets.protocol import LiveTarget
from manyhands.workloads.evals.workspaces.workspace import WORKSPACE_KEY, Seen, TestWorkspace

WORKLOAD = "evals"
"""What journals of such runs say."""
_FIGURES = ("token_usage", "cost_usd", "duration_ms")


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """What became of a trial in the other run. ``reason``: why it was left out, None if it was not; ``stops_early``: whether it would have
    been the last if it passed."""

    reason: str | None
    stops_early: bool


class RecordedTarget:
    """A ``LiveTarget``. Nobody is asked: an answer is what the other run's journal holds for the item of the same key."""

    def __init__(self, reader: JournalReader, dataset: str, target: str) -> None:
        """``reader``: of the other run, closed by whoever opened it."""
        self._reader = reader
        self._dataset = dataset
        self._target = target
        self.simulated = False
        """Whether the latest answer was made up."""

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        key = item_key(self._dataset, test.id, self._target, trial)
        row = self._reader.item_by_key(key)
        if row is None or not row.state.final:
            run = self._reader.folder.name
            raise ItemError(Cause.TARGET_ERROR, f"run {run} has no answer to test {test.id} by target {self._target}")
        self.simulated = bool((row.record or {}).get("simulated"))
        answer = self._answer(row)
        if row.payload["test"]["input"] == list(test.input):
            return answer
        return self._changed(answer, "the input")

    def turn(self, item: TestItem, number: int) -> Answer:
        """The answer to one turn of a conversation, which counts from 1."""
        row = self._reader.item_by_key(item.key)
        record: Mapping[str, Any] = (row.record if row is not None else None) or {}
        self.simulated = bool(record.get("simulated"))
        turns: Sequence[Mapping[str, Any]] = record.get("turns") or ()
        found: Mapping[str, Any] = next((turn for turn in turns if turn["turn"] == number), {})
        if row is None or "answer" not in found:
            unasked = self._unasked(row) or f"run {self._reader.folder.name} has no answer to this turn"
            return read_text("", error=found.get("error") or unasked)
        said = item.written["conversation"]["turns"][number - 1]["input"]
        if number == 1 and row.payload["test"]["input"] != item.written["input"]:
            return self._changed(_given(found), "the input")
        return _given(found) if found["input"] == said else self._changed(_given(found), f"the input of turn {number}")

    def _answer(self, row: ItemRow) -> Answer:
        record: Mapping[str, Any] = row.record or {}
        if "answer" not in record or record.get("status") == "error":
            error = self._unasked(row) or record.get("error") or row.message or "the target gave no answer"
            return read_text("", error=error)
        return _given(record)

    def _unasked(self, row: ItemRow | None) -> str | None:
        """Why the target was not asked, if that is because of what the test depends on."""
        if row is None or FAILED_DEPENDENCIES not in (row.record or {}):
            return None
        return f"run {self._reader.folder.name} has no answer, as this was not performed there: {row.message}"

    def _changed(self, answer: Answer, what: str) -> Answer:
        notice = f"{what} has changed since run {self._reader.folder.name}, whose answer this is"
        return replace(answer, notices=(*answer.notices, notice))

    def seen(self, item: TestItem) -> Seen | None:
        """The workspace in which the target worked, as far as it was kept."""
        row = self._reader.item_by_key(item.key)
        record = (row.record if row is not None else None) or {}
        if WORKSPACE_KEY not in record:
            return None
        path = (self._reader.folder / record[WORKSPACE_KEY]).absolute()
        return Seen(path if path.is_dir() else None, record.get("file_changes"))

    def trial(self, item: TestItem) -> RecordedTrial | None:
        """None if the other run has nothing of it."""
        row = self._reader.item_by_key(item.key)
        if row is None:
            return None
        return RecordedTrial(
            row.reason if row.reason in NEEDLESS else None, bool((row.record or {}).get("stops_early"))
        )


def open_recorded(folder: Path) -> JournalReader:
    """Raises UserError if there is no such run, or it is of another kind."""
    try:
        reader = JournalReader(folder)
    except RunError as error:
        raise UserError(f"--regrade: {error}") from error
    if reader.meta("workload") != WORKLOAD:
        reader.close()
        raise UserError(f"--regrade: {folder} is no run of evaluations")
    return reader


def _given(record: Mapping[str, Any]) -> Answer:
    """An answer, and what is known of it, as a record holds them."""
    given = {"text": record["answer"], "output": record["output"]}
    figures = {name: record[name] for name in _FIGURES if record.get(name) is not None}
    return read_record({**{name: value for name, value in given.items() if value is not None}, **figures})


STEP = "cache"
"""The kind of a step that looks into the cache: a resumed run goes on with what was there when it looked."""
FOUND = "answer of an earlier run (--cache)"


class CachedTarget:
    """A ``LiveTarget``. Errors are not kept, and where tests have a workspace every one is asked: what an answer left there is
    not in the cache.

    ``asked``: all that makes the target another one if it changes; ``told``: see ``question_key``.
    """

    def __init__(self, target: LiveTarget, cache: AnswerCache, asked: Json, told: tuple[str, ...] = ()) -> None:
        self.target = target
        self._cache = cache
        self._asked = asked
        self._told = told

    @property
    def simulated(self) -> bool:
        return self.target.simulated

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            return await self.target.answer(context, test, trial, workspace)
        key = await asyncio.to_thread(question_key, self._asked, test, self._told)

        async def effect() -> Effect:
            return Effect({"found": await asyncio.to_thread(self._cache.find, key)})

        looked = await context.scope(STEP).step(STEP, {"test": test.id}, effect)
        if looked["found"] is not None:
            found = answer_from_json(looked["found"])
            return replace(found, notices=(*found.notices, FOUND))
        answer = await self.target.answer(context, test, trial, workspace)
        if answer.error is None:
            await asyncio.to_thread(self._cache.keep, key, answer)
        return answer


CACHE_FOLDER = "eval_cache"
"""Its name in the data folder."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """A cache in a folder, which is made when the first answer is kept."""

    folder: Path

    def find(self, key: str) -> Json:
        """An answer as ``Answer.to_json`` gave it; None if there is none, or none that can be read."""
        try:
            value = loads(self._path(key).read_bytes())
            answer_from_json(value)
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return value

    def keep(self, key: str, answer: Answer) -> None:
        """Raises StorageError."""
        with bytes_written_aside(self._path(key)) as file:
            file.write(dumps(answer.to_json()))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def question_key(asked: Json, test: Test, told: tuple[str, ...] = ()) -> str:
    """What an answer depends on, as one digest. ``asked``: who is asked; ``told``: fields of the test that it is told besides its prompt,
    input and files."""
    files = {str(path): content(path) for path in (*test.files, *test.guideline_files)}
    question = {"id": test.id, "prompt": test.prompt(), "guidelines": test.guidelines, "files": files}
    more = {name: getattr(test, name) for name in ("input", *told)}
    return digest("cached answer", {"asked": asked, **question, **more}).hex()


def named_files(template: CommandTemplate, folder: Path) -> dict[str, Json]:
    """The files that a command's words name, from the folder where it starts, with digests of what is in them."""
    words = template.words if template.line is None else _line_words(template.line)
    return _contents(folder / word for word in words if word)


def source_file(function: Callable[..., Any]) -> dict[str, Json]:
    """The file in which a function stands, the like."""
    try:
        named = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        named = None
    return _contents([Path(named)] if named else [])


def content(path: Path) -> str | None:
    """A digest of what is in a file; None if it can't be read."""
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
