"""Lines of the original program as lines of this run: what is new in ours is filled in, so that all lines have one schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.core.jsonio import line
from manyhands.core.usage import Usage
from manyhands.engine.context import Item
from manyhands.trajectories.entry import NO_SEED
from manyhands.trajectories.items import ADOPTED, PromptItem, batch_file
from manyhands.trajectories.original import normalise_entry
from manyhands.trajectories.prepared import Prepared
from manyhands.trajectories.turns import ESCAPED_TAGS


def adopted_line(item: Item, record: Mapping[str, Any], prepared: Prepared) -> tuple[str, str]:
    """The output file and line of an adopted item."""
    payload, size = PromptItem.of(item), prepared.options.batch_size
    entry, unknown = normalise_entry(
        record[ADOPTED], prepared.tools, payload.prompt_index, payload.prompt_index // size
    )
    for name in unknown:
        del entry["tool_stats"][name]
        del entry["tool_error_counts"][name]
    own = {name: entry["metadata"].get(name) for name in ("batch_num", "timestamp", "model")}
    tags = entry["metadata"].get(ESCAPED_TAGS) or 0  # the line may be one of this program's, whose journal is lost
    counted = {ESCAPED_TAGS: tags} if prepared.counts_tags else {}
    entry["metadata"] = {**own, **_added(item, payload, unknown, counted, prepared)}
    return batch_file(payload.prompt_index, size), line(entry)


def _added(
    item: Item, payload: PromptItem, unknown: tuple[str, ...], counted: Mapping[str, int], prepared: Prepared
) -> dict[str, Any]:
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
        **counted,
        "source": prepared.source_fields.arrange(payload.source) or None,
    }
