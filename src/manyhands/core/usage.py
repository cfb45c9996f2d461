"""What calls cost."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self


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


_NAMES = tuple(field.name for field in fields(Usage))
ZERO = Usage()


@dataclass(frozen=True, slots=True)
class Reserve:
    """The worst case of a call about to be made: tokens, and US dollars (0 where no price is known)."""

    tokens: int = 0
    cost: float = 0.0
