"""The system prompt and the messages that a row of a dataset brings, checked before anything is paid for.

An endpoint refuses a conversation that is not well formed, or worse, takes it for another one. So whatever is wrong is named here,
with the message and the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from manyhands.core.jsonio import Json, kind_of, line, loads_outside
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.tools.services.prompt_parts import TEXT, BadPart, ReadParts, RowPictures

SYSTEM, MESSAGES = "system", "messages"
CHAT_FIELDS = (SYSTEM, MESSAGES)
"""The fields of a row that are read here."""

_SYSTEM_ROLES = ("system", "developer")
_ROLES = ("system", "user", "assistant", "tool")


class BadChat(ValueError):
    """Why a row's ``system`` or ``messages`` can't be used, with the field."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What a row brings besides its prompt."""

    system: str | None = None
    """The row's system prompt, also if it is the first of its messages."""
    messages: tuple[Message, ...] = ()
    """All others in order."""

    def opening(self, prompt: Json) -> tuple[Message, ...]:
        """The messages, of which there must be any, up to where the model goes on, with ``prompt`` (None if the row has none) as the
        last one.

        Raises BadChat if there is nothing to go on from.
        """
        last = self.messages[-1]
        if prompt is None:
            if not any(message["role"] == "user" for message in self.messages):
                raise BadChat('"messages" has no user message')
            if last["role"] == "assistant":
                raise BadChat(
                    '"messages" ends with an assistant message, so there is nothing to answer; '
                    'let it end with a user message, or give a "prompt"'
                )
            return self.messages
        if last["role"] == "user" and _same(last["content"], prompt):
            return self.messages
        if last["role"] == "assistant" and self._begins_with(prompt):
            raise BadChat('"prompt" is the first user message of "messages", which is answered there already')
        return (*self.messages, {"role": "user", "content": prompt})

    def _begins_with(self, prompt: Json) -> bool:
        first = next((message for message in self.messages if message["role"] == "user"), None)
        return first is not None and _same(first["content"], prompt)


def read_chat(row: Mapping[str, Json], system_field: str = SYSTEM, read_parts: ReadParts | None = None) -> Chat:
    """What a row brings; null and what is empty count as not there. ``read_parts``: reads content
    parts. Raises BadChat naming the field."""
    read_parts = read_parts or RowPictures().parts
    system = _own_system(row.get(system_field), system_field)
    found = list(_given_list(row.get(MESSAGES)))
    leading: list[str] = []
    while found and _role(found[0], len(leading) + 1) == "system":
        leading.append(_MessageField(len(leading) + 1, read_parts).only_text(found.pop(0).get("content"), "content"))
    first = "\n\n".join(leading)
    if system and first and system.strip() != first.strip():
        raise BadChat(f'"{system_field}" and the system message of "messages" differ')
    messages = tuple(_checked(found, len(leading) + 1, read_parts))
    return Chat(system or first or None, messages)


