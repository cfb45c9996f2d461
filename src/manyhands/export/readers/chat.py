"""Chat messages as others write them become turns: reasoning apart from wherever it stands, arguments as JSON text, calls with ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from manyhands.core.digests import content_key
from manyhands.core.jsonio import Json, kind_of, spaced
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.core.outcomes import StopReason
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.readers.fields import Field
from manyhands.models.reasoning import FIELDS, gather

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""The roles of messages, by what others call them."""
TRAIN = ("train", "training", "weight")
"""What fields are called that say whether a model is trained on a message: trainers' own words."""
_THOUGHT = re.compile(r"<think>\n(?=\S)(.*?)(?<=\S)\n</think>(?:\n\n(?=.)|\Z)", re.DOTALL)
"""A think block as exports write it: what is behind it is the content to the letter."""


class Calls:
    """The tool calls of a conversation so far: ids for those that have none, and which of them wait for their results."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: list[tuple[str, str]] = []

    @property
    def waiting(self) -> bool:
        """Whether a call waits for its result."""
        return bool(self._waiting)

    def begin_turn(self) -> None:
        """An assistant speaks: what waited for a result gets none any more."""
        self._waiting = []

    def made(self, name: str, arguments: Json, given_id: str | None = None) -> ToolCall:
        """A call. ``arguments``: JSON text as it is, or anything that is to be written as such."""
        self._number += 1
        call_id = given_id or f"call_{self._number}"
        self._waiting.append((call_id, name))
        text = arguments if isinstance(arguments, str) else spaced({} if arguments is None else arguments)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}

    def answered(self, given_id: str | None, name: str | None) -> str:
        """The id of the call that a result is for: the given one, else of the next call of that name that waits, or of any that does."""
        found = next((each for each in self._waiting if each[0] == given_id), None)
        if given_id is None:
            named = (each for each in self._waiting if each[1] == name)
            found = next(named, next(iter(self._waiting), None))
        if found is not None:
            self._waiting.remove(found)
            return found[0]
        self._number += given_id is None
        return given_id or f"call_{self._number}"


def chat_turns(messages: Field, *, trained: bool = True, calls: Calls | None = None) -> list[Turn]:
    """The turns of a list of chat messages. ``trained``: whether assistant messages that do not say it are to be trained on; ``calls``:
    of the messages before these. Raises BadRow."""
    calls = calls or Calls()
    return [_turn(each, calls, trained) for each in messages.elements()]


def _turn(field: Field, calls: Calls, trained: bool) -> Turn:
    role_field = field.get("role")
    role = ROLES[role_field.one_of(*ROLES)]
    if role == "assistant":
        calls.begin_turn()
        return Turn(_answer(field, calls), train=_train(field, trained))
    message: Message
    if role == "tool":
        name = field.get("name").optional_text()
        call_id = calls.answered(field.get("tool_call_id").optional_text(), name)
        message = {"role": "tool", "tool_call_id": call_id, "content": result_text(field.get("content"))}
    else:
        name = field.get("name").optional_text()
        message = cast(Message, {"role": role, "content": content_of(field.get("content"))})
    return Turn({**message, "name": name} if name else message)


def _train(field: Field, trained: bool) -> bool:
    said = field.first(*TRAIN)
    return said.flag() if said.given else trained


def _answer(field: Field, calls: Calls) -> Message:
    found = field.members()
    given = [_call(each, calls) for each in field.get("tool_calls").elements()]
    if field.get("function_call").given:  # as chat completions once had them
        given.append(_call(field.get("function_call"), calls))
    content = field.get("content")
    if not content.given and not given:
        content = field.first("refusal", "content")
    reasoning, said = _reasoning(found, content_of(content) if content.given else None)
    message: Message = {"role": "assistant", "content": said if said is not None or given else ""}
    if reasoning:
        message["reasoning"] = reasoning
    if given:
        message["tool_calls"] = given
    return message


def _reasoning(message: Mapping[str, Any], content: Json) -> tuple[str, Json]:
    """The reasoning of an assistant's message, and its content without that. What one field holds is kept to the letter."""
    own = [message[name] for name in FIELDS if message.get(name)]
    details = message.get("reasoning_details")
    if len(own) == 1 and isinstance(own[0], str) and not details and not isinstance(content, list):
        return own[0] if own[0].strip() else "", content
    if not own and not details and isinstance(content, str):
        return apart(content)
    gathered = gather({**message, "content": content})
    return gathered.reasoning, gathered.content


