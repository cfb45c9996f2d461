"""Several agents side by side: scores by dataset, by memory span and by the published formulas, and what differs between any two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from manyhands.core.statistics import Mean
from manyhands.runs.shown.blocks import Block, Cell, Chart, Column, Columns, Link, Note, Section, Series, Table
from manyhands.workloads.memory.report.formatting import brief, difference, interval, methods, p_value, share
from manyhands.workloads.memory.report.reported_agents import Pairing, pairings
from manyhands.workloads.memory.report.schedule import score_cell
from manyhands.workloads.memory.report.views import AgentView

MAX_DRAWN = 6
"""Agents whose scores are drawn dataset by dataset; the table says more of more of them."""
METRICS: Mapping[str, str] = {
    "score": "score (sum of datasets)",
    "accuracy": "accuracy (%)",
    "ltm_score": "LTM score (tokens)",
    "cost": "cost ($)",
    "speed": "speed (tokens/s)",
    "verbosity": "verbosity (tokens)",
}
_KINDS: Mapping[str, Literal["number", "dollars", "tokens"]] = {
    **dict.fromkeys(METRICS, "number"),
    "ltm_score": "tokens",
    "cost": "dollars",
    "verbosity": "tokens",
}
_DIFFERENCES = (
    "Of the tests that both agents ran: the same dataset, example and script; runs may differ in memory span. Difference: first less "
    "second, with a 95 % interval (Student's t with the standard error of clusters, cut to −1 … 1; Wilson's score interval where all "
    "datasets differ alike); p: how likely as large a difference is by chance alone, by flipping the signs of whole datasets; not adjusted "
    "for the number of comparisons."
)
_SPANS = (
    "The mean score of all tests of a run over the run's memory span, with 95 % intervals (those of all tests above); isolated runs are "
    "not in it."
)

AgentLink = Callable[[AgentView], Link | None]
"""Where an agent leads."""


def comparison_sections(shown: Sequence[AgentView], link_of: AgentLink) -> Iterator[Section]:
    """Agents compared, those with the highest mean scores first."""
    agents = sorted(shown, key=lambda view: (-_mean(view), view.label))
    yield Section("Scores by dataset", list(_by_dataset(agents, link_of)), name="comparison")
    interleaved = [view for view in agents if not view.reported.is_isolated]
    if len({view.reported.figures.memory_span for view in interleaved} - {None}) > 1:
        yield Section("Memory span and score", [_span_chart(interleaved)], _SPANS)
    yield Section("By the published formulas", list(_published(agents, link_of)))
    yield Section("Differences", [_differences(pairings([view.reported for view in shown]))], _DIFFERENCES)


def _mean(view: AgentView) -> float:
    value = view.reported.figures.accuracy.value
    return -1.0 if value is None else value


def _agent_cell(view: AgentView, link_of: AgentLink) -> Cell:
    said = f" ({', '.join(view.labels)})" if view.labels else ""
    return Cell(f"{view.label}{said}", link=link_of(view))


# --- Scores


def _by_dataset(agents: Sequence[AgentView], link_of: AgentLink) -> Iterator[Block]:
    names = sorted({dataset.name for view in agents for dataset in view.datasets})
    columns = [
        Column("agent", "agent"),
        Column("all", "all tests", is_number=True),
        *(Column(f"dataset {name}", name, is_number=True) for name in names),
    ]
    rows = []
    for view in agents:
        figures = view.reported.figures
        found = {dataset.name: dataset for dataset in view.datasets}
        scores = [_score(each.score, each.unscored) if (each := found.get(name)) else _NO_TESTS for name in names]
        rows.append([_agent_cell(view, link_of), _score(figures.accuracy, figures.unscored), *scores])
    yield Table(
        columns, rows, about="Mean scores; each cell has its 95 % interval and its number of tests.", sort="-all"
    )
    of_datasets = methods(dataset.score.interval for view in agents for dataset in view.datasets)
    of_all = methods(view.reported.figures.accuracy.interval for view in agents)
    yield Note(f"Mean scores with 95 % intervals. Of datasets: {of_datasets} Of all tests: {of_all}", "muted")
    means = [(view.label, view.reported.figures.accuracy) for view in agents]
    yield _dots("Mean score of all tests by agent", "agent", [_series("mean score", means)])
    if len(agents) <= MAX_DRAWN:
        series = [_series(view.label, [(each.name, each.score) for each in view.datasets]) for view in agents]
        yield _dots("Mean scores by dataset and agent", "dataset", series)


_NO_TESTS = Cell("no tests", tone="muted")


def _score(found: Mean, unscored: int) -> Cell:
    cell = score_cell(found.value)
    more = f", {unscored} unscored" if unscored else ""
    about = f"{interval(found.interval)} n={found.count}{more}".strip()
    return Cell(share(found.value), found.value, cell.tone, about, share=cell.share)


def _series(name: str, means: Sequence[tuple[str, Mean]]) -> Series:
    known = [(label, found) for label, found in means if found.value is not None]
    return Series(
        name,
        [(label, found.value) for label, found in known],
        [None if found.interval is None else found.interval.low for _, found in known],
        [None if found.interval is None else found.interval.high for _, found in known],
    )


def _dots(title: str, names: str, series: Sequence[Series]) -> Chart:
    return Chart("dots", title, series, names, "mean score, with its interval", "name", "share", horizontal=True)


def _span_chart(agents: Sequence[AgentView]) -> Chart:
    """The accuracy of each agent over the memory spans of the runs that it was in. Spans are names: they lie orders of magnitude apart."""
    runs: dict[str, list[tuple[int, Mean]]] = {}
    for view in agents:
        figures = view.reported.figures
        if figures.memory_span is not None and figures.accuracy.value is not None:
            runs.setdefault(figures.agent, []).append((figures.memory_span, figures.accuracy))
    series = [
        _series(brief(agent), [(f"{span:,}", found) for span, found in sorted(each, key=lambda run: run[0])])
        for agent, each in sorted(runs.items())
    ]
    label = "mean score of all tests"
    return Chart(
        "dots", "Mean score over memory span", series, "memory span of the run, in tokens", label, "name", "share"
    )


# --- Published figures and differences


def _published(agents: Sequence[AgentView], link_of: AgentLink) -> Iterator[Block]:
    heading = agents[0].published
    columns = [
        Column("agent", "agent"),
        *(Column(fact.name, fact.name, is_number=True, about=fact.about) for fact in heading),
    ]
    rows = [
        [
            _agent_cell(view, link_of),
            *(
                Cell(fact.value, float(getattr(view.reported.figures.published, name)))
                for name, fact in zip(_IN_ORDER, view.published, strict=True)
            ),
        ]
        for view in agents
    ]
    yield Table(columns, rows)
    charts = [_metric(agents, name, words) for name, words in METRICS.items()]
    yield Columns([charts[:3], charts[3:]])


_IN_ORDER = ("score", "accuracy", "ltm_score", "speed", "verbosity", "cost")
"""The published figures, as ``views.published_facts`` gives them."""


def _metric(agents: Sequence[AgentView], name: str, words: str) -> Chart:
    values = [(view.label, float(getattr(view.reported.figures.published, name))) for view in agents]
    return Chart("bars", words, [Series(words, values)], "agent", words, "name", _KINDS[name], horizontal=True)


def _differences(found: Sequence[Pairing]) -> Table:
    missing = any(pair.first_only or pair.second_only for pair in found)
    columns = [
        Column("first", "first"),
        Column("second", "second"),
        Column("pairs", "same tests", is_number=True),
        Column("difference", "mean difference of scores", is_number=True),
        Column("p", "p", is_number=True),
        *(
            (
                Column("first_only", "only first ran", is_number=True),
                Column("second_only", "only second ran", is_number=True),
            )
            if missing
            else ()
        ),
        Column("unscored", "left out: unscored", is_number=True),
    ]
    return Table(columns, [_pair(pair, missing=missing) for pair in found])


def _pair(pair: Pairing, *, missing: bool) -> list[Cell]:
    result = pair.result
    return [
        Cell(brief(pair.first)),
        Cell(brief(pair.second)),
        _count(pair.pairs),
        Cell(difference(result), None if result is None else result.difference.value),
        Cell(p_value(result), None if result is None else result.p_value),
        *((_count(pair.first_only), _count(pair.second_only)) if missing else ()),
        _count(pair.unscored),
    ]


def _count(number: int) -> Cell:
    return Cell(str(number), number)
