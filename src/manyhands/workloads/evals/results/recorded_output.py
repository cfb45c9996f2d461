"""The messages that a target gave with its answer, as turns of a conversation.

They have the shape of AgentV's records: a tool call is ``{"tool", "id", "input", "output"}`` within the assistant's message, and may be
``{"name", "arguments"}`` or chat completions' ``{"function": {…}}`` with the results in messages of their own. Here arguments become JSON
text, and every result a message of the tool behind the call. What an agent said besides calls comes before them, as in chat completions;
but the last message that speaks is the answer, so that its text comes behind the results of its own calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from manyhands.core.jsonio import Json, as_text, spaced
from manyhands.core.messages import Message, ToolCall
from manyhands.export.conversations import Turn
from manyhands.graders.messages import moment, tool_name
from manyhands.graders.protocol import MessageJson

_ROLES = {"ai": "assistant", "model": "assistant", "human": "user", "developer": "system", "function": "tool"}
"""Roles of other dialects."""
_KNOWN = ("system", "user", "assistant", "tool")
_GIVEN_ARGUMENTS = ("input", "arguments")
_TEXTS = ("text", "value")


def turns_of_output(output: Sequence[MessageJson]) -> list[Turn]:
    """The turns of recorded messages, in order. Texts are as they were recorded; parts that are no text become JSON."""
    reading = _Reading(_last_speaking(output), len(output) - 1)
    for index, message in enumerate(output):
        reading.take(index, message)
    return reading.turns()


def has_own_prompt(output: Sequence[MessageJson]) -> bool:
    """Whether recorded messages begin with what the agent was asked, as a session's do, and not with its first words."""
    roles = [_role(message) for message in output]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return "user" in roles[:first]


def content_text(content: Json) -> str:
    """A recorded content as text: the texts of its parts, everything else as JSON."""
    if isinstance(content, list) and content and all(_part_text(part) is not None for part in content):
        return "\n\n".join(str(_part_text(part)) for part in content)
    return "" if content is None else as_text(content)


