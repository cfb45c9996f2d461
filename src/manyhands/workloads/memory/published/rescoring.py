"""Published results scored again, from what their folders hold: definitions, results and, where it is there, the master log.

Nothing is asked of a model unless one is given: what it said during a test is in the log, and what else it would have to be asked makes a
test one that "needs LLM". Asking one durably is the part of ``rejudging``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Evaluation, Exchange, Message, Say
from manyhands.workloads.memory.datasets.base import BaseDataset, Rules
from manyhands.workloads.memory.datasets.builtin.instructions import ProspectiveMemory
from manyhands.workloads.memory.datasets.builtin.restaurant import Restaurant
from manyhands.workloads.memory.datasets.builtin.spy_meeting import SpyMeeting
from manyhands.workloads.memory.datasets.definition_files import read_definitions
from manyhands.workloads.memory.datasets.registry import (
    Configured,
    class_named,
    configured_datasets,
    dataset_class,
    dataset_ids,
    made_of,
)
from manyhands.workloads.memory.folders import SESSION
from manyhands.workloads.memory.published.logs import Conversation, conversation_of_lines, conversation_of_log

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
    """A result scored again. ``published``, ``auto``: what its file says, from 0 to 1; None if it says nothing (``auto``: the score before
    it was edited by hand, which most files don't have); ``score``: by the rules, None if they can't be applied; ``verdict``: how these
    compare, one of the constants of this module; ``reasons``: of the new score; ``why``: why there is none."""

    run: str
    agent: str
    dataset: str
    example: str
    published: float | None
    auto: float | None
    score: float | None
    verdict: str
    reasons: tuple[str, ...]
    why: str = ""


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
            ask = scoring.throw(_NeedsModel()) if answer is None else scoring.send(answer(ask))
    except StopIteration as end:
        found: Rescored = end.value
        return found


def recorded_scoring(folder: Path) -> Rules:
    """The rules by which results of ours were scored; ``published`` for those of the GoodAI LTM Benchmark, which say nothing."""
    for path in (folder / SESSION, *sorted(folder.glob(f"results/*/{SESSION}"))):
        with suppress(OSError, ValueError, AttributeError):
            if json.loads(path.read_bytes()).get("scoring") == "mended":
                return "mended"
    return "published"


class _NeedsModel(Exception):
    pass


class _Elsewhere(Exception):
    """A test that goes on otherwise than it did."""


Found = tuple[Evaluation | None, str | None, str]
"""The new score, what is odd about it, and nothing; or None, what that is called, and why."""


@dataclass
class AgentResults:
    """The results of one agent. ``judged``: whether a model answers what datasets ask."""

    run: Path
    folder: Path
    definitions: Mapping[str, Definition]
    scoring: Rules
    datasets: Mapping[str, BaseDataset]
    configured: Configured
    judged: bool = False

    def results(self) -> Iterator[tuple[str, Path]]:
        """The name of the dataset and the file of each result."""
        for dataset in _folders(self.folder):
            for path in sorted(dataset.glob("*.json")):
                yield dataset.name, path

    @cached_property
    def log(self) -> Conversation | None:
        """What was said, from the master log; None if there is none."""
        path = self.folder / "master_log.jsonl"
        return conversation_of_log(path) if path.is_file() else None

    def scored(self, dataset: str, path: Path) -> Generator[Ask, str, Rescored]:
        """Score one result. What a model has to be asked is yielded. Raises UserError for a file that can't be read."""
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
        try:
            if isinstance(dataset, Restaurant):
                return (yield from self._restaurant(dataset, definition, found))
            if isinstance(dataset, ProspectiveMemory):
                return self._prospective(dataset, definition, found)
            return (yield from dataset.evaluate(self._exchange(definition, found))), None, ""
        except _NeedsModel:
            return None, NEEDS_MODEL, "a model has to judge it (--judge_model), and what one said is not on record"
        except _Elsewhere as error:
            return None, DEVIATES, str(error)
        except UserError as error:
            return None, FAILED, str(error)
        except _BROKEN as error:  # a rule, which may be of a plug-in, meets what it was not made for
            return None, FAILED, f"{type(error).__name__}: {error}"[:300]

    def _dataset(self, name: str) -> BaseDataset:
        if name in self.datasets:
            return self.datasets[name]
        kind, arguments = self.configured.get(name) or (class_named(name), {})
        if isinstance(arguments, UserError):
            raise arguments
        if issubclass(kind, SpyMeeting):
            return kind(kind.Arguments(**arguments), self.scoring, codes=self._codes(name))
        return made_of(kind, arguments, self.scoring)

    def _codes(self, name: str) -> list[Sequence[str]]:
        """The word lists of the run's tests, if they are not ours."""
        ours = {tuple(code) for code in SpyMeeting.word_lists()}
        lists = [
            tuple(words)
            for each in self.definitions.values()
            if each.dataset == name
            for words in each.expected_responses
        ]
        return [words for words in dict.fromkeys(lists) if words not in ours]

    def _conversation(self, found: Mapping[str, Any], own: str = "full_log") -> Conversation:
        """From the master log, or else from the result. ``own``: which of its logs has the messages."""
        if self.log is not None:
            return self.log
        full = conversation_of_lines(found.get("full_log") or [])
        return full if own == "full_log" else replace(conversation_of_lines(found.get(own) or []), marks=full.marks)

    def _prospective(self, dataset: ProspectiveMemory, definition: Definition, found: Mapping[str, Any]) -> Found:
        if not definition.expected_responses or not isinstance(definition.expected_responses[0], list):
            raise _NeedsModel  # an older version, which says in words what it expects
        said = self._conversation(found).until_callback_ended(definition.unique_id)
        first = 0 if self.scoring == "published" else _last_with(said, definition.script[-1])
        return dataset.callback(definition, said[first:]).evaluation, None, ""

    def _restaurant(
        self, dataset: Restaurant, definition: Definition, found: Mapping[str, Any]
    ) -> Generator[Ask, str, Found]:
        said = self._conversation(found, "task_log")
        if self.judged:
            played = yield from self._played(dataset, definition, said.of_test(definition.unique_id))
            if played is not None:
                return played, None, ""
        messages, calls = said.of_test(definition.unique_id), said.calls(definition.unique_id)
        if not calls:
            raise _NeedsModel
        evaluation = dataset.from_log([message.text for message in messages], calls)
        asked = sum(message.is_question for message in messages)
        expected = min(int(evaluation.score) + 1, int(evaluation.maximum))
        return evaluation, None if not asked or asked == expected else DEVIATES, ""

    def _played(
        self, dataset: Restaurant, definition: Definition, said: Sequence[Message]
    ) -> Generator[Ask, str, Evaluation | None]:
        """A dynamic test gone through again with the replies of its log; None if it is told in other words than ours."""
        play, place, reply = dataset.play(definition), 0, ""
        try:
            step = next(play)
            while True:
                if isinstance(step, Ask):
                    reply = yield step
                elif isinstance(step, Say):
                    if place >= len(said) or said[place].text != step.message:
                        if place == 0:
                            return None
                        raise _Elsewhere(
                            "judged so, the test goes on otherwise than it did: only a new session can tell"
                        )
                    reply, place = said[place].reply, place + 1
                else:
                    reply = ""
                step = play.send(reply)
        except StopIteration as end:
            evaluation: Evaluation = end.value
            return evaluation

    def _exchange(self, definition: Definition, found: Mapping[str, Any]) -> Exchange:
        exchange = _exchange(definition, found)
        if not (self.judged and definition.is_temporal and exchange.answers):
            return exchange
        # The question of the moment is only in the log.
        said = self._conversation(found, "task_log").of_test(definition.unique_id)
        asked = next((each.text for each in said[len(definition.script) :]), "")
        return replace(exchange, messages=(*exchange.messages[:-1], replace(exchange.messages[-1], text=asked)))


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


def _exchange(definition: Definition, found: Mapping[str, Any]) -> Exchange:
    """The questions of a test with the answers that its result holds."""
    asked = [line for line, is_question in zip(definition.script, definition.is_question, strict=False) if is_question]
    if definition.is_temporal:
        asked.append("")
    answers = [str(answer) for answer in found.get("actual_responses") or []]
    questions = (asked + [""] * len(answers))[: len(answers)]
    pairs = zip(questions, answers, strict=True)
    return Exchange(
        definition, tuple(Message(definition.unique_id, asked, reply, True, 0.0, 0.0) for asked, reply in pairs)
    )


def _definition_in(dataset: str, example: str, found: Mapping[str, Any]) -> Definition:
    """What a result tells of a test whose definition is missing."""
    return Definition(dataset, example, expected_responses=found.get("expected_responses") or [])


def _last_with(said: Sequence[Message], text: str) -> int:
    return max((place for place, message in enumerate(said) if text in message.text), default=0)


def _share(found: Mapping[str, Any], name: str, of: str) -> float | None:
    """A score of a result, from 0 to 1. The format's second version has points."""
    score, most = found.get(name), found.get(of)
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        return None
    return float(score) / float(most) if isinstance(most, (int, float)) and most else 0.0


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    return sorted(each for each in folder.iterdir() if each.is_dir())
