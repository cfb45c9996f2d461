"""How graders write down what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.graders.protocol import Score


def found(
    grader: Any,
    value: float,
    hits: Sequence[str] = (),
    misses: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> Score:
    """The score of a grader (anything with ``name`` and ``type``). Its verdict is left to the run's pass limit (``configured``)."""
    return Score(
        grader.name,
        grader.type,
        value,
        "",
        hits=tuple(hits),
        misses=tuple(misses),
        reasoning=reasoning,
        details=details,
    )


def all_or_nothing(grader: Any, passed: bool, hit: str, miss: str) -> Score:
    """1 with the hit, or 0 with the miss."""
    return found(grader, 1.0, hits=(hit,)) if passed else found(grader, 0.0, misses=(miss,))
