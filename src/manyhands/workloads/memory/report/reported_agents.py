"""The agents that a report is about: found by what a person names, compared in pairs, and as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.statistics import Paired, paired
from manyhands.io.files import read_inside
from manyhands.workloads.memory.conversation.events import read_master_log
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.datasets.benchmark import SUFFIX
from manyhands.workloads.memory.datasets.registry import class_named
from manyhands.workloads.memory.folders import DEFINITIONS, ISOLATED, MASTER_LOG, find_memory_run
from manyhands.workloads.memory.results.figures import AgentFigures, TestFigures, agents_in, figures_of
from manyhands.workloads.memory.results.files import RunStats
from manyhands.workloads.memory.results.timeline import Timeline, timeline_of

KEPT = ("task_log", "actual_responses", "reasoning", "expected_responses", "judge", "status", "auto_score")
"""What of a result is kept; the full log of a long conversation would fill the memory."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One agent in one run."""

    label: str
    """What the report calls it."""
    figures: AgentFigures
    timeline: Timeline | None
    """None where there is no log."""
    counted_by: TokenCounter
    """How the timeline's tokens were counted."""
    same: Mapping[str, str]
    """By a test's name, what is the same for all agents that ran the same test."""
    descriptions: Mapping[str, str]
    """Of the datasets, by name."""

    def distance(self, test: TestFigures) -> int:
        """Tokens from a test's first message to its last question; without a log, to its evaluation."""
        course = None if self.timeline is None else self.timeline.course(test_name(test))
        distance = None if course is None else course.distance
        return test.tokens if distance is None else distance

    @property
    def is_isolated(self) -> bool:
        """Whether its tests came one after the other, without filler."""
        about = self.figures.about
        return bool(about.get("isolated")) if about else self.figures.run.endswith(ISOLATED)

    @property
    def overruns(self) -> int | None:
        """How many tests took more tokens than the memory span; None if that is not known."""
        span = self.figures.memory_span
        return None if span is None else sum(test.tokens > span for test in self.figures.tests)


def test_name(test: TestFigures) -> str:
    """What logs and definitions call a test."""
    return f"{test.dataset} - {test.example}"


def folders_of(named: str, data_dir: Path, agents: Sequence[str] = ()) -> list[Path]:
    """The folders of results that are meant by a run's name or folder, or an agent's folder. ``agents``: only these, by name or a part of
    it. Raises UserError that says what there is."""
    found = agents_in(find_memory_run(named, data_dir))
    return [each for each in found if _is_wanted(each.absolute().name, agents)]


def _is_wanted(name: str, agents: Sequence[str]) -> bool:
    return not agents or any(agent.lower() in name.lower() for agent in agents)


def gather(
    names: Sequence[str],
    data_dir: Path,
    agents: Sequence[str] = (),
    labels: Sequence[str] = (),
    judge: str | None = None,
) -> list[Reported]:
    """All agents that a report is about, each once. ``labels``: what they are called, in order; else their names, with the run where
    there are several; ``judge``: whose scores, given afterwards, are reported. Raises UserError that names what is missing or wrong."""
    folders = list(dict.fromkeys(each.absolute() for name in names for each in folders_of(name, data_dir, agents)))
    if not folders:
        raise UserError(f"--agent {', '.join(agents)}: no agent of {', '.join(names)} is named so")
    if labels and len(labels) != len(folders):
        there = "; ".join(each.name for each in folders)
        raise UserError(f"--label: give one for each of {len(folders)} agents, in this order: {there}")
    several = len({each.parent.parent for each in folders}) > 1
    given = labels or [f"{each.name} · {each.parent.parent.name}" if several else each.name for each in folders]
    if len(set(given)) < len(given):
        raise UserError("--label: two agents would be called the same")
    return [reported_agent(folder, label, judge) for folder, label in zip(folders, given, strict=True)]


