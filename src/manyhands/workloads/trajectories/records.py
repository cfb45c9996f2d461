"""What is recorded of an item: how much of its conversation is reasoned, which tools it called, and why it is not kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from manyhands.agents.reading import brief_usage
from manyhands.agents.task import AgentResult, ToolUse
from manyhands.core.messages import Message, text_of
from manyhands.core.outcomes import GRADE
from manyhands.export.sharegpt_reading import UNUSED
from manyhands.models.reasoning import SCRATCHPAD
from manyhands.workloads.trajectories.original import counts_of, object_of, whole_of

ADOPTED = "adopted"
"""In an item's record: the line that the original program had written for it."""
EXIT_CODE = "exit_code"
"""In an item's record: that of the program which stood in for the agent, if it is not 0."""
JUDGE_KEY = "judge_api_key"
"""The name of the key of the judge's endpoint among the workload's secrets."""
ToolStats = dict[str, dict[str, int]]
"""``{tool: {"count", "success", "failure"}}``"""

NO_REASONING = "no_reasoning"
"""Discarded because no turn has any reasoning."""
UNKNOWN_TOOL = "unknown_tool"
"""Discarded because a tool was called that does not exist anywhere in this installation."""
TAGS_IN_VALUES = "tags_in_values"
"""Discarded because tags stand in its texts, and they were not to be escaped."""
LOW_SCORE = "low_score"
"""Discarded because it scored less than the minimum."""

REMEDIES = {
    NO_REASONING: "--keep_unreasoned keeps them (on a resume with --override=keep_unreasoned, at no further cost)",
    UNKNOWN_TOOL: "--keep_unknown_tools keeps them (on a resume with --override=keep_unknown_tools, at no further cost)",
    TAGS_IN_VALUES: "--tags_in_values=escape keeps them (on a resume with --override=tags_in_values, at no further cost)",
    LOW_SCORE: "a lower --min_score keeps more of them (on a resume with --override=min_score, at no further cost)",
}
"""What keeps trajectories that would be discarded."""


def score_of(record: Mapping[str, Any] | None) -> float | None:
    """The score in an item's record; None if it was not graded, or a grader broke."""
    grade = (record or {}).get(GRADE)
    return None if grade is None else grade["score"]


class ReasoningFigures(TypedDict):
    """Assistant turns with and without reasoning."""

    total_assistant_turns: int
    turns_with_reasoning: int
    turns_without_reasoning: int


class ReasoningCounts(NamedTuple):
    """Assistant turns, and how many of them have reasoning."""

    total: int
    reasoned: int

    def to_json(self) -> ReasoningFigures:
        """The object of ``statistics.json``."""
        return {
            "total_assistant_turns": self.total,
            "turns_with_reasoning": self.reasoned,
            "turns_without_reasoning": self.total - self.reasoned,
        }


def count_reasoning(messages: Sequence[Message]) -> ReasoningCounts:
    """Count over the messages that are saved (see ``sharegpt.as_trained``), but for those that were given: the model did not write
    them."""
    answers = [message for message in messages if message.get("role") == "assistant" and "_given" not in message]
    return ReasoningCounts(len(answers), sum(map(has_reasoning, answers)))


def has_reasoning(message: Message) -> bool:
    """Whether an assistant message has native reasoning or a reasoning scratchpad."""
    if (message.get("reasoning") or "").strip():
        return True
    return f"<{SCRATCHPAD}>" in text_of(message.get("content"))


def nowhere_known(used: Iterable[str], known: Collection[str]) -> list[str]:
    """Those of the tools called without being available that do not exist at all, each once, in order.

    A tool that exists but was not drawn for the prompt is no invention, and does not cost the trajectory.
    """
    return [name for name in dict.fromkeys(used) if name not in known]


def discard_reason(
    reasoning: ReasoningCounts,
    invented_tools: Collection[str],
    *,
    keep_unreasoned: bool = False,
    keep_unknown_tools: bool = False,
) -> str | None:
    """Why a trajectory is not kept, or None. ``invented_tools``: what ``nowhere_known`` found."""
    if not reasoning.reasoned and not keep_unreasoned:
        return NO_REASONING
    if invented_tools and not keep_unknown_tools:
        return UNKNOWN_TOOL
    return None


class ToolColumns:
    """The tools that every entry has statistics for, in a stable order."""

    __slots__ = ("_known", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        self._known = frozenset(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def stats(self, uses: Iterable[ToolUse | tuple[str, bool]]) -> ToolStats:
        """``{tool: {"count", "success", "failure"}}`` for all known tools, zeros included: ``UNUSED`` itself for those that were not
        called. Calls of tools that do not exist are not in it: every line must have the same fields."""
        stats = dict.fromkeys(self.names, UNUSED)
        for name, failed in uses:
            counts = stats.get(name)
            if counts is not None:
                if counts is UNUSED:
                    counts = stats[name] = UNUSED.copy()
                counts["count"] += 1
                counts["failure" if failed else "success"] += 1
        return stats


def result_record(result: AgentResult, reasoning: ReasoningCounts) -> dict[str, Any]:
    """What is kept with an item for the statistics of its run: small JSON. ``tools`` gives calls and failures by name, tools
    that do not exist included."""
    tools: dict[str, list[int]] = {}
    for name, failed in result.tool_uses:
        counts = tools.setdefault(name, [0, 0])
        counts[0] += 1
        counts[1] += failed
    of_tools = brief_usage(result.tool_usage)
    return {
        "stop_reason": result.stop_reason.value,
        **({EXIT_CODE: result.exit_code} if result.exit_code else {}),
        "api_calls": result.api_calls,
        "tools": tools,
        "reasoning": list(reasoning),
        "usage": brief_usage(result.usage) | ({"tools": of_tools} if of_tools else {}),
    }


def record_of_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The like for an adopted line of the original's. A turn counts as reasoned if its think block is not empty."""
    stats = {name: counts_of(counts) for name, counts in object_of(entry.get("tool_stats")).items()}
    turns = entry.get("conversations")
    reasoning = _reasoning_of_turns(turns if isinstance(turns, list) else [])
    return {
        "api_calls": whole_of(entry.get("api_calls")),
        "tools": {name: [counts["count"], counts["failure"]] for name, counts in stats.items() if counts["count"]},
        "reasoning": list(reasoning),
    }


def _reasoning_of_turns(turns: Sequence[Mapping[str, Any]]) -> ReasoningCounts:
    values = [turn.get("value") for turn in turns if turn.get("from") == "gpt"]
    return ReasoningCounts(len(values), sum(_is_reasoned(value) for value in values))


def _is_reasoned(value: Any) -> bool:
    _, opened, rest = value.partition("<think>") if isinstance(value, str) else ("", "", "")
    return bool(opened) and bool(rest.partition("</think>")[0].strip())
