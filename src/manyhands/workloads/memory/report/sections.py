"""A report about agents as sections of a document: of one agent, or of several compared, with what was said in each test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from manyhands.core.messages import Message
from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Fact,
    Facts,
    Fold,
    Lanes,
    Link,
    Mark,
    Messages,
    Note,
    Section,
    Series,
    Table,
    Text,
)
from manyhands.workloads.memory.report import views
from manyhands.workloads.memory.report.comparison import comparison_sections
from manyhands.workloads.memory.report.formatting import (
    NOTHING,
    Line,
    brief,
    estimate,
    methods,
    percent,
    score_tone,
    share,
    whole,
)
from manyhands.workloads.memory.report.reported_agents import Reported, test_name
from manyhands.workloads.memory.report.schedule import MAX_LANES, LinkOf, schedule_lanes, schedule_table, score_cell
from manyhands.workloads.memory.report.views import MAX_BYTES, AgentView, DatasetView, TestView, agent_views

ABOUT = "Memory benchmark: many tests, interleaved in one long conversation under a virtual clock."
MAX_POINTS = 300
"""Points of a series."""
_MAX_FILE_NAME_BYTES = 220
"""Bytes; file systems allow 255, of which a part is needed while the file is written."""
_NOT_IN_NAMES = '/\\*?[]<>|":'
STATES: Mapping[str, str] = {
    "full": "full marks",
    "part": "part of the points",
    "none": "no points",
    "unscored": "no score",
}
"""What tests are filtered by: what came of them."""


def report_title(agents: Sequence[Reported]) -> str:
    """What the document is called."""
    runs = list(dict.fromkeys(brief(agent.figures.run) for agent in agents))
    return f"{runs[0]} – {brief(agents[0].label)}" if len(agents) == 1 else f"{', '.join(runs)} – {len(agents)} agents"


def report_file_name(agents: Sequence[Reported], moment: str) -> str:
    """What its file is called. ``moment``: when it was made, as ``2024-05-17 09_00_00``."""
    runs = list(dict.fromkeys(agent.figures.run for agent in agents))
    if len(agents) == 1:
        name = f"{moment} - Detailed Report - {runs[0]} - {agents[0].figures.agent}"
    else:
        name = f"{moment} - Comparative Report - {' + '.join(runs)}"
    safe = "".join(mark if mark.isprintable() and mark not in _NOT_IN_NAMES else "-" for mark in name)
    while len(safe.encode("utf-8", "replace")) > _MAX_FILE_NAME_BYTES:
        safe = safe[:-1]
    return f"{safe.rstrip()}.html"


def report_sections(
    agents: Sequence[Reported], max_bytes: int = MAX_BYTES, *, with_plots: bool = True
) -> Iterator[Section]:
    """The report about one agent, or about several side by side. ``max_bytes``: of conversations, about, see ``MAX_BYTES``."""
    for section in _sections(agent_views(agents, max_bytes)):
        yield section if with_plots else replace(section, blocks=without_plots(section.blocks))


def _sections(shown: Sequence[AgentView]) -> Iterator[Section]:
    if len(shown) > 1:
        yield from comparison_sections(shown, lambda view: Link(anchor=view.key))
        yield Section("Details", [_agent_fold(view) for view in shown], name="details")
    else:
        yield from (section for view in shown for section in agent_sections(view))
    folds = [
        fold_of_test(test, _test_anchor(view, number), agent=view.label if len(shown) > 1 else "")
        for view in shown
        for number, test in enumerate(view.tests)
    ]
    yield Section("Tests", folds, "Times are virtual.", "tests")


def without_plots(blocks: Iterable[Block]) -> list[Block]:
    """Blocks but for charts and timelines, those inside of folds and columns too."""
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Fold):
            kept.append(replace(block, blocks=without_plots(block.blocks)))
        elif isinstance(block, Columns):
            kept.append(Columns([found for each in block.blocks if (found := without_plots(each))]))
        elif not isinstance(block, (Chart, Lanes)):
            kept.append(block)
    return kept


# --- One agent


def _agent_fold(view: AgentView) -> Fold:
    """An agent among several."""
    parts = [Fold(section.title, section.blocks, is_open=True) for section in agent_sections(view)]
    score = view.reported.figures.accuracy
    said = [Cell(label, tone="warn") for label in view.labels]
    return Fold(view.label, parts, view.key, [*said, Cell(percent(score), score.value, share=score.value)])


def agent_sections(view: AgentView, link_of: LinkOf | None = None) -> Iterator[Section]:
    """What there is to say of one agent, but for its tests. ``link_of``: where a test leads; None: to its fold in the same document."""
    yield Section("Results", list(result_blocks(view)))
    yield Section("Scores by dataset", list(dataset_blocks(view)))
    yield Section("Interleaving", list(_interleaving(view, link_of or _anchors(view))))
    yield Section("Memory span and score", list(span_blocks(view)))


def _test_anchor(view: AgentView, number: int) -> str:
    return f"{view.key}-test-{number + 1}"


def _anchors(view: AgentView) -> LinkOf:
    found = {test.name: Link(anchor=_test_anchor(view, number)) for number, test in enumerate(view.tests)}
    return lambda name: found.get(brief(name))


def result_blocks(view: AgentView) -> Iterator[Block]:
    """What the results are of, what must be seen beside them, and the figures."""
    yield from (Note(label, "warn") for label in view.labels)
    yield Facts(_facts(view.facts))
    yield from (Note(warning, "warn") for warning in view.warnings)
    yield Columns([[Facts(_facts(view.published), "By the published formulas")], [Facts(_facts(view.ours), "By ours")]])


def _facts(found: Iterable[views.Fact]) -> list[Fact]:
    return [Fact(fact.name, Cell(fact.value), fact.about) for fact in found]


_DATASETS = (
    Column("dataset", "dataset"),
    Column("tests", "tests", is_number=True),
    Column("mean", "mean", is_number=True),
    Column("interval", "95 % interval"),
    Column("std", "std", is_number=True, about="the population standard deviation, which published reports add up"),
)


def dataset_blocks(view: AgentView) -> Iterator[Block]:
    """The scores of each dataset."""
    table = Table(_DATASETS, [_dataset_row(dataset) for dataset in view.datasets])
    means = [(dataset.name, dataset.score) for dataset in view.datasets if dataset.score.value is not None]
    if means:
        series = Series(
            "mean score",
            [(name, score.value) for name, score in means],
            [None if score.interval is None else score.interval.low for _, score in means],
            [None if score.interval is None else score.interval.high for _, score in means],
        )
        title = f"Mean score of each dataset, {view.label}"
        label = "mean score, with its interval"
        yield Columns([[table], [Chart("dots", title, [series], "dataset", label, "name", "share", horizontal=True)]])
    else:
        yield table
    yield Note(
        "std: the population standard deviation, which published reports add up. "
        f"{methods(dataset.score.interval for dataset in view.datasets)} "
        "Intervals of few tests are wide: they say how little these can tell.",
        "muted",
    )
    described = [[Cell(each.name), Cell(each.description)] for each in view.datasets if each.description]
    if described:
        columns = (Column("dataset", "dataset"), Column("about", "what it tests"))
        yield Fold("What the datasets test", [Table(columns, described)])


def _dataset_row(dataset: DatasetView) -> list[Cell]:
    interval = dataset.score.interval
    tests = f"{dataset.tests} ({dataset.unscored} unscored)" if dataset.unscored else str(dataset.tests)
    return [
        Cell(dataset.name),
        Cell(tests, dataset.tests),
        score_cell(dataset.score.value),
        Cell(NOTHING) if interval is None else Cell(f"{interval.low:.3f} … {interval.high:.3f}", interval.low),
        Cell(share(dataset.deviation), dataset.deviation),
    ]


def _interleaving(view: AgentView, link_of: LinkOf) -> Iterator[Block]:
    timeline, figures = view.reported.timeline, view.reported.figures
    if timeline is None:
        yield Note("There is no master_log.jsonl, so it is not known how the tests lay in the conversation.", "muted")
        return
    scores = {test_name(test): test.score for test in figures.tests}
    if timeline.courses:
        title = f"Tests of {view.label} over the tokens of the conversation"
        yield schedule_lanes(timeline, scores, title, link_of)
        if left := max(0, len(timeline.courses) - MAX_LANES):
            yield Note(f"{left:,} more tests are in the table only.", "muted")
    counter = view.reported.counted_by
    counted = f"counted by {counter.name}" if counter.exact else "an estimate, as no tokenizer is on this machine"
    own = "" if figures.stats is None else f"; the conversation itself counted {whole(figures.stats.total_tokens)}"
    yield Note(f"Tokens here are {counted}: {whole(timeline.tokens)}{own}.", "muted")
    yield Fold("As a table", [schedule_table(timeline.courses, scores, link_of)])


def span_blocks(view: AgentView) -> Iterator[Block]:
    """The memory span, wanted and measured, and the scores over it."""
    yield Facts(_facts(view.spans))
    rows = [
        [
            Cell(f"{whole(group.min_distance)} … {whole(group.max_distance)}", group.min_distance),
            Cell(str(group.score.count), group.score.count),
            Cell(estimate(group.score), group.score.value),
        ]
        for group in view.groups
    ]
    until = "evaluation" if view.reported.timeline is None else "last question"
    columns = (
        Column("tokens", f"tokens from first message to {until}"),
        Column("tests", "tests", is_number=True),
        Column("score", "mean score, 95 % interval"),
    )
    table = Table(columns, rows)
    yield Columns([[_span_chart(view)], [table]]) if view.points else table
    yield Note(
        "Tests with about as much between what they told and what they asked are a group. Datasets differ in difficulty and in length, so "
        f"a difference between groups is not memory alone. {methods(group.score.interval for group in view.groups)}".strip(),
        "muted",
    )


def _span_chart(view: AgentView) -> Chart:
    points = sorted(view.points)
    points = points[:: -(-len(points) // MAX_POINTS)]
    tests = Series(
        "tests",
        [(max(1, distance), score) for distance, score, _ in points],
        labels=[brief(dataset) for *_, dataset in points],
    )
    groups = view.groups[:MAX_POINTS]
    means = Series(
        "mean of tests near each other",
        [((group.min_distance + group.max_distance) / 2, group.score.value) for group in groups],
        [None if group.score.interval is None else group.score.interval.low for group in groups],
        [None if group.score.interval is None else group.score.interval.high for group in groups],
        [f"{group.score.count} tests, {whole(group.min_distance)} … {whole(group.max_distance)}" for group in groups],
    )
    span = view.reported.figures.memory_span
    return Chart(
        "dots",
        f"Score over memory span, {view.label}",
        [tests, means],
        "tokens from a test's first message to its last question",
        "score",
        y_kind="share",
        marks=[] if span is None else [Mark(span, "memory span")],
    )


# --- One test


def fold_of_test(test: TestView, name: str, *, agent: str = "", more: Sequence[Block] = ()) -> Fold:
    """What came of a test and what was said in it. ``name``: makes an anchor of it; ``agent``: whose it is, where there are several;
    ``more``: what stands first in it."""
    notes = [Cell(note, tone="warn") for note in test.notes]
    score = Cell(test.score, test.share, score_tone(test.share), share=score_cell(test.share).share)
    blocks: list[Block] = [*more, Facts(_facts(test.facts))]
    for answer in test.answers:
        blocks += [Text(answer.question, "Question")] if answer.question else []
        parts = (("Expected", answer.expected), ("Answered", answer.actual), ("Reasoning", answer.reasoning))
        blocks.append(Columns([[Text(text, title)] for title, text in parts]))
    if test.log:
        blocks.append(_conversation(test.log))
    if test.left_out:
        blocks.append(
            Note(
                f"{whole(test.left_out)} more messages, for which this page has no room, are in the test's result file."
            )
        )
    filters = {"result": STATES[test.state], "dataset": test.dataset}
    return Fold(
        test.name,
        blocks,
        name,
        [*([Cell(agent)] if agent else []), *notes, score],
        {**filters, "agent": agent} if agent else filters,
    )


_SENDERS = {"System": "Filler", "SYSTEM": "Benchmark"}


def _conversation(log: Sequence[Line]) -> Messages:
    return Messages(
        [_message(line) for line in log],
        "Conversation of the test",
        [_SENDERS.get(line.sender, line.sender) for line in log],
        [line.moment for line in log],
    )


def _message(line: Line) -> Message:
    text = f"{line.text}… {whole(line.more)} more characters" if line.more else line.text
    if line.sender == "Agent":
        return {"role": "assistant", "content": text}
    return {"role": "user" if line.sender in ("Test", "System") else "system", "content": text}
