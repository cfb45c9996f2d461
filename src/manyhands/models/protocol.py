"""What a chat model is to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from manyhands.core.clock import Clock
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.contract import Limits


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How to ask. None means that the field is not sent and the server decides."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    reasoning: dict[str, Any] | None = None
    """The value of the request's ``reasoning`` object, ``{"effort": "none"}`` or ``{"enabled": True, "effort": E}``; see
    ``reasoning_settings``."""
    provider: dict[str, Any] | None = None
    """OpenRouter's routing object (``only``, ``ignore``, ``order``, ``sort``)."""
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    stop: Sequence[str] | None = None
    tool_choice: str | None = None
    """One of ``settings.TOOL_CHOICES``, or a tool's name; sent only with tools."""
    extra_body: dict[str, Any] | None = None
    """Fields that are merged into the request."""
    send_reasoning: str | None = None
    """How reasoning is sent back: ``hosts.ALWAYS``, ``hosts.NOT_SENT``, or in which field; None: as the endpoint takes it."""
    call_timeout: float = 600.0
    """Seconds for one HTTP exchange."""
    implied_think: bool = False
    """How answers are read (see ``reasoning.gather``); it is not sent."""


@dataclass(slots=True)  # not frozen: see Outcome
class ChatRequest:
    """One call: the whole conversation, and the available tools as chat-completions tool objects."""

    settings: ChatSettings
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()


@dataclass(slots=True)  # not frozen: see Outcome
class Completion:
    """One answer."""

    message: Message
    """Of the assistant, with ``reasoning`` already gathered (and taken out of the content)."""
    finish_reason: str
    """``stop``, ``tool_calls``, ``length``, ``content_filter`` or what else the server said."""
    usage: Usage
    extra: dict[str, Any] = field(default_factory=dict)
    """What the journal should keep besides: response id, serving model and provider, latency in seconds, number of HTTP tries and (as
    ``refused_first``) of those that were refused and made otherwise, and as ``raw`` what the server sent where the message no longer has it
    as it was."""


class ChatModel(Protocol):
    """Answers conversations."""

    @property
    def simulated(self) -> bool:
        """Whether its answers are made up by this program. Everything made from them must say so."""
        ...

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask once, retrying what passes by itself (rate limits, 5xx, broken connections) within the failure table's bounds.

        Raises ItemError with the cause otherwise (``context_overflow`` included, for the agent to handle).
        """
        ...

    async def close(self) -> None: ...
