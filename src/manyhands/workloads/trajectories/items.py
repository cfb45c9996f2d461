"""A batch's items: rows of the dataset times samples, and among them those that the original program had finished already.

Lines of the original program become lines of this run: what is new in ours is filled in, so that all lines have one schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.core.digests import digest
from manyhands.core.jsonio import Json, line
from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.contract import Item, PlannedItem
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.export.sharegpt import wording_of
from manyhands.export.sharegpt_reading import ESCAPED_TAGS
from manyhands.io.digest_table import DigestTable
from manyhands.workloads.trajectories.dataset.rows import DatasetItem, HowRead, iterate_items, prompt_digest
from manyhands.workloads.trajectories.dataset.source_fields import ARROW_TIME
from manyhands.workloads.trajectories.lines.entry import NO_SCORE, NO_SEED
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT, fitted, schema_of
from manyhands.workloads.trajectories.original import (
    SET_ASIDE,
    OriginalEntry,
    OriginalMatches,
    batch_files,
    normalise_entry,
)
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.records import ADOPTED, UNKNOWN_TOOL, record_of_entry
from manyhands.workloads.trajectories.spec import BatchSpec

SHOWN = 10
"""How many lines of an adopted folder are named that can't be used, or are not requested."""


@dataclass(slots=True)  # not frozen: see Outcome
class PromptItem:
    """An item's payload."""

    prompt: Any
    prompt_index: int
    """Counts usable rows from 0."""
    sample: int = 0
    """Counts the repeats of a row from 0."""
    image: str | None = None
    cwd: str | None = None
    id: str | None = None
    line: int = 0
    """As in ``dataset.rows.Row``."""
    source: dict[str, Any] = field(default_factory=dict)
    """The row's other fields."""
    system: str | None = None
    """As in ``dataset.rows.Row``."""
    messages: Sequence[Message] = ()
    """As in ``dataset.rows.Row``."""
    world: dict[str, Any] = field(default_factory=dict)
    """As in ``dataset.rows.Row``, in JSON."""
    fields: dict[str, Any] = field(default_factory=dict)
    """As in ``dataset.rows.Row``."""
    task: dict[str, Any] = field(default_factory=dict)
    """As in ``dataset.rows.Row``, in JSON; empty for anything else than a task."""

    @classmethod
    def of(cls, item: Item) -> PromptItem:
        return cls(**item.payload)

    @classmethod
    def from_dataset(cls, found: DatasetItem) -> PromptItem:
        row = found.row
        return cls(
            row.prompt,
            found.prompt_index,
            found.sample,
            row.image,
            row.cwd,
            row.id,
            row.line,
            row.source,
            row.system,
            list(row.messages),
            row.world.to_json(),
            row.fields,
            {} if row.task is None else row.task.to_json(),
        )

    @property
    def item_world(self) -> ItemWorld:
        """Where the item is executed."""
        return ItemWorld.from_json({**self.world, "image": self.image, "cwd": self.cwd})

    @property
    def has_chat(self) -> bool:
        """Whether the row brings a system prompt or messages."""
        return self.system is not None or bool(self.messages)

    @property
    def asks_for(self) -> tuple[Any, ...]:
        """What decides how the item is executed."""
        plain = (self.prompt.strip() if isinstance(self.prompt, str) else self.prompt, self.image, self.cwd)
        if self.task:
            return (*plain, self.task["digest"])
        asked = (*plain, self.system, self.messages) if self.has_chat else plain
        return (*asked, self.world, self.fields) if self.world or self.fields else asked

    def to_json(self) -> dict[str, Any]:
        """The payload; what is absent is left out."""
        values: dict[str, Any] = {"prompt": self.prompt, "prompt_index": self.prompt_index}
        for name in ("sample", "image", "cwd", "id", "line", "source", "system", "messages", "world", "fields", "task"):
            if value := getattr(self, name):
                values[name] = value
        return values


def batch_file(prompt_index: int, batch_size: int) -> str:
    """The output file of a prompt."""
    return f"batch_{prompt_index // batch_size}.jsonl"


