"""The files that exist once per run: trajectories.jsonl, failures.jsonl, statistics.json, checkpoint.json.

All are written from the journal and the batch files, streamed, aside, and renamed. They tell about the dataset as it is
now: results of rows that it lost stay in the journal and the batch files, and come back with the row.

Which of several samples of a row is the best depends on all of them, in whatever order they end, so it is no outcome of an item: all
that ended well stay completed in the journal and in the batch files, and each time that ``trajectories.jsonl`` is written, the best is
chosen anew from the recorded scores. That gives the same however often a run was broken off.
"""

from __future__ import annotations

import json
import os
import re
import time
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NotRequired, TextIO, TypedDict, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import line, loads, pretty, unbroken
from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import ItemRow, RunReader
from manyhands.io.files import written_aside
from manyhands.runs.ledger import ledger
from manyhands.workloads.trajectories.grading import GRADE, score_of
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.lines.entry import local_time
from manyhands.workloads.trajectories.lines.turns import ESCAPED_TAGS
from manyhands.workloads.trajectories.original import batch_files
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.quality import NO_REASONING
from manyhands.workloads.trajectories.statistics import RunStatistics, ScoreStatistics, Statistics, TagFigures

TRAJECTORIES = "trajectories.jsonl"
FAILURES = "failures.jsonl"
STATISTICS = "statistics.json"
CHECKPOINT = "checkpoint.json"
_INDEX = re.compile(rb'\{"prompt_index": (\d+),')
_ESCAPED_TAGS = re.compile(rb', "%s": (\d+)' % ESCAPED_TAGS.encode())
_PAGE = 2000
_BLOCK = 1 << 18


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


def write_exports(reader: RunReader, prepared: Prepared, run_name: str) -> None:
    """Write all four. Raises StorageError if one can't be written; the old one is then still there."""
    folder = reader.folder
    statistics, removed = RunStatistics(), RemovedItems()
    best, scores = BestSamples(wanted=prepared.options.best_of), ScoreStatistics()
    with written_aside(folder / FAILURES) as handle:
        for row, is_kept in best.judged(reader.items()):
            if row.left_input:
                removed.add(row)
                continue
            if not row.state.final:
                continue
            statistics.add(row.state, row.record if is_kept else None, reason=row.reason, cause=row.cause)
            scores.add((row.record or {}).get(GRADE))
            if row.state is not ItemState.COMPLETED or not is_kept:
                handle.write(line(failure(row, None if is_kept else NOT_BEST)) + "\n")
        for number, reason in prepared.bad_rows:
            handle.write(line({"line": number, "state": "skipped", "cause": "invalid_row", "message": reason}) + "\n")
    tags = TagStatistics()
    with written_aside(folder / TRAJECTORIES) as handle:
        combine(folder, prepared.options.samples, handle, removed.keys, best, tags)
    found = _statistics(reader, prepared, run_name, statistics, removed)
    found["escaped_tags"] = tags.to_json()
    if prepared.options.grade_checks is not None:
        found["scores"] = scores.to_json()
    if prepared.options.best_of:
        found["not_best"] = best.others
    _write_json(folder / STATISTICS, found)
    with written_aside(folder / CHECKPOINT) as handle:
        _write_checkpoint(reader, prepared, run_name, handle)


class RemovedItems:
    """Items of rows that the dataset lost. ``keys``: those that have a line in a batch file."""

    def __init__(self) -> None:
        self.items = 0
        self.keys: set[str] = set()

    def add(self, row: ItemRow) -> None:
        self.items += 1
        if row.state is ItemState.COMPLETED:
            self.keys.add(row.key)


class TagStatistics:
    """Adds up how many tags lines say were escaped in them."""

    def __init__(self) -> None:
        self._lines = 0
        self._tags = 0

    def add(self, text: bytes) -> None:
        """A line. Within texts quotation marks are escaped, so the first name that looks like the one of metadata is it."""
        found = _ESCAPED_TAGS.search(text)
        if found is not None and (tags := int(found[1])):
            self._lines += 1
            self._tags += tags

    def to_json(self) -> TagFigures:
        return {"trajectories": self._lines, "tags": self._tags}


