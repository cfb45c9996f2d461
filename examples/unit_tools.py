"""Tools of your own in a file: each function with type hints and a docstring is one."""

from __future__ import annotations

from typing import Annotated, Literal

METRES = {"mile": 1609.344, "yard": 0.9144, "foot": 0.3048}


def to_metres(
    length: Annotated[float, "How many of the unit."], unit: Literal["mile", "yard", "foot"] = "foot"
) -> float:
    """Convert a length to metres."""
    return _rounded(length * METRES[unit])


def mean(numbers: list[float]) -> float:
    """The arithmetic mean of numbers."""
    if not numbers:
        raise ValueError("there are no numbers")
    return _rounded(sum(numbers) / len(numbers))


def _rounded(number: float) -> float:
    return round(number, 3)