@dataclass(slots=True)
class Adoption:
    """What was taken over from the original program."""

    finished: int = 0
    """Finished prompts."""
    discarded: int = 0
    """Discarded prompts."""
    cut_off: int = 0
    """Those of the finished ones whose conversation ends on a tool's answer."""
    left_out: list[str] = field(default_factory=list)
    """The first few lines that no row of the dataset asks for."""
    left_out_count: int = 0
    """The number of all of them."""
    problems: list[str] = field(default_factory=list)
    """The first few lines that can't be used, and why."""
    problem_count: int = 0
    """The number of all of them."""
    other_work: int = 0
    """Rows that were not looked for, as the original did not use their system prompt or messages."""


def plan_items(
    options: BatchSpec,
    run_folder: Path,
    tools: tuple[str, ...],
    adoption: Adoption | None = None,
    *,
    how: HowRead | None = None,
) -> Iterator[PlannedItem]:
    """All items in order, streamed; those that the original program had finished come with their outcome (``adoption`` is filled in).
    ``how``: how the dataset is read; by default as the settings say."""
    found = iterate_items(options.dataset_file, options.samples, **(options.how_read() if how is None else how))
    with closing(PlannedKeys(run_folder)) as earlier:
        kept = run_folder / SET_ASIDE
        if batch_files(kept):
            yield from _adopting(found, earlier, kept, options, tools, adoption or Adoption())
            return
        for item in found:
            payload = PromptItem.from_dataset(item)
            yield PlannedItem(earlier.key(item.key, payload), payload.to_json())


def _adopting(
    found: Iterable[DatasetItem],
    earlier: PlannedKeys,
    kept: Path,
    options: BatchSpec,
    tools: tuple[str, ...],
    adoption: Adoption,
) -> Iterator[PlannedItem]:
    with closing(OriginalMatches(kept, SHOWN)) as matches, closing(DigestTable()) as copies:
        for item in found:
            payload = PromptItem.from_dataset(item)
            if payload.has_chat:
                adoption.other_work += 1
                yield PlannedItem(earlier.key(item.key, payload), payload.to_json())
                continue
            entry = matches.find(item.row.prompt, copies.count(prompt_digest(item.row.prompt)))
            outcome = None if entry is None else adopted_outcome(entry, payload, options, tools)
            if entry is not None and outcome is not None:
                adoption.finished += outcome.state is ItemState.COMPLETED
                adoption.discarded += outcome.state is ItemState.DISCARDED
                adoption.cut_off += outcome.state is ItemState.COMPLETED and entry.cut_off
            yield PlannedItem(earlier.key(item.key, payload), payload.to_json(), outcome)
        for unused in matches.unused():
            adoption.left_out_count += 1
            if len(adoption.left_out) < SHOWN:
                adoption.left_out.append(f"{unused.file} line {unused.line}")
        adoption.problems, adoption.problem_count = (
            [str(problem) for problem in matches.problems],
            matches.problem_count,
        )


class PlannedKeys:
    """The items as they were last planned. A row that keeps its id but asks for something else is other work, and so gets another key."""

    def __init__(self, run_folder: Path) -> None:
        self._journal: JournalReader | None = None
        if (run_folder / JOURNAL).is_file():
            journal = JournalReader(run_folder)
            if journal.meta("planned") is None:
                journal.close()
            else:
                self._journal = journal

    def key(self, key: str, payload: PromptItem) -> str:
        """The key of an item that would have ``key`` in a new run."""
        row = self._journal.item(key) if payload.id is not None and self._journal is not None else None
        if row is None or PromptItem.of(row.item).asks_for == payload.asks_for:
            return key
        base, _, number = key.rpartition("#")
        return f"{base}@{digest('changed', payload.asks_for).hex()[:12]}#{number}"

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()


