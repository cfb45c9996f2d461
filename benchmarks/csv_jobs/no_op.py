"""A worker that does nothing, so that only what is done around it counts."""

from __future__ import annotations

from typing import Any


def no_op(row: dict[str, Any]) -> dict[str, Any]:
    """A result for any row."""
    return {"done": True}
