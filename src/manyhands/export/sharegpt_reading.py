"""Lines of ``trajectories.jsonl`` read back as chat messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from manyhands.core.jsonio import Json, spaced
from manyhands.core.messages import Message, ToolCall
from manyhands.export.sharegpt import escape, unescape
from manyhands.models.reasoning import blocks

ESCAPED_TAGS = "escaped_tags"
"""In a line's metadata: how many tags were escaped in its values."""
UNUSED = {"count": 0, "success": 0, "failure": 0}
"""The statistics of a tool that was not called. Not to be changed."""
_THINK = re.compile("<(think)>")
_CALLS = re.compile("<(tool_call)>")
_RESPONSES = re.compile("<(tool_response)>")


def messages_of(entry: Mapping[str, Any]) -> list[Message]:
    """The conversation of a line: what was said, byte for byte, with the tags in it as they were.

    Assistant messages have their ``reasoning`` apart (of several blocks, with a blank line between), and calls with arguments as JSON
    text; calls whose results are missing get made-up ids. The system turn comes as it is, but for the row's own system prompt in it.
    Raises ValueError if a turn has not the layout of ShareGPT.
    """
    try:
        return _messages(entry)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no turns of ShareGPT: {type(error).__name__}: {error}") from error


def _messages(entry: Mapping[str, Any]) -> list[Message]:
    undo = unescape if _is_escaped(entry) else str
    messages: list[Message] = []
    turns = entry["conversations"]
    for index, turn in enumerate(turns):
        value = turn["value"]
        match turn["from"]:
            case "system":
                messages.append({"role": "system", "content": _system(value, entry)})
            case "human":
                messages.append({"role": "user", "content": undo(value)})
            case "gpt":
                following = turns[index + 1] if index + 1 < len(turns) else {}
                answers = _objects(following["value"], _RESPONSES) if following.get("from") == "tool" else []
                messages.append(_answer(value, [answer["tool_call_id"] for answer in answers], undo))
            case "tool":
                messages += [_result(answer) for answer in _objects(value, _RESPONSES)]
            case other:
                raise ValueError(f"a turn is from {other!r}")
    return messages


def human_text(entry: Mapping[str, Any]) -> Json:
    """The prompt of a line: the value of its first human turn, with the tags in it as they were; None if there is none."""
    value = next((turn.get("value") for turn in entry["conversations"] if turn.get("from") == "human"), None)
    return unescape(value) if isinstance(value, str) and _is_escaped(entry) else value


def _is_escaped(entry: Mapping[str, Any]) -> bool:
    metadata = entry.get("metadata")
    return isinstance(metadata, Mapping) and bool(metadata.get(ESCAPED_TAGS))


def _system(value: str, entry: Mapping[str, Any]) -> str:
    given = json.loads(entry["metadata"].get("given") or "{}") if _is_escaped(entry) else {}
    own = given.get("system") or ""
    return own + value.removeprefix(escape(own)) if value.startswith(escape(own)) else value


def _answer(value: str, ids: Sequence[str], undo: Callable[[str], str]) -> Message:
    text, mark, written = value.partition("<tool_call>")
    if mark:
        text = text.removesuffix("\n")
    thoughts: list[str] = []
    visible: list[str] = []
    behind = 0
    for start, end, inside in blocks(text, _THINK):
        visible.append(text[behind:start])
        if not start and inside.startswith("\n"):  # this program's own; others stand as the model wrote them
            inside = inside.removeprefix("\n").removesuffix("\n")
            end += text[end : end + 1] == "\n"
        thoughts.append(undo(inside))
        behind = end
    message: Message = {"role": "assistant", "content": undo("".join(visible) + text[behind:])}
    if reasoning := "\n\n".join(filter(str.strip, thoughts)):
        message["reasoning"] = reasoning
    if mark:
        calls = _objects(mark + written, _CALLS)
        message["tool_calls"] = [
            _call(call, call_id or f"call_{index}")
            for index, (call, call_id) in enumerate(zip_longest(calls, ids[: len(calls)]))
        ]
    return message


def _call(call: Mapping[str, Any], call_id: str) -> ToolCall:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": str(call["name"]), "arguments": arguments}}


def _result(answer: Mapping[str, Any]) -> Message:
    content = answer["content"]
    return {
        "role": "tool",
        "tool_call_id": answer["tool_call_id"],
        "name": answer["name"],
        "content": content if isinstance(content, str) else spaced(content),
    }


def _objects(value: str, tag: re.Pattern[str]) -> list[dict[str, Any]]:
    """The objects in a turn's blocks. Raises ValueError."""
    found = [json.loads(inside) for _, _, inside in blocks(value, tag)]
    if not all(isinstance(each, dict) for each in found):
        raise ValueError("a block of a turn holds no JSON object")
    return found
