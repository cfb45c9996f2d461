"""What a run of any workload is to whoever lists, shows or exports runs: one summary, and one row for each item.

Both are data, JSON as they stand. What every run has comes from its journal; the rest is filled in by the workload's ``Summarizer``,
which the registry names and which only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, line
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import Usage, UsageFigures
from manyhands.engine.contract import ItemRow, import_attribute
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader, RecordedOrder
from manyhands.io.json_files import read_object
from manyhands.runs.ledger import REPLICAS, Summary, left_to_do, summarise, timestamp
from manyhands.runs.progress import ImageProgress, ItemSandbox, RunSandbox, image_progress, run_sandboxes
from manyhands.runs.registry import summarizer_target
from manyhands.runs.steering.changes import order_text

MAX_TEXT = 300
"""Characters of ``input`` and ``outcome`` of an item."""
_MAX_READ = 4 * MAX_TEXT
"""Characters of a value, white space included, that ``input`` and ``outcome`` are made of."""
_VISIBLE = re.compile(r"\S")
_ORDERS = 20
_PAGE = 100
"""Items whose usage is read at once."""


class Figure(TypedDict):
    """A figure of a workload's own, such as a pass rate."""

    name: str
    """The same in all runs of the workload."""
    label: str
    """What people call it."""
    value: float | None
    """Null where it is not known (yet)."""
    text: str
    """The value as people read it."""


class Order(TypedDict):
    """What a person had changed in the run."""

    at: str | None
    given_by: str
    """``user@host``."""
    command: str
    """set, retry or cancel."""
    text: str
    """What was changed, in one line."""


class ReplicaStatus(TypedDict):
    """One of several servers of a model, or API keys, among which calls choose."""

    replica: str
    """Its address, with the number of its key where that has several."""
    in_flight: int
    """Calls in flight."""
    window: int
    """How many may be."""
    answered: int
    """Calls of the latest session."""
    failed: int
    """Calls of the latest session with which it failed."""
    seconds: float | None
    """That a call takes, an average of the latest ones; null before the first."""
    out_since: str | None
    """Since when it is left out; null if it is not."""
    reason: str | None
    """Why it is left out."""


class RunStatus(Summary):
    """A run of any workload, as ``manyhands status --json`` prints it."""

    run: str
    """The name of its folder."""
    state: str
    """``running``, ``paused``, ``finished``, ``finished, with failures``, ``limit reached``, ``interrupted`` or ``not started``."""
    running: int
    """Items that are being executed now."""
    orders: list[Order]
    """What people had changed in the run, the latest first, no more than 20."""
    figures: list[Figure]
    """The workload's own figures: as its result files had them when a session last ended, or of the items as they are now."""
    replicas: list[ReplicaStatus]
    """Where the replicas stand, or stood when a session last ended; empty if there is only one."""
    images: ImageProgress | None
    """How far the container images of the run are; null if it has none."""
    sandboxes: list[RunSandbox]
    """The kinds of sandboxes that it makes of images, with these; empty without images."""


class RunSummary(RunStatus):
    """A run of any workload, for whoever goes on from it to its folder."""

    folder: str
    """The absolute path of its folder."""


class ItemSummary(TypedDict):
    """An item of any workload, as ``manyhands show --json`` prints it. Times are RFC 3339, UTC."""

    item: int
    """Its number, in order of planning, from 1."""
    key: str
    """Its identity."""
    position: int | None
    """Its position in the input, from 0; null if the input does not name it any more."""
    sample: int
    """Which repeat of the same content it is, from 0."""
    label: str
    """What people call it."""
    state: str
    """pending, running, completed, discarded, failed or cancelled."""
    attempt: int
    """The number of its latest attempt, from 1."""
    performances: int
    """How often it was executed, resumed attempts included."""
    reason: str | None
    """Why it was discarded, or ``removed`` if it was cancelled because the input does not have it any more."""
    cause: str | None
    """Why it failed, or was cancelled otherwise."""
    message: str | None
    """The same in a sentence."""
    score: float | None
    """From 0 to 1; null if it has none."""
    verdict: str | None
    """Its verdict by score or status, where the workload has one."""
    usage: UsageFigures
    """What its recorded steps used and cost, those of abandoned attempts included."""
    input: str
    """The beginning of what was given, on one line."""
    outcome: str
    """The beginning of what came of it, on one line."""
    sandbox: ItemSandbox | None
    """Where its commands run; null where the workload runs none in a sandbox."""
    started_at: str | None
    finished_at: str | None


@dataclass(slots=True)  # not frozen, which would make it slow to make: there is one for each item. Not to be changed.
class ItemFacts:
    """What a workload knows of an item, in full: a summary has the beginnings of ``input`` and ``outcome``."""

    label: str
    sample: int = 0
    score: float | None = None
    verdict: str | None = None
    input: Json = None
    outcome: Json = None


