"""Published results scored again, from what their folders hold: definitions, results and, where it is there, the master log.

Each dataset says itself how a test that is over is scored (``BaseDataset.rescore``). No model is called unless one is given: what
it said during a test is in the log, and what else it would have to be called for makes a test one that "needs LLM". ``rejudging`` asks one
durably.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.io.files import written_aside
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Evaluation
from manyhands.workloads.memory.datasets.base import BaseDataset, Rules
from manyhands.workloads.memory.datasets.benchmark import read_definitions
from manyhands.workloads.memory.datasets.recorded import (
    LoggedConversation,
    NotOnRecord,
    RecordedTest,
    WentOtherwise,
    conversation_of_log,
)
from manyhands.workloads.memory.datasets.registry import (
    Configured,
    class_named,
    configured_datasets,
    dataset_class,
    dataset_ids,
    made_of,
)
from manyhands.workloads.memory.folders import MASTER_LOG, SESSION

EQUAL = "equals published"
EDITED = "equals auto_score (published score edited by hand)"
NEEDS_MODEL = "needs LLM"
DEVIATES = "script deviates"
DIFFERS = "differs"
UNSCORED = "no rule"
FAILED = "rule failed"
NEW = "not scored before"

SAME = 1e-6
"""How far apart two equal scores may be."""

_BROKEN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
Answer = Callable[[Ask], str]


@dataclass(frozen=True, slots=True)
class Rescored:
    """A result scored again. Scores are from 0 to 1."""

    run: str
    agent: str
    dataset: str
    example: str
    published: float | None
    """The score in its file; None if it has none."""
    auto: float | None
    """The score before it was edited by hand, which most files don't have."""
    score: float | None
    """By the rules; None if they can't be applied."""
    verdict: str
    """How these compare: one of the constants of this module."""
    reasons: tuple[str, ...]
    """Of the new score."""
    why: str = ""
    """Why there is no new score."""


def rescore(
    folder: Path,
    scoring: Rules = "published",
    answer: Answer | None = None,
    datasets: Mapping[str, BaseDataset] | None = None,
) -> list[Rescored]:
    """All results of a run, or of one agent of it. ``folder``: the run's, with ``definitions`` and ``results``, or the agent's
    below ``results``; ``answer``: a model, None for none; ``datasets``: by name, instead of those of the run's configuration.
    Raises UserError that names what can't be read."""
    return [
        _answered(agent.scored(name, path), answer)
        for agent in agents_of(folder, scoring, datasets)
        for name, path in agent.results()
    ]


def agents_of(
    folder: Path,
    scoring: Rules = "published",
    datasets: Mapping[str, BaseDataset] | None = None,
    *,
    judged: bool = False,
) -> list[AgentResults]:
    """The agents of a run, or the one whose folder it is. ``judged``: a model will answer what datasets ask. Raises UserError as
    ``rescore``."""
    run = run_of(folder)
    agents = [folder] if run != folder else _folders(run / "results")
    definitions = {each.unique_id: each for each in read_definitions(run / "definitions")}
    configured = configured_datasets(run)
    return [AgentResults(run, agent, definitions, scoring, datasets or {}, configured, judged) for agent in agents]


def run_of(folder: Path) -> Path:
    """The run's folder, from it or from an agent's. Raises UserError if it is neither."""
    run = folder if (folder / "definitions").is_dir() else folder.parent.parent
    if not (run / "definitions").is_dir():
        raise UserError(f"{folder}: neither a run with definitions and results nor an agent's folder below results")
    return run


def _answered(scoring: Generator[Ask, str, Rescored], answer: Answer | None) -> Rescored:
    try:
        ask = next(scoring)
        while True:
            ask = scoring.throw(NotOnRecord()) if answer is None else scoring.send(answer(ask))
    except StopIteration as end:
        found: Rescored = end.value
        return found


def write_table(path: Path, found: Iterable[Rescored]) -> None:
    """Write results as CSV; the file appears whole or not at all. Raises StorageError."""
    names = ("run", "agent", "dataset", "example", "published", "auto", "score", "verdict", "why")
    with written_aside(path) as handle:
        writer = csv.writer(handle)
        writer.writerow(names)
        writer.writerows([getattr(each, name) for name in names] for each in found)


def recorded_scoring(folder: Path) -> Rules:
    """The rules by which results of ours were scored; ``published`` for those of the GoodAI LTM Benchmark, which say nothing."""
    for path in (folder / SESSION, *sorted(folder.glob(f"results/*/{SESSION}"))):
        with suppress(OSError, ValueError, AttributeError):
            if json.loads(path.read_bytes()).get("scoring") == "mended":
                return "mended"
    return "published"


