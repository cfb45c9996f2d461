"""What a report shows of agents, as names and texts: their figures, and what was said in each test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from manyhands.core.statistics import Mean, mean, pass_rate
from manyhands.core.text import counted
from manyhands.workloads.memory.report import formatting
from manyhands.workloads.memory.report.formatting import (
    Answered,
    Line,
    TextBudget,
    answered,
    brief,
    task_log,
)
from manyhands.workloads.memory.report.reported_agents import Reported, test_name
from manyhands.workloads.memory.results.figures import AgentFigures, SpanGroup, TestFigures, pooled, span_groups


@dataclass(frozen=True, slots=True)
class Fact:
    """A named figure or property."""

    name: str
    value: str
    about: str = ""
    """What it is, in words; may be empty."""


def labels(figures: AgentFigures) -> Iterator[str]:
    """What is made up by this program."""
    if figures.about.get("simulated"):
        yield "simulated agent"
    if "simulated" in str(figures.about.get("judge")):
        yield "simulated judge"


def head(agent: Reported) -> Iterator[Fact]:
    """What the results are of, and what they were made with."""
    figures, about = agent.figures, agent.figures.about
    theirs = "not recorded (results of the GoodAI LTM Benchmark)"
    yield Fact("run", brief(figures.run))
    yield Fact("agent", brief(figures.agent))
    yield Fact("judge", brief(about.get("judge") or "none") if about else theirs)
    tokenizer = f"{about.get('tokenizer')} ({'exact' if about.get('tokens_are_exact') else 'an estimate'})"
    yield Fact("tokens counted by", brief(tokenizer) if about else theirs)
    yield Fact("scoring rules", brief(about.get("scoring")) if about else "published")
    apart = "one after the other, without filler (isolated)"
    yield Fact("tests", apart if agent.is_isolated else "interleaved in one conversation")
    if (timeline := agent.timeline) is not None:
        yield Fact(
            "virtual time",
            formatting.duration(timeline.seconds),
            f"{counted(len(timeline.jumps), 'jump')} of 10 minutes or more",
        )
        yield Fact("filler", counted(timeline.fillers, "message"))
        yield Fact("resumed", counted(timeline.resumes, "time"))


def published_facts(figures: AgentFigures) -> Iterator[Fact]:
    """By the formulas of published reports."""
    found, stats = figures.published, figures.stats
    yield Fact(
        "Score",
        f"{found.score:.3f} ± {found.score_deviation:.3f} of {found.most}",
        "sum of the datasets' mean scores; ± is the sum of their population standard deviations",
    )
    yield Fact("Accuracy", f"{found.accuracy:.2f} %", "score ÷ number of datasets")
    yield Fact(
        "LTM score", formatting.whole(found.ltm_score), "mean tokens of the tests with full marks, 0 if there are none"
    )
    spoken = stats is not None and stats.agent_tokens is not None
    yield Fact(
        "Speed",
        f"{found.speed:.2f} tokens/s" if spoken else formatting.NOTHING,
        "tokens of replies ÷ seconds of replying",
    )
    yield Fact(
        "Verbosity",
        f"{formatting.whole(found.verbosity)} tokens" if spoken else formatting.NOTHING,
        "tokens of replies",
    )
    cost = formatting.money(found.cost) if stats is not None else formatting.NOTHING
    yield Fact("Cost", cost, "US dollars for the agent; what the judge cost is not in it")


def our_facts(figures: AgentFigures) -> Iterator[Fact]:
    """By ours, which say how sure they are."""
    scored = [test for test in figures.tests if test.score is not None]
    yield Fact(
        "Mean score",
        formatting.percent(figures.accuracy),
        f"of {figures.accuracy.count} scored tests, with a 95 % interval: {formatting.method(figures.accuracy.interval)}",
    )
    passed, datasets = [(test.score or 0) >= 1 for test in scored], [test.dataset for test in scored]
    full = pass_rate(
        passed, datasets if pooled(list(map(float, passed)), datasets).error and len(set(datasets)) > 1 else None
    )
    yield Fact("Full marks", formatting.percent(full), f"share of the scored tests; {formatting.method(full.interval)}")
    number = len(figures.tests)
    yield Fact("Tests", f"{number} = {len(scored)} scored + {figures.unscored} unscored", "an unscored test is no 0")
    if (stats := figures.stats) is not None:
        yield Fact("Conversation", f"{stats.total_tokens:,} tokens", "messages and replies, with filler")
        yield Fact(
            "Replying", formatting.duration(stats.duration), "days, hours:minutes:seconds in which the agent replied"
        )
        both = stats.agent_costs_usd + stats.managing_costs_usd
        yield Fact(
            "Cost in all",
            formatting.money(both),
            f"agent and judge; the judge: {formatting.money(stats.managing_costs_usd)}",
        )


def spans(agent: Reported) -> Iterator[Fact]:
    """The memory span: wanted and measured."""
    figures = agent.figures
    measured = [test.tokens for test in figures.tests]
    target = formatting.NOTHING if figures.memory_span is None else f"{figures.memory_span:,} tokens"
    yield Fact("target memory span", target, "" if figures.memory_span else "the configuration has none")
    if measured:
        shown = f"{min(measured):,} / {fmean(measured):,.0f} / {max(measured):,} tokens"
        yield Fact("measured, minimum / mean / maximum", shown, "from a test's first message to its evaluation")
    if (over := agent.overruns) is not None:
        yield Fact("longer than the target", f"{over} of {len(measured)} tests")


def unscored(figures: AgentFigures) -> Iterator[str]:
    """Which datasets have no score, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in figures.unscored_datasets.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        number, listed = counted(len(names), "dataset"), ", ".join(map(brief, names))
        yield f"{number} without a score, left out of all figures: {listed} ({brief(reason)})."