class Summarizer:
    """Fills in the summaries of a run. This one knows what all runs have; a workload's own is a subclass, whose ``facts`` knows more (or
    whose ``item`` changes what it knows more of). It only reads, and is made anew for each look at a run."""

    def __init__(self, reader: JournalReader) -> None:
        self.reader = reader
        self.spec: Any = reader.meta("spec")
        """As it is recorded: other versions may have made it."""
        self._usage: Mapping[int, Usage] = {}
        """What the items used that are summed up at the moment."""

    def items(self, rows: Sequence[ItemRow]) -> list[ItemSummary]:
        """The summaries of a page of items, whose usage is read by one query."""
        self._usage = self.reader.usage_of_items([row.number for row in rows])
        return [self.item(row) for row in rows]

    def facts(self, row: ItemRow) -> ItemFacts:
        """What is to be known of an item from its row alone: quick, as an index of a run asks for it of each."""
        return ItemFacts(row.key, outcome=row.message)

    def sandbox(self, row: ItemRow) -> ItemSandbox | None:
        """Where an item's commands run."""
        return None

    def facts_of(self, rows: Sequence[ItemRow]) -> list[ItemFacts]:
        """The same of several items. Of a summarizer that only has an ``item`` of its own it is taken from that."""
        if type(self).item is Summarizer.item:
            return [self.facts(row) for row in rows]
        return [
            ItemFacts(each["label"], each["sample"], each["score"], each["verdict"], each["input"], each["outcome"])
            for each in self.items(rows)
        ]

    def item(self, row: ItemRow) -> ItemSummary:
        """The summary of an item."""
        facts = self.facts(row)
        usage = self._usage.get(row.number) or self.reader.usage_of_items([row.number])[row.number]
        return {
            "item": row.number,
            "key": row.key,
            "position": None if row.left_input else row.position,
            "sample": facts.sample,
            "label": facts.label,
            "state": row.state.value,
            "attempt": row.attempt,
            "performances": row.performances,
            "reason": row.reason,
            "cause": row.cause,
            "message": row.message,
            "score": facts.score,
            "verdict": facts.verdict,
            "usage": cast(UsageFigures, {**usage.to_json(), "cost": round(usage.cost, 6)}),
            "input": brief(facts.input),
            "outcome": brief(facts.outcome),
            "sandbox": self.sandbox(row),
            "started_at": timestamp(row.started_at),
            "finished_at": timestamp(row.finished_at),
        }

    def figures(self) -> list[Figure]:
        """The workload's own figures. Best taken from its result files: what goes through the items takes longer the larger the run is."""
        return []

    def read_results(self, name: str) -> Mapping[str, Any]:
        """A JSON file of the run folder; empty if it is not there, or can't be read."""
        folder = self.reader.folder
        try:
            return read_object(folder / name, within=folder)
        except UserError:
            return {}


def summarizer_of(reader: JournalReader) -> Summarizer:
    """What fills in the summaries of a run."""
    target = summarizer_target(str(reader.meta("workload")))
    kind: type[Summarizer] = Summarizer if target is None else import_attribute(target)
    return kind(reader)


def run_summary(reader: JournalReader, *, with_figures: bool = True) -> RunSummary:
    """A run in figures, and where it is. ``with_figures`` as for ``run_status``."""
    return {**run_status(reader, with_figures=with_figures), "folder": str(reader.folder.absolute())}


def run_status(reader: JournalReader, *, with_figures: bool = True) -> RunStatus:
    """A run in figures. ``with_figures``: with the workload's own, for which its ``Summarizer`` is loaded."""
    summarizer = summarizer_of(reader) if with_figures and reader.meta("run_id") is not None else None
    spec = reader.meta("spec") if summarizer is None else summarizer.spec
    summary = summarise(reader, spec)
    running = sum(count for (state, _), count in reader.counts().items() if state == ItemState.RUNNING)
    return {
        "run": reader.folder.name,
        "state": run_state(reader.folder, summary),
        "running": running,
        **summary,
        "orders": [_order(each) for each in reader.orders(_ORDERS)],
        "figures": [] if summarizer is None else summarizer.figures(),
        "replicas": [_replica_status(each) for each in reader.meta(REPLICAS, [])],
        "images": image_progress(reader.folder),
        "sandboxes": run_sandboxes(spec),
    }


def _order(order: RecordedOrder) -> Order:
    text = order_text(order.command, order.details)
    return {"at": timestamp(order.at), "given_by": order.given_by, "command": order.command, "text": text}


def _replica_status(recorded: Mapping[str, Any]) -> ReplicaStatus:
    return cast(ReplicaStatus, {**recorded, "out_since": timestamp(recorded["out_since"])})


def item_summaries(
    reader: JournalReader, state: str | None = None, *, behind: int = -1, limit: int | None = None
) -> Iterator[tuple[ItemRow, ItemSummary]]:
    """Items (in that state) in order of the input, streamed: each as the journal holds it, with its summary.

    ``behind``: only items behind this position; the next page begins behind the ``position`` of the last row, not of its summary, which
    is null for an item that left the input. ``limit``: so many at most; None: all.
    """
    summarizer = summarizer_of(reader)
    rows = islice((row for row in reader.items(behind) if state is None or row.state == state), limit)
    while page := list(islice(rows, _PAGE)):
        yield from zip(page, summarizer.items(page), strict=True)


def run_state(folder: Path, summary: Summary) -> str:
    """One word or two: running, paused, finished, finished with failures, limit reached, interrupted, not started."""
    if is_owned(folder):
        return "paused" if summary["last_session"] and summary["last_session"]["paused_at"] else "running"
    if summary["ledger"]["pending"] == 0:
        return "finished, with failures" if summary["ledger"]["failed"] else "finished"
    if left_to_do(summary["ledger"]) == 0:
        return "limit reached"
    return "interrupted" if summary["last_session"] else "not started"


def figure(name: str, value: float | None, form: str, *, label: str | None = None) -> Figure:
    """A figure with its text. ``form``: as of ``format``, such as ``.1%``; without a label the name says it."""
    text = "-" if value is None else format(value, form)
    return {"name": name, "label": label or name.replace("_", " "), "value": value, "text": text}


def number_in(results: Any, *names: str) -> float | None:
    """A number of a result file, by the names that lead to it; None where there is none, as another version may have written the file."""
    found = results
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def brief(value: Any) -> str:
    """The beginning of a value on one line; nothing of None."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else line(value)
    words = " ".join(text[:_MAX_READ].split())
    complete = len(words) <= MAX_TEXT and _VISIBLE.search(text, _MAX_READ) is None
    return words if complete else f"{words[:MAX_TEXT]}…"
