"""From what a person names to the agents whose results a report is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.settings import suggestion
from manyhands.workloads.memory.conversation.events import read_master_log
from manyhands.workloads.memory.conversation.tokens import TokenCounter, counter_named
from manyhands.workloads.memory.datasets.definition_files import SUFFIX
from manyhands.workloads.memory.datasets.registry import class_named
from manyhands.workloads.memory.folders import DEFINITIONS, ISOLATED, MASTER_LOG, TESTS
from manyhands.workloads.memory.results.figures import AgentFigures, TestFigures, agents_in, figures_of
from manyhands.workloads.memory.results.timeline import Timeline, timeline_of

KEPT = ("task_log", "actual_responses", "reasoning", "expected_responses", "judge", "status", "auto_score")
"""What of a result is kept; the full log of a long session would fill the memory."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One agent in one run. ``label``: what the report calls it; ``timeline``: None where there is no log; ``counted_by``: how the
    timeline's tokens were counted; ``same``: by a test's name, what is the same for all agents that ran the same test; ``descriptions``:
    of the datasets."""

    label: str
    figures: AgentFigures
    timeline: Timeline | None
    counted_by: TokenCounter
    same: Mapping[str, str]
    descriptions: Mapping[str, str]

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
    places = (Path(named), data_dir / TESTS / named)
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        known = data_dir / TESTS
        runs = sorted(each.name for each in known.iterdir() if each.is_dir()) if known.is_dir() else []
        there = f"runs in {known}: {', '.join(runs[:20])}" if runs else f"there are no runs in {known}"
        raise UserError(f"no run {named!r}{suggestion(named, runs)} ({there})")
    found = agents_in(folder)
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
    return [_reported(folder, label, judge) for folder, label in zip(folders, given, strict=True)]


def _reported(folder: Path, label: str, judge: str | None) -> Reported:
    figures = figures_of(folder, judge=judge)
    tests = tuple(replace(test, result=_kept(test.result)) for test in figures.tests)
    counter = counter_named("estimate" if figures.about.get("tokenizer") == "estimate" else "auto")
    log = folder / MASTER_LOG
    timeline = timeline_of(read_master_log(log), counter) if log.is_file() else None
    definitions = folder.parent.parent / DEFINITIONS
    return Reported(
        label,
        replace(figures, tests=tests),
        timeline,
        counter,
        {test_name(test): _sameness(definitions, test) for test in tests},
        _descriptions(sorted({test.dataset for test in tests})),
    )


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in KEPT if name in result}


def _sameness(definitions: Path, test: TestFigures) -> str:
    """A digest of what a test says and expects: of its definition, or where that is missing of what its result expects."""
    path = definitions / test.dataset / f"{test.example}{SUFFIX}"
    try:
        content = json.loads(path.read_bytes())
        said = [content.get(name) for name in ("script", "is_question", "expected_responses")]
    except (OSError, ValueError, AttributeError):
        said = [test.result.get("expected_responses")]
    return sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _descriptions(datasets: Sequence[str]) -> dict[str, str]:
    return {name: _description(name) for name in datasets}


def _description(name: str, find: Callable[[str], Any] = class_named) -> str:
    try:
        return str(find(name).about)
    except UserError:
        return ""
