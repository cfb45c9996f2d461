"""A test that is over, as its result and its log hold it: what a dataset scores again.

What was said comes from the master log of the conversation, or else from the readable log of the result.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Exchange,
    Message,
    Play,
    Say,
)
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType, read_master_log

_SAID = re.compile(r"(?P<who>Test|System|Agent) \([^)]*\): (?P<text>.*)", re.DOTALL)
_DONE = re.compile(
    r"SYSTEM \([^)]*\): Test '(?P<id>.*?)' (?P<what>DEREGISTERS|ENDS|CALLS an LLM\. Response:\n)(?P<text>.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened between messages: a test's callback or the test itself ended, or a model replied."""

    what: EventType
    test_id: str
    after: int
    """The number of messages before it."""
    text: str = ""
    """What a model replied."""


@dataclass(frozen=True, slots=True)
class LoggedConversation:
    """Messages with their replies, in order, and what happened in between."""

    messages: Sequence[Message]
    marks: Sequence[Mark]
    tests_known: bool = True
    """Whether it is known which test a message is of; otherwise all are taken to be of the one test that the log is about."""

    def of_test(self, test_id: str) -> list[Message]:
        """A test's own messages."""
        return [message for message in self.messages if message.test_id == test_id or not self.tests_known]

    def calls(self, test_id: str) -> list[str]:
        """What a model replied for a test."""
        return [mark.text for mark in self.marks if mark.what is EventType.LLM_CALL and mark.test_id == test_id]

    def until_callback_ended(self, test_id: str) -> Sequence[Message]:
        """The messages up to where a test's callback was done with; where an interrupted conversation called it again, to the last such
        position."""
        own = [mark for mark in self.marks if mark.test_id == test_id]
        end = next((mark.after for mark in own if mark.what is EventType.END), len(self.messages))
        done = [mark.after for mark in own if mark.what is EventType.DEREGISTER_CALLBACK and mark.after <= end]
        return self.messages[: done[-1]] if done else self.messages[:end]


def conversation_of_log(path: Path) -> LoggedConversation:
    """From a master log. Raises UserError."""
    messages: list[Message] = []
    marks: list[Mark] = []
    for event in read_master_log(path):
        if event.type in SENDS:
            messages.append(
                Message(event.test_id, event.message, "", event.is_question, event.timestamp, event.timestamp)
            )
        elif event.type in RESPONSES and messages:
            messages[-1] = replace(messages[-1], reply=event.message, replied_at=event.timestamp)
        elif event.type in (EventType.LLM_CALL, EventType.DEREGISTER_CALLBACK, EventType.END):
            marks.append(_mark(event, len(messages)))
    return LoggedConversation(messages, marks)


def conversation_of_lines(lines: Sequence[str]) -> LoggedConversation:
    """From the readable log of a result. Which test a message is of, and whether it asks, it does not say."""
    messages: list[Message] = []
    marks: list[Mark] = []
    for line in lines:
        said = _SAID.fullmatch(line)
        if said is not None and said["who"] != "Agent":
            messages.append(Message("", said["text"], "", False, 0.0, 0.0))
        elif said is not None and messages:
            messages[-1] = replace(messages[-1], reply=said["text"])
        else:
            marks += _marks(line, len(messages))
    return LoggedConversation(messages, marks, tests_known=False)


def _mark(event: Event, after: int) -> Mark:
    return Mark(event.type, event.test_id, after, str(event.data.get("response", "")))


def _marks(line: str, after: int) -> Iterator[Mark]:
    found = _DONE.fullmatch(line)
    if found is None:
        return
    kinds = {"DEREGISTERS": EventType.DEREGISTER_CALLBACK, "ENDS": EventType.END}
    yield Mark(kinds.get(found["what"], EventType.LLM_CALL), found["id"], after, found["text"])


# --- A test to be scored again

Rescoring = Generator[Ask, str, tuple[Evaluation, bool]]
"""As ``Scoring``; it also returns whether the test went otherwise than the evaluation says."""


class NotOnRecord(Exception):
    """A model has to judge a test, and what one said is not on record."""


class WentOtherwise(Exception):
    """Judged anew, a test goes on otherwise than it did; the message says so."""


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test that is over."""

    definition: Definition
    result: Mapping[str, Any]
    """The content of its result file."""
    siblings: Sequence[Definition] = ()
    """All tests of its dataset in the run, this one included."""
    log: LoggedConversation | None = None
    """The master log of the conversation that it was part of; None if there is none."""
    judged: bool = False
    """Whether a model answers what the dataset asks."""

    def conversation(self, log: str = "full_log") -> LoggedConversation:
        """From the master log, or else from the result. ``log``: which of the result's logs has the messages."""
        if self.log is not None:
            return self.log
        full = conversation_of_lines(self.result.get("full_log") or [])
        if log == "full_log":
            return full
        return replace(conversation_of_lines(self.result.get(log) or []), marks=full.marks)

    @property
    def exchange(self) -> Exchange:
        """The questions of the test with the answers that its result holds."""
        definition = self.definition
        asked = [line for line, is_one in zip(definition.script, definition.is_question, strict=False) if is_one]
        answers = [str(answer) for answer in self.result.get("actual_responses") or []]
        if definition.is_temporal:
            asked.append(self._temporal_question() if self.judged and answers else "")
        questions = (asked + [""] * len(answers))[: len(answers)]
        pairs = zip(questions, answers, strict=True)
        return Exchange(
            definition, tuple(Message(definition.unique_id, asked, reply, True, 0.0, 0.0) for asked, reply in pairs)
        )

    def _temporal_question(self) -> str:
        """The question that was made when it was asked: it stands only in the log."""
        said = self.conversation("task_log").of_test(self.definition.unique_id)
        return next((each.text for each in said[len(self.definition.script) :]), "")


def played_again(play: Play, said: Sequence[Message]) -> Generator[Ask, str, Evaluation | None]:
    """A dynamic test gone through again with the replies of its log; None if its messages are not those of the play. Raises
    WentOtherwise."""
    position, reply = 0, ""
    try:
        step = next(play)
        while True:
            if isinstance(step, Ask):
                reply = yield step
            elif isinstance(step, Say):
                if position >= len(said) or said[position].text != step.message:
                    if position == 0:
                        return None
                    raise WentOtherwise(
                        "judged so, the test goes on otherwise than it did: only a new conversation can tell"
                    )
                reply, position = said[position].reply, position + 1
            else:
                reply = ""
            step = play.send(reply)
    except StopIteration as end:
        evaluation: Evaluation = end.value
        return evaluation