def _part_text(part: Json) -> str | None:
    """The text of a part; None if it is something else."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") != "text":
        return None
    return next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), None)


def _role(message: Mapping[str, Any]) -> str:
    role = str(message.get("role", "")).lower()
    return _ROLES.get(role, role)


def _last_speaking(output: Sequence[MessageJson]) -> int:
    """The index of the message that is the answer; -1 if none speaks."""
    speaking = (
        index
        for index, message in enumerate(output)
        if _role(message) == "assistant" and content_text(message.get("content"))
    )
    return max(speaking, default=-1)


class _Reading:
    """Recorded messages that are read one after the other."""

    def __init__(self, answer: int, last: int) -> None:
        """``answer``, ``last``: the indexes of the message that is the answer, and of the last one of all."""
        self._answer = answer
        self._last = last
        self._found: list[Turn | str] = []
        """Turns, and ids of calls, whose results stand there."""
        self._calls: dict[str, str] = {}
        """The names of the tools that were called, by the calls' ids."""
        self._results: dict[str, Turn] = {}
        self._as_recorded: dict[str, str] = {}
        """Ids that others had before, and the latest calls that were recorded with them."""

    def take(self, index: int, message: MessageJson) -> None:
        """Read the next message."""
        role, text, at = _role(message), content_text(message.get("content")), _time(message)
        if role == "assistant":
            self._said(message, text, at, index)
        elif role == "tool" and (call_id := self._call_of(message)) is not None:
            self._result(call_id, text, at)
        elif role in ("system", "user"):
            self._found.append(Turn(cast(Message, {"role": role, "content": text}), at))
        elif text:  # nobody's result, or said by whom chat completions don't know
            name = str(message.get("role", "")).capitalize()
            self._found.append(Turn({"role": "user", "content": f"@[{name}]:\n{text}"}, at))

    def turns(self) -> list[Turn]:
        """All that was read. A call whose result is not known has an empty one, if the conversation went on behind it."""
        found = self._found
        while found and isinstance(last := found[-1], str) and last not in self._results:
            found.pop()  # the conversation was broken off while these ran
        return [
            each if isinstance(each, Turn) else self._results.get(each) or self._tool_turn(each, "", None, failed=False)
            for each in found
        ]

    def _said(self, message: MessageJson, text: str, at: float | None, index: int) -> None:
        given = [call for call in _calls(message) if tool_name(call) is not None]
        if not given:
            self._found.append(Turn({"role": "assistant", "content": text}, at, train=True))
            return
        called_before = index == self._last or any(_outcome(call) is not None for call in given)
        behind = index == self._answer and called_before
        calls = [self._call(call) for call in given]
        said: Message = {"role": "assistant", "content": "" if behind else text, "tool_calls": calls}
        self._found.append(Turn(said, at, train=True))
        for call, recorded in zip(calls, given, strict=True):
            self._found.append(call["id"])
            if (outcome := _outcome(recorded)) is not None:
                self._result(call["id"], content_text(outcome), _time(recorded), failed="error" in recorded)
        if behind:
            self._found.append(Turn({"role": "assistant", "content": text}, at, train=True))

    def _call(self, recorded: Mapping[str, Any]) -> ToolCall:
        """A call as chat completions have it, with an id of its own."""
        name, given = str(tool_name(recorded)), recorded.get("id")
        own = str(given) if given not in (None, "") else f"call_{len(self._calls) + 1}"
        call_id, number = own, 1
        while call_id in self._calls:
            number += 1
            call_id = f"{own}_{number}"
        self._calls[call_id] = name
        self._as_recorded[own] = call_id
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _arguments(recorded)}}

    def _call_of(self, message: Mapping[str, Any]) -> str | None:
        """The call whose result a tool's message is: that of its id, else the first without a result, of that tool if it is named."""
        named = message.get("tool_call_id")
        if named is not None and (known := self._as_recorded.get(str(named))) is not None:
            return known
        tool = message.get("name")
        open_calls = (call_id for call_id in self._calls if call_id not in self._results)
        return next((call_id for call_id in open_calls if tool in (None, self._calls[call_id])), None)

    def _result(self, call_id: str, text: str, at: float | None, *, failed: bool = False) -> None:
        self._results[call_id] = self._tool_turn(call_id, text, at, failed=failed)

    def _tool_turn(self, call_id: str, text: str, at: float | None, *, failed: bool) -> Turn:
        message: Message = {"role": "tool", "tool_call_id": call_id, "name": self._calls[call_id], "content": text}
        if failed:
            message["_failed"] = True
        return Turn(message, at)


def _calls(message: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = message.get("tool_calls")
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else ()


def _outcome(call: Mapping[str, Any]) -> Json:
    """What a call returned, or how it failed; None if neither is recorded."""
    return next((call[name] for name in ("output", "error") if call.get(name) is not None), None)


def _arguments(call: Mapping[str, Any]) -> str:
    """A call's arguments as JSON text. A text is taken for what the model wrote; an input that is no object becomes one, of the name
    ``input``, as chat completions know nothing else."""
    function = call.get("function")
    parts = (call, function) if isinstance(function, dict) else (call,)
    name, given = next(
        ((name, part[name]) for part in parts for name in _GIVEN_ARGUMENTS if part.get(name) is not None), ("", {})
    )
    if isinstance(given, str) and (name == "arguments" or given.lstrip().startswith("{")):
        return given
    return spaced(given if isinstance(given, dict) else {"input": given})


def _time(part: Mapping[str, Any]) -> float | None:
    """When a message was there, or a call had ended, in seconds since 1970 UTC."""
    found = (moment(part.get(name)) for name in ("end_time", "start_time"))
    return next((each.timestamp() for each in found if each is not None), None)
