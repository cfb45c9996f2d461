"""Plots by matplotlib, as SVG that stands in a page. The same figures give the same text; no display is needed.

The only module that imports matplotlib, which is an optional extra: ``load_plots`` in ``page`` gets this module, or None.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from manyhands.core.statistics import Interval, Mean
from manyhands.workloads.memory.report.formatting import score_colour, shown_text
from manyhands.workloads.memory.report.reported_agents import Reported
from manyhands.workloads.memory.results.figures import AgentFigures, SpanGroup
from manyhands.workloads.memory.results.timeline import Course, Stretch, Timeline

WIDTH = 10.5
"""Inches; SVG has 72 points for each."""
_INK = "#010203"
"""Stands for the page's own text colour."""
_SETTINGS = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["sans-serif"],
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid.axis": "x",
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_MAX_LABEL = 44
_FILLER = "#8c959f"
_HALF = 0.32
"""Of a bar's height, in rows."""


@contextmanager
def _plain() -> Iterator[None]:
    """Settings of our own, whatever those of this machine are; and no words on standard error about fonts."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    settings: dict[Any, Any] = {
        name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")
    }
    settings.update(_SETTINGS)
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.simplefilter("ignore")
        yield


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an element of a page. ``name``: makes its ids the page's only ones; ``title``: what it shows, in words."""
    text = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, bbox_inches="tight")
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_INK, "currentColor")
    drawn = _REFERENCE.sub(lambda found: f"{found[1]}{name}-", drawn)
    label = shown_text(title).replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _short(label: str) -> str:
    label = " ".join(shown_text(label).split())
    half = _MAX_LABEL // 2
    return label if len(label) <= _MAX_LABEL else f"{label[: half - 1]}…{label[-half:]}"


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """Names of rows, the first one on top."""
    axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _in_thousands(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


# --- One agent


def timeline_plot(name: str, timeline: Timeline, scores: Mapping[str, float | None], title: str) -> str:
    """The tests over the tokens of the conversation: from its beginning to its end each, light where it waits, dark where it speaks."""
    with _plain():
        rows = len(timeline.courses)
        figure = Figure(figsize=(WIDTH, 1.1 + 0.235 * rows))
        axes = figure.add_subplot()
        stretches = [(first, last - first) for first, last in timeline.filler]
        axes.broken_barh(stretches, (-0.6, rows + 0.2), facecolor=_FILLER, alpha=0.22, linewidth=0)
        for position, _ in timeline.jumps:
            axes.axvline(position, color=_INK, alpha=0.5, linewidth=0.7, linestyle=(0, (1, 2)))
        _draw_courses(axes, timeline, scores)
        _rows(axes, [course.test_id for course in timeline.courses])
        axes.set_xlim(0, max(1, timeline.tokens))
        axes.set_xlabel("tokens of the conversation")
        _in_thousands(axes)
        axes.grid(visible=True)
        return _svg(figure, name, title)


def _draw_courses(axes: Axes, timeline: Timeline, scores: Mapping[str, float | None]) -> None:
    colours = [score_colour(scores.get(course.test_id)) for course in timeline.courses]
    rows = list(enumerate(zip(timeline.courses, colours, strict=True)))
    whole = [(row, (each.begin, _end(each, timeline)), colour) for row, (each, colour) in rows]
    _draw_stretches(axes, whole, 0.3)
    _draw_stretches(axes, [(row, each, colour) for row, (course, colour) in rows for each in course.spoken], 1.0)
    told = [(row, position, colour) for row, (course, colour) in rows for position in course.told]
    lines = [[(position, row - _HALF), (position, row + _HALF)] for row, position, _ in told]
    axes.add_collection(LineCollection(lines, colors=[colour for *_, colour in told], linewidths=1.6))
    asked = [(position, row) for row, (course, _) in rows for position in course.asked]
    axes.plot(
        [position for position, _ in asked], [row for _, row in asked], "o", color=_INK, markersize=3.6, clip_on=False
    )


def _end(course: Course, timeline: Timeline) -> int:
    return timeline.tokens if course.end is None else course.end


def _draw_stretches(axes: Axes, stretches: Sequence[tuple[int, Stretch, str]], alpha: float) -> None:
    boxes = [
        [(first, row - _HALF), (last, row - _HALF), (last, row + _HALF), (first, row + _HALF)]
        for row, (first, last), _ in stretches
    ]
    axes.add_collection(
        PolyCollection(boxes, facecolors=[colour for *_, colour in stretches], alpha=alpha, linewidths=0)
    )


def dataset_plot(name: str, datasets: Mapping[str, Mean], title: str) -> str:
    """The mean score of each dataset, with its interval."""
    with _plain():
        figure = Figure(figsize=(WIDTH * 0.62, 0.9 + 0.3 * len(datasets)))
        axes = figure.add_subplot()
        for row, found in enumerate(datasets.values()):
            axes.barh(row, found.value or 0.0, height=0.6, color=score_colour(found.value))
            _draw_interval(axes, row, found.interval, _INK)
        _rows(axes, list(datasets))
        _score_axis(axes)
        return _svg(figure, name, title)


def _score_axis(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_xlabel("mean score, with its interval")
    axes.grid(visible=True)


def _draw_interval(axes: Axes, row: float, interval: Interval | None, colour: str, width: float = 1.0) -> None:
    if interval is not None:
        axes.hlines(row, interval.low, interval.high, color=colour, linewidth=width)
        axes.vlines([interval.low, interval.high], row - 0.08, row + 0.08, color=colour, linewidth=width)


def span_plot(
    name: str, points: Sequence[tuple[int, float, str]], groups: Sequence[SpanGroup], span: int | None, title: str
) -> str:
    """Each test's score over the tokens between its statements and its questions, and the means of tests near each other."""
    with _plain():
        figure = Figure(figsize=(WIDTH * 0.62, 3.0))
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        axes.grid(visible=True, axis="both")
        for distance, score, _ in points:
            axes.plot(max(1, distance), score, "o", color=score_colour(score), alpha=0.6, markersize=6, clip_on=False)
        for group in groups:
            _draw_group(axes, group)
        if span is not None:
            axes.axvline(span, color=_INK, linestyle="--", linewidth=0.8)
            axes.text(span, 1.07, " memory span", ha="center", va="bottom")
        if _is_wide([max(1, distance) for distance, _, _ in points]):
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=0)
        _in_thousands(axes)
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlabel("tokens from a test's first message to its last question")
        axes.set_ylabel("score")
        return _svg(figure, name, title)


def _draw_group(axes: Axes, group: SpanGroup) -> None:
    value, interval = group.score.value, group.score.interval
    if value is None:
        return
    axes.hlines(value, group.min_distance, max(group.max_distance, group.min_distance + 1), color=_INK, linewidth=1.6)
    if interval is not None:
        middle = (group.min_distance + group.max_distance) / 2
        axes.vlines(middle, interval.low, interval.high, color=_INK, linewidth=1.0)


def _is_wide(values: Sequence[int]) -> bool:
    return bool(values) and max(values) > 30 * min(values)


# --- Several agents


def agents_plot(name: str, agents: Sequence[Reported], colours: Mapping[str, str], title: str) -> str:
    """The mean scores of all agents, dataset by dataset."""
    datasets = sorted({dataset for agent in agents for dataset in agent.figures.datasets})
    with _plain():
        step = 0.8 / len(agents)
        figure = Figure(figsize=(WIDTH, 1.0 + len(datasets) * max(0.3, 0.13 * len(agents))))
        axes = figure.add_subplot()
        for number, agent in enumerate(agents):
            offset = (number - (len(agents) - 1) / 2) * step
            found = [
                (row + offset, agent.figures.datasets[each])
                for row, each in enumerate(datasets)
                if each in agent.figures.datasets
            ]
            for row, score in found:
                _draw_interval(axes, row, score.interval, colours[agent.label], 0.9)
            positions = [score.value or 0.0 for _, score in found]
            axes.plot(
                positions,
                [row for row, _ in found],
                "o",
                color=colours[agent.label],
                label=_short(agent.label),
                clip_on=False,
            )
        for row in range(1, len(datasets)):
            axes.axhline(row - 0.5, color=_INK, alpha=0.12, linewidth=0.6)
        _rows(axes, datasets)
        _score_axis(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
        return _svg(figure, name, title)


METRICS: Mapping[str, str] = {
    "score": "score (sum of datasets)",
    "accuracy": "accuracy (%)",
    "ltm_score": "LTM score (tokens)",
    "cost": "cost ($)",
    "speed": "speed (tokens/s)",
    "verbosity": "verbosity (tokens)",
}


def metrics_plot(name: str, agents: Sequence[Reported], colours: Mapping[str, str], title: str) -> str:
    """A bar chart for each published metric."""
    with _plain():
        figure = Figure(figsize=(WIDTH, 2 * (0.75 + 0.24 * len(agents))), layout="constrained")
        grid = figure.subplots(2, 3, sharey=True)
        for axes, (metric, words) in zip(grid.flat, METRICS.items(), strict=True):
            values = [float(getattr(agent.figures.published, metric)) for agent in agents]
            axes.barh(range(len(agents)), values, height=0.66, color=[colours[agent.label] for agent in agents])
            for row, value in enumerate(values):
                axes.text(value, row, f" {_figure(value)}", va="center")
            axes.set_xlim(0, max(*values, 0.0) * 1.25 or 1.0)
            axes.set_title(words, loc="left", fontsize=9)
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            _rows(axes, [agent.label for agent in agents])
        return _svg(figure, name, title)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def memory_spans_plot(name: str, agents: Sequence[AgentFigures], colours: Mapping[str, str], title: str) -> str:
    """The accuracy of each agent over the memory spans of the runs that it was in."""
    with _plain():
        figure = Figure(figsize=(WIDTH * 0.8, 3.2))
        axes = figure.add_subplot()
        lines = _by_agent(agents)
        for number, (agent, runs) in enumerate(lines.items()):
            # Agents of one run beside each other, not on top of each other.
            aside = 1 + 0.03 * (number - (len(lines) - 1) / 2)
            spans = [span * aside for span, _ in runs]
            values = [found.value or 0.0 for _, found in runs]
            axes.plot(spans, values, "o-", color=colours[agent], label=_short(agent), linewidth=1.2)
            for span, (_, found) in zip(spans, runs, strict=True):
                if found.interval is not None:
                    axes.vlines(span, found.interval.low, found.interval.high, color=colours[agent], linewidth=0.9)
        marked = sorted({agent.memory_span for agent in agents if agent.memory_span is not None})
        axes.set_xscale("log")
        axes.set_xticks(marked, [f"{span:,}" for span in marked])
        axes.set_xticks([], minor=True)
        axes.set_xlim(marked[0] / 1.4, marked[-1] * 1.4)
        axes.set_ylim(0, 1.02)
        axes.grid(visible=True, axis="both")
        axes.set_xlabel("memory span of the run, in tokens")
        axes.set_ylabel("mean score of all tests")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
        return _svg(figure, name, title)


def _by_agent(agents: Sequence[AgentFigures]) -> dict[str, list[tuple[int, Mean]]]:
    found: dict[str, list[tuple[int, Any]]] = {}
    for agent in agents:
        if agent.memory_span is not None and agent.accuracy.value is not None:
            found.setdefault(agent.agent, []).append((agent.memory_span, agent.accuracy))
    return {name: sorted(runs, key=lambda run: run[0]) for name, runs in sorted(found.items())}
