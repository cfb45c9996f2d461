"""The figures of an agent's results: by the formulas of published reports, with intervals, and by memory span.

The published formulas are those of the GoodAI LTM Benchmark: they reproduce the figures of its reports. The figures with intervals are of
all tests that have a score.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.statistics import LEVEL, Mean, mean, wilson
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.driver import NO_JUDGE
from manyhands.workloads.memory.datasets.base import needs_a_judge
from manyhands.workloads.memory.datasets.configuration import recorded_configuration
from manyhands.workloads.memory.datasets.registry import class_named, configured_datasets
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS, MASTER_LOG, RUNSTATS, SESSION
from manyhands.workloads.memory.results.files import RunStats, judged_scores, read_runstats

NO_SCORE = "not scored"
NOT_JUDGED = "not scored: this judge has not been asked about it"
_LARGEST = 1e15
"""What no number of a result reaches: it is no number then, or not that of a test."""


@dataclass(frozen=True, slots=True)
class TestFigures:
    """The result of a test."""

    __test__ = False  # it is no test of pytest's

    dataset: str
    example: str
    score: float | None
    """From 0 to 1; None for a test of a dataset that has no score."""
    tokens: int
    """From its first message to its evaluation."""
    characters: int
    """From its first message to its evaluation."""
    needles: int
    """Its messages that are no questions."""
    own: float | None = None
    """The score of the test itself, whether or not its dataset has one."""
    result: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """The content of its file."""


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    """By the formulas of published reports of the GoodAI LTM Benchmark."""

    score: float
    """The sum of the datasets' mean scores."""
    score_deviation: float
    """The sum of the datasets' population standard deviations."""
    most: int
    """The number of datasets."""
    accuracy: float
    """Percent."""
    ltm_score: float
    """The mean of ``tokens`` of the tests with full marks; 0 if there are none."""
    speed: float
    """Tokens of replies a second."""
    verbosity: int
    """Tokens of replies."""
    cost: float
    """US dollars for the agent."""


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """An agent's results in a run."""

    run: str
    agent: str
    folder: Path
    memory_span: int | None
    """Tokens; None where the configuration has none."""
    tests: tuple[TestFigures, ...]
    stats: RunStats | None
    published: PublishedFigures
    datasets: Mapping[str, Mean]
    """The mean score of each dataset."""
    accuracy: Mean
    """The mean of all scores; tests of one dataset are taken to depend on each other (see ``pooled``)."""
    about: Mapping[str, Any]
    """The content of ``session.json``; empty for published folders, which have none."""
    unscored_datasets: Mapping[str, str] = field(default_factory=dict)
    """The datasets of which a test has no score, with the reason; they are in no figure."""

    @property
    def unscored(self) -> int:
        """The number of tests without a score."""
        return sum(test.score is None for test in self.tests)


def agents_in(folder: Path) -> list[Path]:
    """The folders of results of a run, or the folder itself if it is one. Raises UserError if it is neither."""
    if (folder / MASTER_LOG).is_file() or (folder / RUNSTATS).is_file():
        return [folder]
    results = folder / "results"
    found = sorted(each for each in results.iterdir() if each.is_dir()) if results.is_dir() else []
    if not found:
        raise UserError(f"{folder}: neither a run with results nor an agent's folder below results")
    return found


def figures_of(folder: Path, level: float = 0.95, judge: str | None = None) -> AgentFigures:
    """The figures of one agent. ``judge``: whose scores, given afterwards, are taken instead of those of the results. Raises UserError
    naming what can't be read."""
    run = folder.absolute().parent.parent
    about = _about(folder)
    found = list(_tests(folder))
    if judge is not None:
        about = {**about, "judge": judge}
        found = _judged(found, folder.absolute().name, judged_scores(run, judge))
    tests, unscored = _counted(found, _judged_without(run, about))
    stats = read_runstats(folder / RUNSTATS) if (folder / RUNSTATS).is_file() else None
    scores: dict[str, list[float]] = {}
    for test in tests:
        if test.score is not None:
            scores.setdefault(test.dataset, []).append(test.score)
    scored = [test for test in tests if test.score is not None]
    return AgentFigures(
        run.name,
        folder.absolute().name,
        folder,
        recorded_configuration(run / DEFINITIONS / CONFIGURATION).memory_span,
        tests,
        stats,
        _published(tests, scores, stats),
        {name: pooled(values, [name] * len(values), level) for name, values in sorted(scores.items())},
        pooled([test.score or 0.0 for test in scored], [test.dataset for test in scored], level),
        about,
        unscored,
    )


def pooled(scores: Sequence[float], datasets: Sequence[str], level: float = LEVEL) -> Mean:
    """The mean of scores of several datasets, whose tests are taken to depend on each other.

    Where the datasets don't differ (all scores are 0, say), or there is but one, there is no sign of that, and each test counts by itself:
    else one test with another score would make the interval much narrower. Where few differ so much that a t interval would go from 0 to
    1, which any scores do, it is Wilson's.
    """
    found = mean(scores, datasets, level)
    if found.value is not None and not found.error:
        found = mean(scores, level=level)
    if found.value is not None and found.interval is not None and found.interval.high - found.interval.low >= 1:
        return replace(found, interval=wilson(found.value, found.clusters, level))
    return found


