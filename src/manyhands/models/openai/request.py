"""Requests as OpenAI chat completions, with what single endpoints want differently.

Beside it is the bound for budgets: the most tokens that a request may be counted as. A token is at least one byte of text for every
tokenizer that works on bytes or falls back to them (byte-level BPE, SentencePiece with byte fallback), so that the bytes of the request,
with all names and marks of its JSON, are more than the tokens of its texts. What a provider adds of its own (marks around messages, its
instructions for tools) has stated allowances; in practice text has three to four bytes to a token, which is room for much more. Pictures,
recordings and files are counted apart, because their bytes are no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from manyhands.core.jsonio import dumps
from manyhands.core.messages import Message
from manyhands.models.protocol import ChatRequest, ChatSettings

TITLE = "manyhands"
_REASONING_BY_DEFAULT = ("deepseek/", "anthropic/", "openai/", "x-ai/", "google/gemini-2", "qwen/qwen3")
"""OpenRouter models (beginnings of their names) that get a request to reason even if nobody said so."""
_STRICT_HOSTS = ("api.openai.com", "api.mistral.ai", "api.groq.com")
"""Endpoints that refuse assistant messages with reasoning in them."""
_CALL_KEYS = ("id", "type", "function", "extra_content")
_NOT_SENT = ("reasoning", "finish_reason")
_CACHED_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL and what follows from it."""

    base_url: str
    openrouter: bool
    nous: bool
    openai: bool
    takes_reasoning: bool
    shown: str
    """The base URL without a user name or password in it, for people."""

    @classmethod
    def of(cls, base_url: str) -> Endpoint:
        base_url = base_url.rstrip("/").removesuffix("/chat/completions")
        parts = urlsplit(base_url)
        host = parts.hostname or ""
        return cls(
            base_url=base_url,
            openrouter="openrouter" in base_url,
            nous="nousresearch" in base_url,
            openai=host == "api.openai.com",
            takes_reasoning=host not in _STRICT_HOSTS,
            shown=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        )

    @property
    def url(self) -> str:
        """Where completions are requested."""
        return f"{self.base_url}/chat/completions"


def request_headers(endpoint: Endpoint, api_key: str | None) -> dict[str, str]:
    """The headers of every request. Without a key there is no ``Authorization``."""
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": TITLE}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if endpoint.openrouter:
        headers["X-Title"] = headers["X-OpenRouter-Title"] = TITLE
        headers["X-OpenRouter-Categories"] = "cli-agent"
    return headers


def request_body(request: ChatRequest, endpoint: Endpoint) -> dict[str, Any]:
    """The body of a request. ``request`` is not changed."""
    settings = request.settings
    messages = [wire_message(message, endpoint) for message in request.messages]
    if writes_cache(settings, endpoint):
        mark_for_caching(messages)
    body: dict[str, Any] = {"model": settings.model, "messages": messages}
    if request.tools:
        body["tools"] = list(request.tools)
    _add_sampling(body, settings, endpoint)
    _add_reasoning(body, settings, endpoint)
    if endpoint.openrouter:
        if settings.provider:
            body["provider"] = settings.provider
        body["usage"] = {"include": True}
    return body


def writes_cache(settings: ChatSettings, endpoint: Endpoint) -> bool:
    """Whether calls ask for their messages to be kept in the provider's prompt cache."""
    return endpoint.openrouter and "claude" in settings.model


def _add_sampling(body: dict[str, Any], settings: ChatSettings, endpoint: Endpoint) -> None:
    if settings.max_tokens is not None:
        body["max_completion_tokens" if endpoint.openai else "max_tokens"] = settings.max_tokens
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.top_p is not None:
        body["top_p"] = settings.top_p
    if settings.seed is not None:
        body["seed"] = settings.seed
    if settings.parallel_tool_calls is not None and "tools" in body:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.response_format is not None:
        body["response_format"] = settings.response_format


