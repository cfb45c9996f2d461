"""Lines of the original program as lines of this run: what is new in ours is filled in, so that all lines have one schema."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from manyhands.core.jsonio import Json, line
from manyhands.core.usage import Usage
from manyhands.engine.context import Item
from manyhands.trajectories.entry import NO_SCORE, NO_SEED
from manyhands.trajectories.items import PromptItem, batch_file
from manyhands.trajectories.original import normalise_entry
from manyhands.trajectories.prepared import Prepared
from manyhands.trajectories.schema import FIRST_LAYOUT, fitted, schema_of
from manyhands.trajectories.source_fields import ARROW_TIME
from manyhands.trajectories.statistics import ADOPTED
from manyhands.trajectories.system_templates import wording_of
from manyhands.trajectories.turns import ESCAPED_TAGS

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
    """What the original's line has that ours has no place for."""
    others = {name: value for name, value in found.items() if name not in names}
    metadata = found.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    more = {name: value for name, value in told.items() if name not in _ORIGINAL_METADATA}
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
