"""What calls cost."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
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


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Outcome
class Usage:
    """What one or several paid calls used. Tokens are counted as the server reported them. Not to be changed."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    """US dollars."""
    unpriced_calls: int = 0
    """Calls whose price is unknown (neither the server nor the price table named one), so that a sum can say that it is incomplete."""
    simulated_calls: int = 0
    """Calls that a simulated model answered."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def remarks(self) -> str:
        """What a person must know of the figures besides; empty for nothing."""
        found = []
        if self.simulated_calls:
            found.append("simulated" if self.simulated_calls == self.calls else f"{self.simulated_calls:,} simulated")
        if self.unpriced_calls:
            found.append(f"{self.unpriced_calls:,} of unknown price")
        return ", ".join(found)

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

    def without(self, part: Usage) -> Usage:
        """What is left without a part of it."""
        left = [whole - less for whole, less in zip(_values_of(self), _values_of(part), strict=True)]
        return Usage(**{name: round(value, _COST_DIGITS) for name, value in zip(_NAMES, left, strict=True)})

    def to_json(self) -> dict[str, Any]:
        """A plain dict of all fields."""
        return dict(zip(_NAMES, _values_of(self), strict=True))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The reverse of ``to_json``; unknown keys are ignored."""
        return cls(**{name: value[name] for name in _NAMES if name in value})


def as_cost(value: Any) -> float | None:
    """A figure that somebody else named as the cost of a call in US dollars; None for what no call costs, NaN and the like."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_COST:
        return None
    return float(value)


def plausible(usage: Usage) -> Usage:
    """The usage without what no call uses, so that sums stay finite: counts beyond all bounds are left out, and a cost beyond them is
    unknown."""
    if type(usage.cost) is float and 0 <= usage.cost <= MAX_COST and max(_counts_of(usage)) <= MAX_COUNT:
        return usage
    cost = as_cost(usage.cost)
    kept = {name: count for name in _COUNTS if 0 <= (count := getattr(usage, name)) <= MAX_COUNT}
    return Usage(**{**kept, "unpriced_calls": kept.get("unpriced_calls", 0) + (cost is None)}, cost=cost or 0.0)


MAX_COST = 1e6
"""US dollars that one call costs at most."""
_COST_DIGITS = 12
"""Decimal places to which differences of costs mean anything."""
MAX_COUNT = 10**12
"""Tokens of one call at most."""
_COUNTS = tuple(field.name for field in fields(Usage) if field.name != "cost")
_NAMES = tuple(field.name for field in fields(Usage))
_counts_of, _values_of = attrgetter(*_COUNTS), attrgetter(*_NAMES)
ZERO = Usage()


@dataclass(slots=True, unsafe_hash=True)  # not frozen: see Outcome
class Reserve:
    """The worst case of a call about to be made. Not to be changed."""

    tokens: int = 0
    """Of input and output; 0 for what is not billed by tokens."""
    cost: float = 0.0
    """US dollars; 0 where no price is known."""
    model: str | None = None
    """Whose calls cost alike; None for calls that name no price of their own and are not watched."""
    output_tokens: int = 0
    """Those of ``tokens`` that are the answer's; the call is limited to them."""
    output_cost: float = 0.0
    """The part of ``cost`` that is the answer's."""
    priced: bool = True
    """Whether ``cost`` comes from a known price."""
    open: bool = False
    """Whether nothing bounds the call beforehand, as with a command; the dearest such call so far is reserved, if that is more."""
    within: int = 0
    """The permit that holds this reserve already, among those of other calls; 0 for a call that stands for itself."""

    def fair(self, usage: Usage) -> float:
        """US dollars that a call which used so much costs at most, by the price of this reserve. What is billed by the call costs that."""
        if not self.tokens:
            return self.cost
        input_tokens = max(1, self.tokens - self.output_tokens)
        input_cost = usage.input_tokens * (self.cost - self.output_cost) / input_tokens
        return input_cost + usage.output_tokens * self.output_cost / max(1, self.output_tokens)
