"""The runs of a data folder, each as a list of runs shows it; and one item of a run of any workload: found by what people call it, with
what went wrong, and its steps as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Required, TypedDict

from manyhands.core.errors import ManyhandsError, UserError
from manyhands.core.jsonio import Json
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import EarlierOutcome, EndedAttempt, JournalReader, RecordedFailure
from manyhands.runs.folders import find_runs, open_reader
from manyhands.runs.ledger import ToolUsage, tool_usages
from manyhands.runs.summaries import ItemSummary, RunSummary, run_summary


class RunRow(TypedDict, total=False):
    """A run in a list, as ``manyhands runs --json`` prints it. One without a summary has only its name and its state."""

    run: Required[str]
    """The name of its folder."""
    workload: str
    state: Required[str]
    items: int
    completed: int
    discarded: int
    failed: int
    pending: int
    cost: float
    """US dollars."""
    simulated: bool
    created: str | None


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, or what may be one, in a list."""

    folder: Path
    state: str
    """That of its summary; if it has none, why not."""
    summary: RunSummary | None
    """Without the workload's own figures. None if the run can't be read, or if making it was cut short."""

    def to_json(self) -> RunRow:
        """The run in a row."""
        summary = self.summary
        if summary is None:
            return {"run": self.folder.name, "state": self.state}
        ledger = summary["ledger"]
        return {
            "run": summary["run"],
            "workload": summary["workload"],
            "state": self.state,
            "items": ledger["items"],
            "completed": ledger["completed"],
            "discarded": ledger["discarded"],
            "failed": ledger["failed"],
            "pending": ledger["pending"],
            "cost": summary["usage"]["cost"],
            "simulated": summary["simulated"],
            "created": summary["created_at"],
        }


def list_runs(data_dir: Path, *, sub_runs: bool = False) -> Iterator[ListedRun]:
    """The runs under a data folder, as ``find_runs`` finds them, one opened after the other. Raises StorageError as it does."""
    return map(_listed, find_runs(data_dir, sub_runs=sub_runs))


def _listed(folder: Path) -> ListedRun:
    try:
        with closing(open_reader(folder)) as reader:
            summary = run_summary(reader, with_figures=False)
    except ManyhandsError as error:
        return ListedRun(folder, f"unreadable: {error}", None)
    if summary["run_id"] is None:
        return ListedRun(folder, "unfinished: making it was cut short; make it again", None)
    return ListedRun(folder, summary["state"], summary)


# --- One item


class ItemContents(ItemSummary):
    """An item with what the journal holds of it, as ``manyhands show --json`` prints it."""

    payload: Json
    """What it was planned with, in the workload's form."""
    record: Json
    """What came of it, in the workload's form; null before it ended."""


class StepContents(TypedDict):
    """A step, as ``manyhands show RUN ITEM --json`` prints it. Times are seconds since 1970."""

    attempt: int
    scope: str
    seq: int
    """Its number in its scope, from 0."""
    kind: str
    request: Json
    output: Json
    usage: Mapping[str, Json]
    """What it used and cost; empty for a step that costs nothing."""
    started_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class ItemDetails:
    """What there is to know of an item besides its summary and its steps."""

    cause: str | None
    """Why it failed, was discarded or was cancelled, in a word."""
    message: str | None
    """The same in a sentence."""
    given_up: Sequence[EndedAttempt]
    """Its attempts that were given up for a fresh one, in order."""
    failures: Sequence[RecordedFailure]
    """All its failures in order, also those after which it was executed again."""
    earlier: Sequence[EarlierOutcome]
    """What it had come to each time before it was executed again on request, in order."""
    system_prompt: str | None
    """The system message that its agent was sent, where that is recorded apart from its conversation."""
    tools: Sequence[ToolUsage] = ()
    """What tools used and cost, those of abandoned attempts included."""


def item_called(reader: JournalReader, which: str) -> ItemRow | None:
    """As ``find_item``, but None if there is none."""
    return reader.item(which) or reader.item(f"id:{which}#0")


def find_item(reader: JournalReader, which: str) -> ItemRow:
    """An item by its number, its key, or a person's own id, of which it is the first sample. Raises UserError if there is none."""
    row = item_called(reader, which)
    if row is None:
        raise UserError(f"{reader.folder}: no item {which!r} (manyhands show {reader.folder} lists them)")
    return row


def item_details(reader: JournalReader, row: ItemRow) -> ItemDetails:
    """What went wrong with an item, now and before, and the messages to its agent."""
    return ItemDetails(
        row.reason or row.cause,
        row.message,
        reader.attempts(row.number),
        reader.failures(row.number),
        reader.earlier_outcomes(row.number),
        (row.record or {}).get("system_prompt"),
        tool_usages(reader.accounts_of_item(row.number)),
    )


def item_contents(row: ItemRow, summary: ItemSummary) -> ItemContents:
    """An item for programs."""
    return {**summary, "payload": row.payload, "record": row.record}


def step_contents(step: RecordedStep) -> StepContents:
    """A step for programs."""
    return {
        "attempt": step.attempt,
        "scope": step.scope,
        "seq": step.seq,
        "kind": step.kind,
        "request": step.request,
        "output": step.output,
        "usage": dict(step.usage),
        "started_at": step.started_at,
        "finished_at": step.finished_at,
    }
