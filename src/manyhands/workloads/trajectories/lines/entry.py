"""Lines of ``trajectories.jsonl``.

All lines of all runs of a version have the same fields with the same types (``lines.schema`` has them), so that Arrow, Parquet and
Hugging Face Datasets read them with one schema, in whatever order and wherever they cut the files. Hence tools that are not built in
get no column of their own in ``tool_stats``, numbers that may have decimals always do, and nothing is ever null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.jsonio import line, line_bytes
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import Usage
from manyhands.export.sharegpt import Turn
from manyhands.export.sharegpt_reading import ESCAPED_TAGS, UNUSED
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT, LAYOUT

_COUNTS = tuple(each.name for each in fields(Usage) if each.name != "cost")
_counts_of = attrgetter(*_COUNTS)
CACHED = 256
"""How many system turns, digests of system messages, and tool statistics are kept."""
NO_SEED = -1
"""Written where no seed was sent to the endpoint: a null would be another type in another run's file."""
NO_SCORE = -1.0
"""Written where nothing was graded."""


def local_time(seconds: float) -> str:
    """A time (seconds since 1970 UTC) as the original writes it: local, ISO 8601, microseconds, no zone."""
    return datetime.fromtimestamp(seconds).isoformat(timespec="microseconds")


@lru_cache(CACHED)
def system_digest(system: str | None) -> str:
    """What ``metadata.system_prompt`` says of the system message that was sent: 16 hexadecimal digits, or nothing."""
    return digest("system_prompt", system).hex()[:16] if system else ""


@dataclass(slots=True, kw_only=True)  # not frozen: see Outcome
class Entry:
    """One trajectory, ready to be written."""

    prompt_index: int
    conversations: Sequence[Turn]
    batch_num: int
    timestamp: float
    """Seconds since 1970 UTC."""
    model: str
    completed: bool
    partial: bool
    api_calls: int
    toolsets_used: Sequence[str]
    tool_stats: Mapping[str, Mapping[str, int]]
    """``{"count", "success", "failure"}`` for every tool that the layout has a column for."""
    stop_reason: StopReason
    item_key: str
    sample: int = 0
    attempt: int = 1
    seed: int | None = None
    """The one that was sent to the endpoint."""
    duration: float = 0.0
    """Seconds."""
    simulated: bool = False
    usage: Usage = field(default_factory=Usage)
    """Of its agent's own calls."""
    tool_usage: Usage = field(default_factory=Usage)
    """What its tools asked of models and services."""
    unknown_tools: Sequence[str] = ()
    escaped_tags: int | None = None
    """How many tags were escaped in the turns; None in a run whose lines do not say it."""
    source: Mapping[str, Any] | None = None
    """The row's other fields; in the first layout, what ``SourceFields.arrange`` made of them."""
    grade: Mapping[str, Any] | None = None
    """What its graders found; None in a run without them."""
    layout: int = LAYOUT
    other_tool_stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same of other tools that were called."""
    toolsets_offered: Sequence[str] = ()
    system_prompt: str | None = None
    """The system message that was sent."""
    system_template: str = "own"
    """The wording of the saved one."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What the row gave besides its prompt."""
    collected: Mapping[str, Any] | None = None
    """What the run's command gave at the end: ``output`` and ``problem``; None if there was none."""
    rewards: Mapping[str, Any] | None = None
    """Those of a task's verifier, as it gave them."""

    def to_json(self) -> dict[str, Any]:
        """The entry with the original's keys in its order; what is added is inside ``metadata``, after the original's three."""
        return {
            "prompt_index": self.prompt_index,
            "conversations": list(self.conversations),
            **self._plain_members(),
            **_stats_members(self.tool_stats),
        }

    def line(self) -> bytes:
        """The entry as a line in UTF-8, without its newline: ``to_json`` in JSON, but for the parts that most lines of a run have in
        common, which are written out only once."""
        turns = b", ".join(map(_turn_text, self.conversations))
        plain = line_bytes(self._plain_members())[1:-1]
        used = [(name, *counts.items()) for name, counts in self.tool_stats.items() if counts is not UNUSED]
        stats = _stats_text(tuple(self.tool_stats), tuple(used))
        return b'{"prompt_index": %d, "conversations": [%b], %b, %b}' % (self.prompt_index, turns, plain, stats)

    def _plain_members(self) -> dict[str, Any]:
        return {
            "metadata": self._metadata(),
            "completed": self.completed,
            "partial": self.partial,
            "api_calls": self.api_calls,
            "toolsets_used": list(self.toolsets_used),
        }

    def _metadata(self) -> dict[str, Any]:
        usage: dict[str, Any] = dict(zip(_COUNTS, _counts_of(self.usage), strict=True))
        if self.layout != FIRST_LAYOUT:
            of_tools = zip(_COUNTS, _counts_of(self.tool_usage), strict=True)
            usage["tools"] = {**dict(of_tools), "cost": float(self.tool_usage.cost)}
        return {
            "batch_num": self.batch_num,
            "timestamp": local_time(self.timestamp),
            "model": self.model,
            "item": self.item_key,
            "sample": self.sample,
            "attempt": self.attempt,
            "seed": NO_SEED if self.seed is None else self.seed,
            "stop_reason": self.stop_reason.value,
            "duration_seconds": round(float(self.duration), 3),
            "simulated": self.simulated,
            "usage": usage,
            "cost": float(self.usage.cost + self.tool_usage.cost),
            # A list that is empty in one line and not in the next is two types to Arrow.
            "unknown_tools": ", ".join(self.unknown_tools),
            **(self._first_members() if self.layout == FIRST_LAYOUT else self._open_members()),
        }

    def _open_members(self) -> dict[str, Any]:
        grade = NOT_GRADED if self.grade is None else _grade_members(self.grade)
        return {
            "other_tool_stats": _text(self.other_tool_stats),
            "toolsets_offered": ", ".join(self.toolsets_offered),
            ESCAPED_TAGS: self.escaped_tags or 0,
            **grade,
            "scores": _text(grade["scores"]),
            "rewards": _text(self.rewards),
            "system_prompt": system_digest(self.system_prompt),
            "system_template": self.system_template,
            "given": _text(self.given),
            **collected_members(self.collected),
            "adopted": False,
            "other_fields": "{}",
            "source": _text(self.source),
        }

    def _first_members(self) -> dict[str, Any]:
        """In runs that an earlier version made."""
        # Parquet can't hold an object without fields.
        source = dict(self.source) if self.source else None
        return {
            **({} if self.escaped_tags is None else {ESCAPED_TAGS: self.escaped_tags}),
            **(_grade_members(self.grade) if self.grade is not None else {}),
            "source": source,
        }


