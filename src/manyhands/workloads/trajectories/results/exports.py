"""The files that exist once per run: trajectories.jsonl, failures.jsonl, statistics.json, checkpoint.json.

All are written from the journal and the batch files, streamed, aside, and renamed. They tell about the dataset as it is
now: results of rows that it lost stay in the journal and the batch files, and come back with the row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, NotRequired, TextIO, TypedDict, cast

from manyhands.core.jsonio import line, pretty
from manyhands.core.outcomes import GRADE, ItemState
from manyhands.engine.contract import ItemRow, RunReader
from manyhands.io.files import written_aside
from manyhands.runs.ledger import ledger
from manyhands.runs.progress import ItemSandbox, item_sandbox
from manyhands.runs.summaries import Figure, ItemFacts, Summarizer, figure, number_in
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.lines.entry import local_time
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.records import NO_REASONING
from manyhands.workloads.trajectories.results.kept_samples import NOT_BEST, BatchResults, Render
from manyhands.workloads.trajectories.results.statistics import Statistics

TRAJECTORIES = "trajectories.jsonl"
FAILURES = "failures.jsonl"
STATISTICS = "statistics.json"
CHECKPOINT = "checkpoint.json"
_PAGE = 2000


class Failure(TypedDict):
    """A line of ``failures.jsonl``: an item without a trajectory, or a row that can't be used (which has ``line`` in place of an item)."""

    line: NotRequired[int]
    """Of a row that can't be used: its number in the dataset."""
    prompt_index: NotRequired[int]
    sample: NotRequired[int]
    item: NotRequired[str]
    """The item's key."""
    state: str
    """discarded, failed, cancelled, or skipped for a row; completed for a trajectory that is not the best of its row."""
    cause: str | None
    message: str | None
    score: NotRequired[float | None]
    """Of a graded trajectory that was discarded."""
    verdict: NotRequired[str | None]
    attempt: NotRequired[int]
    performances: NotRequired[int]
    """How often the item was tried."""
    finished_at: NotRequired[str | None]
    """Local time, ISO 8601."""
    prompt: NotRequired[Any]
    system: NotRequired[str]
    """The row's own system prompt."""
    messages: NotRequired[list[dict[str, Any]]]
    """The row's own messages."""
    source: NotRequired[dict[str, Any]]
    """The row's other fields."""


class BatchStats(TypedDict):
    """One batch of prompts."""

    processed: int
    skipped: int
    discarded_no_reasoning: int


class Checkpoint(TypedDict):
    """What ``checkpoint.json`` holds, for programs that read the original's; a resume does not need it."""

    run_name: str
    completed_prompts: list[int]
    """Prompt indices: a prompt is completed when all its samples are."""
    batch_stats: dict[str, BatchStats]
    """By the number of the batch."""
    last_updated: str
    """Local time, ISO 8601."""


def write_exports(reader: RunReader, prepared: Prepared, run_name: str, render: Render) -> None:
    """Write all of ``EXPORTS``. ``render``: makes a line from the journal, for runs without batch files.

    Raises StorageError if one can't be written; the old one is then still there.
    """
    results = BatchResults(reader, prepared, run_name, render)
    for name, write in EXPORTS.items():
        with written_aside(reader.folder / name) as handle:
            write(handle, results)


def write_failures(handle: TextIO, results: BatchResults) -> None:
    """JSON Lines: a ``Failure`` for each item without a trajectory of its own in the lines, then for each row that can't be used."""
    for row, is_kept in results.ended():
        if row.state is not ItemState.COMPLETED or not is_kept:
            handle.write(line(failure(row, None if is_kept else NOT_BEST)) + "\n")
    for number, reason in results.prepared.bad_rows:
        handle.write(line({"line": number, "state": "skipped", "cause": "invalid_row", "message": reason}) + "\n")


def write_trajectories(handle: TextIO, results: BatchResults) -> None:
    """JSON Lines: the trajectories that are kept, as they are in the batch files."""
    handle.flush()
    for text in results.lines():
        handle.buffer.write(text)  # both are UTF-8


def write_statistics(handle: TextIO, results: BatchResults) -> None:
    """A JSON object: ``Statistics``."""
    handle.write(pretty(statistics_of(results)) + "\n")


def statistics_of(results: BatchResults, *, with_tags: bool = True) -> Statistics:
    """The figures of items that were gone through. ``with_tags``: also those of the lines, if they were."""
    options, found = results.prepared.options, _statistics(results)
    if with_tags:
        found["escaped_tags"] = results.tags.to_json()
    if options.is_graded:
        found["scores"] = results.scores.to_json()
    if options.keep_unreasoned:
        found["kept_without_reasoning"] = results.statistics.unreasoned
    if options.best_of:
        found["not_best"] = results.best.others
    return found