def reported_agent(folder: Path, label: str, judge: str | None = None, *, with_log: bool = True) -> Reported:
    """An agent, by its folder of results. ``judge`` as for ``gather``; ``with_log``: whether its log is read, if it has one. Raises
    UserError that names what is missing or wrong."""
    figures = figures_of(folder, judge=judge)
    tests = tuple(replace(test, result=_kept(test.result)) for test in figures.tests)
    counter = counter_named("estimate" if figures.about.get("tokenizer") == "estimate" else "auto")
    log = folder / MASTER_LOG
    timeline = timeline_of(read_master_log(log, folder), counter) if with_log and log.is_file() else None
    definitions = folder.parent.parent / DEFINITIONS
    return Reported(
        label,
        replace(figures, tests=tests),
        timeline,
        counter,
        {test_name(test): _sameness(definitions, test) for test in tests},
        {name: _description(name) for name in sorted({test.dataset for test in tests})},
    )


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in KEPT if name in result}


def _sameness(definitions: Path, test: TestFigures) -> str:
    """A digest of what a test says and expects: of its definition, or where that is missing of what its result expects."""
    path = definitions / test.dataset / f"{test.example}{SUFFIX}"
    try:
        content = json.loads(read_inside(definitions.parent, path))
        said = [content.get(name) for name in ("script", "is_question", "expected_responses")]
    except (OSError, ValueError, AttributeError):
        said = [test.result.get("expected_responses")]
    return sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _description(name: str) -> str:
    try:
        return class_named(name).about
    except UserError:
        return ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two agents compared."""

    first: str
    second: str
    result: Paired | None
    """Of the differences, ``first`` less ``second``, over the tests that both ran and that have a score; None if there is none."""
    pairs: int
    """The number of these tests."""
    first_only: int
    """Tests that only the first ran."""
    second_only: int
    """Tests that only the second ran."""
    unscored: int
    """Tests that both ran, but that have no score for one of them."""


def pairings(agents: Sequence[Reported]) -> list[Pairing]:
    """All pairs. Tests of one dataset are taken to depend on each other."""
    return [_pairing(first, second) for first, second in combinations(agents, 2)]


def _pairing(first: Reported, second: Reported) -> Pairing:
    one, other = _scores(first), _scores(second)
    both = [name for name in one if name in other]
    pairs = [(a, b, name[0]) for name in both if (a := one[name]) is not None and (b := other[name]) is not None]
    differences = [a - b for a, b, _ in pairs]
    return Pairing(
        first.label,
        second.label,
        paired(differences, [dataset for _, _, dataset in pairs]) if pairs else None,
        len(pairs),
        len(one) - len(both),
        len(other) - len(both),
        len(both) - len(pairs),
    )


def _scores(agent: Reported) -> Mapping[tuple[str, str, str], float | None]:
    """By dataset, example, and what the test says."""
    return {(test.dataset, test.example, agent.same[test_name(test)]): test.score for test in agent.figures.tests}


def report_json(agents: Sequence[Reported]) -> dict[str, Any]:
    """The figures of all agents, and the differences between them. Scores are from 0 to 1."""
    return {
        "agents": [_agent(agent) for agent in agents],
        "differences": [asdict(each) for each in pairings(agents)],
    }


def _agent(agent: Reported) -> dict[str, Any]:
    figures, timeline = agent.figures, agent.timeline
    return {
        "label": agent.label,
        "run": figures.run,
        "agent": figures.agent,
        "folder": str(figures.folder),
        "about": dict(figures.about),
        "isolated": agent.is_isolated,
        "memory_span": figures.memory_span,
        "overruns": agent.overruns,
        "published": asdict(figures.published),
        "mean_score": asdict(figures.accuracy),
        "tests": {"in": len(figures.tests), "scored": figures.accuracy.count, "unscored": figures.unscored},
        "datasets": {name: asdict(found) for name, found in figures.datasets.items()},
        "unscored_datasets": dict(figures.unscored_datasets),
        "session": None if figures.stats is None else _spent(figures.stats),
        "timeline": None if timeline is None else asdict(timeline),
        "results": [
            {
                "dataset": test.dataset,
                "example": test.example,
                "score": test.score,
                "tokens": test.tokens,
                "distance": agent.distance(test),
                "needles": test.needles,
            }
            for test in figures.tests
        ],
    }


def _spent(stats: RunStats) -> dict[str, Any]:
    """The counters, without the state of the filler's random numbers."""
    content = {**asdict(stats), "agent_tokens": stats.agent_tokens or 0}
    del content["rnd_state"]
    return content
