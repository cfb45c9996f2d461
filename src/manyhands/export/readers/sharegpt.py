"""ShareGPT: ``conversations`` of ``{from, value}``. Lines of ``trajectories.jsonl`` are read for all that they say; others' rows as
LLaMA-Factory's documentation and the Hermes datasets have them.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from manyhands.core.jsonio import Json, check_depth, dumps, loads_outside
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import MAX_COST, TokenFigures, Usage
from manyhands.export.conversations import Conversation, plain_turns
from manyhands.export.readers.chat import (
    ROLES,
    Calls,
    apart,
    begun,
    content_of,
    ending_of,
    result_text,
    tool_definitions,
)
from manyhands.export.readers.fields import BadRow, Field
from manyhands.export.readers.messages import with_figures
from manyhands.export.readers.reader import Reader, other_fields
from manyhands.export.sharegpt import HERMES, PLACEHOLDER, TEMPLATE, unescape
from manyhands.export.sharegpt_reading import ESCAPED_TAGS, messages_of
from manyhands.models.reasoning import blocks

SPEAKERS: Mapping[str, str] = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "call",
    "observation": "tool",
    "function_response": "tool",
}
"""The roles of turns, by what datasets call those they are from. ``call``: an assistant that calls tools, in JSON alone."""
_CALL = re.compile("<(tool_call)>")
_RESPONSE = re.compile("<(tool_response)>")
_BETWEEN_RESPONSES = re.compile(r"\n</tool_response>\n<tool_response>\n")
"""How LLaMA-Factory joins the results of one round."""
_TOOLS = re.compile("<(tools)>")
_HERMES_OPENING = re.compile(r"\s*You are a function[- ]calling AI model\b")
"""How the system turns of the Hermes datasets begin, of which there are several wordings. They end with an example of a call."""
_OWN = ("item", "batch_num")
"""What the metadata of a line have that this program, or the original batch runner, wrote."""


class ShareGptReader(Reader):
    """Rows with ``conversations``."""

    name = "sharegpt"
    about = "ShareGPT turns (from, value): trajectories.jsonl of runs, and datasets"

    def conversation(self, row: Field, path: Path) -> Conversation:
        turns = row.get("conversations").parsed()
        if not turns.given:
            raise row.error('has no "conversations"')
        if not turns.elements():
            raise turns.error("has no turns")
        metadata = row.get("metadata")
        if isinstance(metadata.value, dict) and any(name in metadata.value for name in _OWN):
            return _line(row, metadata, *self.row_id(_named_item(metadata), row, metadata))
        return _others_row(row, turns, *self.row_id(row))


def _named_item(metadata: Field) -> Field:
    """The metadata of a line with its item's key as its id."""
    return Field({"id": metadata.value.get("item"), **metadata.value}, metadata.path)


# --- Lines of this program


def _line(row: Field, metadata: Field, key: str, _: str) -> Conversation:
    for turn in row.get("conversations").elements():
        turn.get("from").text()
        turn.get("value").text()
    try:
        messages = messages_of(row.members())
    except ValueError as error:
        raise row.get("conversations").error(f"are no turns that this program writes ({error})") from None
    for message in messages:
        if message["role"] == "tool" and not (
            isinstance(message["tool_call_id"], str) and isinstance(message["name"], str)
        ):
            raise row.get("conversations").error("has a tool's result whose tool_call_id or name is no text")
    thoughts = (turn.get("reasoning") for turn in row.get("conversations").elements() if turn.value["from"] == "gpt")
    for message, thought in zip((each for each in messages if each["role"] == "assistant"), thoughts, strict=False):
        if text := thought.optional_text():  # exports with reasoning in a field of its own
            message["reasoning"] = text
    tools: list[dict[str, Any]] = []
    if messages and messages[0]["role"] == "system":
        messages, tools = _without_wording(messages, row)
    found = begun(key)
    found.turns, found.tools = plain_turns(messages), tools
    found.sample, found.attempt = metadata.get("sample").whole() or 0, metadata.get("attempt").whole() or 0
    found.model, found.simulated = metadata.get("model").optional_text(), metadata.get("simulated").flag()
    found.stop_reason, found.seed = _stop_reason(row, metadata), _natural(metadata.get("seed"))
    found.usage, found.source = _usage(metadata), _source(metadata)
    _graded(found, metadata)
    _timed(found, metadata)
    for ours, theirs in (("run", "run"), ("prompt_key", "prompt"), ("name", "name")):
        setattr(found, ours, metadata.get(theirs).optional_text() or "")
    found.agent = metadata.get("agent").optional_text()
    return found


