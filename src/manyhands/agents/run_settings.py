"""From the settings of a run of agents to what its conversations need: model, sandbox, limits, and what their tools know of the run.

Before a run is made or continued, its key, prices and sandbox are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from socket import gethostname
from typing import Any, TypeVar

from manyhands.agents.task import AgentSettings
from manyhands.agents.worlds.settings import WorldSettings
from manyhands.core.clock import Clock
from manyhands.core.digests import derive_seed
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import suggestion
from manyhands.engine.contract import Context, Limits
from manyhands.models.factory import (
    home_url,
    is_simulated,
    key_variable,
    make_model,
    reasoning_settings,
    require_keys,
    resolve_api_keys,
)
from manyhands.models.headers import usable_headers
from manyhands.models.openai.errors import Retries
from manyhands.models.pricing import PriceTable, bounded_answer, load_price_table
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion
from manyhands.models.settings import TOOL_CHOICES, CallSettings, ModelSettings
from manyhands.runs.making import kept_file
from manyhands.runs.options import BudgetSettings, PriceSettings
from manyhands.runs.progress import Notice
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from manyhands.tools.protocol import JOBS, ParentRun
from manyhands.tools.services.artifacts import ArtifactStore, ShownPictures
from manyhands.tools.services.registry import ToolServices, opened_services
from manyhands.tools.toolsets import Toolset

API_KEY = "api_key"
"""The name of the endpoint's key among a workload's secrets."""


OptionsT = TypeVar("OptionsT", bound=CallSettings)


def with_endpoint(options: OptionsT, model: str, environ: Mapping[str, str], notice: Notice) -> OptionsT:
    """The settings with what of them follows from the environment and is recorded: where the model is called if no endpoint was given
    (see ``factory.home_url``), and what may be kept of headers."""
    if options.header is not None:
        options = options.changed({"recorded_headers": tuple(header.recorded for header in options.header)})
    if "base_url" in options.given or options.api_key is not None or is_simulated(model):
        return options
    url = home_url(model, environ)
    if url is None:
        return options
    notice(
        f"{model} is called at {url}, as there is {key_variable(url)} and no other key; --base_url names another endpoint"
    )
    return options.changed({"base_url": url})


def headers_for(options: CallSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers of requests to the endpoint, by name. Raises UserError for one whose value is not known here."""
    return usable_headers(options.header, options.recorded_headers, environ)


