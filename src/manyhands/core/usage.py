"""What calls cost."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict


class TokenFigures(TypedDict):
    """What calls used, in an output file."""

    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """Input tokens that the endpoint had in its cache."""
    cache_write_tokens: int
    reasoning_tokens: int
    """Output tokens that were reasoning."""
    unpriced_calls: int
    """Calls whose price is unknown, and which the cost leaves out."""
    simulated_calls: int
    """Calls that a simulated model answered."""


class UsageFigures(TokenFigures):
    """What calls used and cost, in an output file."""

    cost: float
    """US dollars."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one or several paid calls used.

    Tokens are counted as the server reported them; ``cost`` is in US dollars. ``unpriced_calls`` counts calls whose
    price is unknown (neither the server nor the price table named one), so that a sum can say that it is incomplete;
    ``simulated_calls`` counts those that a simulated model answered.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    unpriced_calls: int = 0
    simulated_calls: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if other is ZERO:
            return self
        if self is ZERO:
            return other
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost + other.cost,
            self.unpriced_calls + other.unpriced_calls,
            self.simulated_calls + other.simulated_calls,
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict of all fields."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The reverse of ``to_json``; unknown keys are ignored."""
        return cls(**{name: value[name] for name in _NAMES if name in value})


def as_cost(value: Any) -> float | None:
    """A figure that somebody else named as the cost of a call in US dollars; None for what no call costs, NaN and the like."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COST:
        return None
    return float(value)


def plausible(usage: Usage) -> Usage:
    """The usage without what no call uses, so that sums stay finite: counts beyond all bounds are left out, and a cost beyond them is
    unknown."""
    counts = (getattr(usage, name) for name in _COUNTS)
    if type(usage.cost) is float and 0 <= usage.cost <= LARGEST_COST and max(counts) <= LARGEST_COUNT:
        return usage
    cost = as_cost(usage.cost)
    kept = {name: count for name in _COUNTS if 0 <= (count := getattr(usage, name)) <= LARGEST_COUNT}
    return Usage(**{**kept, "unpriced_calls": kept.get("unpriced_calls", 0) + (cost is None)}, cost=cost or 0.0)


LARGEST_COST = 1e6
"""US dollars that one call costs at most."""
LARGEST_COUNT = 10**12
"""Tokens of one call at most."""
_COUNTS = tuple(field.name for field in fields(Usage) if field.name != "cost")
_NAMES = tuple(field.name for field in fields(Usage))
ZERO = Usage()


@dataclass(frozen=True, slots=True)
class Reserve:
    """The worst case of a call about to be made: tokens, and US dollars (0 where no price is known).

    ``model``: whose calls cost alike; None for calls that name no price of their own and are not watched. ``output_tokens`` and
    ``output_cost``: of these, the answer's, which the call is told to keep to. ``priced``: whether ``cost`` comes from a known price.
    ``open``: nothing bounds the call beforehand, as with a command; the dearest such call so far is reserved, if that is more.
    """

    tokens: int = 0
    cost: float = 0.0
    model: str | None = None
    output_tokens: int = 0
    output_cost: float = 0.0
    priced: bool = True
    open: bool = False

    def fair(self, usage: Usage) -> float:
        """US dollars that a call which used so much costs at most, by the price of this reserve."""
        input_tokens = max(1, self.tokens - self.output_tokens)
        asked = usage.input_tokens * (self.cost - self.output_cost) / input_tokens
        return asked + usage.output_tokens * self.output_cost / max(1, self.output_tokens)
