"""Reading an answer: what it is, whether it is kept, and what happens next.

This is done inside the model step, so that what was decided is recorded with the answer: a later version of this
program that would decide otherwise replays the old decision, and the conversation can be folded from the steps alone.

The recorded output of a model step is a JSON object:

- ``message``: the answer as it enters the history (reasoning gathered, content as text, tool calls mended);
- ``finish_reason``, ``extra``: as the model client gave them (what the server sent is in ``extra.raw``, where it was changed);
  ``usage``: what is not zero of it;
- ``next`` (absent: run the tool calls, or, without any, the answer is final): ``resend`` the same request, ``continue`` the cut-off
  answer, or ``stop`` for the reason in ``stop``;
- ``flaw``: what was wrong with the answer: ``empty``, ``cut_off``, ``unclosed`` or ``fruitless``;
- ``dropped`` (absent: false): the message does not enter the history;
- ``refused``: by index, why a tool call is answered instead of run; ``unknown``: names called that are not available;
- ``as_written``: tool calls as the model wrote them, where mending changed them;
- ``overflow``: in place of all of the above, the server's words when the conversation no longer fitted.

Of its tool calls, what can be mended is mended, and it is said what is wrong with the rest. What enters the history is always well
formed (a string id that occurs once, a name, arguments that are one JSON object), since many servers refuse a request whose history is
not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from manyhands.agents.toolbox import Toolbox
from manyhands.core.jsonio import Json, as_text, dumps, loads_outside, spaced
from manyhands.core.messages import FunctionCall, Message, ToolCall
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import Usage
from manyhands.models.openai.response import RAW
from manyhands.models.protocol import Completion
from manyhands.models.reasoning import SCRATCHPAD, blocks

MAX_CALLS = 1000
"""Maximum calls of one answer that are run."""
MAX_REPAIRED = 20
"""Different unknown names in one answer that are compared with those of the tools, which takes a while."""
EXCERPT = 60
"""Characters of malformed arguments shown on each side of the error."""


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """The tool calls of one answer, mended."""

    calls: list[ToolCall]
    refused: dict[int, str]
    """By index, why a call can't be run, in words for the model."""
    unknown: list[int]
    """The indices of those that call no available tool."""
    malformed: list[int]
    """The indices of those with unreadable arguments."""
    as_written: list[dict[str, Any]]
    """What mending changed."""

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
        if index >= MAX_CALLS:
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
    """The answer to a model that called a tool which is not available."""
    if not toolbox.names:
        return f"There is no tool called {name!r}; no tools are on offer. Answer in plain text."
    return f"There is no tool called {name!r}. The tools on offer are: {', '.join(toolbox.names)}."


