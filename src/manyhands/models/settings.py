"""The settings of a model: which it is, how it is reached, and how it is called."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalSecret,
    OptionalText,
    Settings,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
)
from manyhands.runs.options import LIMITS, MODEL

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Reasoning efforts, from least to most."""


def _effort(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    if not isinstance(value, str) or value.strip().lower() not in EFFORTS:
        raise ValueError(f"must be one of {', '.join(EFFORTS)}")
    return value.strip().lower()


def _base_url(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must be an address that starts with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not hold a name and password, which would be recorded; give a key with --api_key")
    return text


class CallSettings(Settings):
    """An endpoint, and what every call of a model there asks for, whichever model it is."""

    api_key: OptionalSecret = setting(
        None,
        "API key of the endpoint (default: from the environment, OPENROUTER_API_KEY, …). Never recorded.",
        group=MODEL,
        recorded=False,
        secret=True,
        value="KEY",
    )
    base_url: Annotated[str, Checked(_base_url)] = setting(
        "https://openrouter.ai/api/v1",
        "Base URL of an endpoint for OpenAI chat completions.",
        group=MODEL,
        value="URL",
    )
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
    call_timeout: Annotated[float, number(above=0)] = setting(
        600.0, "Timeout of one model call in seconds.", group=LIMITS
    )
    simulated_latency: Annotated[float, number(0)] = setting(
        0.0, "Latency of the simulated model's answers in seconds.", group=MODEL
    )
    reasoning_config: dict[str, Any] | None = setting(
        None, "The request's reasoning object, passed through.", typed=False, identity=True
    )

    def for_model(self, model: str, base_url: str | None = None) -> ModelSettings:
        """The same for a model. ``base_url``: its endpoint if it is another one, for which this one's key is not used."""
        values = {name: getattr(self, name) for name in CallSettings.fields}
        if base_url not in (None, self.base_url):
            values |= {"base_url": base_url, "api_key": None}
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
