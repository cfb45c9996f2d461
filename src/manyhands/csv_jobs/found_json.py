"""Finding a worker's result in what it printed.

Scripts print an object, or lines of other things and an object at the end. Models print prose around it, and often fence it.
Agent programs put what the model said into objects of their own: a single one (``{"type": "result", "result": "…"}``), or one
a line for each event. All of these are looked through, the likeliest places first; a frame is not taken for a result.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from manyhands.core.jsonio import Json, canonical, loads_outside
from manyhands.csv_jobs.schema import OutputSchema
from manyhands.engine.killable import killable
from manyhands.tools.schema import may_take_long

MOST_CANDIDATES = 50
"""Objects that are held against the schema at most."""
_DEEPEST = 8
"""Frames within frames, each of them a few objects deep."""
_SCANNED = 1 << 18
"""Characters, from the end, in which objects among prose are looked for."""
_MOST_READ = 1 << 22
"""Characters that are read in vain, from opening braces that begin no object, before the search among prose is given up."""
_SMALL = 1 << 14
"""Characters of a text that is searched at once."""
_MOST_SECONDS = 5.0
_LEAST_READ = 2000
"""What a brace that begins no object counts for at least."""
_MOST_LINES = 2000
_FENCE = re.compile(r"`{3,}|~{3,}")
_RESULTS = ("structured_output", "result", "response", "output")
_INNER = (*_RESULTS, "text", "content", "message", "item", "part", "msg", "last_message")
"""Where agent programs put what was said, likeliest first."""
_EVENT = re.compile(
    r"result|assistant|user|system|text|message|agent_message|tool_use|tool_result|init|error"
    r"|(thread|turn|item|response|message|content_block|session|step|tool|agent|task)[._]\w+(\.\w+)*"
)
"""Types of their events."""
_NOT_SAID = frozenset(
    (
        *("user", "system", "tool", "tool_use", "tool_result", "function_call", "function_call_output"),
        *("reasoning", "thinking", "command_execution", "mcp_tool_call", "file_change", "web_search", "todo_list"),
    )
)
"""Types and roles of what is not an answer: what was asked, thought, and done on the way."""
_FRAME_KEYS = frozenset(("session_id", "sessionID", "thread_id", "is_error", "duration_ms", "stats", "msg"))
_REPORT_KEYS = frozenset(("job_id", "item_id", "result", "stop"))


@dataclass(frozen=True, slots=True)
class FoundResult:
    """An object that was found. ``violations``: empty if it fits; ``stop``: it asks to end the job."""

    result: dict[str, Any]
    violations: tuple[str, ...]
    stop: bool = False


def find_result(text: str, schema: OutputSchema) -> FoundResult | None:
    """The first candidate that fits, else the first of all with what does not fit of it; None if there is no object at all."""
    first: FoundResult | None = None
    seen: set[bytes] = set()
    # Only a schema that asks for something can tell a result from what is around it.
    for value, stop in islice(_in_text(text, not schema.accepts_anything, 0), MOST_CANDIDATES):
        identity = canonical(value)
        if identity not in seen:
            seen.add(identity)
            found = FoundResult(value, schema.violations(value), stop)
            if not found.violations:
                return found
            first = first or found
    return first


async def result_in(text: str, schema: OutputSchema) -> FoundResult | None:
    """The same, in bounded time. What is not done in time counts as a result that does not fit."""
    if len(text) <= _SMALL and (schema.encoded is None or not may_take_long(schema.encoded, None)):
        return find_result(text, schema)
    try:
        return await killable(_find, text, schema.value, seconds=_MOST_SECONDS)
    except TimeoutError:
        return FoundResult({}, (f"$: no result could be found and checked within {_MOST_SECONDS:g} s",))


def _find(text: str, schema: dict[str, Any] | None) -> FoundResult | None:
    return find_result(text, OutputSchema.of(schema))


_Candidates = Iterator[tuple[dict[str, Any], bool]]


def _in_text(text: str, telling: bool, depth: int) -> _Candidates:
    text = text.strip().removeprefix("\ufeff")
    if "{" not in text:
        return
    whole = _parsed(text)
    if isinstance(whole, (dict, list)):
        yield from _in_value(whole, telling, depth)
        return
    for part in _fenced(text):
        yield from _in_value(_parsed(part), telling, depth)
    for value in _among_prose(text):
        yield from _in_value(value, telling, depth)
    for part in _lines(text):  # also those that the search among prose did not come to
        yield from _in_value(_parsed(part), telling, depth)


def _in_value(value: Json, telling: bool, depth: int) -> _Candidates:
    """Candidates in a value that was found in some place, or that a frame holds."""
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        yield from _in_text(value, telling, depth + 1)
    elif isinstance(value, list):
        for part in islice(reversed(value), _MOST_LINES):
            yield from _in_value(part, telling, depth + 1)
    elif isinstance(value, dict):
        yield from _in_object(value, telling, depth)


def _in_object(value: dict[str, Any], telling: bool, depth: int) -> _Candidates:
    if value.keys() <= _REPORT_KEYS and "item_id" in value and isinstance(value.get("result"), dict):
        yield value["result"], value.get("stop") is True  # what the report tool would have got
        return
    framed = _is_frame(value)
    if not framed:
        yield value, False
    if framed or telling:
        yield from _inside(value, telling, depth, framed)
    if framed and telling:
        yield value, False


def _inside(value: Mapping[str, Any], telling: bool, depth: int, framed: bool) -> _Candidates:
    """What an object holds where agent programs put what was said. ``framed``: its parts are parts of a frame, too."""
    if depth > _DEEPEST or value.get("type") in _NOT_SAID or value.get("role") in _NOT_SAID:
        return
    for name in _INNER:
        part = value.get(name)
        for inner in islice(reversed(part), _MOST_LINES) if isinstance(part, list) else (part,):
            if framed and isinstance(inner, dict) and name not in _RESULTS:
                yield from _inside(inner, telling, depth + 1, framed)
            else:
                yield from _in_value(inner, telling, depth + 1)


def _is_frame(value: Mapping[str, Any]) -> bool:
    """Whether an object is what an agent program puts around a model's words."""
    kind = value.get("type")
    if isinstance(kind, str) and _EVENT.fullmatch(kind):
        return True
    holds = isinstance(kind, str) or any(name in value for name in _INNER)
    return holds and not _FRAME_KEYS.isdisjoint(value)


