"""Requests as OpenAI chat completions, with what single endpoints want differently.

Beside it is the bound for budgets: the most tokens that a request may be counted as. A token is at least one byte of text for every
tokenizer that works on bytes or falls back to them (byte-level BPE, SentencePiece with byte fallback), so that the bytes of the request,
with all names and marks of its JSON, are more than the tokens of its texts. What a provider adds of its own (marks around messages, its
instructions for tools) has stated allowances; in practice text has three to four bytes to a token, which is room for much more. Pictures,
recordings and files are counted apart, because their bytes are no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from manyhands.core.jsonio import dumps
from manyhands.core.messages import Message
from manyhands.models.hosts import ALWAYS, NOT_SENT, Host, host_of
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.models.settings import TOOL_CHOICES

TITLE = "manyhands"
_REASONING_BY_DEFAULT = ("deepseek/", "anthropic/", "openai/", "x-ai/", "google/gemini-2", "qwen/qwen3")
"""OpenRouter models (beginnings of their names) that get a request to reason even if nobody said so."""
_CALL_KEYS = ("id", "type", "function", "extra_content")
CONTENT_FIELD, DETAILS_FIELD = "reasoning_content", "reasoning_details"
_NOT_SENT = ("reasoning", "finish_reason", CONTENT_FIELD, DETAILS_FIELD)
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""What the bound of an answer is called, in the field's past and present."""
_AZURE_PATH = "/openai/v1"
_FIRST_VERSION = "2024-09"
"""The first ``api-version`` of Azure that knows ``max_completion_tokens``."""
_PAD = " "
"""Stands for reasoning where there was none, as servers that want the field take nothing empty for it."""
_CACHED_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A base URL and what follows from it."""

    base_url: str
    """Without the query that is sent with every request."""
    query: str
    host: Host
    openrouter: bool
    nous: bool
    shown: str
    """The base URL without a user name or password in it, for people."""

    @classmethod
    def of(cls, base_url: str) -> Endpoint:
        parts = urlsplit(base_url)
        host = host_of(base_url)
        path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
        if host.azure and path in ("", "/openai"):
            path = _AZURE_PATH
        plain = parts._replace(path=path, query="", fragment="")
        return cls(
            base_url=plain.geturl(),
            query=parts.query,
            host=host,
            openrouter="openrouter" in base_url,
            nous="nousresearch" in base_url,
            shown=plain._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        )

    def at(self, path: str) -> str:
        """The URL of one of its interfaces, as ``chat/completions``."""
        return f"{self.base_url}/{path}{'?' if self.query else ''}{self.query}"

    @property
    def url(self) -> str:
        """Where completions are requested."""
        return self.at("chat/completions")

    @property
    def shape(self) -> tuple[Any, ...]:
        """What requests depend on: endpoints of which it is the same take the same ones."""
        return self.host, self.query, self.openrouter, self.nous


@dataclass(frozen=True, slots=True)
class Adaptation:
    """In what requests to an endpoint differ from those that its host is known to take."""

    reasoning: str | None = None
    """The field in which reasoning is sent back, or ``NOT_SENT``; None: as its host wants it."""
    details: bool = True
    """Whether ``reasoning_details`` are sent back."""
    pads: bool = False
    """Whether each answer is sent back with that field, also if it came without reasoning."""
    limit_field: str | None = None
    """What the bound of an answer is called (one of ``LIMIT_FIELDS``); None: as its host calls it."""
    seedless: bool = False
    """Whether no seed is sent."""


AS_KNOWN = Adaptation()
"""Of an endpoint that has refused nothing."""


def request_headers(endpoint: Endpoint, api_key: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of every request. Without a key there is no ``Authorization``. Azure has its own header for keys, and takes the tokens
    of Entra ID (in the form of a JWT) as others take keys. ``more``: a person's own, which take precedence."""
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": TITLE}
    if api_key and endpoint.host.azure and not (api_key.startswith("eyJ") and api_key.count(".") == 2):
        headers["api-key"] = api_key
    elif api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    if endpoint.openrouter:
        headers["X-Title"] = headers["X-OpenRouter-Title"] = TITLE
        headers["X-OpenRouter-Categories"] = "cli-agent"
    own = {name.lower() for name in more or ()}
    return {**{name: value for name, value in headers.items() if name.lower() not in own}, **(more or {})}


