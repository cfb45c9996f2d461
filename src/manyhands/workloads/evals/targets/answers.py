"""What a command reports about one test: a JSON object, read into an answer.

The fields are those of AgentV. A fault belongs to its record: what makes the
answer doubtful makes the record an error; a figure that can't be used is left out, and said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.core.redaction import KNOWN
from manyhands.graders.messages import moment, tool_name, tool_uses_of, trace_of
from manyhands.graders.protocol import MessageJson, ToolUse
from manyhands.workloads.evals.targets.answer_figures import FIGURES, GRADED, AnswerFigures, RecordFault, read_number

MAX_ID_LENGTH = 80


def shown(test_id: str) -> str:
    """An id in a message: on one line, and not for ever."""
    text = without_surrogates(test_id)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= MAX_ID_LENGTH else text[:MAX_ID_LENGTH] + "…"


_ANSWERS = ("text", "output", "output_messages", "error")
MAX_NOTICES = 10
"""Notices that are kept of one record."""
MAX_MESSAGE = 2000
"""Characters of a reported error that are shown."""
_TIMES = ("start_time", "end_time")


@dataclass(slots=True)  # not frozen: see Outcome
class Answer(AnswerFigures):
    """The answer of a target to one test. Figures are None where they are not given."""

    text: str
    """What is graded."""
    output: tuple[MessageJson, ...] | None = None
    """The target's messages as it gave them; None where there is no usable answer."""
    tool_uses: tuple[ToolUse, ...] = ()
    trace: Mapping[str, Any] = field(default_factory=dict)
    """The summary of the messages (``graders.messages.trace_of``)."""
    error: str | None = None
    """Why there is no answer that could be graded; None if there is one."""
    record: Json = None
    """The object that it was read from."""
    notices: tuple[str, ...] = ()
    """What was left out, or understood with good will."""
    collected: Mapping[str, Any] | None = None
    """What the target's command gave at the end: ``output`` and ``problem``."""
    verified: Mapping[str, Any] | None = None
    """Of a task folder: what ``task_folders.trial.Verified.to_json`` gives."""
    cached_in_input: bool = False
    """Whether its cached tokens are part of its input, as model endpoints count them, and not besides, as records have them."""

    def to_json(self) -> Json:
        """For a journal: the record alone, or what there is without one. ``answer_from_json`` is the reverse."""
        if self.record is None:
            given = {"text": self.text, "duration_ms": self.duration_ms, "error": self.error}
        else:
            measured = None if self.record.get("duration_ms") == self.duration_ms else self.duration_ms
            given = {"record": self.record, "duration_ms": measured}
        return {name: value for name, value in given.items() if value is not None}

    def timed(self, duration_ms: float) -> Answer:
        """With this duration, if it gives none itself."""
        if self.duration_ms is not None:
            return self
        return replace(self, duration_ms=duration_ms, trace={**self.trace, "duration_ms": duration_ms})


_PLAIN = frozenset(("id", "text"))
"""What most records hold, where there are many."""
_PLAIN_TRACE = trace_of(({"role": "assistant", "content": ""},))


def read_record(record: Mapping[str, Json]) -> Answer:
    """A record's answer. Never raises: whatever is wrong with it is its ``error``."""
    if record.keys() == _PLAIN and isinstance(record["text"], str):
        text = record["text"]
        return Answer(text, _as_message(text), (), _PLAIN_TRACE, record=record)
    notices: list[str] = []
    try:
        figures = {each.name: each.read(record.get(each.name), each.name, notices) for each in FIGURES}
        messages, text = _said(record, notices)
        error = _reported(record.get("error"))
    except RecordFault as fault:
        return Answer("", error=str(fault), record=record, notices=_some(notices))
    except RecursionError:
        return read_text("", error="the record is nested too deeply")
    if error is None and messages is None:
        error = "the record has neither text, output nor error"
    about = _about_messages(messages or (), figures)
    return Answer(text, messages, **about, **figures, error=error, record=record, notices=_some(notices))


def read_text(text: str, *, duration_ms: float | None = None, error: str | None = None) -> Answer:
    """A plain text as an answer, or what there is of one besides an error."""
    messages = _as_message(text) if error is None else ()
    trace = trace_of(messages, duration_ms=duration_ms)
    return Answer(text, messages or None, trace=trace, duration_ms=duration_ms, error=error)


