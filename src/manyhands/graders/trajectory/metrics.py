"""Graders of what an answer took.

The total of ``token_usage`` is input + output + cached, that of ``execution_metrics`` input + output, as AgentV has them: in its
records tokens that were served from a cache are not part of the input. For models that this program asks itself they are, as endpoints
report them, and are not added again. What nobody measured is a miss that says so, and scores 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from manyhands.core.settings import number, optional_number
from manyhands.core.statistics import exact
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, found
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, ListOfWords, key, read
from manyhands.io.locations import Location

EXPLORATION = (
    *("read", "grep", "glob", "search", "list"),
    *("Read", "Grep", "Glob", "WebSearch", "WebFetch"),
)
"""Tools that look around."""

TOTAL, BOTH = "total", "both"
"""Sums of tokens, see ``tokens_of``."""
Limit = Annotated[float | None, optional_number(minimum=0)]


class LatencyEntry(Entry):
    """Settings of ``latency``."""

    spellings: ClassVar[Mapping[str, str]] = {"threshold_ms": "threshold", "max_duration_ms": "threshold"}
    threshold: Annotated[float, number(minimum=0)] = key(..., "Milliseconds that the answer may take.")


class CostEntry(Entry):
    """Settings of ``cost``."""

    spellings: ClassVar[Mapping[str, str]] = {"budget_usd": "budget", "max_cost_usd": "budget"}
    budget: Annotated[float, number(minimum=0)] = key(..., "US dollars that the answer may cost.")


class _Limits(Entry):
    """Several limits, of which at least one is to be given."""

    @model_validator(mode="after")
    def _some_limit(self) -> _Limits:
        if not any(getattr(self, name) is not None for name in self.limits()):
            raise ValueError(f"at least one limit is required: {', '.join(self.limits())}")
        return self

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """The keys of the limits."""
        return tuple(name for name in cls.key_names() if name.startswith(("max_", "target_")))


class TokenEntry(_Limits):
    """Settings of ``token_usage``."""

    max_total: Limit = key(None, "Tokens in all: input + output + cached.")
    max_input: Limit = key(None, "Tokens of input.")
    max_output: Limit = key(None, "Tokens of output.")


class ExecutionEntry(_Limits):
    """Settings of ``execution_metrics``."""

    spellings: ClassVar[Mapping[str, str]] = {"target_explore_ratio": "target_exploration_ratio"}
    max_tool_calls: Limit = key(None, "Tool calls.")
    max_llm_calls: Limit = key(None, "Calls of the model.")
    max_tokens: Limit = key(None, "Tokens without those from a cache: input + output.")
    max_cost_usd: Limit = key(None, "US dollars.")
    max_duration_ms: Limit = key(None, "Milliseconds.")
    target_exploration_ratio: Annotated[float | None, optional_number(minimum=0, maximum=1)] = key(
        None, "The share of tool calls that look around, from 0 to 1."
    )
    exploration_tolerance: Annotated[float, number(minimum=0)] = key(0.2, "How far that share may be off.")
    exploration_tools: ListOfWords = key(EXPLORATION, "The tools that look around.")


ENTRIES: dict[str, type[Entry]] = {
    "latency": LatencyEntry,
    "cost": CostEntry,
    "token_usage": TokenEntry,
    "execution_metrics": ExecutionEntry,
}


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """A grader of one of the kinds of ``ENTRIES``."""
    settings = read(ENTRIES[entry["type"]], entry, location)
    return MetricsGrader(entry["name"], entry["type"], settings)


@dataclass(frozen=True, slots=True)
class Check:
    """A measured value against its limit."""

    what: str
    value: float | None
    """None if nobody measured it."""
    limit: float
    unit: str = ""
    min_value: float | None = None
    """A lower limit, where there is one too."""

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        value = exact(self.value)
        return value <= exact(self.limit) and (self.min_value is None or value >= exact(self.min_value))

    @property
    def text(self) -> str:
        """One line that says how it came out."""
        if self.value is None:
            return f"{self.what}: no data"
        bounds = f"at most {self.limit:g}" if self.min_value is None else f"{self.min_value:g} to {self.limit:g}"
        return f"{self.what}: {self.value:g}{self.unit} ({'within' if self.met else 'outside'} {bounds})"


@dataclass(frozen=True, slots=True)
class MetricsGrader:
    """Scores the share of its checks that are met; those of ``token_usage`` must all be."""

    name: str
    type: str
    settings: Entry

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        checks = _checks(self.settings, candidate)
        hits = [check.text for check in checks if check.met]
        misses = [check.text for check in checks if not check.met]
        value = len(hits) / len(checks)
        if isinstance(self.settings, TokenEntry):
            value = float(not misses)
        return found(self, value, hits, misses, reasoning=f"{len(hits)} of {len(checks)} limits are met")


def _checks(settings: Entry, candidate: Candidate) -> list[Check]:
    if isinstance(settings, LatencyEntry):
        return [Check("duration", duration_of(candidate), settings.threshold, " ms")]
    if isinstance(settings, CostEntry):
        return [Check("cost", cost_of(candidate), settings.budget, " USD")]
    if isinstance(settings, TokenEntry):
        return [
            Check(f"{part} tokens", tokens_of(candidate, part), limit)
            for part, limit in (
                (TOTAL, settings.max_total),
                ("input", settings.max_input),
                ("output", settings.max_output),
            )
            if limit is not None
        ]
    assert isinstance(settings, ExecutionEntry)
    return [*_limits(settings, candidate), *_exploration(settings, candidate)]


_MEASURES: dict[str, tuple[str, str, Callable[[Candidate], float | None]]] = {
    "max_tool_calls": ("tool calls", "", lambda candidate: tool_calls_of(candidate)),
    "max_llm_calls": ("model calls", "", lambda candidate: _traced(candidate, "llm_call_count")),
    "max_tokens": ("input and output tokens", "", lambda candidate: tokens_of(candidate, BOTH)),
    "max_cost_usd": ("cost", " USD", lambda candidate: cost_of(candidate)),
    "max_duration_ms": ("duration", " ms", lambda candidate: duration_of(candidate)),
}


def _limits(settings: ExecutionEntry, candidate: Candidate) -> Iterator[Check]:
    for name, (what, unit, measure) in _MEASURES.items():
        limit = getattr(settings, name)
        if limit is not None:
            yield Check(what, measure(candidate), limit, unit)


def _exploration(settings: ExecutionEntry, candidate: Candidate) -> Iterator[Check]:
    target, slack = settings.target_exploration_ratio, settings.exploration_tolerance
    if target is None:
        return
    calls = calls_by_name(candidate)
    total = 0 if calls is None else sum(calls.values())
    looking = sum(count for tool, count in (calls or {}).items() if tool in settings.exploration_tools)
    minimum, maximum = (float(exact(target) + sign * exact(slack)) for sign in (-1, 1))
    yield Check("share of exploring tool calls", looking / total if total else None, maximum, min_value=minimum)


# --- What is known about an answer


def duration_of(candidate: Candidate) -> float | None:
    """Milliseconds, None if nobody measured them."""
    return candidate.duration_ms if candidate.duration_ms is not None else _traced(candidate, "duration_ms")


def cost_of(candidate: Candidate) -> float | None:
    """US dollars, None if not known."""
    return candidate.cost_usd if candidate.cost_usd is not None else _traced(candidate, "cost_usd")


def tokens_of(candidate: Candidate, part: str) -> float | None:
    """Tokens of ``input``, ``output``, both of them (``BOTH``), or ``TOTAL``, which is these and those from a cache; None if not known."""
    usage = candidate.token_usage or (candidate.trace or {}).get("token_usage")
    if not isinstance(usage, Mapping):
        return None
    parts = [_number(usage.get(name)) for name in (("input", "output") if part in (TOTAL, BOTH) else (part,))]
    if part == TOTAL and not candidate.cached_in_input:
        parts.append(_number(usage.get("cached", 0)) or 0)
    known = [count for count in parts if count is not None]
    return sum(known) if len(known) == len(parts) else None


def tool_calls_of(candidate: Candidate) -> float | None:
    """How many tools were called; None if nothing is known about calls."""
    calls = calls_by_name(candidate)
    return _traced(candidate, "event_count") if calls is None else sum(calls.values())


def calls_by_name(candidate: Candidate) -> Mapping[str, int] | None:
    """How often each tool was called, by the calls themselves or else by the trace; None if there is neither."""
    if candidate.tool_uses or candidate.output is not None:
        counts: dict[str, int] = {}
        for use in candidate.tool_uses:
            counts[use.tool] = counts.get(use.tool, 0) + 1
        return counts
    traced = (candidate.trace or {}).get("tool_calls_by_name")
    return traced if isinstance(traced, Mapping) else None


def _traced(candidate: Candidate, name: str) -> float | None:
    return _number((candidate.trace or {}).get(name))


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
