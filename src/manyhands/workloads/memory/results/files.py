"""The files of results: those of each conversation, kept up while it goes on, and the scores that a judge gave afterwards.

Of a conversation these are the master log, the counters (``runstats.json``), and a result for each test that has ended. What counts is
the journal; the files are written from what it holds. Until a conversation that goes on has come to where it was, nothing is written;
then each file is written whole, and the log is added to from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TextIO, TypedDict

from manyhands.core.errors import UserError
from manyhands.io.files import folder_name, read_inside, written_aside
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Definition, Json
from manyhands.workloads.memory.conversation.driver import Conversation
from manyhands.workloads.memory.conversation.events import MESSAGES, Event, EventType, format_event, readable
from manyhands.workloads.memory.conversation.filler import random_state
from manyhands.workloads.memory.conversation.schedule import Counters, EndedTest
from manyhands.workloads.memory.datasets.base import Rules
from manyhands.workloads.memory.folders import SCORES, SESSION, ResultPaths, writing

UNSCORED: Final = "unscored"
SCORED: Final = "scored"


class ResultContent(TypedDict):
    """The result of a test, in a file of its own (``results/AGENT/DATASET/EXAMPLE_0.json``), with the keys of the GoodAI LTM Benchmark
    first."""

    task_log: list[str]
    """The test's own messages, readable."""
    actual_responses: list[str]
    score: float | None
    """From 0 to 1; null where the test has none."""
    max_score: int
    """Always 1."""
    reasoning: list[str]
    """How the score came about, or why there is none."""
    tokens: int
    """Of the messages between the test's first and its last."""
    characters: int
    full_log: list[str]
    """Everything that happened from the test's first message on, readable."""
    expected_responses: list[Any]
    needles: int
    """Messages of the test that are no questions."""
    status: Literal["scored", "unscored"]
    judge: NotRequired[str]
    """The model that judged the answers, if one did."""


def result_of(
    ended: EndedTest,
    events: Sequence[Event],
    *,
    unscored: str | None = None,
    judge: str | None = None,
    reset: str = "",
    zone: tzinfo | None = None,
) -> ResultContent:
    """What is recorded of a test, with the keys of the GoodAI LTM Benchmark's files first.

    ``events``: the conversation's, up to the test's end; ``unscored``: why the test has no score; ``judge``: the model that judged, if one
    did; ``reset``: what takes back what the test said; ``zone``: of the readable times, None for this machine's own.
    """
    definition, evaluation = ended.test.definition, ended.evaluation
    own = list(_since_first(events, definition.unique_id))
    result: ResultContent = {
        "task_log": [readable(event, zone) for event in _of_test(own, definition)],
        "actual_responses": list(ended.exchange.answers),
        "score": None if unscored is not None else evaluation.share,
        "max_score": 1,
        "reasoning": [unscored] if unscored is not None else list(evaluation.reasons),
        "tokens": ended.tokens,
        "characters": ended.characters,
        "full_log": [readable(event, zone) for event in own],
        "expected_responses": definition.expected_responses or list(evaluation.expected),
        "needles": _needles(ended, definition, reset),
        "status": SCORED if unscored is None else UNSCORED,
    }
    if judge is not None:
        result["judge"] = judge
    return result


def write_result(path: Path, result: ResultContent) -> None:
    """Raises StorageError."""
    with written_aside(path) as handle:
        json.dump(result, handle, indent=2)


def _since_first(events: Sequence[Event], test_id: str) -> Iterable[Event]:
    """The events from the test's first message on."""
    first = next(
        (
            position
            for position, event in enumerate(events)
            if event.test_id == test_id and event.type is EventType.SEND_MESSAGE
        ),
        len(events),
    )
    return events[first:]


def _of_test(events: Sequence[Event], definition: Definition) -> Iterable[Event]:
    """The test's own messages; of a test with a callback, all messages from its first question on."""
    has_questions = False
    for event in events:
        if event.type not in MESSAGES:
            continue
        own = event.test_id == definition.unique_id
        has_questions = has_questions or (own and event.is_question and definition.uses_callback)
        if own or has_questions:
            yield event


def _needles(ended: EndedTest, definition: Definition, reset: str) -> int:
    """Lines that are no questions. A dynamic test counts all of its lines, as that benchmark does."""
    if not definition.is_question:
        return sum(message.text != reset for message in ended.exchange.messages)
    return len(definition.is_question) - definition.number_of_questions


@dataclass(frozen=True, slots=True)
class RunStats:
    """What ``runstats.json`` holds: what a conversation has spent, by which programs of the GoodAI LTM Benchmark continue it."""

    total_tokens: int
    """Of all messages and replies, filler included."""
    agent_tokens: int | None
    """Of the agent's replies; null in files of older versions of the format."""
    agent_costs_usd: float
    managing_costs_usd: float
    """US dollars of judges and other models of the benchmark."""
    duration: float
    """Seconds in which the agent replied."""
    rnd_state: Json
    """The state of the filler's random numbers; null in files of older versions of the format."""

    @property
    def counters(self) -> Counters:
        """What a scheduler is restored from."""
        return Counters(self.total_tokens, self.agent_tokens or 0, self.duration, self.rnd_state)


def runstats_of(counters: Counters, agent_costs_usd: float, managing_costs_usd: float) -> RunStats:
    """What a conversation has spent, in tokens and seconds and in US dollars."""
    return RunStats(
        counters.total_tokens,
        counters.agent_tokens,
        agent_costs_usd,
        managing_costs_usd,
        counters.duration,
        counters.filler_state,
    )


