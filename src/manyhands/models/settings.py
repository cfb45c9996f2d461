"""The settings of a model: which it is, how it is reached, and how it is called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from manyhands.core.redaction import protect
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalSecrets,
    OptionalText,
    Settings,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
)
from manyhands.models.addresses import Addresses, read_addresses
from manyhands.models.headers import Header, read_headers
from manyhands.models.hosts import ALWAYS, NOT_SENT
from manyhands.runs.options import LIMITS, MODEL, json_object, recorded_object

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Reasoning efforts, from least to most."""
TOOL_CHOICES = ("auto", "none", "required")
"""What a model may be told about calling tools, besides the name of one."""


def _effort(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    if not isinstance(value, str) or value.strip().lower() not in EFFORTS:
        raise ValueError(f"must be one of {', '.join(EFFORTS)}")
    return value.strip().lower()


_OF_CONVERSATION = frozenset(
    ("messages", "model", "tools", "functions", "function_call", "stream", "stream_options", "n", "best_of")
)
"""Fields that can't be set, as conversations, their tools or the reading of answers depend on them."""
_OWN_OPTIONS = {
    **{name: name for name in ("max_tokens", "temperature", "top_p", "seed", "stop", "tool_choice")},
    "max_completion_tokens": "max_tokens",
}
"""Fields with a setting of their own."""
_SECRET_FIELD = re.compile(
    r"((api|access|private|secret|subscription)[_-]?key|secret|passw(or)?d|authorization|credentials?"
    r"|(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!stop_)token)$",
    re.IGNORECASE,
)
"""Names of fields that hold secrets; models' own tokens, and bounds in tokens, are none."""
_MAX_BODY = 64 * 1024
_MAX_STOP = 64
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")


def _extra_body(value: Any) -> dict[str, Any] | None:
    found = json_object(value)
    for name in found or ():
        if name in _OF_CONVERSATION:
            raise ValueError(f"can't set {name}")
        if name in _OWN_OPTIONS:
            raise ValueError(f"can't set {name}: give --{_OWN_OPTIONS[name]}")
    if secrets := list(_secrets_in(found)):
        protect(text for _, value in secrets for text in _texts(value))
        raise ValueError(f"can't set {secrets[0][0]}, which would be recorded; give keys with --api_key or --header")
    if found is not None and len(json.dumps(found)) > _MAX_BODY:
        raise ValueError(f"must be at most {_MAX_BODY >> 10} KiB long")
    return found or None


def _recorded_body(value: Any) -> dict[str, Any] | None:
    return _extra_body(recorded_object(value))


def _secrets_in(value: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """The names of an object's fields that hold secrets, at any depth, and their values. An object with such a name describes a field, as a
    schema does, unless it is a field of the request."""
    for part in value if isinstance(value, list) else ():
        yield from _secrets_in(part, within)
    for name, part in value.items() if isinstance(value, dict) else ():
        if _SECRET_FIELD.search(name) and not (within and isinstance(part, dict)):
            yield within + name, part
        else:
            yield from _secrets_in(part, f"{within}{name}.")


def _texts(value: Any) -> Iterator[str]:
    """All that a value holds, as texts."""
    if isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
    else:
        yield str(value)


def _stop(value: Any) -> tuple[str, ...] | None:
    """Stop sequences: one, several, or as typed a JSON list of them."""
    given = [value] if isinstance(value, str) else value
    if given is None or given == [""]:
        return None
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError):  # it is a text that begins with a bracket
            given = json.loads(value)
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, str) and each for each in given):
        raise ValueError("must be a text that is not empty, or a list of such")
    if len(given) > _MAX_STOP:
        raise ValueError(f"must be at most {_MAX_STOP} texts")
    return tuple(given) or None


def _tool_choice(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value.strip()):
        raise ValueError(f"must be {', '.join(TOOL_CHOICES)}, or the name of a tool")
    return value.strip()


def _send_reasoning(value: Any) -> str | None:
    word = value.strip() if isinstance(value, str) else value
    if word in (None, "", "auto"):
        return None
    if word not in (ALWAYS, NOT_SENT, *REASONING_FIELDS):
        raise ValueError(f"must be auto, {ALWAYS}, {NOT_SENT}, or a field: {', '.join(REASONING_FIELDS)}")
    return str(word)


ELSEWHERE: dict[str, Any] = {"api_key": None, "header": None, "recorded_headers": None}
"""Settings of an endpoint that are none of another one's business."""
OF_ONE_MODEL: dict[str, Any] = {"extra_body": None, "send_reasoning": None}
"""Settings that one model takes and another one may not know."""
OF_AGENTS: dict[str, Any] = {"stop": None, "tool_choice": None}
"""Settings of agents' conversations, which judges do not have."""