def request_body(request: ChatRequest, endpoint: Endpoint, adaptation: Adaptation = AS_KNOWN) -> dict[str, Any]:
    """The body of a request. ``request`` is not changed."""
    settings = request.settings
    sending = _sending(request, adaptation, endpoint)
    messages = [wire_message(message, sending) for message in request.messages]
    if writes_cache(settings, endpoint):
        mark_for_caching(messages)
    body: dict[str, Any] = {"model": settings.model, "messages": messages}
    if request.tools:
        body["tools"] = list(request.tools)
        _add_tool_choice(body, settings.tool_choice)
    _add_sampling(body, settings, endpoint, adaptation)
    _add_reasoning(body, settings, endpoint)
    if endpoint.openrouter:
        if settings.provider:
            body["provider"] = settings.provider
        body["usage"] = {"include": True}
    return _merged(body, settings.extra_body) if settings.extra_body else body


def writes_cache(settings: ChatSettings, endpoint: Endpoint) -> bool:
    """Whether calls ask for their messages to be kept in the provider's prompt cache."""
    return endpoint.openrouter and "claude" in settings.model


def limit_field(adaptation: Adaptation, endpoint: Endpoint) -> str:
    """What the bound of an answer is called at an endpoint."""
    if adaptation.limit_field is not None:
        return adaptation.limit_field
    version = parse_qs(endpoint.query).get("api-version", [_FIRST_VERSION])[0]
    return LIMIT_FIELDS[endpoint.host.completion_tokens and version >= _FIRST_VERSION]


def _merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body with more fields; objects in it are merged likewise."""
    added = {
        name: _merged(body[name], value)
        if isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
        else value
        for name, value in extra.items()
    }
    return {**body, **added}


def _add_tool_choice(body: dict[str, Any], choice: str | None) -> None:
    """A tool by its name is chosen only where it is on offer."""
    if choice in TOOL_CHOICES:
        body["tool_choice"] = choice
    elif any(tool["function"]["name"] == choice for tool in body["tools"]):
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}


def _add_sampling(body: dict[str, Any], settings: ChatSettings, endpoint: Endpoint, adaptation: Adaptation) -> None:
    if settings.max_tokens is not None:
        body[limit_field(adaptation, endpoint)] = settings.max_tokens
    if settings.temperature is not None:
        body["temperature"] = settings.temperature
    if settings.top_p is not None:
        body["top_p"] = settings.top_p
    if settings.seed is not None and not adaptation.seedless:
        body["seed"] = settings.seed
    if settings.stop is not None:
        body["stop"] = list(settings.stop)
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


@dataclass(frozen=True, slots=True)
class _Sending:
    """How answers are sent back."""

    field: str | None
    """Where reasoning goes; None: where the answer had it."""
    details: bool
    pads: bool
    """Whether tool calls without reasoning get a blank in its place."""
    pads_texts: bool = False
    """Whether other answers do."""


def _sending(request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> _Sending:
    host, requested = endpoint.host, request.settings.send_reasoning
    if requested == NOT_SENT or (requested is None and (adaptation.reasoning or host.reasoning) == NOT_SENT):
        return _Sending(NOT_SENT, details=False, pads=False)
    if requested not in (None, ALWAYS):
        return _Sending(requested, details=requested == DETAILS_FIELD, pads=host.wants_reasoning)
    field = adaptation.reasoning or host.reasoning
    thinks = host.wants_reasoning and any(message.get("reasoning") for message in request.messages)
    return _Sending(
        None if field == NOT_SENT else field,
        details=adaptation.details and (host.details or requested == ALWAYS),
        pads=adaptation.pads or thinks,
        pads_texts=adaptation.pads,
    )


def reasoning_fields(request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> Iterable[str]:
    """The fields in which a request sends reasoning back."""
    sending = _sending(request, adaptation, endpoint)
    wired = [wire_message(message, sending) for message in request.messages]
    return [
        name for name in (CONTENT_FIELD, "reasoning", "thinking", DETAILS_FIELD) if any(name in each for each in wired)
    ]


def wire_message(message: Message, sending: _Sending) -> dict[str, Any]:
    """A message as it goes out: a copy without our own keys, with reasoning as the endpoint takes it."""
    wire: dict[str, Any] = {key: value for key, value in message.items() if key[0] != "_" and key not in _NOT_SENT}
    if message.get("role") != "assistant":
        return wire
    wire.setdefault("content", None)
    calls = message.get("tool_calls")
    if calls:
        wire["tool_calls"] = [{key: call[key] for key in _CALL_KEYS if key in call} for call in calls]  # type: ignore[literal-required]
    else:
        wire.pop("tool_calls", None)  # an empty list is refused by several servers
    if sending.field == NOT_SENT:
        return wire
    if sending.details and (details := message.get("reasoning_details")):
        wire[DETAILS_FIELD] = details
    pad = _PAD if sending.pads_texts or (sending.pads and calls) else None
    reasoning = message.get("reasoning") or message.get(CONTENT_FIELD) or pad
    if reasoning and sending.field != DETAILS_FIELD:
        wire[sending.field or message.get("_reasoning_field", CONTENT_FIELD)] = reasoning
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