def usable_keys(options: ModelSettings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys for the endpoint. Raises UserError, naming what to do, if the endpoint needs one and there is none, if they don't go with
    its addresses, or if these can't be read."""
    if is_simulated(options.model, options.base_url):
        return ()
    keys = resolve_api_keys([key.text for key in options.api_key or ()], options.base_url, environ)
    names = _header_names(options)
    require_keys(options.base_url, keys, model=options.model, headers=names, environ=environ)
    return keys


def key_secrets(name: str, keys: Sequence[str]) -> dict[str, str]:
    """Keys as a workload's secrets, under a name and that name with a number; ``keys_in`` takes them back."""
    return {f"{name}_{number}" if number > 1 else name: key for number, key in enumerate(keys, 1)}


def keys_in(secrets: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The keys of that name among a workload's secrets."""
    more = takewhile(secrets.__contains__, (f"{name}_{number}" for number in count(2)))
    return (secrets[name], *(secrets[each] for each in more)) if name in secrets else ()


def _header_names(options: CallSettings) -> list[str]:
    given = [header.name for header in options.header or ()]
    return given or [recorded.partition(":")[0] for recorded in options.recorded_headers or ()]


def check_prices(options: PriceSettings) -> None:
    """Raises UserError, naming file, line and field, for a price table that can't be used."""
    if options.prices is not None and Path(options.prices).exists():  # a copy is kept, so it may be gone on a resume
        load_price_table(options.prices)


COST_AT_END = (
    "what commands and functions cost is known only when they have ended, so that those at work may pass --max_cost"
)
"""What there is to say of programs that say what they cost, but take no limit."""


def warn_of_budget(
    budget: BudgetSettings, models: Iterable[ModelSettings], notice: Notice, *, programs: str | None = None
) -> None:
    """Say what of a budget can't be kept, and what it changes about how models are called. ``programs``: what to say if there is a budget
    in dollars, where programs are called, too, which say only afterwards what they cost."""
    distinct = list({(model.model, model.base_url): model for model in models}.values())
    for model in distinct:
        _warn_of_unpriced(budget, model, notice)
        if budget.bounded and model.max_tokens is None and not is_simulated(model.model, model.base_url):
            notice(
                f"so that the budget holds, an answer of {model.model} has at most {bounded_answer(model.model):,} tokens; "
                "--max_tokens sets another bound, as a small context window needs"
            )
    if budget.max_cost is not None and programs is not None:
        notice(programs)


def _warn_of_unpriced(budget: BudgetSettings, model: ModelSettings, notice: Notice) -> None:
    """A budget in dollars can't hold back the next call if nobody knows what that costs."""
    if budget.max_cost is None or is_simulated(model.model):
        return
    named = budget.prices if budget.prices is not None and Path(budget.prices).exists() else None
    table = load_price_table(named) if named is not None else PriceTable()
    if table.price(model.model) is None:
        notice(
            f"no price is known for {model.model}, so --max_cost counts only what the endpoint itself says that calls cost: "
            "one call may pass it, and the first one without a cost ends the run; give --prices FILE, or --max_total_tokens"
        )


def model_of(
    options: ModelSettings,
    api_keys: Sequence[str],
    run_folder: Path,
    budget: BudgetSettings,
    *,
    retries: Retries | None = None,
    headers: Mapping[str, str] | None = None,
) -> ChatModel:
    """The model that the settings name, which is shown the pictures that are artifacts of the run.

    ``retries``: how failed calls are tried again; ``headers``: sent with every request. Under a budget every call names a ``max_tokens``,
    which is no part of the recorded steps, so that a budget may come and go. Raises UserError if it can't be used.
    """
    model = make_model(
        model=options.model,
        base_url=options.base_url,
        api_key=api_keys,
        seed=options.seed or 0,
        prices=None if budget.prices is None else kept_file(run_folder, budget.prices),
        latency=options.simulated_latency,
        retries=retries,
        max_tokens=bounded_answer(options.model) if budget.bounded else None,
        headers=headers,
    )
    return ShownPictures(model, ArtifactStore(run_folder))


def services_for(
    options: ModelSettings, records: Mapping[str, Json], secrets: Mapping[str, str], run_folder: Path
) -> AbstractAsyncContextManager[ToolServices]:
    """The services of a run's tools, in one of its processes. ``options``: the settings of its agents, of which budget and prices are
    taken, if they have any; ``records``: what was chosen; ``secrets``: the workload's."""
    prices: str | None = getattr(options, "prices", None)
    return opened_services(
        records,
        secrets,
        run_folder,
        prices=None if prices is None else load_price_table(kept_file(run_folder, prices)),
        seed=options.seed or 0,
        bounded=isinstance(options, BudgetSettings) and options.bounded,
    )


def check_tool_choice(options: CallSettings, tools: Collection[str]) -> None:
    """Raises UserError if a tool is to be called that is none of those there are."""
    choice = options.tool_choice
    if choice is not None and choice not in TOOL_CHOICES and choice not in tools:
        raise UserError(f"--tool_choice: no toolset has the tool {choice}{suggestion(choice, tools)}")


def sandbox_limits(options: WorldSettings) -> SandboxLimits:
    """The bounds of an agent's sandbox, from a run's settings."""
    return SandboxLimits(
        memory=SandboxLimits().memory if options.memory is None else round(options.memory * (1 << 30)),
        cpus=options.cpus,
        disk=max(1, round(options.sandbox_disk * (1 << 30))),
        min_free=None if options.min_free is None else round(options.min_free * (1 << 30)),
        network=options.network,
        network_allow=options.network_allow or (),
    )


def chat_settings(options: ModelSettings) -> ChatSettings:
    """How the model is called, but for the seed."""
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
        stop=options.stop,
        tool_choice=options.tool_choice,
        extra_body=options.extra_body,
        send_reasoning=options.send_reasoning,
    )


def seeded(settings: AgentSettings, options: CallSettings, context: Context) -> AgentSettings:
    """The settings for one item: if the person gave a seed, with one of its own for the endpoint."""
    own = item_seed(options, context)
    return settings if own is None else replace(settings, chat=replace(settings.chat, seed=own))


def item_seed(options: CallSettings, context: Context) -> int | None:
    """The seed of an item's own for the endpoint; None if the person gave none."""
    return None if options.seed is None else derive_seed(options.seed, context.item.key, "model")


def parent_run(
    context: Context,
    run_folder: Path,
    run_id: str,
    options: Mapping[str, Any],
    secrets: Mapping[str, str],
    *,
    depth: int = 0,
    max_depth: int = 1,
) -> ParentRun:
    """What the tools of an attempt get to know of its run. ``options``: the agents' settings as they are recorded, with
    ``toolsets``, the names of those that this agent has; ``depth`` and ``max_depth``: see ``ParentRun``."""
    return ParentRun(run_id, run_folder, f"{context.item.number}-{context.attempt}", options, secrets, depth, max_depth)


def standard_toolsets(names: Sequence[str], own: Sequence[Toolset]) -> list[str]:
    """Toolsets by name, with those that a person made up (``own``) replaced by what they include, as nobody else knows them."""
    includes = {toolset.name: toolset.includes for toolset in own}
    found: list[str] = []
    for name in names:
        found += standard_toolsets(includes[name], own) if name in includes else [name]
    return list(dict.fromkeys(found))


def check_node(named: Mapping[str, str | Path | None]) -> None:
    """Raises UserError for a file or folder that is not on this machine, a node of a cluster. ``named``: those that a run needs and nobody
    sends here, by what names them."""
    for name, path in named.items():
        if path is not None and not Path(path).exists():
            raise UserError(
                f"{name}: there is no {path} on the node {gethostname()}; with --executor=ray it must be at the same path on each node"
            )


def own_folders(run_folder: Path) -> tuple[Path, ...]:
    """The folders that a run's agents should not see in a project, as all journals of theirs and others are there: the run's,
    the data folder it is in, and the same of the runs that it comes from."""
    folders = [run_folder, run_folder.parent]
    while folders[-1].parent.name == JOBS:
        run = folders[-1].parent.parent
        folders += [run, run.parent]
    return tuple(folders)


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
