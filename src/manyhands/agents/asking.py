"""How a run's settings say that the model is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from manyhands.agents.options import AgentOptions
from manyhands.agents.setup import kept_file
from manyhands.agents.task import AgentSettings
from manyhands.core.digests import derive_seed
from manyhands.engine.context import Context
from manyhands.models.factory import make_model, reasoning_settings
from manyhands.models.pricing import bounded_answer
from manyhands.models.protocol import ChatModel, ChatSettings
from manyhands.models.retries import Retries
from manyhands.sandboxes.protocol import SandboxLimits


def model_of(
    options: AgentOptions, api_key: str | None, run_folder: Path, *, retries: Retries | None = None
) -> ChatModel:
    """The model that the settings name. ``retries``: how failed calls are tried again. Under a budget every call names a ``max_tokens``,
    which is no part of the recorded steps, so that a budget may come and go. Raises UserError if it can't be used."""
    return make_model(
        model=options.model,
        base_url=options.base_url,
        api_key=api_key,
        seed=options.seed or 0,
        prices=None if options.prices is None else kept_file(run_folder, options.prices),
        latency=options.simulated_latency,
        retries=retries,
        max_tokens=bounded_answer(options.model) if options.bounded else None,
    )


def sandbox_limits(options: AgentOptions) -> SandboxLimits:
    """The bounds of an agent's sandbox, from a run's settings."""
    return SandboxLimits(
        disk=max(1, round(options.sandbox_disk * (1 << 30))),
        min_free=None if options.min_free is None else round(options.min_free * (1 << 30)),
        network=options.network,
    )


def chat_settings(options: AgentOptions) -> ChatSettings:
    """How the model is asked, but for the seed."""
    routing = {
        "only": options.providers_allowed,
        "ignore": options.providers_ignored,
        "order": options.providers_order,
        "sort": options.provider_sort,
    }
    provider = {name: list(value) if isinstance(value, tuple) else value for name, value in routing.items() if value}
    return ChatSettings(
        model=options.model,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        reasoning=options.reasoning_config or reasoning_settings(options.reasoning_effort, options.reasoning_disabled),
        provider=provider or None,
        call_timeout=options.call_timeout,
        implied_think=options.implied_think,
    )


def seeded(settings: AgentSettings, options: AgentOptions, context: Context) -> AgentSettings:
    """The settings for one item: if the person gave a seed, with one of its own for the endpoint."""
    if options.seed is None:
        return settings
    own = derive_seed(options.seed, context.item.key, "model")
    return replace(settings, chat=replace(settings.chat, seed=own))
