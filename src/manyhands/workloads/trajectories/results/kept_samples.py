"""What a batch's items came to as its files tell it: each item with whether its trajectory is kept, and the lines of those that are.

Which of several samples of a row is the best depends on all of them, in whatever order they end, so it is no outcome of an item: all
that ended well stay completed in the journal and in the batch files, and each time that the files are written, the best is
chosen anew from the recorded scores. That gives the same however often a run was broken off.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads, unbroken
from manyhands.core.outcomes import GRADE, ItemState, OutputLine
from manyhands.engine.contract import FinishedItem, ItemRow, RecordedStep, RunReader
from manyhands.export.sharegpt_reading import ESCAPED_TAGS
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.original import batch_files
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.records import score_of
from manyhands.workloads.trajectories.results.statistics import RunStatistics, ScoreStatistics, TagFigures

_INDEX = re.compile(rb'\{"prompt_index": (\d+),')
_ESCAPED_TAGS = b', "%s": ' % ESCAPED_TAGS.encode()
_NUMBER = re.compile(rb"\d+")
_BLOCK = 1 << 18


Render = Callable[[FinishedItem, Sequence[RecordedStep]], OutputLine | None]
"""Makes an item's line from the journal."""


class BatchResults:
    """The items of a batch, and its lines, for the writers of ``exports.EXPORTS``. Figures are added up on the way."""

    def __init__(self, reader: RunReader, prepared: Prepared, run_name: str, render: Render) -> None:
        self.reader, self.prepared, self.run_name = reader, prepared, run_name
        self._render = render
        self._begin()

    def _begin(self) -> None:
        self.best = BestSamples(wanted=self.prepared.options.best_of)
        self.removed = RemovedItems()
        self.statistics = RunStatistics()
        self.scores = ScoreStatistics()
        self.tags = TagStatistics()

    def ended(self) -> Iterator[tuple[ItemRow, bool]]:
        """Each item of the dataset as it is now that has ended, in order, with False if it has a trajectory that is not the best of
        its row. Figures are whole, and ``lines`` can be taken, once all were."""
        self._begin()
        for row, is_kept in self.best.judged(self.reader.items()):
            if row.left_input:
                self.removed.add(row)
            elif row.state.final:
                self.statistics.add(row.state, row.record if is_kept else None, reason=row.reason, cause=row.cause)
                self.scores.add((row.record or {}).get(GRADE))
                yield row, is_kept

    def lines(self) -> Iterator[bytes]:
        """The line of each trajectory that is kept, with its newline, in order of prompts and samples. Raises UserError that names a batch
        file that can't be used."""
        self.tags = TagStatistics()
        samples = self.prepared.options.samples
        if self.prepared.options.batch_files:
            lines = kept_lines(self.reader.folder, samples, self.removed.keys, self.best)
        else:
            lines = self._rendered()
        for text in lines:
            self.tags.add(text)
            yield text

    def _rendered(self) -> Iterator[bytes]:
        """The same lines from the journal alone."""
        for row in self.reader.items():
            if row.state is not ItemState.COMPLETED or row.left_input:
                continue
            payload = PromptItem.of(row.item)
            if not self.best.has(payload.prompt_index, payload.sample):
                continue
            line = self._render(row.finished(), self.reader.steps(row.number, row.attempt))
            if line is not None:
                text = line[1] if isinstance(line[1], bytes) else line[1].encode("utf-8", "replace")
                yield unbroken(text + b"\n")


def kept_lines(
    folder: Path, samples: int, without: Collection[str] = (), best: BestSamples | None = None
) -> Iterator[bytes]:
    """The lines of all batch files in order of prompts and samples, but for those of the items ``without`` and, with ``best``, of
    samples that are not. One batch file is held in memory at a time, and of a large one only where its lines are."""
    for path in batch_files(folder):
        with path.open("rb", buffering=_BLOCK) as batch:
            try:
                for start, length in sorted_lines(batch, samples):
                    text = os.pread(batch.fileno(), length, start)
                    if best is not None and not best.has(*_order(text, samples)):
                        continue
                    if not without or loads(text)["metadata"]["item"] not in without:
                        yield unbroken(text)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{path}: a line of it is not what was written there; remove the file, and the next resume writes it again"
                ) from error


def sorted_lines(batch: IO[bytes], samples: int) -> Iterator[tuple[int, int]]:
    """Where the lines of a batch file are: (offset, length), in order of prompt and sample."""
    lines, offset = [], 0
    for text in batch:
        lines.append((_order(text, samples), offset, len(text)))
        offset += len(text)
    lines.sort()
    return ((start, length) for _, start, length in lines)


def _order(text: bytes, samples: int) -> tuple[int, int]:
    if samples == 1 and (match := _INDEX.match(text)):
        return int(match[1]), 0
    entry = loads(text)
    return entry["prompt_index"], entry["metadata"].get("sample", 0)


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
        start = text.find(_ESCAPED_TAGS)  # several times as fast as a pattern
        found = _NUMBER.match(text, start + len(_ESCAPED_TAGS)) if start >= 0 else None
        if found is not None and (tags := int(found[0])):
            self._lines += 1
            self._tags += tags

    def to_json(self) -> TagFigures:
        return {"trajectories": self._lines, "tags": self._tags}


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