def _timed(found: Conversation, metadata: Field) -> None:
    """When it took place: exports say when it ended in seconds since 1970, trajectories by the clock on the wall; none is 0 or empty."""
    written = metadata.get("timestamp")
    finished = metadata.get("finished_at").moment() or (_local(written) if written.given and written.text() else None)
    if finished:
        found.finished_at = finished
        found.started_at = max(0.0, finished - (metadata.get("duration_seconds").number(0) or 0.0))


def _without_wording(messages: list[Message], row: Field) -> tuple[list[Message], list[dict[str, Any]]]:
    """The messages with what was said to the model as the system message alone, and the tools that were spelled out in that."""
    raw = row.get("conversations").elements()[0].get("value").text()
    found = own_and_tools(raw)
    if found is None:
        return messages, []
    own, tools = found
    if row.get("metadata").members().get(ESCAPED_TAGS):
        own = unescape(own)
    return [*([cast(Message, {"role": "system", "content": own})] if own else []), *messages[1:]], tools


def own_and_tools(text: str) -> tuple[str, list[dict[str, Any]]] | None:
    """What stands before the tools in a saved system turn, and the tools; None for one in which no tools are spelled out in a wording
    that is known."""
    for template in (TEMPLATE, HERMES):
        before, _, behind = template.partition(PLACEHOLDER)
        begin = text.find(before)
        if begin >= 0 and text.endswith(behind) and len(text) >= begin + len(before) + len(behind):
            tools = _spelled_tools(text[begin + len(before) : len(text) - len(behind)])
            if tools is not None:
                return text[:begin].removesuffix("\n\n"), tools
    if _HERMES_OPENING.match(text) and text.rstrip().endswith("</tool_call>"):
        spelled = (_spelled_tools(inside) for _, _, inside in blocks(text, _TOOLS))
        if tools := next(filter(None, spelled), None):
            return "", tools
    return None


def _spelled_tools(text: str) -> list[dict[str, Any]] | None:
    """The tools in a system turn: a list, or one object after the other."""
    try:
        found = tool_definitions(Field(_values(text)))
    except (BadRow, ValueError, RecursionError):
        return None
    for tool in found:
        if tool["function"].get("required", ()) is None:  # a field of the layout, which says nothing
            del tool["function"]["required"]
    return found


def _values(text: str) -> Json:
    try:
        return _written(text)
    except ValueError:
        return [_written(line) for line in text.splitlines() if line.strip()]


