"""What calls cost, where the server does not say.

Prices are US dollars per million tokens: list prices of the providers' own endpoints for short prompts, without batch or
priority rates. Source: the providers' price lists as documentation indexes and articles quoted them between July and
November 2026, not read off the providers' own pages (platform.claude.com, developers.openai.com, ai.google.dev,
api-docs.deepseek.com); where two quotations differed, the dearer one. Check them before you rely on them. The figure that
a server sends with an answer always wins over this table; so does a person's own table, a YAML or JSON file (``--prices``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.usage import Usage
from manyhands.io.locations import Location

CACHE_WRITE = 1.25
"""How much more than other input what is written to Anthropic's cache (for five minutes) costs."""
LONG_INPUT, DEARER_INPUT, DEARER_OUTPUT = 200_000, 2.0, 1.5
"""Tokens of input above which the dearer tier of ``tiered`` models begins (some begin it at 272,000), and by how much it is dearer."""
BOUNDED_ANSWER = 8192
"""The ``max_tokens`` of calls under a budget where a person gave none."""
_SHORT_ANSWERS = {
    "gpt-3-5-turbo": 4096,
    "gpt-4-turbo": 4096,
    "claude-3-opus": 4096,
    "claude-3-sonnet": 4096,
    "claude-3-haiku": 4096,
}
"""Models (beginnings of their names without a provider) that refuse a request for so much."""
_MILLION = 1_000_000.0
_DATE_SUFFIX = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d)$")
_DOTTED = re.compile(r"(?<=\d)\.(?=\d)")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, and per request."""

    input: float
    output: float
    cached_input: float | None = None
    """For tokens read from the provider's cache; None: as other input."""
    cache_write: float | None = None
    """For tokens written to the provider's cache; None: as other input."""
    tiered: bool = False
    """Whether calls with more than 200,000 tokens of input cost more (``LONG_INPUT``)."""
    request: float = 0.0
    """US dollars for each request besides, as services that tools ask bill them."""

    def cost(self, usage: Usage) -> float:
        """US dollars for a usage whose ``input_tokens`` include the cached ones."""
        dearer_input, dearer_output = self._tier(usage.input_tokens)
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        plain = usage.input_tokens - cached - written
        cached_price = self.input if self.cached_input is None else self.cached_input
        write_price = self.input if self.cache_write is None else self.cache_write
        total = plain * self.input + cached * cached_price + written * write_price
        tokens = (total * dearer_input + usage.output_tokens * self.output * dearer_output) / _MILLION
        return tokens + self.request

    def worst_case(self, input_tokens: int, output_tokens: int, *, cache_writes: bool = False) -> float:
        """US dollars at most for that many tokens. ``cache_writes``: the call asks for its input to be written to the cache."""
        dearer_input, dearer_output = self._tier(input_tokens)
        written = self.input * CACHE_WRITE if cache_writes and self.cache_write is None else self.cache_write
        dearest = max(self.input, self.cached_input or 0.0, written or 0.0)
        tokens = (input_tokens * dearest * dearer_input + output_tokens * self.output * dearer_output) / _MILLION
        return tokens + self.request

    def _tier(self, input_tokens: int) -> tuple[float, float]:
        return (DEARER_INPUT, DEARER_OUTPUT) if self.tiered and input_tokens > LONG_INPUT else (1.0, 1.0)


FREE = Price(0.0, 0.0)

