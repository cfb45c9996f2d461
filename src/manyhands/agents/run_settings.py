"""What a run of agents takes from its settings.

Before a run is made or continued, its key, prices and sandbox are checked, and what it needs later is kept. ``NeverCalled``
stands in the model's place where everything comes from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from manyhands.agents.options import AgentOptions
from manyhands.agents.task import AgentSettings
from manyhands.core.clock import Clock
from manyhands.core.digests import derive_seed
from manyhands.engine.contract import Context, Execution, Limits
from manyhands.models.factory import is_simulated, make_model, reasoning_settings, require_key, resolve_api_key
from manyhands.models.openai.errors import Retries
from manyhands.models.pricing import PriceTable, bounded_answer, load_price_table
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion
from manyhands.runs.making import kept_file
from manyhands.runs.options import RunOptions
from manyhands.runs.progress import Notice
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from manyhands.sandboxes.selection import choose_backend

API_KEY = "api_key"
"""The name of the endpoint's key among a workload's secrets."""


def usable_key(options: AgentOptions, environ: Mapping[str, str]) -> str | None:
    """The key for the endpoint. Raises UserError, naming what to do, if the endpoint needs one and there is none."""
    if is_simulated(options.model, options.base_url):
        return None
    explicit = options.api_key.get_secret_value() if options.api_key else None
    key = resolve_api_key(explicit, options.base_url, environ)
    require_key(options.base_url, key)
    return key


def check_prices(options: RunOptions) -> None:
    """Raises UserError, naming file, line and field, for a price table that can't be used."""
    if options.prices is not None and Path(options.prices).exists():  # a copy is kept, so it may be gone on a resume
        load_price_table(options.prices)


def warn_of_unpriced(options: AgentOptions, notice: Notice) -> None:
    """Say so if a budget in dollars can't hold back the next call, because nobody knows what that costs."""
    if options.max_cost is None or is_simulated(options.model):
        return
    named = options.prices if options.prices is not None and Path(options.prices).exists() else None
    table = load_price_table(named) if named is not None else PriceTable()
    if table.price(options.model) is None:
        notice(
            f"no price is known for {options.model}, so --max_cost counts only what the endpoint itself says that calls cost: "
            "one call may pass it, and the first one without a cost ends the run; give --prices FILE, or --max_total_tokens"
        )


def tell_bound(options: AgentOptions, notice: Notice) -> None:
    """Say so if answers are bounded only because the run has a budget."""
    if options.bounded and options.max_tokens is None and not is_simulated(options.model, options.base_url):
        notice(
            f"so that the budget holds, an answer of {options.model} has at most {bounded_answer(options.model):,} tokens; "
            "--max_tokens sets another bound, as a small context window needs"
        )


def check_sandbox(options: AgentOptions, notice: Notice, *, images: int = 0) -> None:
    """Raises UserError if the sandbox can't be used on this machine, or can't give items the image that they ask for.
    ``images``: how many of them ask for one."""
    choose_backend(options.sandbox, asks_for_image=images > 0)
    if images:
        notice(f"{images} rows ask for a container image, which the {options.sandbox} sandbox ignores")


def execution_of(options: AgentOptions, *, workers: int, concurrency: int, item_timeout: float | None) -> Execution:
    """How the engine performs the run; the arguments are what each workload has its own settings for."""
    return Execution(
        executor=options.executor,
        workers=workers,
        concurrency=concurrency,
        max_attempts=options.max_attempts,
        item_timeout=item_timeout,
        max_cost=options.max_cost,
        max_total_tokens=options.max_total_tokens,
        max_seconds=options.max_seconds,
        keep_workspaces=options.keep_workspaces,
        on_divergence=options.on_divergence,
        seed=options.seed or 0,
    )


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


class NeverCalled:
    """Stands for the model and the sandboxes during a replay."""

    simulated = False
    kind = "none"

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        raise RuntimeError("a replay called the model")

    async def create(self, request: SandboxRequest) -> Sandbox:
        raise RuntimeError("a replay made a sandbox")

    def unavailable(self) -> str | None:
        return None

    async def close(self) -> None:
        return
