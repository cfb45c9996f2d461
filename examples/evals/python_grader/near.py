"""A grader: a function that gets what a code judge gets on standard input, and returns a score or an object with one."""

from __future__ import annotations

from typing import Any


def near(test: dict[str, Any]) -> dict[str, Any]:
    """1 for the right number, 0 for one that is off by the tolerance or more, a share of the right one; in between, in between."""
    expected, actual = float(test["reference_answer"]), float(test["answer"])
    off = abs(actual - expected) / abs(expected)
    score = max(0.0, 1 - off / test["config"]["tolerance"])
    text = f"{actual:g} is off by {off:.1%}"
    return {"score": score, "hits": [text] if score >= 0.8 else [], "misses": [] if score >= 0.8 else [text]}
