"""Reading an answer: what it is, whether it is kept, and what happens next.

This is done inside the model step, so that what was decided is recorded with the answer: a later version of this
program that would decide otherwise replays the old decision, and the conversation can be folded from the steps alone.

The recorded output of a model step is a JSON object:

- ``message``: the answer as it enters the history (reasoning gathered, content as text, tool calls mended);
- ``finish_reason``, ``extra``: as the model client gave them (what the server sent is in ``extra.raw``, where it was changed);
  ``usage``: what is not zero of it;
- ``next`` (absent: run the tool calls, or, without any, the answer is final): ``resend`` the same request, ``continue``
  the cut-off
  answer, or ``stop`` for the reason in ``stop``;
- ``flaw``: what was wrong with the answer: ``empty``, ``cut_off``, ``unclosed`` or ``fruitless``;
- ``dropped`` (absent: false): the message does not enter the history;
- ``refused``: by index, why a tool call is answered instead of run; ``unknown``: names called that are not on offer;
- ``as_written``: tool calls as the model wrote them, where mending changed them;
- ``overflow``: in place of all of the above, the server's words when the conversation no longer fitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from manyhands.agents.tool_calls import ReadCalls, read_calls
from manyhands.agents.toolbox import Toolbox
from manyhands.core.jsonio import Json, spaced
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import Usage
from manyhands.models.openai_response import RAW
from manyhands.models.protocol import Completion
from manyhands.models.reasoning import blocks

MOST_EMPTY = 3
"""Empty answers in a row that end the conversation (the original's number)."""
MOST_CUT_OFF = 3
"""Answers in a row cut off at the token limit that end it: two are continued or asked for again."""
MOST_UNCLOSED = 3
"""Answers in a row with reasoning that never ends."""
MOST_FRUITLESS = 3
"""Turns in a row without a single tool call that could be run."""

_USAGE = tuple(field.name for field in fields(Usage))
_SCRATCHPAD = "REASONING_SCRATCHPAD"
REASONING_TAGS = ("think", _SCRATCHPAD)
SCRATCHPADS = (_SCRATCHPAD,)
_OPENINGS: dict[tuple[str, ...], re.Pattern[str]] = {
    tags: re.compile(f"<({'|'.join(tags)})>") for tags in (REASONING_TAGS, SCRATCHPADS)
}


@dataclass(slots=True)
class Progress:
    """Where a conversation stands: calls made and bad answers in a row. Depends on recorded outputs alone."""

    max_turns: int
    api_calls: int = 0
    empty: int = 0
    cut_off: int = 0
    unclosed: int = 0
    fruitless: int = 0
    resends: int = 0

    def may_go_on(self, count: int, most: int) -> bool:
        """Whether another try is allowed after ``count`` earlier bad answers of a kind and the one just read."""
        return count + 1 < most and self.api_calls + 1 < self.max_turns

    def take(self, output: dict[str, Any]) -> None:
        """Count an answer that was read."""
        self.api_calls += 1
        following = output.get("next")
        self.resends = self.resends + 1 if following == "resend" else 0
        flaw = output.get("flaw")
        for name in ("empty", "cut_off", "unclosed", "fruitless"):
            setattr(self, name, getattr(self, name) + 1 if name == flaw else 0)


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
    if not content:
        return ""
    return _without_blocks(content, tags).strip()


def has_unclosed_reasoning(content: str | None, tags: Sequence[str] = REASONING_TAGS) -> bool:
    """Whether a content begins a reasoning block of these tags that it never ends."""
    if not content or "<" not in content:
        return False
    rest = _without_blocks(content, tags).lstrip()
    return any(rest.startswith(f"<{tag}>") for tag in tags) or f"<{_SCRATCHPAD}>" in rest


def _tags(message: Message) -> Sequence[str]:
    """The tags that may be reasoning in a message's content: where it has its reasoning apart, ``<think>`` is text."""
    return SCRATCHPADS if message.get("reasoning") or message.get("reasoning_details") else REASONING_TAGS


def _without_blocks(content: str, tags: Sequence[str]) -> str:
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
        return _again(output, progress, "cut_off", MOST_CUT_OFF, StopReason.TRUNCATED)
    return _again(output, progress, "unclosed", MOST_UNCLOSED, StopReason.UNCLOSED_REASONING)


def _read_tool_turn(output: dict[str, Any], calls: ReadCalls, progress: Progress) -> dict[str, Any]:
    output["message"]["tool_calls"] = calls.calls
    if calls.as_written:
        output["as_written"] = calls.as_written
    if calls.malformed and output["finish_reason"] == "length":
        output["dropped"] = True
        return _again(output, progress, "cut_off", MOST_CUT_OFF, StopReason.TRUNCATED)
    if calls.unknown:
        output["unknown"] = [calls.calls[index]["function"]["name"] for index in calls.unknown]
    if calls.refused:
        output["refused"] = {str(index): reason for index, reason in calls.refused.items()}
    if not calls.runnable:
        output["flaw"] = "fruitless"
        if progress.fruitless + 1 >= MOST_FRUITLESS:
            output["dropped"] = True
            return _stop(output, StopReason.INVALID_ARGUMENTS if calls.malformed else StopReason.UNKNOWN_TOOLS)
    return output


def _read_text(output: dict[str, Any], progress: Progress) -> dict[str, Any]:
    cut_off = output["finish_reason"] == "length"
    if not visible_text(output["message"]["content"], _tags(output["message"])):
        reason = StopReason.TRUNCATED if cut_off else StopReason.EMPTY_ANSWER
        flaw, most = ("cut_off", MOST_CUT_OFF) if cut_off else ("empty", MOST_EMPTY)
        _again(output, progress, flaw, most, reason)
        if output["next"] == "resend":
            output["dropped"] = True
        return output
    if cut_off:
        output["flaw"] = "cut_off"
        if not progress.may_go_on(progress.cut_off, MOST_CUT_OFF):
            return _stop(output, StopReason.TRUNCATED)
        output["next"] = "continue"
    return output


def _again(output: dict[str, Any], progress: Progress, flaw: str, most: int, reason: StopReason) -> dict[str, Any]:
    output["flaw"] = flaw
    if not progress.may_go_on(getattr(progress, flaw), most):
        return _stop(output, reason)
    output["next"] = "resend"
    return output


def _stop(output: dict[str, Any], reason: StopReason) -> dict[str, Any]:
    output["next"] = "stop"
    output["stop"] = reason.value
    return output