def adopted_outcome(entry: OriginalEntry, payload: PromptItem, options: BatchSpec, tools: tuple[str, ...]) -> Outcome:
    """How an item ended that the original program had executed."""
    if entry.entry is None:
        return Outcome(ItemState.DISCARDED, {ADOPTED: None}, reason=entry.discarded or "no_reasoning")
    record = {ADOPTED: entry.entry, **record_of_entry(entry.entry)}
    _, unknown = normalise_entry(entry.entry, tools, payload.prompt_index, 0)
    if unknown and not options.keep_unknown_tools:
        return Outcome(ItemState.DISCARDED, record, reason=UNKNOWN_TOOL)
    if not options.batch_files:
        return Outcome(ItemState.COMPLETED, record)
    return Outcome(ItemState.COMPLETED, record, line=(batch_file(payload.prompt_index, options.batch_size), ""))


_ORIGINAL_METADATA = ("batch_num", "timestamp", "model")


def adopted_line(item: Item, record: Mapping[str, Any], prepared: Prepared) -> tuple[str, str]:
    """The output file and line of an adopted item."""
    payload, size = PromptItem.of(item), prepared.options.batch_size
    found: dict[str, Any] = record[ADOPTED]
    entry, unknown = normalise_entry(found, prepared.tools, payload.prompt_index, payload.prompt_index // size)
    if prepared.layout == FIRST_LAYOUT:
        for name in unknown:
            del entry["tool_stats"][name]
            del entry["tool_error_counts"][name]
        own = {name: entry["metadata"].get(name) for name in _ORIGINAL_METADATA}
        source = prepared.source_fields.arrange(payload.source) or None
        counted = {ESCAPED_TAGS: _tags(entry)} if prepared.counts_tags else {}
        entry["metadata"] = {**own, **_added(item, payload, unknown), **counted, "source": source}
    else:
        entry = _declared(entry, found, item, payload, unknown, prepared)
    return batch_file(payload.prompt_index, size), line(entry)


def _declared(
    entry: dict[str, Any],
    found: Mapping[str, Any],
    item: Item,
    payload: PromptItem,
    unknown: tuple[str, ...],
    prepared: Prepared,
) -> dict[str, Any]:
    """The entry in the declared schema. ``found``: as the original wrote it."""
    schema = schema_of(prepared.columns)
    others = {name: counts for name, counts in entry["tool_stats"].items() if name not in prepared.columns}
    metadata = entry["metadata"]
    entry["metadata"] = {
        "batch_num": metadata["batch_num"],
        "timestamp": _timestamp(metadata.get("timestamp")),
        "model": metadata.get("model"),
        **_added(item, payload, unknown),
        ESCAPED_TAGS: _tags(entry),
        "other_tool_stats": line({name: counts for name, counts in others.items() if counts["count"]}),
        "score": NO_SCORE,
        "system_template": wording_of(str(found["conversations"][0].get("value"))),
        "adopted": True,
        "other_fields": line(_other_fields(found, schema.names)),
        "source": line(payload.source),
    }
    declared: dict[str, Any] = fitted(entry, schema)
    return declared


def _other_fields(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """What the original's line has that ours has no field for."""
    others = {name: value for name, value in found.items() if name not in names}
    metadata = found.get("metadata")
    own = metadata if isinstance(metadata, dict) else {}
    more = {name: value for name, value in own.items() if name not in _ORIGINAL_METADATA}
    return {**others, **({"metadata": more} if more else {})}


def _tags(entry: Mapping[str, Any]) -> Json:
    """How many tags were escaped: the line may be one of this program's, whose journal is lost."""
    return entry["metadata"].get(ESCAPED_TAGS) or 0


def _timestamp(value: Json) -> Json:
    """With microseconds, which Python leaves out where there are none: Arrow takes a time without them for another type than text."""
    if not isinstance(value, str) or not ARROW_TIME.fullmatch(value):
        return value
    try:
        return datetime.fromisoformat(value).isoformat(timespec="microseconds")
    except ValueError:
        return value


def _added(item: Item, payload: PromptItem, unknown: tuple[str, ...]) -> dict[str, Any]:
    usage = Usage().to_json()
    return {
        "item": item.key,
        "sample": payload.sample,
        "attempt": 0,
        "seed": NO_SEED,
        "stop_reason": ADOPTED,
        "duration_seconds": 0.0,
        "simulated": False,
        "usage": {name: value for name, value in usage.items() if name != "cost"},
        "cost": 0.0,
        "unknown_tools": ", ".join(unknown),
    }
