"""Which trajectories are good enough to keep, and how much of their turns are reasoned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypedDict

from manyhands.core.messages import Message, text_of

NO_REASONING = "no_reasoning"
"""Discarded because no turn has any reasoning."""
UNKNOWN_TOOL = "unknown_tool"
"""Discarded because a tool was called that does not exist anywhere in this installation."""

TAGS_IN_VALUES = "tags_in_values"
"""Discarded because tags stand in its texts, and they were not to be escaped."""

LOW_SCORE = "low_score"
"""Discarded because it scored less than was asked for."""

REMEDIES = {
    NO_REASONING: "--keep_unreasoned keeps them (on a resume with --override=keep_unreasoned, at no further cost)",
    UNKNOWN_TOOL: "--keep_unknown_tools keeps them (on a resume with --override=keep_unknown_tools, at no further cost)",
    TAGS_IN_VALUES: "--tags_in_values=escape keeps them (on a resume with --override=tags_in_values, at no further cost)",
    LOW_SCORE: "a lower --min_score keeps more of them (on a resume with --override=min_score, at no further cost)",
}
"""What keeps trajectories that would be discarded."""


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
    return "<REASONING_SCRATCHPAD>" in text_of(message.get("content"))


def nowhere_known(used: Iterable[str], known: Collection[str]) -> list[str]:
    """Those of the tools called without being on offer that do not exist at all, each once, in order.

    A tool that exists but was not drawn for the prompt is no invention, and does not cost the trajectory its place.
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
