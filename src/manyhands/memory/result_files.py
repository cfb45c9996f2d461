"""The result of a test as a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any

from manyhands.engine.files import written_aside
from manyhands.memory.events import MESSAGES, Event, EventType, readable
from manyhands.memory.model import Definition
from manyhands.memory.places import writing
from manyhands.memory.schedule_model import EndedTest

UNSCORED = "unscored"
SCORED = "scored"


def result_of(
    ended: EndedTest,
    events: Sequence[Event],
    *,
    unscored: str | None = None,
    judge: str | None = None,
    reset: str = "",
    zone: tzinfo | None = None,
) -> dict[str, Any]:
    """What is recorded of a test, with the original's keys first. ``events``: the session's, up to the test's end; ``unscored``: why the
    test has no score; ``judge``: the model that judged, if one did; ``reset``: what takes back what the test said; ``zone``: of the
    readable times, None for this machine's own."""
    definition, evaluation = ended.test.definition, ended.evaluation
    own = list(_since_first(events, definition.unique_id))
    result: dict[str, Any] = {
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
    return result if judge is None else {**result, "judge": judge}


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Raises StorageError."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
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
    """Lines that are no questions. A dynamic test counts all of its lines, as the original does."""
    if not definition.is_question:
        return sum(message.text != reset for message in ended.exchange.messages)
    return len(definition.is_question) - definition.number_of_questions