def _judged_without(run: Path, about: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a dataset, by name, needs a judge where a conversation of ours had none."""
    if not about or about.get("judge") is not None:
        return lambda name: False
    configured = configured_datasets(run)

    def judged(name: str) -> bool:
        try:
            return needs_a_judge(configured[name][0] if name in configured else class_named(name))
        except UserError:
            return False

    return judged


def _judged(
    tests: Iterable[TestFigures], agent: str, scores: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> list[TestFigures]:
    """Results with the scores that a judge gave them afterwards."""
    found: list[TestFigures] = []
    for test in tests:
        new = scores.get((agent, test.dataset, test.example))
        score = None if new is None else new.get("score")
        reasons = [NOT_JUDGED] if new is None else new.get("reasons") or [new.get("why") or NO_SCORE]
        by = {} if new is None or not new.get("asked") else {"judge": new.get("judge")}
        result = {name: value for name, value in test.result.items() if name not in ("status", "judge")}
        result |= {"reasoning": list(reasons), **by}
        found.append(replace(test, score=score, own=score, result=result))
    return found


def _counted(
    tests: Sequence[TestFigures], judged_without: Callable[[str], bool]
) -> tuple[tuple[TestFigures, ...], dict[str, str]]:
    """The tests as they count, and why datasets don't: a mean of those tests that happen to have a score would be none of the dataset."""
    reasons: dict[str, str] = {}
    without = {name: judged_without(name) for name in {test.dataset for test in tests}}
    for test in tests:
        ours = "status" in test.result and "judge" not in test.result
        if test.own is None:
            said = test.result.get("reasoning")
            reasons.setdefault(test.dataset, str(said[0]) if isinstance(said, list) and said else NO_SCORE)
        elif ours and without[test.dataset]:
            reasons.setdefault(test.dataset, NO_JUDGE)
    counted = tuple(replace(test, score=None) if test.dataset in reasons else test for test in tests)
    return counted, dict(sorted(reasons.items()))


def _published(
    tests: Sequence[TestFigures], scores: Mapping[str, Sequence[float]], stats: RunStats | None
) -> PublishedFigures:
    score = sum(map(fmean, scores.values()))
    full = [test.tokens for test in tests if test.score is not None and test.score >= 1]
    tokens = 0 if stats is None else stats.agent_tokens or 0
    return PublishedFigures(
        score,
        sum(map(pstdev, scores.values())),
        len(scores),
        100 * score / len(scores) if scores else 0.0,
        fmean(full) if full else 0.0,
        tokens / stats.duration if stats is not None and stats.duration else 0.0,
        tokens,
        0.0 if stats is None else stats.agent_costs_usd,
    )


def _tests(folder: Path) -> Iterator[TestFigures]:
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    for dataset in sorted(each for each in folder.iterdir() if each.is_dir()):
        for path in sorted(dataset.glob("*.json"), key=lambda path: (len(path.name), path.name)):
            yield _test(dataset.name, path, folder)


def _test(dataset: str, path: Path, folder: Path) -> TestFigures:
    found = read_object(path, json.loads, within=folder)
    score, maximum = found.get("score"), found.get("max_score", 1)
    share = None if score is None else _number(score, path, "score") / (_number(maximum, path, "max_score") or 1)
    return TestFigures(
        dataset,
        path.stem.rpartition("_")[0],
        share,
        int(_number(found.get("tokens", 0), path, "tokens")),
        int(_number(found.get("characters", 0), path, "characters")),
        int(_number(found.get("needles", 0), path, "needles")),
        share,
        found,
    )


def _number(value: Any, path: Path, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _LARGEST:
        raise UserError(f"{path}: {name}: must be a number")
    return float(value)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / SESSION
    return read_object(path, json.loads, within=folder) if path.is_file() else {}


RATIO = 2
"""The largest distance of a group is at most this many times its smallest one."""
MIN_TESTS = 3
"""Tests of a group at least, however far apart they are."""


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Tests whose distances, from their first message to their last question, are near each other."""

    min_distance: int
    """The smallest of these distances, in tokens."""
    max_distance: int
    """The largest of these distances, in tokens."""
    score: Mean
    """The mean of their scores."""


def span_groups(tests: Sequence[tuple[int, float, str]]) -> list[SpanGroup]:
    """Groups of tests. ``tests``: distance in tokens, score from 0 to 1, and dataset, of which tests are taken to depend on each other."""
    groups: list[list[tuple[int, float, str]]] = []
    for test in sorted(tests):
        last = groups[-1] if groups else []
        if not last or (len(last) >= MIN_TESTS and test[0] > RATIO * last[0][0]):
            groups.append([test])
        else:
            last.append(test)
    if len(groups) > 1 and len(groups[-1]) < MIN_TESTS:
        rest = groups.pop()
        groups[-1] += rest
    return [_group(each) for each in groups]


def _group(tests: Sequence[tuple[int, float, str]]) -> SpanGroup:
    return SpanGroup(tests[0][0], tests[-1][0], pooled([test[1] for test in tests], [test[2] for test in tests]))