def _written(text: str) -> Json:
    """A value in JSON, or as Python prints it, which is how much of the Hermes datasets has calls. Raises ValueError."""
    try:
        return loads_outside(text)
    except ValueError:
        check_depth(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return loads_outside(dumps(ast.literal_eval(text.strip())))
    except (SyntaxError, TypeError, MemoryError) as error:
        raise ValueError(str(error)) from error


def _stop_reason(row: Field, metadata: Field) -> str | None:
    known = metadata.get("stop_reason").value
    if isinstance(known, str) and known in {each.value for each in StopReason}:
        return known
    completed = row.get("completed")
    return StopReason.ANSWERED.value if not completed.given or completed.flag() else None


def _usage(metadata: Field) -> Usage:
    usage = metadata.get("usage")
    if not usage.given:
        return Usage()
    counts = {name: usage.get(name).whole() or 0 for name in TokenFigures.__annotations__}
    return Usage(**counts, cost=metadata.get("cost").number(0, MAX_COST) or 0.0)


def _natural(field: Field) -> int | None:
    """A number that is -1 where there is none."""
    found = field.whole(-1, 2**63)
    return None if found == -1 else found


def _source(metadata: Field) -> Mapping[str, Json]:
    source = metadata.get("source").parsed()
    return source.members() if source.given else {}


def _graded(found: Conversation, metadata: Field) -> None:
    score = metadata.get("score").number(-1, 1)
    if score is None or score < 0:
        return
    found.score, found.verdict = score, metadata.get("verdict").optional_text()
    scores = metadata.get("scores").parsed()
    if scores.given:
        found.scores = [_score(name, scores.get(name)) for name in scores.members()]


def _score(name: str, field: Field) -> Mapping[str, Any]:
    texts = {each: field.get(each).optional_text() or "" for each in ("verdict", "hits", "misses", "reasoning")}
    return {
        "name": name,
        "score": field.get("score").number(0, 1),
        "verdict": texts["verdict"],
        "hits": texts["hits"].split("\n") if texts["hits"] else [],
        "misses": texts["misses"].split("\n") if texts["misses"] else [],
        "reasoning": texts["reasoning"],
    }


def _local(field: Field) -> float:
    """A time of day of this machine, which lines have without a zone."""
    try:
        return cast(float, Field(datetime.fromisoformat(field.text()).timestamp(), field.path).moment())
    except (ValueError, OverflowError, OSError) as error:
        if isinstance(error, BadRow):
            raise
        raise field.error("must be a time in ISO 8601") from None


# --- Others' rows


def _others_row(row: Field, turns: Field, key: str, id_field: str) -> Conversation:
    if row.get("chosen").given and row.get("rejected").given:
        raise row.error('has a "chosen" and a "rejected" answer: pairs can\'t be imported')
    messages, tools = _messages(turns), tool_definitions(row.get("tools"))
    system = row.get("system").optional_text()
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if messages[0]["role"] == "system" and (spelled := own_and_tools(messages[0]["content"])) is not None:
        own, tools = spelled[0], tools or spelled[1]
        messages[:1] = [{"role": "system", "content": own}] if own else []
    found = begun(key)
    found.turns, found.tools = plain_turns(messages), tools
    found.stop_reason = ending_of(found.turns)
    if not found.turns:
        raise turns.error("has no turns but the system's")
    found.source = other_fields(row, "conversations", "system", "tools", id_field, *with_figures(found, row))
    return found


def _messages(turns: Field) -> list[Message]:
    calls = Calls()
    return [message for turn in turns.elements() for message in _turn(turn, calls)]


def _turn(turn: Field, calls: Calls) -> Iterator[Message]:
    speaker, value = turn.first("from", "role"), turn.first("value", "content")
    role = SPEAKERS[speaker.one_of(*SPEAKERS)]
    if role == "tool":
        yield from _results(value, calls)
        return
    text = value.text() if role != "user" else content_of(value)
    if role in ROLES and role != "assistant":
        yield cast(Message, {"role": role, "content": text})
        return
    calls.begin_turn()
    reasoning, rest = apart(text)
    content, found = _called(rest, alone=role == "call")
    if role == "call" and not found:
        raise value.error("must be a tool call in JSON, or a list of some")
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if found:
        message["tool_calls"] = [calls.made(each["name"], each.get("arguments")) for each in found]
    yield message


def _called(text: str, *, alone: bool) -> tuple[str, list[dict[str, Any]]]:
    """The tool calls in an assistant's turn, and its text without them. Where a block is no call, the text stays as it is. ``alone``:
    the calls may stand there without tags."""
    if alone and "<tool_call>" not in text:
        return "", _call_objects([text]) or []
    found = list(blocks(text, _CALL)) if "<tool_call>" in text else []
    calls = _call_objects([inside for _, _, inside in found]) if found else None
    if calls is None:
        return text, []
    kept, behind = [], 0
    for start, end, _ in found:
        kept.append(text[behind:start])
        behind = end
    return "".join([*kept, text[behind:]]).strip(), calls


def _call_objects(texts: Sequence[str]) -> list[dict[str, Any]] | None:
    """The calls in some texts, each one or a list; None if one of them is something else."""
    calls: list[dict[str, Any]] = []
    for text in texts:
        try:
            value = _written(text.strip())
        except (ValueError, RecursionError):
            return None
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                return None
            calls.append(each)
    return calls


def _results(value: Field, calls: Calls) -> Iterator[Message]:
    """The results of a turn: each in tags, as JSON with its content or as text, or all as one text."""
    if not isinstance(value.value, str):
        yield {"role": "tool", "tool_call_id": calls.answered(None, None), "content": result_text(value)}
        return
    text = value.value
    texts = [inside for _, _, inside in blocks(text, _RESPONSE)] if text.lstrip().startswith("<tool_response>") else []
    for each in texts or _BETWEEN_RESPONSES.split(text):
        yield _result(each.strip("\n") if texts else each, calls)


def _result(text: str, calls: Calls) -> Message:
    try:
        found = loads_outside(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and "content" in found and found.keys() <= {"tool_call_id", "name", "content"}:
        name, call_id = found.get("name"), found.get("tool_call_id")
        name, call_id = (each if isinstance(each, str) and each else None for each in (name, call_id))
        message: Message = {
            "role": "tool",
            "tool_call_id": calls.answered(call_id, name),
            "content": result_text(Field(found["content"])),
        }
        return {**message, "name": name} if name else message
    return {"role": "tool", "tool_call_id": calls.answered(None, None), "content": text}