def combine(
    folder: Path,
    samples: int,
    handle: TextIO,
    without: Collection[str] = (),
    best: BestSamples | None = None,
    tags: TagStatistics | None = None,
) -> None:
    """Write the lines of all batch files in order of prompts and samples, but for those of the items ``without`` and, with ``best``, of
    samples that are not. One batch file is held in memory at a time, and of a large one only where its lines are."""
    handle.flush()
    for path in batch_files(folder):
        with path.open("rb", buffering=_BLOCK) as batch:
            try:
                for start, length in sorted_lines(batch, samples):
                    text = os.pread(batch.fileno(), length, start)
                    if best is not None and not best.has(*_order(text, samples)):
                        continue
                    if not without or loads(text)["metadata"]["item"] not in without:
                        handle.buffer.write(unbroken(text))  # both are UTF-8
                        if tags is not None:
                            tags.add(text)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{path}: a line of it is not what was written there; remove the file, and the next resume writes it again"
                ) from error


def sorted_lines(batch: IO[bytes], samples: int) -> Iterator[tuple[int, int]]:
    """Where the lines of a batch file are: (offset, length), in order of prompt and sample."""
    places, offset = [], 0
    for text in batch:
        places.append((_order(text, samples), offset, len(text)))
        offset += len(text)
    places.sort()
    return ((start, length) for _, start, length in places)


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


def _order(text: bytes, samples: int) -> tuple[int, int]:
    if samples == 1 and (match := _INDEX.match(text)):
        return int(match[1]), 0
    entry = loads(text)
    return entry["prompt_index"], entry["metadata"].get("sample", 0)


def _statistics(
    reader: RunReader, prepared: Prepared, run_name: str, statistics: RunStatistics, removed: RemovedItems
) -> Statistics:
    counts, usage = ledger(reader.counts()), reader.usage()
    statistics.add_pending(counts["pending"])
    options = prepared.options
    result = statistics.to_json(
        run_name=run_name,
        distribution=options.distribution,
        total_prompts=-(-(counts["items"] - removed.items) // options.samples),
        batch_size=options.batch_size,
        model=options.model,
        completed_at=time.time(),
        duration_seconds=reader.working_seconds(),
        usage=usage,
        simulated=usage.simulated_calls > 0,
    )
    return {**result, "samples": options.samples, "skipped_rows": prepared.bad_count, "removed_items": removed.items}


def _write_checkpoint(reader: RunReader, prepared: Prepared, run_name: str, handle: IO[str]) -> None:
    """The original's ``checkpoint.json``, streamed: a prompt is completed when all its samples are."""
    samples, size = prepared.options.samples, prepared.options.batch_size
    handle.write(f'{{\n  "run_name": {json.dumps(run_name)},\n  "completed_prompts": [')
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


def _write_json(path: Path, value: Statistics) -> None:
    with written_aside(path) as handle:
        handle.write(pretty(value))
        handle.write("\n")


NOT_BEST = "not_best"
"""Not in trajectories.jsonl because another sample of its row scored higher, or as high before it."""
_NONE = -1


class BestSamples:
    """For each row the number of its best sample. ``wanted``: False takes all samples. It holds one number a row."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._best = array("q")
        self.others = 0
        """Trajectories that are not the best of their row."""

    def judged(self, rows: Iterable[ItemRow]) -> Iterator[tuple[ItemRow, bool]]:
        """Each item, with False if it has a trajectory that is not the best of its row. ``rows``: in order of the input."""
        if not self._wanted:
            yield from ((row, True) for row in rows)
            return
        for prompt, samples in groupby(rows, key=_prompt):
            if prompt is None:
                yield from ((row, True) for row in samples)
            else:
                yield from self._judged(prompt, list(samples))

    def has(self, prompt_index: int, sample: int) -> bool:
        """Whether a trajectory is to be in the file. Only once all of ``judged`` was taken."""
        return not self._wanted or (prompt_index < len(self._best) and self._best[prompt_index] == sample)

    def _judged(self, prompt: int, rows: list[ItemRow]) -> Iterator[tuple[ItemRow, bool]]:
        completed = [row for row in rows if row.state is ItemState.COMPLETED]
        best = max(completed, key=_score, default=None)  # of equals, the first
        self._best.extend([_NONE] * (prompt + 1 - len(self._best)))
        if best is not None:
            self._best[prompt] = PromptItem.of(best.item).sample
            self.others += len(completed) - 1
        for row in rows:
            yield row, row is best or row.state is not ItemState.COMPLETED


def _score(row: ItemRow) -> float:
    score = score_of(row.record)
    return -1.0 if score is None else score


def _prompt(row: ItemRow) -> int | None:
    return None if row.left_input else PromptItem.of(row.item).prompt_index
