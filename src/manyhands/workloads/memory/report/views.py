"""What a page shows of agents, made of their figures: everything is a text here, and no text is HTML yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import pstdev

from manyhands.core.statistics import Mean, mean
from manyhands.workloads.memory.report import words
from manyhands.workloads.memory.report.conversations import Answered, Line, Room, answered, brief, task_log
from manyhands.workloads.memory.report.facts import Fact, head, labels, our_facts, published_facts, spans, warnings
from manyhands.workloads.memory.report.gathering import Reported, test_name
from manyhands.workloads.memory.report.words import score_colour
from manyhands.workloads.memory.results.figures import SpanGroup, TestFigures, span_groups

MAX_BYTES = 20_000_000
"""Bytes of conversations that a page has room for, about; each test gets its share of them."""
MIN_SHARE = 2_000


@dataclass(frozen=True, slots=True)
class TestView:
    """``state``: full, part, none or unscored, for filters; ``left_out``: messages there is no room for; ``notes``: what is special."""

    __test__ = False  # it is no test of pytest's

    name: str
    dataset: str
    state: str
    score: str
    colour: str
    facts: tuple[Fact, ...]
    answers: tuple[Answered, ...]
    log: tuple[Line, ...]
    left_out: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetView:
    """``deviation``: the population standard deviation, as published reports have it."""

    name: str
    description: str
    score: Mean
    deviation: float | None
    tests: int
    unscored: int
    colour: str


@dataclass(frozen=True, slots=True)
class AgentView:
    """``key``: makes ids of the page; ``warnings``: what must be seen."""

    key: str
    label: str
    reported: Reported
    labels: tuple[str, ...]
    facts: tuple[Fact, ...]
    published: tuple[Fact, ...]
    ours: tuple[Fact, ...]
    spans: tuple[Fact, ...]
    warnings: tuple[str, ...]
    datasets: tuple[DatasetView, ...]
    points: tuple[tuple[int, float, str], ...]
    groups: tuple[SpanGroup, ...]
    tests: tuple[TestView, ...]


def agent_views(agents: Sequence[Reported], most_bytes: int = MAX_BYTES) -> list[AgentView]:
    """All agents of a page. ``most_bytes``: see ``MAX_BYTES``."""
    number = sum(len(agent.figures.tests) for agent in agents)
    room = max(MIN_SHARE, most_bytes // max(1, number))
    return [_agent_view(f"agent-{place}", agent, room) for place, agent in enumerate(agents, start=1)]


def _agent_view(key: str, agent: Reported, room: int) -> AgentView:
    figures = agent.figures
    scored = [(agent.distance(test), test.score, test.dataset) for test in figures.tests if test.score is not None]
    return AgentView(
        key,
        brief(agent.label),
        agent,
        tuple(labels(figures)),
        tuple(head(agent)),
        tuple(published_facts(figures)),
        tuple(our_facts(figures)),
        tuple(spans(agent)),
        tuple(warnings(agent)),
        tuple(_datasets(agent)),
        tuple(scored),
        tuple(span_groups(scored)),
        tuple(_test_view(agent, test, Room(room)) for test in figures.tests),
    )


def _datasets(agent: Reported) -> Iterator[DatasetView]:
    tests = agent.figures.tests
    for name in sorted({test.dataset for test in tests}):
        own = [test for test in tests if test.dataset == name]
        scores = [test.score for test in own if test.score is not None]
        found = agent.figures.datasets.get(name) or mean([])
        deviation = pstdev(scores) if scores else None
        about = brief(agent.descriptions.get(name, ""))
        unscored = len(own) - len(scores)
        yield DatasetView(brief(name), about, found, deviation, len(own), unscored, score_colour(found.value))


def _test_view(agent: Reported, test: TestFigures, room: Room) -> TestView:
    course = None if agent.timeline is None else agent.timeline.course(test_name(test))
    answers = answered(test.result, [] if course is None else course.questions, room)
    log, left_out = task_log(test.result, room)
    return TestView(
        brief(test_name(test)),
        brief(test.dataset),
        _state(test.score),
        "no score" if test.score is None else words.share(test.score),
        score_colour(test.score),
        tuple(_test_facts(agent, test)),
        tuple(answers),
        tuple(log),
        left_out,
        tuple(_notes(agent, test)),
    )


def _state(score: float | None) -> str:
    if score is None:
        return "unscored"
    return "full" if score >= 1 else "part" if score > 0 else "none"


def _test_facts(agent: Reported, test: TestFigures) -> Iterator[Fact]:
    yield Fact(
        "memory span",
        f"{test.tokens:,} tokens, {test.characters:,} characters",
        "from its first message to its evaluation",
    )
    if agent.timeline is not None:
        yield Fact("from first message to last question", f"{agent.distance(test):,} tokens")
    if test.needles:
        yield Fact("needles", str(test.needles), "messages that are no questions")
    if judge := test.result.get("judge"):
        yield Fact("judged by", brief(judge))


def _notes(agent: Reported, test: TestFigures) -> Iterator[str]:
    span = agent.figures.memory_span
    if span is not None and test.tokens > span:
        yield "longer than the memory span"
    if test.score is None and test.own is not None:
        yield f"by itself it got {words.share(test.own)}, which counts in no figure, as its dataset has no score"
    if "auto_score" in test.result:
        yield f"the score was edited by hand; before it was {brief(test.result['auto_score'])}"