Found = tuple[Evaluation | None, str | None, str]
"""The new score, what is odd about it, and nothing; or None, what that is called, and why."""


@dataclass
class AgentResults:
    """The results of one agent."""

    run: Path
    folder: Path
    definitions: Mapping[str, Definition]
    """Of all tests of the run, by name."""
    scoring: Rules
    datasets: Mapping[str, BaseDataset]
    """By name, instead of the configured ones."""
    configured: Configured
    judged: bool = False
    """Whether a model answers what datasets ask."""

    def results(self) -> Iterator[tuple[str, Path]]:
        """The name of the dataset and the file of each result."""
        for dataset in _folders(self.folder):
            for path in sorted(dataset.glob("*.json")):
                yield dataset.name, path

    def scored(self, dataset: str, path: Path) -> Generator[Ask, str, Rescored]:
        """Score one result. Requests for a model are yielded. Raises UserError for a file that can't be read."""
        found = read_object(path, json.loads)
        example = path.stem.rpartition("_")[0]
        definition = self.definitions.get(f"{dataset} - {example}") or _definition_in(dataset, example, found)
        published, auto = _share(found, "score", "max_score"), _share(found, "auto_score", "max_score")
        evaluation, obstacle, why = yield from self._evaluated(definition, found)
        score = None if evaluation is None else evaluation.share
        verdict = obstacle if score is None else compared(score, published, auto, obstacle)
        reasons = () if evaluation is None else evaluation.reasons
        names = (self.run.name, self.folder.name, dataset, example)
        return Rescored(*names, published, auto, score, verdict or UNSCORED, reasons, why)

    def _evaluated(self, definition: Definition, found: Mapping[str, Any]) -> Generator[Ask, str, Found]:
        try:
            dataset = self._dataset(definition.dataset)
        except UserError as error:
            known = definition.dataset in self.configured or definition.dataset in _names()
            return None, FAILED if known else UNSCORED, str(error)
        siblings = self._by_dataset.get(definition.dataset, ())
        recorded = RecordedTest(definition, found, siblings, self._log, self.judged)
        try:
            evaluation, went_otherwise = yield from dataset.rescore(recorded)
        except NotOnRecord:
            return None, NEEDS_MODEL, "a model has to judge it (--judge_model), and what one said is not on record"
        except WentOtherwise as error:
            return None, DEVIATES, str(error)
        except UserError as error:
            return None, FAILED, str(error)
        except _BROKEN as error:  # a rule, which may be of a plug-in, meets what it was not made for
            return None, FAILED, f"{type(error).__name__}: {error}"[:300]
        return evaluation, DEVIATES if went_otherwise else None, ""

    def _dataset(self, name: str) -> BaseDataset:
        if name in self.datasets:
            return self.datasets[name]
        kind, arguments = self.configured.get(name) or (class_named(name), {})
        if isinstance(arguments, UserError):
            raise arguments
        return made_of(kind, arguments, self.scoring)

    @cached_property
    def _log(self) -> LoggedConversation | None:
        """What was said, from the master log; None if there is none."""
        path = self.folder / MASTER_LOG
        return conversation_of_log(path) if path.is_file() else None

    @cached_property
    def _by_dataset(self) -> Mapping[str, Sequence[Definition]]:
        found: dict[str, list[Definition]] = {}
        for each in self.definitions.values():
            found.setdefault(each.dataset, []).append(each)
        return found


def _names() -> set[str]:
    return {dataset_class(each).default_name for each in dataset_ids()}


def compared(score: float, published: float | None, auto: float | None, oddity: str | None = None) -> str:
    """How a new score compares with those of the file. ``oddity``: what may explain a difference."""
    if published is None:
        return NEW
    if abs(score - published) <= SAME:
        return EQUAL
    if auto is not None and abs(score - auto) <= SAME:
        return EDITED
    return oddity or DIFFERS


def _definition_in(dataset: str, example: str, found: Mapping[str, Any]) -> Definition:
    """What a result tells of a test whose definition is missing."""
    return Definition(dataset, example, expected_responses=found.get("expected_responses") or [])


def _share(found: Mapping[str, Any], name: str, of: str) -> float | None:
    """A score of a result, from 0 to 1. The format's second version has points."""
    score, maximum = found.get(name), found.get(of)
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        return None
    return float(score) / float(maximum) if isinstance(maximum, (int, float)) and maximum else 0.0


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    return sorted(each for each in folder.iterdir() if each.is_dir())
