"""Reading the tool calls of an answer: mending what can be mended, and saying what is wrong with the rest.

What enters the history is always well formed (a string id that occurs once, a name, arguments that are one JSON
object), since many servers refuse a request whose history is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from manyhands.agents.toolbox import Toolbox
from manyhands.core.jsonio import Json, dumps, loads_outside
from manyhands.core.messages import FunctionCall, ToolCall

MOST_CALLS = 1000
"""Calls of one answer that are run."""
MOST_REPAIRED = 20
"""Different unknown names in one answer that are compared with those of the tools, which takes a while."""
EXCERPT = 60
"""Characters of malformed arguments shown on each side of the error."""


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """The tool calls of one answer, mended. ``refused`` tells by index why a call can't be run, in words for the model;
    ``unknown`` and ``malformed`` say which of those have no such tool and which have unreadable arguments.
    ``as_written`` holds what mending changed."""

    calls: list[ToolCall]
    refused: dict[int, str]
    unknown: list[int]
    malformed: list[int]
    as_written: list[dict[str, Any]]

    @property
    def runnable(self) -> bool:
        """Whether at least one call can be run."""
        return len(self.refused) < len(self.calls)


def read_calls(written: Json, toolbox: Toolbox, turn: int, used: set[str]) -> ReadCalls:
    """Read the ``tool_calls`` of answer number ``turn``. ``used``: ids of earlier calls of the conversation; not
    changed."""
    read = ReadCalls([], {}, [], [], [])
    taken = set(used)
    repaired: dict[str, str | None] = {}
    for index, raw in enumerate(_entries(written)):
        function = raw.get("function")
        function = function if isinstance(function, dict) else {}
        call_id = _free_id(raw.get("id"), turn, index, taken)
        taken.add(call_id)
        name = _read_name(function.get("name"), index, toolbox, read, repaired)
        arguments = _read_arguments(function.get("arguments"), index, read)
        call = _call(raw, call_id, name, arguments)
        read.calls.append(call)
        if index >= MOST_CALLS:
            read.refused.setdefault(index, _TOO_MANY)
        if raw.get("id") != call_id or function.get("name") != name or function.get("arguments") != arguments:
            read.as_written.append({"index": index, **{key: raw[key] for key in ("id", "function") if key in raw}})
    return read


def parse_arguments(text: str) -> dict[str, Any]:
    """Arguments as an object. Blank text and ``null`` mean none; an object encoded twice is decoded twice.

    Raises ValueError with a reason for the model.
    """
    if not text.strip():
        return {}
    value = _parse(text)
    if isinstance(value, str):
        value = _parse(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"they are a JSON {_KINDS[type(value)]}, not an object")
    return value


def no_such_tool(name: str, toolbox: Toolbox) -> str:
    """What a model is told that called a tool which is not on offer."""
    if not toolbox.names:
        return f"There is no tool called {name!r}; no tools are on offer. Answer in plain text."
    return f"There is no tool called {name!r}. The tools on offer are: {', '.join(toolbox.names)}."


_TOO_MANY = (
    f"At most {MOST_CALLS:,} calls are run of one answer, and this one is behind them. Nothing was run. "
    "Send it again in a later answer."
)
_KINDS = {str: "string", int: "number", float: "number", bool: "boolean", list: "array"}


def _entries(written: Json) -> list[dict[str, Any]]:
    return [entry for entry in written if isinstance(entry, dict)] if isinstance(written, list) else []


def _free_id(given: Json, turn: int, index: int, taken: set[str]) -> str:
    if isinstance(given, str) and given and given not in taken:
        return given
    made = f"call_{turn}_{index}"
    while made in taken:
        made += "_"
    return made


def _read_name(given: Json, index: int, toolbox: Toolbox, read: ReadCalls, repaired: dict[str, str | None]) -> str:
    name = given if isinstance(given, str) else ""
    if name in toolbox.tools:
        return name
    if name not in repaired:
        repaired[name] = toolbox.find(name) if len(repaired) < MOST_REPAIRED else None
    found = repaired[name]
    if found is not None:
        return found
    read.unknown.append(index)
    read.refused[index] = no_such_tool(name, toolbox)
    return name


def _read_arguments(given: Json, index: int, read: ReadCalls) -> str:
    if isinstance(given, dict):
        return dumps(given).decode()
    if given is None:
        return "{}"
    text = given if isinstance(given, str) else dumps(given).decode()
    try:
        value = parse_arguments(text)
    except ValueError as error:
        read.malformed.append(index)
        read.refused.setdefault(index, _malformed(error))
        return "{}"
    return text if text.lstrip().startswith("{") else dumps(value).decode()


def _malformed(error: ValueError) -> str:
    return (
        f"The arguments of this call can't be read: {error}. Nothing was run. "
        "Send the call again with one complete JSON object as its arguments."
    )


def _parse(text: str) -> Json:
    try:
        return loads_outside(text)
    except ValueError as error:
        raise ValueError(_reason(error, text)) from None


def _reason(error: ValueError, text: str) -> str:
    at = getattr(error, "pos", None)
    if at is None:
        return str(error)
    start = max(0, at - EXCERPT)
    near = ("…" if start else "") + text[start : at + EXCERPT] + ("…" if at + EXCERPT < len(text) else "")
    return f"not valid JSON: {error}, near {near!r}"


def _call(raw: dict[str, Any], call_id: str, name: str, arguments: str) -> ToolCall:
    call: dict[str, Any] = {"id": call_id, "type": "function", "function": FunctionCall(name=name, arguments=arguments)}
    if raw.get("extra_content") is not None:
        call["extra_content"] = raw["extra_content"]
    return cast(ToolCall, call)