def write_checkpoint(handle: TextIO, results: BatchResults) -> None:
    """The original's ``checkpoint.json``, streamed: a prompt is completed when all its samples are."""
    reader, options = results.reader, results.prepared.options
    samples, size = options.samples, options.batch_size
    handle.write(f'{{\n  "run_name": {json.dumps(results.run_name)},\n  "completed_prompts": [')
    separator = ""
    for prompt, rows in groupby(_states(reader), key=lambda row: row[0] // samples):
        if all(state in (ItemState.COMPLETED, ItemState.DISCARDED) for _, state, _ in rows):
            handle.write(f"{separator}\n    {prompt}")
            separator = ","
    handle.write('\n  ],\n  "batch_stats": {')
    separator = ""
    for number, rows in groupby(_states(reader), key=lambda row: row[0] // samples // size):
        handle.write(f'{separator}\n    "{number}": {json.dumps(_batch_stats(rows))}')
        separator = ","
    handle.write(f'\n  }},\n  "last_updated": {json.dumps(local_time(time.time()))}\n}}\n')


def failure(row: ItemRow, cause: str | None = None) -> Failure:
    """A line of ``failures.jsonl``: an item without a trajectory, and why. ``cause``: where the journal does not say. Times are
    those of the journal."""
    payload = PromptItem.of(row.item)
    grade = (row.record or {}).get(GRADE)
    values: dict[str, Any] = {
        "prompt_index": payload.prompt_index,
        "sample": payload.sample,
        "item": row.key,
        "state": row.state,
        "cause": cause or row.reason or row.cause,
        "message": row.message,
        **({} if grade is None else {"score": grade["score"], "verdict": grade["verdict"]}),
        "attempt": row.attempt,
        "performances": row.performances,
        "finished_at": None if row.finished_at is None else local_time(row.finished_at),
        "prompt": payload.prompt,
        **{name: value for name in ("system", "messages") if (value := getattr(payload, name))},
        "source": payload.source,
    }
    return cast(Failure, values)


def _statistics(results: BatchResults) -> Statistics:
    reader, prepared, statistics = results.reader, results.prepared, results.statistics
    counts, usage = ledger(reader.counts()), reader.usage()
    statistics.add_pending(counts["pending"])
    options = prepared.options
    result = statistics.to_json(
        run_name=results.run_name,
        distribution=options.distribution,
        total_prompts=-(-(counts["items"] - results.removed.items) // options.samples),
        batch_size=options.batch_size,
        model=options.model,
        completed_at=time.time(),
        duration_seconds=reader.working_seconds(),
        usage=usage,
        simulated=usage.simulated_calls > 0,
    )
    return {
        **result,
        "samples": options.samples,
        "skipped_rows": prepared.bad_count,
        "removed_items": results.removed.items,
    }


def _batch_stats(rows: Iterator[tuple[int, str, str | None]]) -> BatchStats:
    processed = discarded = 0
    for _, state, reason in rows:
        processed += state in (ItemState.COMPLETED, ItemState.DISCARDED)
        discarded += reason == NO_REASONING
    return {"processed": processed, "skipped": 0, "discarded_no_reasoning": discarded}


def _states(reader: RunReader) -> Iterator[tuple[int, str, str | None]]:
    position = -1
    while rows := reader.states(position, _PAGE):
        yield from rows
        position = rows[-1][0]


Writer = Callable[[TextIO, BatchResults], None]
EXPORTS: Mapping[str, Writer] = {
    FAILURES: write_failures,
    TRAJECTORIES: write_trajectories,
    STATISTICS: write_statistics,
    CHECKPOINT: write_checkpoint,
}
"""The files by name, in the order in which they are written. The first goes through all items, which decides which lines are kept; the
figures of the third are those that the first two added up."""


# --- For views over all workloads


class TrajectorySummarizer(Summarizer):
    """What an item's prompt was, how its conversation ended, and what graders found."""

    def facts(self, row: ItemRow) -> ItemFacts:
        payload, record = row.payload, row.record or {}
        grade = record.get(GRADE) or {}
        return ItemFacts(
            payload.get("id") or f"prompt {payload['prompt_index']}",
            payload.get("sample", 0),
            grade.get("score"),
            grade.get("verdict"),
            payload["prompt"],
            row.message or record.get("stop_reason"),
        )

    def sandbox(self, row: ItemRow) -> ItemSandbox | None:
        options = self.spec.get("options")  # lost in a damaged journal, of which the rest is shown all the same
        return None if options is None else item_sandbox(options, self.spec.get("pins"), row.payload.get("image"))

    def figures(self) -> list[Figure]:
        found = self.read_results(STATISTICS)
        return [] if found.get("scores") is None else [figure("mean_score", number_in(found, "scores", "mean"), ".3f")]