def warnings(agent: Reported) -> Iterator[str]:
    """What must be seen beside the figures."""
    figures = agent.figures
    if over := agent.overruns:
        yield f"{over} of {len(figures.tests)} tests took more tokens than the memory span of {figures.memory_span:,}."
    if figures.unscored:
        yield f"{figures.unscored} of {len(figures.tests)} tests have no score; they are in no figure but the number of tests."
    yield from unscored(figures)
    edited = sum("auto_score" in test.result for test in figures.tests)
    if edited:
        yield f"{edited} of {len(figures.tests)} scores were edited by hand; the original ones are at the tests."
    if figures.stats is None:
        yield "There is no runstats.json: speed, verbosity and cost are not known."
    begun = 0 if agent.timeline is None else sum(course.end is None for course in agent.timeline.courses)
    if begun:
        yield f"The conversation was not finished: {begun} tests had begun and not ended."


MAX_BYTES = 20_000_000
"""Bytes of conversations that a report holds, about; each test gets its share of them."""
MIN_SHARE = 2_000


@dataclass(frozen=True, slots=True)
class TestView:
    """What a report shows of a test."""

    __test__ = False  # it is no test of pytest's

    name: str
    dataset: str
    state: str
    """``full``, ``part``, ``none`` or ``unscored``, for filters."""
    share: float | None
    """The score, from 0 to 1."""
    score: str
    facts: tuple[Fact, ...]
    answers: tuple[Answered, ...]
    log: tuple[Line, ...]
    left_out: int
    """Messages that do not fit."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetView:
    """What a report shows of a dataset."""

    name: str
    description: str
    score: Mean
    deviation: float | None
    """The population standard deviation, as published reports have it."""
    tests: int
    unscored: int


@dataclass(frozen=True, slots=True)
class AgentView:
    """What a report shows of an agent."""

    key: str
    """Makes its ids unique in the report."""
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
    """Distance in tokens, score and dataset of each scored test."""
    groups: tuple[SpanGroup, ...]
    tests: tuple[TestView, ...]


def agent_views(agents: Sequence[Reported], max_bytes: int = MAX_BYTES) -> list[AgentView]:
    """All agents of a report. ``max_bytes``: see ``MAX_BYTES``."""
    tests = sum(len(agent.figures.tests) for agent in agents)
    share = max(MIN_SHARE, max_bytes // max(1, tests))
    return [agent_view(f"agent-{number}", agent, share) for number, agent in enumerate(agents, start=1)]


def agent_view(key: str, agent: Reported, max_bytes: int) -> AgentView:
    """One agent. ``max_bytes``: of the texts of each test."""
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
        tuple(view_of_test(agent, test, TextBudget(max_bytes)) for test in figures.tests),
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
        yield DatasetView(brief(name), about, found, deviation, len(own), unscored)


def view_of_test(agent: Reported, test: TestFigures, budget: TextBudget) -> TestView:
    """One test. ``budget``: of its texts."""
    course = None if agent.timeline is None else agent.timeline.course(test_name(test))
    answers = answered(test.result, [] if course is None else course.questions, budget)
    log, left_out = task_log(test.result, budget)
    return TestView(
        brief(test_name(test)),
        brief(test.dataset),
        _state(test.score),
        test.score,
        "no score" if test.score is None else formatting.share(test.score),
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
        yield f"by itself it got {formatting.share(test.own)}, which counts in no figure, as its dataset has no score"
    if "auto_score" in test.result:
        yield f"the score was edited by hand; before it was {brief(test.result['auto_score'])}"
