"""Arithmetic with decimal numbers as people write them.

Limits are compared with ``>=``, so a mean of 0.9, 0.9 and 0.6 must be 0.8 and not 0.7999999999999999, which is what binary arithmetic
makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction


def exact(number: float) -> Fraction:
    """The decimal number that a float is shown as."""
    return Fraction(repr(number))


def inverse(value: float) -> float:
    """1 − value."""
    return float(1 - exact(value))


def exact_sum(numbers: Iterable[float]) -> float:
    """Their sum: 0.1, 0.1 and 0.1 are 0.3."""
    return float(sum(map(exact, numbers)))


def weighted_mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Σ(value · weight) ÷ Σ(weight) of pairs of both, weights 0 or more; 0 if the weights are all 0."""
    values = {value for value, weight in weighted if weight}
    if len(values) < 2:
        return values.pop() if values else 0.0
    weights = sum(exact(weight) for _, weight in weighted)
    return float(sum(exact(value) * exact(weight) for value, weight in weighted) / weights)