def _text(value: Mapping[str, Any] | None) -> str:
    return line(dict(value)) if value else "{}"


def collected_members(collected: Mapping[str, Any] | None) -> dict[str, str]:
    """What was collected, as lines have it."""
    found = collected or {}
    return {"collected": found.get("output") or "", "collected_problem": found.get("problem") or ""}


NOT_GRADED: Mapping[str, Any] = {"score": NO_SCORE, "verdict": "", "scores": {}}


def _grade_members(grade: Mapping[str, Any]) -> dict[str, Any]:
    """By grader, not as a list, and hits and misses as text: an empty list has no type."""
    scores = {score["name"]: _score_members(score) for score in grade["scores"]}
    return {"score": float(grade["score"]), "verdict": grade["verdict"], "scores": scores}


def _score_members(score: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "score": float(score["score"]),
        "verdict": score["verdict"],
        "hits": "\n".join(score["hits"]),
        "misses": "\n".join(score["misses"]),
        "reasoning": score.get("reasoning") or "",
    }


def _turn_text(turn: Turn) -> bytes:
    value = _system_text(turn["value"]) if turn["from"] == "system" else line_bytes(turn["value"])
    return b'{"from": %b, "value": %b}' % (_speaker_text(turn["from"]), value)


@lru_cache(CACHED)
def _speaker_text(speaker: str) -> bytes:
    return line_bytes(speaker)


@lru_cache(CACHED)
def _system_text(value: str) -> bytes:
    return line_bytes(value)


def _stats_members(stats: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    return {"tool_stats": stats, "tool_error_counts": {name: counts["failure"] for name, counts in stats.items()}}


@lru_cache(CACHED)
def _stats_text(names: tuple[str, ...], used: tuple[tuple[Any, ...], ...]) -> bytes:
    """The members of tool statistics: all tools by name, and those in use with their counts as (name, (count's name, count), …)."""
    counts = {name: dict(items) for name, *items in used}
    return line_bytes(_stats_members({name: counts.get(name, UNUSED) for name in names}))[1:-1]
