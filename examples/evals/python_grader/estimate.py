"""What is evaluated: a function that gets a test and returns the answer's text, or a record with more in it."""

from __future__ import annotations

from typing import Any

FACTORS = {"miles": 1.6, "yards": 0.91}


def answer(test: dict[str, Any]) -> str:
    """An estimate, from rough factors."""
    words = test["prompt"].rstrip("?").split()
    number, unit = float(words[-2]), words[-1]
    if unit == "Fahrenheit":
        return f"{(number - 30) / 2:g}"
    return f"{number * FACTORS[unit]:g}"