def _fenced(text: str) -> list[str]:
    """The contents of fenced blocks, the last one first."""
    blocks: deque[str] = deque(maxlen=MOST_CANDIDATES)
    fence, lines = "", list[str]()
    for line in text[-_SCANNED:].splitlines():
        bare = line.strip()
        if fence:
            if bare == fence:
                blocks.appendleft("\n".join(lines).strip())
                fence = ""
            else:
                lines.append(line)
        elif opening := _FENCE.match(bare):
            fence, lines = opening[0], []
    return list(blocks)


def _lines(text: str) -> Iterator[str]:
    """Lines that look like an object each, the last one first."""
    last = deque((line.strip() for line in text.splitlines()), maxlen=_MOST_LINES)
    return (line for line in reversed(last) if line.startswith("{") and line.endswith("}"))


def _among_prose(text: str) -> list[Json]:
    """Objects that stand in the text, the last one first."""
    text = text[-_SCANNED:]
    found: deque[Json] = deque(maxlen=MOST_CANDIDATES)
    decoder = json.JSONDecoder(parse_constant=_refuse)
    place, left = 0, _MOST_READ
    while left > 0 and (place := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            left -= _LEAST_READ + getattr(error, "pos", len(text)) - place
            place += 1
        else:
            found.append(value)
    return list(reversed(found))


def _parsed(text: str) -> Json:
    if text[:1] not in ("{", "["):
        return None
    try:
        return loads_outside(text)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
