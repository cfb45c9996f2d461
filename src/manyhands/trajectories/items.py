"""A batch's items: rows of the dataset times samples, with what an earlier program had finished already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Item
from manyhands.engine.workload import PlannedItem
from manyhands.trajectories.dataset import DatasetItem, iterate_items
from manyhands.trajectories.digest_table import DigestTable
from manyhands.trajectories.dataset import prompt_digest
from manyhands.trajectories.original import SET_ASIDE, OriginalEntry, batch_files, normalise_entry
from manyhands.trajectories.original_matches import OriginalMatches
from manyhands.trajectories.quality import UNKNOWN_TOOL
from manyhands.trajectories.spec import BatchSpec
from manyhands.trajectories.statistics import record_of_entry

ADOPTED = "adopted"
"""In an item's record: the line that the original program had written for it."""


@dataclass(frozen=True, slots=True)
class PromptItem:
    """An item's payload. ``prompt_index`` counts usable rows from 0, ``sample`` the repeats of a row; ``source`` holds the row's other fields."""

    prompt: Any
    prompt_index: int
    sample: int = 0
    image: str | None = None
    cwd: str | None = None
    id: str | None = None
    line: int = 0
    source: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, item: Item) -> PromptItem:
        return cls(**item.payload)

    @classmethod
    def from_dataset(cls, found: DatasetItem) -> PromptItem:
        row = found.row
        return cls(row.prompt, found.prompt_index, found.sample, row.image, row.cwd, row.id, row.line, row.source)

    def to_json(self) -> dict[str, Any]:
        """The payload; what is absent is left out."""
        values: dict[str, Any] = {"prompt": self.prompt, "prompt_index": self.prompt_index}
        for name in ("sample", "image", "cwd", "id", "line", "source"):
            if value := getattr(self, name):
                values[name] = value
        return values


def batch_file(prompt_index: int, batch_size: int) -> str:
    """The output file of a prompt."""
    return f"batch_{prompt_index // batch_size}.jsonl"


def plan_items(options: BatchSpec, run_folder: Path, tools: tuple[str, ...]) -> Iterator[PlannedItem]:
    """All items in order, streamed; those that the original program had finished come with their outcome."""
    found = iterate_items(options.dataset_file, options.samples, options.max_samples)
    kept = run_folder / SET_ASIDE
    if not batch_files(kept):
        for item in found:
            yield PlannedItem(item.key, PromptItem.from_dataset(item).to_json())
        return
    with OriginalMatches(kept) as matches, DigestTable() as copies:
        for item in found:
            payload = PromptItem.from_dataset(item)
            entry = matches.find(item.row.prompt, copies.count(prompt_digest(item.row.prompt)))
            outcome = None if entry is None else adopted_outcome(entry, payload, options, tools)
            yield PlannedItem(item.key, payload.to_json(), outcome)


def adopted_outcome(entry: OriginalEntry, payload: PromptItem, options: BatchSpec, tools: tuple[str, ...]) -> Outcome:
    """How an item ended that the original program had performed."""
    if entry.entry is None:
        return Outcome(ItemState.DISCARDED, {ADOPTED: None}, reason=entry.discarded or "no_reasoning")
    record = {ADOPTED: entry.entry, **record_of_entry(entry.entry)}
    _, unknown = normalise_entry(entry.entry, tools, payload.prompt_index, 0)
    if unknown and not options.keep_unknown_tools:
        return Outcome(ItemState.DISCARDED, record, reason=UNKNOWN_TOOL)
    file = batch_file(payload.prompt_index, options.batch_size)
    return Outcome(ItemState.COMPLETED, record, line=(file, ""))
