"""The files of one conversation, kept up while it goes on: master log, counters, and a result for each test that has ended.

What counts is the journal; these are written from what it holds. Until a conversation that goes on has come to where it was, nothing is
written; then each file is written whole, and the log is added to from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TextIO, TypedDict

from manyhands.io.files import written_aside
from manyhands.workloads.memory.conversation.definitions import Definition
from manyhands.workloads.memory.conversation.driver import Conversation
from manyhands.workloads.memory.conversation.events import MESSAGES, Event, EventType, format_event, readable
from manyhands.workloads.memory.conversation.schedule import EndedTest
from manyhands.workloads.memory.folders import SESSION, ResultPaths, writing
from manyhands.workloads.memory.results.runstats import runstats_of

UNSCORED: Final = "unscored"
SCORED: Final = "scored"


class ResultContent(TypedDict):
    """The result of a test, in a file of its own (``results/AGENT/DATASET/EXAMPLE_0.json``), with the original benchmark's keys first."""

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
            place
            for place, event in enumerate(events)
            if event.test_id == test_id and event.type is EventType.SEND_MESSAGE
        ),
        len(events),
    )
    return events[first:]


def _of_test(events: Sequence[Event], definition: Definition) -> Iterable[Event]:
    """The test's own messages; of a test with a callback, all messages from its first question on."""
    asked = False
    for event in events:
        if event.type not in MESSAGES:
            continue
        own = event.test_id == definition.unique_id
        asked = asked or (own and event.is_question and definition.uses_callback)
        if own or asked:
            yield event


def _needles(ended: EndedTest, definition: Definition, reset: str) -> int:
    """Lines that are no questions. A dynamic test counts all of its lines, as that benchmark does."""
    if not definition.is_question:
        return sum(message.text != reset for message in ended.exchange.messages)
    return len(definition.is_question) - definition.number_of_questions


class ConversationFiles:
    """Writes the files of a conversation as it goes on.

    ``about``: goes into ``session.json``; ``is_replaying``: whether the session has yet to come to where it
    was; ``zone``: of readable times, None for this machine's own. Must be closed."""

    def __init__(
        self,
        places: ResultPaths,
        about: dict[str, Any],
        *,
        is_replaying: Callable[[], bool],
        zone: tzinfo | None = None,
    ) -> None:
        self._places = places
        self._about = about
        self._is_replaying = is_replaying
        self._zone = zone
        self._log: TextIO | None = None
        self._written = 0
        self._waiting: list[EndedTest] = []

    def ended(self, session: Conversation, test: EndedTest) -> None:
        """A test has ended."""
        self._waiting.append(test)

    def progress(self, session: Conversation) -> None:
        """Something has happened. Raises StorageError if it can't be written."""
        if self._log is None:
            if self._is_replaying():
                return
            self._begin(session)
        self._go_on(session)

    def close(self, session: Conversation) -> None:
        """Write everything that there is. Raises StorageError."""
        if session.scheduler.events and self._log is None:
            self._begin(session)
        if self._log is None:
            return
        self._go_on(session)
        self._write_counters(session)
        with writing(self._places.master_log):
            self._log.close()
        self._log = None

    def _begin(self, session: Conversation) -> None:
        with written_aside(self._places.folder / SESSION) as handle:
            json.dump(self._about, handle, indent=2)
        events = session.scheduler.events
        with written_aside(self._places.master_log) as handle:
            handle.writelines(f"{format_event(event)}\n" for event in events)
        self._written = len(events)
        with writing(self._places.master_log):
            self._log = self._places.master_log.open("a", encoding="utf-8")

    def _go_on(self, session: Conversation) -> None:
        assert self._log is not None
        events = session.scheduler.events
        if self._written < len(events):
            with writing(self._places.master_log):
                self._log.writelines(f"{format_event(event)}\n" for event in events[self._written :])
                self._log.flush()
            self._written = len(events)
        if self._waiting:
            for test in self._waiting:
                self._write_result(session, test)
            self._waiting.clear()
            self._write_counters(session)

    def _write_result(self, session: Conversation, test: EndedTest) -> None:
        definition = test.test.definition
        name = definition.unique_id
        judge = session.judge.name if session.judge is not None and name in session.judged else None
        events = session.scheduler.events[: test.ended]
        reset = session.scheduler.settings.reset_message(test.test)
        unscored = session.unscored.get(name)
        result = result_of(test, events, unscored=unscored, judge=judge, reset=reset, zone=self._zone)
        write_result(self._places.result(definition.dataset, definition.example_id), result)

    def _write_counters(self, session: Conversation) -> None:
        stats = runstats_of(session.scheduler.counters, session.agent_usage.cost, session.managing_usage.cost)
        with suppress(FileNotFoundError), written_aside(self._places.runstats) as handle:
            json.dump(stats.content(), handle)