class CallSettings(Settings):
    """An endpoint, and what every call of a model there asks for, whichever model it is."""

    listed: ClassVar[tuple[str, ...]] = ("base_url",)

    api_key: OptionalSecrets = setting(
        None,
        "API key of the endpoint (repeatable: used in turn, or one for each URL) (default: from the environment, "
        "OPENROUTER_API_KEY, …). Never recorded.",
        group=MODEL,
        recorded=False,
        secret=True,
        value="KEY",
        repeated=True,
    )
    base_url: Annotated[Addresses, Checked(read_addresses)] = setting(
        "https://openrouter.ai/api/v1",
        "Base URL of an endpoint for OpenAI chat completions; repeatable, or @FILE with a URL per line: replicas of one model.",
        group=MODEL,
        value="URL",
        repeated=True,
    )
    header: Annotated[tuple[Header, ...] | None, Checked(read_headers)] = setting(
        None,
        "HTTP header of every request, such as 'X-Team: mine' (repeatable). Only names and ${NAME}, variables of the environment, are "
        "recorded.",
        group=MODEL,
        recorded=False,
        secret=True,
        value="'NAME: VALUE'",
        repeated=True,
    )
    recorded_headers: OptionalList = setting(None, "What is recorded of header.", typed=False)
    providers_allowed: OptionalList = setting(None, "OpenRouter: use only these providers.", group=MODEL, identity=True)
    providers_ignored: OptionalList = setting(
        None, "OpenRouter: never use these providers.", group=MODEL, identity=True
    )
    providers_order: OptionalList = setting(
        None, "OpenRouter: try providers in this order.", group=MODEL, identity=True
    )
    provider_sort: OptionalText = setting(
        None,
        "OpenRouter: sort providers by price, throughput or latency.",
        group=MODEL,
        identity=True,
        value="price|throughput|latency",
    )
    max_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None,
        "Maximum tokens per model response (default: the server's; under a budget 8,192).",
        group=MODEL,
        identity=True,
    )
    reasoning_effort: Annotated[str | None, Checked(_effort)] = setting(
        None,
        "Reasoning effort (default: medium where the endpoint supports it).",
        group=MODEL,
        identity=True,
        value="|".join(EFFORTS),
    )
    reasoning_disabled: Flag = setting(
        False,
        "No reasoning: like --reasoning_effort=none, and takes precedence over it.",
        group=MODEL,
        identity=True,
    )
    send_reasoning: Annotated[str | None, Checked(_send_reasoning)] = setting(
        None,
        "How reasoning is sent back in later turns: as the endpoint takes it (auto), wherever it came (always), never, or in a field such "
        "as reasoning_content (default: auto).",
        group=MODEL,
        identity=True,
        value="auto|always|never|FIELD",
    )
    implied_think: Flag = setting(
        False,
        "Treat text before a lone </think> as reasoning, for servers whose chat template opens the block in the prompt.",
        group=MODEL,
        identity=True,
    )
    seed: Annotated[int | None, optional_whole(0)] = setting(
        None,
        "Seed of random draws; also sent to endpoints, derived per conversation (default: draws use 0, nothing is sent).",
        group=MODEL,
        identity=True,
    )
    temperature: Annotated[float | None, optional_number(0, 2)] = setting(
        None, "Sampling temperature (default: the server's).", group=MODEL, identity=True
    )
    top_p: Annotated[float | None, optional_number(0, 1)] = setting(
        None, "Nucleus sampling probability (default: the server's).", group=MODEL, identity=True
    )
    stop: Annotated[tuple[str, ...] | None, Checked(_stop)] = setting(
        None,
        "Text at which an answer ends (repeatable, or a JSON list).",
        group=MODEL,
        identity=True,
        value="TEXT",
        repeated=True,
    )
    tool_choice: Annotated[str | None, Checked(_tool_choice)] = setting(
        None,
        "Whether tools are called: auto, none, required, or a tool's name; the last two hold until the first call (default: the server's).",
        group=MODEL,
        identity=True,
        value="auto|none|required|NAME",
    )
    extra_body: Annotated[dict[str, Any] | None, Checked(_extra_body, _recorded_body)] = setting(
        None,
        "JSON object that is merged into every request, or a file that holds it, for what an endpoint has of its own.",
        group=MODEL,
        identity=True,
        value="JSON",
    )
    call_timeout: Annotated[float, number(above=0)] = setting(
        600.0, "Timeout of one model call in seconds.", group=LIMITS
    )
    simulated_latency: Annotated[float, number(0)] = setting(
        0.0, "Latency of the simulated model's answers in seconds.", group=MODEL
    )
    reasoning_config: dict[str, Any] | None = setting(
        None, "The request's reasoning object, passed through.", typed=False, identity=True
    )

    def for_model(self, model: str, base_url: Addresses | None = None) -> ModelSettings:
        """The same for a model. ``base_url``: its endpoint if it is another one, for which this one's keys and headers are not used."""
        values = {name: getattr(self, name) for name in CallSettings.fields}
        if base_url not in (None, self.base_url):
            values |= {"base_url": base_url, **ELSEWHERE}
        return ModelSettings.unchecked(**values, model=model)


class ModelSettings(CallSettings):
    """A model, its endpoint, and what every call asks for."""

    model: Text = setting(
        "anthropic/claude-sonnet-4.6",
        'Model name at the endpoint; "simulated" is a built-in model that costs nothing.',
        group=MODEL,
        identity=True,
        value="NAME",
    )
