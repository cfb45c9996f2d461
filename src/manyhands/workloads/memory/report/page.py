"""The page itself: one HTML file that needs nothing else, no network and, but for its filters, no JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from manyhands.core.jsonio import without_surrogates
from manyhands.io.files import written_aside
from manyhands.workloads.memory.report import formatting
from manyhands.workloads.memory.report.formatting import agent_colours, brief
from manyhands.workloads.memory.report.reported_agents import Pairing, Reported, pairings, test_name
from manyhands.workloads.memory.report.views import MAX_BYTES, AgentView, agent_views

_PACKAGE = "manyhands.workloads.memory.report"
NO_PLOTS = "This page has no plots: they need one more library, pip install 'manyhands[report]'."
_MAX_FILE_NAME_BYTES = 220
"""Bytes; file systems allow 255, of which a part is needed while the file is written."""
_NOT_IN_NAMES = '/\\*?[]<>|":'


def load_plots() -> ModuleType | None:
    """The module that draws; None where matplotlib is not installed."""
    try:
        from manyhands.workloads.memory.report import plots
    except ImportError:
        return None
    return plots


def file_name(agents: Sequence[Reported], moment: str) -> str:
    """What a report is called. ``moment``: when it was made, as ``2024-05-17 09_00_00``."""
    runs = list(dict.fromkeys(agent.figures.run for agent in agents))
    if len(agents) == 1:
        name = f"{moment} - Detailed Report - {runs[0]} - {agents[0].figures.agent}"
    else:
        name = f"{moment} - Comparative Report - {' + '.join(runs)}"
    safe = "".join(mark if mark.isprintable() and mark not in _NOT_IN_NAMES else "-" for mark in name)
    while len(safe.encode("utf-8", "replace")) > _MAX_FILE_NAME_BYTES:
        safe = safe[:-1]
    return f"{safe.rstrip()}.html"


def write_report(
    path: Path, agents: Sequence[Reported], *, plots: ModuleType | None, max_bytes: int = MAX_BYTES
) -> None:
    """Write the page of one agent, or of several compared; it appears whole or not at all. ``plots``: see ``load_plots``. Raises
    StorageError."""
    with written_aside(path) as handle:
        _write(handle, agents, plots, max_bytes)


def _write(handle: TextIO, agents: Sequence[Reported], plots: ModuleType | None, max_bytes: int) -> None:
    views = agent_views(agents, max_bytes)
    several = len(views) > 1
    content: dict[str, Any] = {
        "title": _title(views),
        "style": Markup(_resource("page.css")),
        "script": Markup(_resource("page.js")),
        "agents": views,
        "several": several,
        "comparison": _comparison(views, plots) if several else None,
        "plots": {view.key: _plots(view, plots, several) for view in views},
        "no_plots": NO_PLOTS if plots is None else "",
    }
    for text in _environment().get_template("page.html").generate(content):
        handle.write(without_surrogates(text))


@cache
def _environment() -> Environment:
    """With everything escaped that is not marked as markup."""
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: getattr(formatting, name) for name in _FILTERS})
    made.filters["brief"] = brief
    return made


_FILTERS = ("share", "estimate", "percent", "difference", "methods", "p_value", "whole")


def _title(views: Sequence[AgentView]) -> str:
    runs = list(dict.fromkeys(brief(view.reported.figures.run) for view in views))
    return f"{runs[0]} – {views[0].label}" if len(views) == 1 else f"{', '.join(runs)} – {len(views)} agents"


def _resource(name: str) -> str:
    return files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")


def _plots(view: AgentView, plots: ModuleType | None, several: bool) -> Mapping[str, str]:
    """The plots of one agent, but for what is among the plots of several. What the module draws is markup; texts in it are escaped
    there."""
    agent, drawn = view.reported, dict.fromkeys(("timeline", "datasets", "spans"), "")
    if plots is None:
        return drawn
    if (timeline := agent.timeline) is not None and timeline.courses:
        scores = {test_name(test): test.score for test in agent.figures.tests}
        title = f"Tests of {view.label} over the tokens of the conversation"
        drawn["timeline"] = plots.timeline_plot(f"{view.key}-timeline", timeline, scores, title)
    if agent.figures.datasets and not several:
        title = f"Mean score of each dataset, {view.label}"
        drawn["datasets"] = plots.dataset_plot(f"{view.key}-datasets", agent.figures.datasets, title)
    if view.points:
        title = f"Score over memory span, {view.label}"
        span = agent.figures.memory_span
        drawn["spans"] = plots.span_plot(f"{view.key}-spans", view.points, view.groups, span, title)
    return {name: Markup(text) for name, text in drawn.items()}


def _comparison(views: Sequence[AgentView], plots: ModuleType | None) -> Mapping[str, Any]:
    agents = [view.reported for view in views]
    found: list[Pairing] = pairings(agents)
    interleaved = [agent.figures for agent in agents if not agent.is_isolated]
    spans = {figures.memory_span for figures in interleaved} - {None}
    drawn = dict.fromkeys(("datasets", "metrics", "spans"), "")
    if plots is not None:
        colours = agent_colours({agent.label: agent.figures.agent for agent in agents})
        drawn["datasets"] = plots.agents_plot("all-datasets", agents, colours, "Mean scores by dataset and agent")
        drawn["metrics"] = plots.metrics_plot("all-metrics", agents, colours, "Published metrics by agent")
        if len(spans) > 1:
            names = agent_colours({agent.figures.agent: agent.figures.agent for agent in agents})
            drawn["spans"] = plots.memory_spans_plot("all-spans", interleaved, names, "Mean score over memory span")
    return {
        "datasets": sorted({dataset.name for view in views for dataset in view.datasets}),
        "scores": {view.key: {dataset.name: dataset for dataset in view.datasets} for view in views},
        "intervals": [dataset.score.interval for view in views for dataset in view.datasets],
        "published": _side_by_side(views),
        "pairings": found,
        "missing": any(pair.first_only or pair.second_only for pair in found),
        "plots": {name: Markup(text) for name, text in drawn.items()},
    }


def _side_by_side(views: Sequence[AgentView]) -> list[dict[str, Any]]:
    """The published figures, a row each."""
    return [
        {"name": facts[0].name, "about": facts[0].about, "values": [fact.value for fact in facts]}
        for facts in zip(*(view.published for view in views), strict=True)
    ]
