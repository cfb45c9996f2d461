"""What a batch will take, estimated from its dataset and its settings before anything is made or called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_prices
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT
from manyhands.agents.toolbox import RunTools
from manyhands.core.text import expand_home
from manyhands.io.tables.formats import dataset_notices
from manyhands.models.estimate import Assumptions, Estimate, Prompts, free, measured, tokens_of
from manyhands.models.factory import is_simulated
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.runs.progress import Notice
from manyhands.workloads.trajectories.dataset.rows import BadRow, read_rows
from manyhands.workloads.trajectories.prepared import Prepared, prepare, with_project
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload

_ALIKE = ("model", "base_url", "agent", "distribution", "max_turns", "reasoning_effort")
"""Settings by which batches take about the same for a prompt."""


async def estimate_batch(options: BatchSpec, notice: Notice) -> list[tuple[str, str]]:
    """The plan of a batch and an estimate of what it takes, in words: pairs of a label and text. Nothing is made, and no model is called.
    ``notice``: gets what was decided by looking at the dataset.

    Raises UserError as making the batch would.
    """
    options = with_project(options.resolved())
    check_prices(options)
    prepared = await prepare(options)
    for line in dataset_notices(Path(options.dataset_file), **options.reading):
        notice(line)
    prompts = Prompts()
    for row in read_rows(options.dataset_file, **prepared.how_read()):
        if not isinstance(row, BadRow):
            prompts.add([*row.messages] or row.prompt, options.samples)
            prompts.tokens += tokens_of(row.system or "") * options.samples
    skipped = f", {prepared.bad_count:,} rows skipped" if prepared.bad_count else ""
    samples = f", {options.samples} samples of each" if options.samples > 1 else ""
    return [
        ("dataset", f"{options.dataset_file}: {prompts.count // options.samples:,} prompts{samples}{skipped}"),
        ("model", options.model),
        ("tools", f"distribution {options.distribution}, sandbox {options.sandbox}"),
        *_estimate(prepared, prompts).lines(),
    ]


def _estimate(prepared: Prepared, prompts: Prompts) -> Estimate:
    options = prepared.options
    simulated = is_simulated(options.model, options.base_url)
    tools, likely = _tools(prepared)
    assumptions = Assumptions.of(
        tools=likely,
        max_turns=options.max_turns,
        max_tokens=options.max_tokens,
        seconds=options.simulated_latency if simulated else None,
    )
    fixed = tokens_of(f"{BASE_PROMPT}{TOOLS_PROMPT}{options.ephemeral_system_prompt or ''}") + tools
    fixed += tokens_of(list(options.prefill_messages or ()))
    each = measured(Path(options.data_dir), TrajectoryWorkload.name, _alike(options))
    each = each or assumptions.per_item(prompts.mean, fixed)
    prices = PriceTable() if options.prices is None else load_price_table(expand_home(options.prices))
    at_once = options.num_workers * options.concurrency
    estimate = Estimate.of(prompts.count, each, at_once=at_once, model=options.model, prices=prices)
    return free(estimate) if simulated else estimate


def _tools(prepared: Prepared) -> tuple[float, bool]:
    """The tokens of tools that a prompt gets on average, and whether it gets any as a rule."""
    run_tools = RunTools.recorded(prepared.mcp, prepared.toolsets)
    chances = [(name, percent / 100) for name, percent in prepared.distribution.toolsets]
    boxes = [(run_tools.toolbox((name,)), chance) for name, chance in chances]
    tokens = sum(tokens_of(list(box.definitions)) * chance for box, chance in boxes)
    return tokens, any(box.names and chance > 0 for box, chance in boxes)


def _alike(options: BatchSpec) -> Any:
    wanted = options.to_json(_ALIKE)

    def is_alike(spec: Mapping[str, Any]) -> bool:
        return all(spec["options"].get(name) == value for name, value in wanted.items())

    return is_alike
