"""What an agent is given and what it returns; and the clock as a step, for what must be the same on a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect
from manyhands.models.protocol import ChatSettings

BASE_PROMPT = "Complete the task that the user gives you, and finish with an answer in plain text."
TOOLS_PROMPT = "Call the tools on offer where they help. Read what they return before you rely on it."


@dataclass(slots=True)  # not frozen: see Outcome
class AgentTask:
    """One task. System prompt and prefill go over the wire and are never part of the conversation that is kept."""

    prompt: str | list[Any]
    """Text, or a list of chat-completions content parts."""
    system: Sequence[str] | None = None
    """Paragraphs of the system prompt; None takes this program's own, which name no date, so that two runs ask the same."""
    ephemeral: str | None = None
    """A further paragraph of the system prompt."""
    prefill: Sequence[Message] = ()
    """Messages put right after the system message in every request."""
    messages: Sequence[Message] = ()
    """What the conversation begins with, the prompt included, where that is more than the prompt; it is kept."""

    def head(self, with_tools: bool) -> list[Message]:
        """The messages that every request starts with."""
        text = self.system_message(with_tools)
        system: list[Message] = [{"role": "system", "content": text}] if text else []
        return [*system, *self.prefill]

    def system_message(self, with_tools: bool) -> str:
        """What the system message says; empty if there is none."""
        own = (BASE_PROMPT, TOOLS_PROMPT) if with_tools else (BASE_PROMPT,)
        parts = [*(own if self.system is None else self.system), self.ephemeral]
        return "\n\n".join(filter(None, parts))

    def opening(self) -> list[Message]:
        """The messages that the conversation begins with."""
        return list(self.messages) or [{"role": "user", "content": self.prompt}]


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How an agent works. Raises ValueError for ``max_turns`` below 1, and a ``time_limit`` that is not above 0."""

    chat: ChatSettings
    max_turns: int = 10
    """Maximum model calls, repeated ones included, the closing summary not."""
    tool_timeout: float | None = None
    """Seconds after which a tool call is cut off; None gives the tool environment's plus ten for the tool's own clean-up."""
    max_result: int = 100_000
    """Maximum characters of a tool result that the model gets to see."""
    sequential_tools: bool = False
    """Run the calls of one turn one after the other."""
    summary: bool = True
    """When the turns are used up, ask once more, without tools, for a summary."""
    time_limit: float | None = None
    """Seconds after which the conversation ends, whatever is in flight; the time between a crash and the resume does not count."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {self.max_turns}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit must be more than 0, not {self.time_limit}")


class ToolUse(NamedTuple):
    """One tool call that got an answer."""

    name: str
    failed: bool


@dataclass(slots=True)  # not frozen: see Outcome
class AgentResult:
    """How a conversation went."""

    messages: list[Message]
    """From the task's first one on, without system message and prefill."""
    stop_reason: StopReason
    api_calls: int
    """Model calls made, the closing summary not counted."""
    usage: Usage
    """The sum over all model calls, dropped answers included."""
    tool_uses: list[ToolUse] = field(default_factory=list)
    """Every answered tool call in order."""
    unknown_tools: list[str] = field(default_factory=list)
    """Names that were called and not available, each once."""
    tool_usage: Usage = ZERO
    """The sum over what tool calls asked of models and services."""
    exit_code: int | None = None
    """Of the program that stood in for the agent; None if none did, or it was stopped at its time limit."""
    model: str | None = None
    """That answered, where a program of its own says so."""

    @property
    def completed(self) -> bool:
        """Whether the agent gave its answer."""
        return self.stop_reason is StopReason.ANSWERED

    @property
    def partial(self) -> bool:
        """Whether the conversation was broken off by a defect of an answer. (Running out of turns or time is neither completed
        nor partial.)"""
        return self.stop_reason not in WHOLE


WHOLE = (StopReason.ANSWERED, StopReason.MAX_TURNS, StopReason.TIME_LIMIT)
"""Ends of conversations that no answer is to blame for."""
CLOCK = "clock"
"""The kind of a step that reads the clock."""


async def moment(context: Context) -> float:
    """Now, in seconds since 1970 UTC: when this was first called at the context's address."""

    async def effect() -> Effect:
        return Effect(context.clock.now())

    return float(await context.step(CLOCK, {}, effect))