def answer_from_json(value: Mapping[str, Json]) -> Answer:
    """What ``Answer.to_json`` gave."""
    if "record" not in value:
        return read_text(**value)
    answer = read_record(value["record"])
    return answer.timed(value["duration_ms"]) if "duration_ms" in value else answer


def has_answer(record: Mapping[str, Json]) -> bool:
    """Whether an object has one of the fields that make an answer."""
    return any(name in record for name in _ANSWERS)


def record_id(record: Mapping[str, Json]) -> str:
    """The test that a record is about; a number is taken as text. Raises RecordFault."""
    value = record.get("id")
    if value is None or value == "":
        hint = (
            " but a test_id, as results of a run have it (--regrade grades these again)" if "test_id" in record else ""
        )
        raise RecordFault(f"has no id{hint}")
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecordFault("has an id that is neither text nor a number")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _about_messages(messages: Sequence[MessageJson], figures: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer that are taken from its messages. The trace holds those figures that graders know."""
    uses = tool_uses_of(messages)
    return {"tool_uses": uses, "trace": trace_of(messages, uses=uses, **{name: figures[name] for name in GRADED})}


def _said(record: Mapping[str, Json], notices: list[str]) -> tuple[tuple[MessageJson, ...] | None, str]:
    """The messages and the answer. A text stands in where the messages don't end in one."""
    text = None if "text" not in record else as_text(record["text"])
    messages = _messages(record, notices)
    if messages:
        last = next((message for message in reversed(messages) if _speaks(message)), None)
        if last is not None:
            return messages, as_text(last["content"])
        if text is not None:
            notices.append("output has no assistant message with content: text is the answer")
        return messages, text or ""
    if text is not None:
        return _as_message(text), text
    return messages, ""


def _messages(record: Mapping[str, Json], notices: list[str]) -> tuple[MessageJson, ...] | None:
    """What ``output`` holds, or under its old name ``output_messages``; None if there is neither. Raises RecordFault."""
    name = "output" if record.get("output") is not None else "output_messages"
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise RecordFault(f"{name} is not a list of messages")
    for index, message in enumerate(value):
        _check_message(message, f"{name}[{index}]", notices)
    return tuple(value)


def _check_message(message: Json, name: str, notices: list[str]) -> None:
    if not isinstance(message, dict):
        raise RecordFault(f"{name} is not an object")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RecordFault(f"{name} has no role" if message.get("role") in (None, "") else f"{name}.role is not text")
    _check_times(message, name, notices)
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise RecordFault(f"{name}.tool_calls is not a list")
    for index, call in enumerate(calls):
        _check_call(call, f"{name}.tool_calls[{index}]", notices)


def _check_call(call: Json, name: str, notices: list[str]) -> None:
    if not isinstance(call, dict):
        raise RecordFault(f"{name} is not an object")
    if "tool" in call and not isinstance(call["tool"], str):
        raise RecordFault(f"{name}.tool is not text")
    if tool_name(call) is None:
        raise RecordFault(f"{name} names no tool")
    if not call.get("tool"):
        notices.append(f"{name}: the tool's name was taken from name instead of tool")
    _check_times(call, name, notices)


def _check_times(part: Mapping[str, Json], name: str, notices: list[str]) -> None:
    notices += [f"{name}.{key} is no time and was left out" for key in _TIMES if _is_unusable_time(part.get(key))]
    read_number(part.get("duration_ms"), f"{name}.duration_ms", notices)


def _is_unusable_time(value: Json) -> bool:
    return value is not None and moment(value) is None


def _reported(error: Json) -> str | None:
    """The error that the runner itself reports: a text, or an object with a ``message``. Nothing, false and empty are no error."""
    if not error:
        return None
    if error is True:
        return "the runner reported an error for this test"
    if isinstance(error, dict):
        kind, message = error.get("type") or error.get("code"), error.get("message")
        if isinstance(message, str) and message:
            error = f"{kind}: {message}" if isinstance(kind, (str, int)) else message
    return KNOWN.text(as_text(error))[:MAX_MESSAGE]


def _speaks(message: MessageJson) -> bool:
    return message["role"] == "assistant" and message.get("content") is not None


def _as_message(text: str) -> tuple[MessageJson, ...]:
    return ({"role": "assistant", "content": text},)


def _some(notices: list[str]) -> tuple[str, ...]:
    if not notices:
        return ()
    more = len(notices) - MAX_NOTICES
    return tuple(notices) if more <= 0 else (*notices[:MAX_NOTICES], f"… and {more} more of this record")