_TOO_MANY = (
    f"At most {MAX_CALLS:,} calls are run of one answer, and this one is behind them. Nothing was run. "
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
        repaired[name] = toolbox.find(name) if len(repaired) < MAX_REPAIRED else None
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
    text = as_text(given)
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


MAX_EMPTY = 3
"""Empty answers in a row that end the conversation (the original's number)."""
MAX_CUT_OFF = 3
"""Answers in a row cut off at the token limit that end it: two are continued or requested again."""
MAX_UNCLOSED = 3
"""Answers in a row with reasoning that never ends."""
MAX_FRUITLESS = 3
"""Turns in a row without a single tool call that could be run."""

_USAGE = tuple(field.name for field in fields(Usage))
REASONING_TAGS = ("think", SCRATCHPAD)
SCRATCHPADS = (SCRATCHPAD,)
_OPENINGS: dict[tuple[str, ...], re.Pattern[str]] = {
    tags: re.compile(f"<({'|'.join(tags)})>") for tags in (REASONING_TAGS, SCRATCHPADS)
}


@dataclass(slots=True)
class Progress:
    """Where a conversation stands: calls made and bad answers in a row. Depends on recorded outputs alone."""

    max_turns: int
    api_calls: int = 0
    resends: int = 0
    flaw: str | None = None
    """What was wrong with the last answer."""
    flawed: int = 0
    """How many answers in a row, the last one included, had that flaw."""

    def count(self, flaw: str) -> int:
        """How many answers in a row have a flaw, with the one just read, which has it."""
        return self.flawed + 1 if flaw == self.flaw else 1

    def may_go_on(self, flaw: str, limit: int) -> bool:
        """Whether another try is allowed after the answer just read, which has that flaw."""
        return self.count(flaw) < limit and self.api_calls + 1 < self.max_turns

    def take(self, output: dict[str, Any]) -> None:
        """Count an answer that was read."""
        self.api_calls += 1
        following = output.get("next")
        self.resends = self.resends + 1 if following == "resend" else 0
        flaw = output.get("flaw")
        self.flawed = 0 if flaw is None else self.count(flaw)
        self.flaw = flaw


def read_answer(completion: Completion, progress: Progress, toolbox: Toolbox, used_ids: set[str]) -> dict[str, Any]:
    """The output to record for an answer within the turns."""
    message = _normal(completion.message)
    output = _basics(completion, message)
    if completion.finish_reason == "content_filter":
        message.pop("tool_calls", None)
        message["content"] = message["content"] or ""
        return _stop(output, StopReason.CONTENT_FILTER)
    if has_unclosed_reasoning(message["content"], _tags(message)):
        return _read_unclosed(output, progress)
    if message.get("tool_calls"):
        calls = read_calls(message["tool_calls"], toolbox, progress.api_calls + 1, used_ids)
        if calls.calls:
            return _read_tool_turn(output, calls, progress)
        del message["tool_calls"]
        message["content"] = message["content"] or ""
    return _read_text(output, progress)


def read_summary(completion: Completion) -> dict[str, Any]:
    """The output to record for the closing summary."""
    message = _normal(completion.message)
    message.pop("tool_calls", None)
    message["content"] = message["content"] or ""
    message["_synthetic"] = "summary"
    output = _basics(completion, message)
    if not visible_text(message["content"], _tags(message)):
        output["dropped"] = True
    return output


def visible_text(content: str | None, tags: Sequence[str] = REASONING_TAGS) -> str:
    """What is left of a content outside of closed reasoning blocks of these tags, stripped."""
    return _without_blocks(content, tags).strip() if content else ""


def has_unclosed_reasoning(content: str | None, tags: Sequence[str] = REASONING_TAGS) -> bool:
    """Whether a content begins a reasoning block of these tags that it never ends."""
    if not content or "<" not in content:
        return False
    rest = _without_blocks(content, tags).lstrip()
    return any(rest.startswith(f"<{tag}>") for tag in tags) or f"<{SCRATCHPAD}>" in rest


def _tags(message: Message) -> Sequence[str]:
    """The tags that may be reasoning in a message's content: where it has its reasoning apart, ``<think>`` is text."""
    return SCRATCHPADS if message.get("reasoning") or message.get("reasoning_details") else REASONING_TAGS


def _without_blocks(content: str, tags: Sequence[str]) -> str:
    if "<" not in content:
        return content
    kept: list[str] = []
    behind = 0
    for start, end, _ in blocks(content, _OPENINGS[tuple(tags)]):
        kept.append(content[behind:start])
        behind = end
    return "".join(kept) + content[behind:]


def as_sent(completion: Completion) -> dict[str, Any]:
    """For a recorded output that holds less than ``extra``: what the server sent, where that was changed."""
    raw = completion.extra.get(RAW)
    return {"extra": {RAW: raw}} if raw else {}


def flattened(content: Json) -> str | None:
    """A content as text: parts joined, objects without text as JSON. None stays None."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(flattened(part) or "" for part in content)
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return cast(str, content["text"])
    return spaced(content)


def brief_usage(usage: Usage) -> dict[str, Any]:
    """Usage without its zeros."""
    return {name: value for name in _USAGE if (value := getattr(usage, name))}


def _normal(message: Message) -> Message:
    normal = message.copy()
    normal["role"] = "assistant"
    normal["content"] = flattened(message.get("content"))
    if normal["content"] is None and not message.get("tool_calls"):
        normal["content"] = ""
    return normal


def _basics(completion: Completion, message: Message) -> dict[str, Any]:
    output: dict[str, Any] = {"message": message, "finish_reason": completion.finish_reason}
    if completion.extra:
        output["extra"] = completion.extra
    usage = brief_usage(completion.usage)
    if usage:
        output["usage"] = usage
    return output


def _read_unclosed(output: dict[str, Any], progress: Progress) -> dict[str, Any]:
    # Kept out of the history either way: half a thought teaches nothing, and servers choke on it.
    output["dropped"] = True
    if output["finish_reason"] == "length":
        return _again(output, progress, "cut_off", MAX_CUT_OFF, StopReason.TRUNCATED)
    return _again(output, progress, "unclosed", MAX_UNCLOSED, StopReason.UNCLOSED_REASONING)


def _read_tool_turn(output: dict[str, Any], calls: ReadCalls, progress: Progress) -> dict[str, Any]:
    output["message"]["tool_calls"] = calls.calls
    if calls.as_written:
        output["as_written"] = calls.as_written
    if calls.malformed and output["finish_reason"] == "length":
        output["dropped"] = True
        return _again(output, progress, "cut_off", MAX_CUT_OFF, StopReason.TRUNCATED)
    if calls.unknown:
        output["unknown"] = [calls.calls[index]["function"]["name"] for index in calls.unknown]
    if calls.refused:
        output["refused"] = {str(index): reason for index, reason in calls.refused.items()}
    if not calls.runnable:
        output["flaw"] = "fruitless"
        if progress.count("fruitless") >= MAX_FRUITLESS:
            output["dropped"] = True
            return _stop(output, StopReason.INVALID_ARGUMENTS if calls.malformed else StopReason.UNKNOWN_TOOLS)
    return output


def _read_text(output: dict[str, Any], progress: Progress) -> dict[str, Any]:
    cut_off = output["finish_reason"] == "length"
    if not visible_text(output["message"]["content"], _tags(output["message"])):
        reason = StopReason.TRUNCATED if cut_off else StopReason.EMPTY_ANSWER
        flaw, limit = ("cut_off", MAX_CUT_OFF) if cut_off else ("empty", MAX_EMPTY)
        _again(output, progress, flaw, limit, reason)
        if output["next"] == "resend":
            output["dropped"] = True
        return output
    if cut_off:
        output["flaw"] = "cut_off"
        if not progress.may_go_on("cut_off", MAX_CUT_OFF):
            return _stop(output, StopReason.TRUNCATED)
        output["next"] = "continue"
    return output


def _again(output: dict[str, Any], progress: Progress, flaw: str, limit: int, reason: StopReason) -> dict[str, Any]:
    output["flaw"] = flaw
    if not progress.may_go_on(flaw, limit):
        return _stop(output, reason)
    output["next"] = "resend"
    return output


def _stop(output: dict[str, Any], reason: StopReason) -> dict[str, Any]:
    output["next"] = "stop"
    output["stop"] = reason.value
    return output