def apart(content: str) -> tuple[str, str]:
    """The reasoning between think tags at the beginning of a content, and the rest. Tags without reasoning stay where they are."""
    if "<" not in content:
        return "", content
    own = _THOUGHT.match(content)
    if own is not None:
        return own[1], content[own.end() :]
    gathered = gather({"content": content})
    return (gathered.reasoning, gathered.content or "") if gathered.reasoning else ("", content)


def _call(field: Field, calls: Calls) -> ToolCall:
    """A tool call as chat completions have it, or flat, with its arguments as text or object."""
    function = field.get("function") if field.get("function").given else field
    name = function.get("name").text()
    call = calls.made(name, _arguments(function.first("arguments", "parameters")), field.get("id").optional_text())
    if field.get("extra_content").given:
        call["extra_content"] = field.get("extra_content").value
    return call


def _arguments(field: Field) -> Json:
    if isinstance(field.value, (bool, int, float)):
        raise field.error(f"must be an object or its JSON text, not {kind_of(field.value)}")
    return field.value


def content_of(field: Field) -> Json:
    """A content: text, or parts that are objects with a type, without the nulls that tables fill them with."""
    if field.value is None:
        return ""
    if isinstance(field.value, str):
        return field.value
    if not isinstance(field.value, list):
        raise field.error(f"must be text or a list of content parts, not {kind_of(field.value)}")
    return [_part(each) for each in field.elements()]


def _part(field: Field) -> Json:
    if isinstance(field.value, str):
        return {"type": "text", "text": field.value}
    kind = field.get("type").text()
    if kind == "text":
        field.get("text").text()
    return {name: value for name, value in field.members().items() if value is not None}


def result_text(field: Field) -> Json:
    """The content of a tool's result: text, also of an object or a number; parts only if one of them is no text."""
    value = field.value
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in value):
        parts = content_of(field)
        return text_of(parts) if all(part.get("type") == "text" for part in parts) else parts
    return spaced(value)


def tool_definitions(field: Field) -> list[dict[str, Any]]:
    """The tools that were available, given as a list or its JSON text, each as chat completions have it, or flat. Raises BadRow."""
    return [_definition(each.parsed()) for each in field.parsed().elements()]


def _definition(field: Field) -> dict[str, Any]:
    nested = field.get("function").given
    function = field.get("function") if nested else field
    function.get("name").text()
    for name, check in (("description", Field.optional_text), ("parameters", _optional_object)):
        check(function.get(name))
    given = {name: value for name, value in function.members().items() if value is not None}
    if nested:
        others = {name: value for name, value in field.members().items() if value is not None}
        return {"type": "function", **others, "function": given}
    given.pop("type", None)
    return {"type": "function", "function": given}


def _optional_object(field: Field) -> None:
    if field.given:
        field.members()


# --- Conversations


def begun(key: str = "") -> Conversation:
    """A conversation of which nothing else is known. Where nobody says which run it is from, it is from the one that imports it."""
    return Conversation(run="", run_id="", workload="", item=0, key=key)


def ending_of(turns: Sequence[Turn]) -> str | None:
    """How a conversation ended of which nobody says it: with its last answer, if nothing follows that."""
    return StopReason.ANSWERED.value if turns and turns[-1].role == "assistant" else None


def prompt_key(turns: Sequence[Turn]) -> str:
    """The identity of what a conversation is about, as runs have it: of all that is there before the first answer."""
    opening = [turn.message for turn in _opening(turns)]
    system = opening.pop(0)["content"] if opening and opening[0]["role"] == "system" else None
    prompt = opening[-1]["content"] if opening else None
    return content_key([prompt, system, opening if len(opening) > 1 else []])


def _opening(turns: Sequence[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if turn.role == "assistant":
            return
        yield turn
