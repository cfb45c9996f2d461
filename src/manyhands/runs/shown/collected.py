"""What a command of the run printed at the end of an item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from manyhands.core.text import cut
from manyhands.runs.shown.blocks import Block, Text

MAX_SHOWN = 200_000
"""Characters."""
_DIFF = "diff --git "


def collected_blocks(collected: Mapping[str, Any] | None) -> Iterator[Block]:
    """``collected``: ``output`` and ``problem``, as a record has them; None where nothing was collected."""
    if collected is None:
        return
    text, problem = collected.get("output") or "", collected.get("problem")
    if text or problem:
        form = "diff" if text.startswith(_DIFF) else "plain"
        yield Text(cut(text, MAX_SHOWN), f"Collected ({problem})" if problem else "Collected", form)  # type: ignore[arg-type]
