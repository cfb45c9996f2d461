"""What was said in a session, from its master log or from the readable log of a result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.workloads.memory.conversation.definitions import Message
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType, read_master_log

_SAID = re.compile(r"(?P<who>Test|System|Agent) \([^)]*\): (?P<text>.*)", re.DOTALL)
_DONE = re.compile(
    r"SYSTEM \([^)]*\): Test '(?P<id>.*?)' (?P<what>DEREGISTERS|ENDS|CALLS an LLM\. Response:\n)(?P<text>.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened after so many messages (``after``): a test's callback or the test itself ended, or a model replied
    (``text``)."""

    what: EventType
    test_id: str
    after: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages with their replies, in order, and what happened in between. ``tests_known``: whether it is known which test a message is of;
    otherwise all are taken to be of the one test that the log is about."""

    messages: Sequence[Message]
    marks: Sequence[Mark]
    tests_known: bool = True

    def of_test(self, test_id: str) -> list[Message]:
        """A test's own messages."""
        return [message for message in self.messages if message.test_id == test_id or not self.tests_known]

    def calls(self, test_id: str) -> list[str]:
        """What a model replied for a test."""
        return [mark.text for mark in self.marks if mark.what is EventType.LLM_CALL and mark.test_id == test_id]

    def until_callback_ended(self, test_id: str) -> Sequence[Message]:
        """The messages up to where a test's callback was done with; where an interrupted session called it again, to the last such
        place."""
        own = [mark for mark in self.marks if mark.test_id == test_id]
        end = next((mark.after for mark in own if mark.what is EventType.END), len(self.messages))
        done = [mark.after for mark in own if mark.what is EventType.DEREGISTER_CALLBACK and mark.after <= end]
        return self.messages[: done[-1]] if done else self.messages[:end]


def conversation_of_log(path: Path) -> Conversation:
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
    return Conversation(messages, marks)


def conversation_of_lines(lines: Sequence[str]) -> Conversation:
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
    return Conversation(messages, marks, tests_known=False)


def _mark(event: Event, after: int) -> Mark:
    return Mark(event.type, event.test_id, after, str(event.data.get("response", "")))


def _marks(line: str, after: int) -> Iterator[Mark]:
    found = _DONE.fullmatch(line)
    if found is None:
        return
    kinds = {"DEREGISTERS": EventType.DEREGISTER_CALLBACK, "ENDS": EventType.END}
    yield Mark(kinds.get(found["what"], EventType.LLM_CALL), found["id"], after, found["text"])