_BUILT_IN: dict[str, Price] = {
    "claude-fable-5.1": Price(10, 50, 0.25, 12.5),
    "claude-fable-5": Price(10, 50, 1, 12.5),
    "claude-opus-5.5": Price(4, 20, 0.2, 5),
    "claude-opus-5": Price(5, 25, 0.5, 6.25),
    "claude-opus-4.8": Price(5, 25, 0.5, 6.25),
    "claude-opus-4.7": Price(5, 25, 0.5, 6.25),
    "claude-opus-4.6": Price(5, 25, 0.5, 6.25),
    "claude-opus-4.5": Price(5, 25, 0.5, 6.25),
    "claude-opus-4.1": Price(15, 75, 1.5, 18.75),
    "claude-opus-4": Price(15, 75, 1.5, 18.75),
    "claude-sonnet-5.5": Price(2, 10, 0.2, 2.5),
    "claude-sonnet-5": Price(2, 10, 0.2, 2.5),
    "claude-sonnet-4.6": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-4.5": Price(3, 15, 0.3, 3.75, tiered=True),
    "claude-sonnet-4": Price(3, 15, 0.3, 3.75, tiered=True),
    "claude-haiku-4.5": Price(1, 5, 0.1, 1.25),
    "claude-3.5-haiku": Price(0.8, 4, 0.08, 1),
    "gpt-5.5": Price(5, 30, 0.5, tiered=True),
    "gpt-5.4": Price(2.5, 15, 0.25, tiered=True),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
    "gpt-5": Price(1.25, 10, 0.125),
    "gpt-5-mini": Price(0.25, 2, 0.025),
    "gpt-4.1": Price(2, 8, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4o": Price(2.5, 10, 1.25),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "gemini-3.5-flash": Price(1.5, 9, 0.15),
    "gemini-3.1-pro-preview": Price(2, 12, 0.2, tiered=True),
    "gemini-3-flash-preview": Price(0.5, 3, 0.05),
    "gemini-2.5-pro": Price(1.25, 10, 0.125, tiered=True),
    "gemini-2.5-flash": Price(0.3, 2.5, 0.03),
    "deepseek-v4-pro": Price(1.32, 3.96, 0.044),
    "deepseek-flash": Price(0.3, 1.2, 0.006),
    "text-embedding-3-small": Price(0.02, 0),
    "text-embedding-3-large": Price(0.13, 0),
    "text-embedding-ada-002": Price(0.1, 0),
}


class PriceTable:
    """Prices by model name. A name is looked up as it is, then without its provider (``anthropic/…``), its variant
    (``:nitro``) and its date (``-20250514``). ``:free`` costs nothing; what ``:online`` costs besides is not known."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        self._prices = {_normal(name): price for name, price in _BUILT_IN.items()}
        self._own = dict(own or {})
        self._prices.update((_normal(name), price) for name, price in self._own.items())
        self._found: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """The price of a model; None if it is not known."""
        try:
            return self._found[model]
        except KeyError:
            found = self._found[model] = self._look_up(model)
            return found

    def request_price(self, name: str) -> float | None:
        """US dollars for a request to a service, by its name and what it is asked for (``exa/search``); None if it is not known. Only a
        person's own table has such prices."""
        found = self._own.get(name)
        return None if found is None else found.request

    def priced(self, usage: Usage, model: str, server_cost: float | None) -> Usage:
        """The usage of one call with its cost: the server's own figure, else by the table, else marked as unpriced."""
        if server_cost is not None:
            return usage + Usage(cost=server_cost)
        price = self.price(model)
        if price is None:
            return usage + Usage(unpriced_calls=1)
        return usage + Usage(cost=price.cost(usage))

    def _look_up(self, model: str) -> Price | None:
        if model in self._own:
            return self._own[model]
        if model.endswith(":free"):
            return FREE
        if model.endswith(":online"):  # each search costs something
            return None
        name = _normal(model)
        for candidate in (name, _DATE_SUFFIX.sub("", name), _DATE_SUFFIX.sub("", name.rpartition("/")[2])):
            if candidate in self._prices:
                return self._prices[candidate]
        return None


def bounded_answer(model: str) -> int:
    """The ``max_tokens`` of a model's calls under a budget where a person gave none."""
    name = _normal(model).rpartition("/")[2]
    return next((bound for start, bound in _SHORT_ANSWERS.items() if name.startswith(start)), BOUNDED_ANSWER)


def load_price_table(path: Path | str) -> PriceTable:
    """A price table from a YAML or JSON file (see ``read_prices``), on top of the built-in one. Raises UserError."""
    return PriceTable(read_prices(Path(path)))


def _normal(model: str) -> str:
    """Lower case, without a variant, and with dots in version numbers as hyphens: providers write both."""
    return _DOTTED.sub("-", model.lower().partition(":")[0])


def read_prices(path: Path) -> dict[str, Price]:
    """The prices in a file, by model name.

    The file maps model names to ``input`` and ``output`` and optionally ``cached_input`` and ``cache_write``: US dollars per
    million tokens; and names of services (``exa/search``) to ``request``, US dollars per request. Raises UserError naming file, line and
    field.
    """
    if not path.exists():
        raise UserError(f"can't read the price table {path}: No such file or directory")
    from manyhands.io.yaml_files import read_yaml  # YAML takes long to import

    content, location = read_yaml(path)
    if not isinstance(content, dict):
        raise location.error("a price table maps model names to prices")
    return {name: _price(entry, location.at(name)) for name, entry in content.items()}


def _price(entry: Any, location: Location) -> Price:
    if not isinstance(entry, dict):
        raise location.error(
            "expected input and output prices in US dollars per million tokens, or request in US dollars"
        )
    fields = ("input", "output", "cached_input", "cache_write", "request")
    for field, value in entry.items():
        if field not in fields:
            raise location.at(field).error(f"unknown field; known: {', '.join(fields)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise location.at(field).error("must be a number of US dollars, 0 or more")
    for field in ("input", "output"):
        if field not in entry and entry.keys() != {"request"}:
            raise location.at(field).error("missing")
    figures = {field: float(entry[field]) for field in fields if field in entry}
    return Price(
        figures.get("input", 0.0),
        figures.get("output", 0.0),
        figures.get("cached_input"),
        figures.get("cache_write"),
        request=figures.get("request", 0.0),
    )