def _own_system(value: Json, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadChat(f'"{field}" is {kind_of(value)}, expected text')
    return value if value.strip() else None


def _given_list(value: Json) -> list[dict[str, Any]]:
    if isinstance(value, str):  # a cell of a CSV file holds it as JSON
        try:
            value = loads_outside(value) if value.strip() else None
        except (ValueError, RecursionError):
            raise BadChat('"messages" is text that is not JSON, expected a list of messages') from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadChat(f'"messages" is {kind_of(value)}, expected a list of messages')
    return [_without_nulls(each, number) for number, each in enumerate(value, 1)]


def _without_nulls(value: Json, number: int) -> dict[str, Any]:
    """Tables fill fields that only other messages have with nulls."""
    if not isinstance(value, dict):
        raise BadChat(f'message {number} of "messages" is {kind_of(value)}, expected an object')
    return {name: part for name, part in value.items() if part is not None}


def _role(message: Mapping[str, Any], number: int) -> str:
    role = message.get("role")
    if role in _SYSTEM_ROLES:
        return "system"
    if role not in _ROLES:
        raise BadChat(f'message {number} of "messages" has no "role" out of {", ".join(_ROLES)}')
    return cast(str, role)


def _checked(messages: Sequence[dict[str, Any]], start: int, read_parts: ReadParts) -> list[Message]:
    """The messages behind the leading system messages. ``start``: the number of the first."""
    checked: list[Message] = []
    waiting: dict[str, str] = {}
    for number, message in enumerate(messages, start):
        at, role = _MessageField(number, read_parts), _role(message, number)
        if role == "system":
            raise at.error('is a system message behind others; "system" messages come first')
        if waiting and role != "tool":
            raise at.error(f"comes before the result of the tool call {next(iter(waiting))!r:.80}")
        if role == "tool":
            checked.append(_tool_message(message, waiting, at))
            if not waiting:
                _order_results(checked)
        elif role == "user":
            checked.append({"role": "user", "content": at.parts(message.get("content"), "content", empty=False)})
        else:
            checked.append(_assistant_message(message, at))
            waiting = {call["id"]: call["function"]["name"] for call in checked[-1].get("tool_calls", ())}
    if waiting:
        raise BadChat(f'"messages" ends before the result of the tool call {next(iter(waiting))!r:.80}')
    return checked


def _order_results(messages: list[Message]) -> None:
    """Put the results at the end of messages in the order of their calls: readers of trajectories pair them by their positions."""
    results = len(list(takewhile(lambda message: message["role"] == "tool", reversed(messages))))
    positions = {call["id"]: position for position, call in enumerate(messages[-results - 1]["tool_calls"])}
    messages[-results:] = sorted(messages[-results:], key=lambda message: positions[message["tool_call_id"]])


def _tool_message(message: Mapping[str, Any], waiting: dict[str, str], at: _MessageField) -> Message:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in waiting:
        raise at.error('has no "tool_call_id" of a call that waits for its result')
    content = at.parts(message.get("content", ""), "content", empty=True)
    return {"role": "tool", "tool_call_id": call_id, "name": waiting.pop(call_id), "content": content}


def _assistant_message(message: Mapping[str, Any], at: _MessageField) -> Message:
    calls = _calls(message.get("tool_calls"), at)
    content = at.parts(message.get("content", ""), "content", empty=bool(calls))
    made: Message = {"role": "assistant", "content": content or None}
    for name in ("reasoning", "reasoning_content"):
        if name in message and "reasoning" not in made:
            made["reasoning"] = at.text(message[name], name, empty=True)
    if calls:
        made["tool_calls"] = calls
    return made


def _calls(value: Json, at: _MessageField) -> list[ToolCall]:
    if not value:
        return []
    if not isinstance(value, list):
        raise at.error(f'has "tool_calls" that are {kind_of(value)}, expected a list')
    calls = [_call(each, at, number) for number, each in enumerate(value, 1)]
    if len({call["id"] for call in calls}) < len(calls):
        raise at.error('has two "tool_calls" with the same "id"')
    return calls


def _call(value: Json, at: _MessageField, number: int) -> ToolCall:
    call = value if isinstance(value, dict) else {}
    function = call.get("function")
    named: Mapping[str, Any] = function if isinstance(function, dict) else {}
    for name, text in (("id", call.get("id")), ("function.name", named.get("name"))):
        if not isinstance(text, str) or not text:
            raise at.error(f'has no "{name}" in tool call {number}')
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": named["name"], "arguments": _arguments(named.get("arguments"), at, number)},
    }


def _arguments(value: Json, at: _MessageField, number: int) -> str:
    try:
        text = line(value) if isinstance(value, dict) else value or "{}"
        if isinstance(text, str) and isinstance(loads_outside(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    raise at.error(f'has "function.arguments" in tool call {number} that are no JSON object')


@dataclass(frozen=True, slots=True)
class _MessageField:
    """One of the row's messages, for error messages."""

    number: int
    read_parts: ReadParts

    def error(self, problem: str) -> BadChat:
        return BadChat(f'message {self.number} of "messages" {problem}')

    def text(self, value: Json, name: str, *, empty: bool = False) -> str:
        """Text, which may be empty."""
        if not isinstance(value, str):
            raise self.error(f'has "{name}" that is {kind_of(value)}, expected text')
        if not empty and not value.strip():
            raise self.error(f'has "{name}" that is empty')
        return value

    def parts(self, value: Json, name: str, *, empty: bool) -> Json:
        """Text, or a list of content parts."""
        if not isinstance(value, list) or not value:
            return self.text("" if value == [] else value, name, empty=empty)
        try:
            return self.read_parts(value, name)
        except BadPart as error:
            raise BadChat(f'message {self.number} of "messages": {error}') from None

    def only_text(self, value: Json, name: str) -> str:
        """Text, or a list of parts that are text."""
        parts = self.parts(value, name, empty=False)
        if isinstance(parts, list) and not all(part["type"] == TEXT for part in parts):
            raise self.error(f'has "{name}" with other parts than text, which system prompts can\'t have')
        return text_of(parts)


def _same(first: Json, second: Json) -> bool:
    if isinstance(first, str) and isinstance(second, str):
        return first.strip() == second.strip()
    return bool(first == second)
