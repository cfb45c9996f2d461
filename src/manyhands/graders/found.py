"""How graders write down what they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.graders.protocol import LEFT_OUT, Score, verdict_of


def found(
    grader: Any,
    value: float,
    hits: Sequence[str] = (),
    misses: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    details: Mapping[str, Any] | None = None,
    pass_limit: float | None = None,
) -> Score:
    """The score of a grader (anything with ``name`` and ``type``). Without ``pass_limit`` its verdict is left to ``configured``."""
    return Score(
        grader.name,
        grader.type,
        value,
        "" if pass_limit is None else verdict_of(value, pass_limit),
        tuple(hits),
        tuple(misses),
        reasoning,
        details=details,
    )


def nothing_to_compare(grader: Any, why: str, details: Mapping[str, Any] | None = None) -> Score:
    """What a grader gives that has nothing to hold the answer against: neither 0 nor 1."""
    return Score(grader.name, grader.type, None, LEFT_OUT, details=details, left_out=why)


def all_or_nothing(grader: Any, passed: bool, hit: str, miss: str, pass_limit: float | None = None) -> Score:
    """1 with the hit, or 0 with the miss."""
    if passed:
        return found(grader, 1.0, hits=(hit,), pass_limit=pass_limit)
    return found(grader, 0.0, misses=(miss,), pass_limit=pass_limit)
