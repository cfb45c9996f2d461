"""The answers of a run that has ended, to be graded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, RunError, UserError
from manyhands.core.failures import Cause
from manyhands.engine.contract import Context, ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.items import TestItem, item_key
from manyhands.workloads.evals.order import FAILED_DEPENDENCIES, NEEDLESS
from manyhands.workloads.evals.targets.answers import Answer, read_record, read_text
from manyhands.workloads.evals.workspaces.workspace import PLACE, Seen, TestWorkspace

WORKLOAD = "evals"
"""What journals of such runs say."""
_FIGURES = ("token_usage", "cost_usd", "duration_ms")


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """What became of a trial in the other run. ``reason``: why it was left out, None if it was not; ``stops_early``: whether it would have
    been the last if it passed."""

    reason: str | None
    stops_early: bool


class RecordedAnswerer:
    """See ``answering.Answerer``. Nobody is asked: an answer is what the other run's journal holds for the item of the same key."""

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
        if PLACE not in record:
            return None
        path = (self._reader.folder / record[PLACE]).absolute()
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
