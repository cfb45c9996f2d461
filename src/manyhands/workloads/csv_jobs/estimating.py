"""What a job will take, estimated from its prompts and its settings before anything is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.agents.toolbox import RunTools
from manyhands.core.text import expand_home
from manyhands.models.estimate import Assumptions, Estimate, PerItem, Prompts, free, measured, tokens_of
from manyhands.models.factory import is_simulated
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.workloads.csv_jobs.folders import WORKLOAD
from manyhands.workloads.csv_jobs.prepared import PreparedJob
from manyhands.workloads.csv_jobs.spec import JobSpec

_OWN_TOKENS = 250
"""Tokens of the system prompt and the report tool."""
_ALIKE = ("worker_command", "worker_function", "model", "base_url", "toolsets", "max_turns", "reasoning_effort")
"""Settings by which jobs take about the same for a row."""


def estimate_lines(job: PreparedJob, prompts: Prompts) -> list[tuple[str, str]]:
    """The estimate in words: pairs of a label and text. ``prompts``: those of the rows that are executed."""
    options, rows = job.options, ("rows", f"{prompts.count:,} to execute")
    if options.worker_kind == "function":
        return [rows, ("dollars", "not known: a function does not report what it costs")]
    each = measured(Path(options.data_dir), WORKLOAD, _alike(options))
    if each is None and options.worker_kind == "command":
        return [
            rows,
            ("tokens", f"{prompts.tokens:,} in the prompts; a command's own calls are not known"),
            ("dollars", "not known before rows were executed: --limit=10 first, then --dry_run again"),
        ]
    return [rows, *_estimate(job, prompts, each).lines()]


def _estimate(job: PreparedJob, prompts: Prompts, found: PerItem | None) -> Estimate:
    options = job.options
    simulated = options.worker_kind == "agent" and is_simulated(options.model, options.base_url)
    assumptions = Assumptions.of(
        tools=any((options.toolsets, options.tools, options.mcp_config)),
        max_turns=options.max_turns,
        max_tokens=options.max_tokens,
        seconds=options.simulated_latency if simulated else None,
    )
    each = found or assumptions.per_item(prompts.mean, _OWN_TOKENS + _tool_tokens(job))
    prices = PriceTable() if options.prices is None else load_price_table(expand_home(options.prices))
    model = options.model if options.worker_kind == "agent" else None
    estimate = Estimate.of(prompts.count, each, at_once=options.workers, model=model, prices=prices)
    return free(estimate) if simulated else estimate


def _tool_tokens(job: PreparedJob) -> int:
    definitions = RunTools.recorded(job.mcp).toolbox(job.options.toolsets or ()).definitions
    return tokens_of(list(definitions))


def _alike(options: JobSpec) -> Any:
    wanted = options.to_json(_ALIKE)

    def is_alike(spec: Mapping[str, Any]) -> bool:
        return all(spec["options"].get(name) == value for name, value in wanted.items())

    return is_alike
