"""What a page says of an agent in figures and words, each under a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from manyhands.core.statistics import pass_rate
from manyhands.core.text import counted
from manyhands.workloads.memory.report import words
from manyhands.workloads.memory.report.conversations import brief
from manyhands.workloads.memory.report.gathering import Reported
from manyhands.workloads.memory.results.figures import AgentFigures, pooled


@dataclass(frozen=True, slots=True)
class Fact:
    """``about``: what the figure is, in words; may be empty."""

    name: str
    value: str
    about: str = ""


def labels(figures: AgentFigures) -> Iterator[str]:
    """What is made up by this program."""
    if figures.about.get("simulated"):
        yield "simulated agent"
    if "simulated" in str(figures.about.get("judge")):
        yield "simulated judge"


def head(agent: Reported) -> Iterator[Fact]:
    """What the results are of, and what they were made with."""
    figures, about = agent.figures, agent.figures.about
    theirs = "not recorded (results of the original)"
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
            words.duration(timeline.seconds),
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
        "LTM score", words.whole(found.ltm_score), "mean tokens of the tests with full marks, 0 if there are none"
    )
    spoken = stats is not None and stats.agent_tokens is not None
    yield Fact(
        "Speed", f"{found.speed:.2f} tokens/s" if spoken else words.NOTHING, "tokens of replies ÷ seconds of replying"
    )
    yield Fact("Verbosity", f"{words.whole(found.verbosity)} tokens" if spoken else words.NOTHING, "tokens of replies")
    cost = words.money(found.cost) if stats is not None else words.NOTHING
    yield Fact("Cost", cost, "US dollars for the agent; what the judge cost is not in it")


def our_facts(figures: AgentFigures) -> Iterator[Fact]:
    """By ours, which say how sure they are."""
    scored = [test for test in figures.tests if test.score is not None]
    yield Fact(
        "Mean score",
        words.percent(figures.accuracy),
        f"of {figures.accuracy.count} scored tests, with a 95 % interval: {words.method(figures.accuracy.interval)}",
    )
    passed, datasets = [(test.score or 0) >= 1 for test in scored], [test.dataset for test in scored]
    full = pass_rate(
        passed, datasets if pooled(list(map(float, passed)), datasets).error and len(set(datasets)) > 1 else None
    )
    yield Fact("Full marks", words.percent(full), f"share of the scored tests; {words.method(full.interval)}")
    number = len(figures.tests)
    yield Fact("Tests", f"{number} = {len(scored)} scored + {figures.unscored} unscored", "an unscored test is no 0")
    if (stats := figures.stats) is not None:
        yield Fact("Conversation", f"{stats.total_tokens:,} tokens", "messages and replies, with filler")
        yield Fact("Replying", words.duration(stats.duration), "days, hours:minutes:seconds in which the agent replied")
        both = stats.agent_costs_usd + stats.managing_costs_usd
        yield Fact(
            "Cost in all", words.money(both), f"agent and judge; the judge: {words.money(stats.managing_costs_usd)}"
        )


def spans(agent: Reported) -> Iterator[Fact]:
    """The memory span: wanted and measured."""
    figures = agent.figures
    measured = [test.tokens for test in figures.tests]
    target = words.NOTHING if figures.memory_span is None else f"{figures.memory_span:,} tokens"
    yield Fact("target memory span", target, "" if figures.memory_span else "the configuration has none")
    if measured:
        shown = f"{min(measured):,} / {fmean(measured):,.0f} / {max(measured):,} tokens"
        yield Fact("measured, least / mean / most", shown, "from a test's first message to its evaluation")
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
        yield f"The session was not finished: {begun} tests had begun and not ended."