def _add_reasoning(body: dict[str, Any], settings: ChatSettings, endpoint: Endpoint) -> None:
    """OpenRouter and Nous take an object, and get medium effort by default where that is known to work. Other
    endpoints are sent OpenAI's own field, and only what a person requested."""
    reasoning = settings.reasoning
    if endpoint.nous:
        body["tags"] = [f"product={TITLE}"]
    if endpoint.nous or endpoint.openrouter:
        if reasoning is None and (endpoint.nous or settings.model.startswith(_REASONING_BY_DEFAULT)):
            reasoning = {"enabled": True, "effort": "medium"}
        if reasoning is not None and not (endpoint.nous and reasoning.get("enabled") is False):
            body["reasoning"] = reasoning
    elif reasoning is not None and reasoning.get("effort") is not None:
        body["reasoning_effort"] = reasoning["effort"]


def wire_message(message: Message, endpoint: Endpoint) -> dict[str, Any]:
    """A message as it goes out: a copy without our own keys, reasoning as ``reasoning_content``."""
    wire: dict[str, Any] = {key: value for key, value in message.items() if key[0] != "_" and key not in _NOT_SENT}
    if message.get("role") != "assistant":
        return wire
    wire.setdefault("content", None)
    calls = message.get("tool_calls")
    if calls:
        wire["tool_calls"] = [{key: call[key] for key in _CALL_KEYS if key in call} for call in calls]  # type: ignore[literal-required]
    else:
        wire.pop("tool_calls", None)  # an empty list is refused by several servers
    if not endpoint.takes_reasoning:
        wire.pop("reasoning_details", None)
        wire.pop("reasoning_content", None)
    elif reasoning := message.get("reasoning"):
        wire["reasoning_content"] = reasoning
    return wire


def mark_for_caching(messages: Sequence[dict[str, Any]]) -> None:
    """Mark the system message and the last three others for Anthropic's prompt cache (which takes four marks)."""
    system = [message for message in messages if message.get("role") == "system"][:1]
    others = [message for message in messages if message.get("role") != "system"][-_CACHED_MESSAGES:]
    for message in system + others:
        _mark(message)


def _mark(message: dict[str, Any]) -> None:
    mark = {"type": "ephemeral"}
    content = message.get("content")
    if message.get("role") == "tool" or not content:
        message["cache_control"] = mark
    elif isinstance(content, str):
        message["content"] = [{"type": "text", "text": content, "cache_control": mark}]
    elif isinstance(content, list) and isinstance(content[-1], dict):
        message["content"] = [*content[:-1], {**content[-1], "cache_control": mark}]


CALL_TOKENS, MESSAGE_TOKENS, TOOL_TOKENS = 64, 16, 32
"""Allowed besides the bytes: for each call, for each of its messages, for each tool that is declared."""
IMAGE_TOKENS, LARGE_IMAGE_TOKENS = 4800, 50_000
"""What a picture counts as: the most that providers take for one (Claude's largest), and the most for models and for a ``detail`` that
are known to take more (gpt-4o-mini, ``original``)."""
FILE_TOKENS = 1_000_000
"""What any other attachment that is no text counts as, as its length is not known: a whole context."""
_DETAILS = (None, "auto", "low", "high")


def input_tokens(request: ChatRequest, body: bytes) -> int:
    """Tokens of a request at most. ``body``: as it is sent."""
    bound = len(body) + CALL_TOKENS + MESSAGE_TOKENS * len(request.messages) + TOOL_TOKENS * len(request.tools)
    for message in request.messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") != "text":
                bound += _attached(part, request.settings.model)
    return bound


def _attached(part: dict[str, Any], model: str) -> int:
    """What an attachment counts as, less the bytes of its part."""
    size = len(dumps(part))
    if part.get("type") == "input_audio":  # a second of sound has thousands of bytes, and a hundred tokens at most
        return 0
    if part.get("type") not in ("image_url", "image", "input_image"):
        return max(0, FILE_TOKENS - size)
    image = part.get("image_url")
    detail = image.get("detail") if isinstance(image, dict) else part.get("detail")
    large = "gpt-4o-mini" in model or detail not in _DETAILS
    return (LARGE_IMAGE_TOKENS if large else IMAGE_TOKENS) - size
