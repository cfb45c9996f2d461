"""What a run will take, estimated before anything is called: calls, tokens, dollars and time, with the assumptions in words.

What earlier runs of the same kind took counts more than assumptions: the means of some of their items are taken where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.models.pricing import PriceTable
from manyhands.runs.folders import find_runs

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 text that make up a token of input: about right for English, and for most other languages."""
OUTPUT_TOKENS = 400
"""Tokens of an answer, reasoning included."""
RESULT_TOKENS = 600
"""Tokens of a tool's result."""
CALLS_WITH_TOOLS = 4
"""Model calls of a conversation in which tools are called."""
SECONDS_PER_CALL = 8.0
_MAX_RUNS = 20
"""Earlier runs that are looked at, the latest first."""
_MAX_READ = 200
"""Items of a run that are looked at, and those of them that are measured."""
_MAX_MEASURED = 50
_MIN_MEASURED = 3


PICTURE_TOKENS = 1000
"""Of a picture of a thousand by a thousand pixels, about, at most providers."""


def tokens_of(value: Json) -> int:
    """The tokens of a text, or of what is sent as JSON, as estimated; of each picture in it, a usual number."""
    if isinstance(value, str):
        return -(-len(value.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
    text = dumps(value)
    return -(-len(text) // BYTES_PER_TOKEN) + PICTURE_TOKENS * text.count(b'"type":"image_url"')


@dataclass(frozen=True, slots=True)
class PerItem:
    """What one item takes on average."""

    calls: float
    input_tokens: float
    """Of all calls together, each of which sends the conversation so far."""
    output_tokens: float
    seconds: float
    basis: tuple[str, ...]
    """What that is based on, in words."""
    cost: float | None = None
    """US dollars, where they were measured."""

    @property
    def usage_of_call(self) -> Usage:
        """An average call."""
        calls = max(self.calls, 1.0)
        return Usage(1, round(self.input_tokens / calls), round(self.output_tokens / calls))


@dataclass(frozen=True, slots=True)
class Assumptions:
    """How conversations are assumed to go."""

    calls: float
    """Model calls of one."""
    output_tokens: float = OUTPUT_TOKENS
    """Of a call."""
    seconds: float = SECONDS_PER_CALL
    """Of a call."""

    @classmethod
    def of(
        cls, *, tools: bool, max_turns: int, max_tokens: int | None = None, seconds: float | None = None
    ) -> Assumptions:
        """By the settings: at most ``max_turns`` calls, answers of at most ``max_tokens``. ``seconds``: of a call, where that is known."""
        output = OUTPUT_TOKENS if max_tokens is None else min(OUTPUT_TOKENS, max_tokens)
        calls = min(CALLS_WITH_TOOLS, max_turns) if tools else 1
        return cls(calls, output, SECONDS_PER_CALL if seconds is None else seconds)

    def per_item(self, prompt_tokens: float, fixed_tokens: float) -> PerItem:
        """``prompt_tokens``: the mean of the prompts; ``fixed_tokens``: of the system prompt and the tools, which each call sends too."""
        grown = self.calls * (self.calls - 1) / 2 * (self.output_tokens + RESULT_TOKENS)
        basis = [
            f"{self.calls:g} model call{'s' * (self.calls != 1)} each, with {self.output_tokens:,.0f} tokens out and {self.seconds:g} s",
            f"{BYTES_PER_TOKEN} bytes a token",
        ]
        if grown:
            basis.append(f"{RESULT_TOKENS} tokens a tool result")
        return PerItem(
            self.calls,
            self.calls * (prompt_tokens + fixed_tokens) + grown,
            self.calls * self.output_tokens,
            self.calls * self.seconds,
            tuple(basis),
        )


@dataclass(slots=True)
class Prompts:
    """Counts prompts and their tokens."""

    count: int = 0
    tokens: int = 0

    def add(self, value: Json, times: int = 1) -> None:
        """A prompt that is sent in so many items."""
        self.count += times
        self.tokens += tokens_of(value) * times

    @property
    def mean(self) -> float:
        return self.tokens / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run will take."""

    items: int
    calls: float
    input_tokens: float
    output_tokens: float
    dollars: float | None
    """None where no price is known."""
    seconds: float
    basis: tuple[str, ...] = field(default=())
    """What it is based on, in words."""

    @classmethod
    def of(cls, items: int, each: PerItem, *, at_once: int, model: str | None, prices: PriceTable) -> Estimate:
        """``at_once``: how many items are executed at once; ``model``: None where that is not known. Raises nothing."""
        dollars = each.cost
        if dollars is None and model is not None:
            price = prices.price(model)
            dollars = None if price is None else price.cost(each.usage_of_call) * each.calls
        return cls(
            items,
            items * each.calls,
            items * each.input_tokens,
            items * each.output_tokens,
            None if dollars is None else items * dollars,
            items * each.seconds / max(1, min(at_once, items or 1)),
            each.basis,
        )

    def __add__(self, other: Estimate) -> Estimate:
        """Both together, one after the other; their reasons once."""
        known = self.dollars is not None and other.dollars is not None
        return Estimate(
            self.items + other.items,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            (self.dollars or 0.0) + (other.dollars or 0.0) if known else None,
            self.seconds + other.seconds,
            tuple(dict.fromkeys((*self.basis, *other.basis))),
        )

    def lines(self) -> list[tuple[str, str]]:
        """Pairs of a label and text, for people. Figures are rounded to two digits: they are no more exact."""
        dollars = "not known: no price (--prices)" if self.dollars is None else f"about ${_rounded(self.dollars)}"
        return [
            ("model calls", f"about {_rounded(self.calls)}"),
            ("tokens", f"about {_rounded(self.input_tokens)} in, {_rounded(self.output_tokens)} out"),
            ("dollars", dollars),
            ("time", f"about {_duration(self.seconds)}"),
            ("estimated by", "; ".join(self.basis)),
        ]


def free(estimate: Estimate) -> Estimate:
    """The same of a model that costs nothing."""
    return replace(estimate, dollars=0.0)


def measured(data_dir: Path, workload: str, is_alike: Callable[[Mapping[str, Any]], bool]) -> PerItem | None:
    """What items took in the latest run of a workload that is alike, by its spec; None if there is none with enough completed items.

    Runs that can't be read are passed over.
    """
    for folder in _latest(data_dir):
        with suppress(ManyhandsError, KeyError, TypeError, ValueError), closing(JournalReader(folder)) as reader:
            if reader.is_current() and reader.meta("workload") == workload and is_alike(reader.meta("spec")):
                found = _measured_in(reader)
                if found is not None:
                    return found
    return None


def _latest(data_dir: Path) -> Iterator[Path]:
    found = []
    with suppress(ManyhandsError):
        for folder in find_runs(data_dir):
            with suppress(OSError):
                found.append(((folder / JOURNAL).stat().st_mtime, folder))
    return (folder for _, folder in sorted(found, reverse=True)[:_MAX_RUNS])


def _measured_in(reader: JournalReader) -> PerItem | None:
    rows = [row for row in islice(reader.items(), _MAX_READ) if row.state is ItemState.COMPLETED]
    usages = reader.usage_of_items([row.number for row in rows])
    usable = [row for row in rows if usages[row.number].calls and row.started_at and row.finished_at][:_MAX_MEASURED]
    count = len(usable)
    if count < _MIN_MEASURED:
        return None
    total = sum((usages[row.number] for row in usable), ZERO)
    # An item that was interrupted took no longer than others, though it ended later.
    seconds = sorted((row.finished_at or 0.0) - (row.started_at or 0.0) for row in usable)[count // 2]
    return PerItem(
        total.calls / count,
        total.input_tokens / count,
        total.output_tokens / count,
        max(0.0, seconds),
        (f"what {count} items of the run {reader.folder.name} took",),
        None if total.unpriced_calls else total.cost / count,
    )


def _rounded(figure: float) -> str:
    """A figure with two digits that count: ``1,300``, ``0.037``."""
    if figure < 100:
        return f"{figure:.2g}" if figure < 10 else f"{figure:.0f}"
    step = 10 ** (len(str(int(figure))) - 2)
    return f"{round(figure / step) * step:,}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{_rounded(seconds / size)} {unit}"
    return f"{_rounded(seconds)} seconds"