def read_runstats(path: Path) -> RunStats:
    """Raises UserError that names the file and the field which is wrong."""
    found = read_object(path, within=path.parent)
    agent_tokens = _number(found, "agent_tokens", path) if "agent_tokens" in found else None
    return RunStats(
        int(_number(found, "total_tokens", path)),
        None if agent_tokens is None else int(agent_tokens),
        _number(found, "agent_costs_usd", path),
        _number(found, "managing_costs_usd", path),
        _number(found, "duration", path),
        _state(found.get("rnd_state"), path),
    )


def _number(found: dict[str, Json], name: str, path: Path) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: {name}: not a number")
    return value


def _state(state: Json, path: Path) -> Json:
    try:
        return None if state is None else [*random_state(state)]
    except ValueError:
        raise UserError(f"{path}: rnd_state: not the state of a generator") from None


class ConversationFiles:
    """Writes the files of a conversation as it goes on.

    ``about``: goes into ``session.json``; ``is_replaying``: whether the conversation has yet to come to where it
    was; ``zone``: of readable times, None for this machine's own. Must be closed."""

    def __init__(
        self,
        paths: ResultPaths,
        about: dict[str, Any],
        *,
        is_replaying: Callable[[], bool],
        zone: tzinfo | None = None,
    ) -> None:
        self._paths = paths
        self._about = about
        self._is_replaying = is_replaying
        self._zone = zone
        self._log: TextIO | None = None
        self._written = 0
        self._waiting: list[EndedTest] = []

    def ended(self, conversation: Conversation, test: EndedTest) -> None:
        """A test has ended."""
        self._waiting.append(test)

    def progress(self, conversation: Conversation) -> None:
        """Something has happened. Raises StorageError if it can't be written."""
        if self._log is None:
            if self._is_replaying():
                return
            self._begin(conversation)
        self._go_on(conversation)

    def close(self, conversation: Conversation) -> None:
        """Write everything that there is. Raises StorageError."""
        if conversation.scheduler.events and self._log is None:
            self._begin(conversation)
        if self._log is None:
            return
        self._go_on(conversation)
        self._write_counters(conversation)
        with writing(self._paths.master_log):
            self._log.close()
        self._log = None

    def _begin(self, conversation: Conversation) -> None:
        with written_aside(self._paths.folder / SESSION) as handle:
            json.dump(self._about, handle, indent=2)
        events = conversation.scheduler.events
        with written_aside(self._paths.master_log) as handle:
            handle.writelines(f"{format_event(event)}\n" for event in events)
        self._written = len(events)
        with writing(self._paths.master_log):
            self._log = self._paths.master_log.open("a", encoding="utf-8")

    def _go_on(self, conversation: Conversation) -> None:
        assert self._log is not None
        events = conversation.scheduler.events
        if self._written < len(events):
            with writing(self._paths.master_log):
                self._log.writelines(f"{format_event(event)}\n" for event in events[self._written :])
                self._log.flush()
            self._written = len(events)
        if self._waiting:
            for test in self._waiting:
                self._write_result(conversation, test)
            self._waiting.clear()
            self._write_counters(conversation)

    def _write_result(self, conversation: Conversation, test: EndedTest) -> None:
        definition = test.test.definition
        name = definition.unique_id
        judge = conversation.judge.name if conversation.judge is not None and name in conversation.judged else None
        events = conversation.scheduler.events[: test.ended]
        reset = conversation.scheduler.settings.reset_message(test.test)
        unscored = conversation.unscored.get(name)
        result = result_of(test, events, unscored=unscored, judge=judge, reset=reset, zone=self._zone)
        write_result(self._paths.result(definition.dataset, definition.example_id), result)

    def _write_counters(self, conversation: Conversation) -> None:
        stats = runstats_of(
            conversation.scheduler.counters, conversation.agent_usage.cost, conversation.managing_usage.cost
        )
        with suppress(FileNotFoundError), written_aside(self._paths.runstats) as handle:
            json.dump(asdict(stats), handle)


SCORES_FILE = "scores.json"
"""The file of the scores that a judge gave, in their folder."""


def scores_folder(run: Path, judge: str, scoring: Rules | None = None) -> Path:
    """Where the scores of a judge are. ``scoring``: by which rules, None for those that are the run's own."""
    return run / SCORES / folder_name(judge if scoring is None else f"{judge} ({scoring})")


def judged_scores(run: Path, judge: str) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    """The scores that a judge gave to a run's results, by agent, dataset and example. ``judge``: the model, or the folder of its scores.
    Raises UserError that says which there are."""
    folders = (scores_folder(run, judge), run / SCORES / judge, Path(judge))
    path = next((each / SCORES_FILE for each in folders if (each / SCORES_FILE).is_file()), None)
    if path is None:
        known = sorted(each.parent.name for each in (run / SCORES).glob(f"*/{SCORES_FILE}"))
        there = f"there are some by {', '.join(known)}" if known else "there are none"
        raise UserError(f"{run}: no scores by the judge {judge!r} ({there}; manyhands memory rescore makes them)")
    try:
        content = json.loads(read_inside(run if path.is_relative_to(run) else path.parent, path))
        return {(each["agent"], each["dataset"], each["example"]): each for each in content["results"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: can't be read: {error!r}") from None
