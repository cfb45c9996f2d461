"""Finding a worker's result in what it printed.

Scripts print an object, or lines of other things and an object at the end. Models print prose around it, and often fence it.
Agent programs put what the model said into objects of their own: a single one (``{"type": "result", "result": "…"}``), or one
a line for each event. All of these are looked through, the likeliest places first; a frame is not taken for a result, nor what the
worker was given (``given``), nor an example among prose (``prose_json``). A list of several is not one result.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from manyhands.core.jsonio import Json, canonical, object_or_list
from manyhands.csv_jobs.given import Given, Repeated
from manyhands.csv_jobs.prose_json import Window
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
_SMALL_PROMPT = 1 << 16
"""The same of a prompt that it is held against."""
_MOST_SECONDS = 5.0
_LEAST_READ = 2000
"""What a brace that begins no object counts for at least."""
_MOST_LINES = 2000
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

    result: Any
    violations: tuple[str, ...]
    stop: bool = False


@dataclass(frozen=True, slots=True)
class NoResult:
    """There is none. ``why``: what there is that looks like one, if anything."""

    why: str | None = None


def find_result(text: str, schema: OutputSchema, given: Given | None = None) -> FoundResult | None:
    """The first candidate that fits, else the first of all with what does not fit of it; None if there is no object at all.
    ``given``: what the worker got, which is no result if it only comes back."""
    found = _found(text, schema, given)
    return found if isinstance(found, FoundResult) else None


def _found(text: str, schema: OutputSchema, given: Given | None) -> FoundResult | NoResult:
    search = _Search(schema, Repeated(given, schema))
    first: FoundResult | None = None
    seen: set[bytes] = set()
    for candidate in islice(search.in_text(text), MOST_CANDIDATES):
        if isinstance(candidate, _Several):
            return first or FoundResult(candidate.values, (candidate.violation,))
        value, stop, framed = candidate
        identity = canonical(value)
        if identity in seen:
            continue
        seen.add(identity)
        if (what := search.repeated.what(value)) is not None:
            search.passed_over(f"it only repeated {what}")
            continue
        found = FoundResult(value, schema.violations(value), stop)
        if not found.violations:
            return found
        if not framed:
            first = first or found
    return first or NoResult(search.why)


async def result_in(text: str, schema: OutputSchema, given: Given | None = None) -> FoundResult | NoResult:
    """The same, in bounded time, and why there is none. What is not done in time counts as a result that does not fit."""
    small = len(text) <= _SMALL and (given is None or len(given.prompt) <= _SMALL_PROMPT)
    if small and (schema.encoded is None or not may_take_long(schema.encoded, None)):
        return _found(text, schema, given)
    try:
        return await killable(_find, text, schema.value, given, seconds=_MOST_SECONDS)
    except TimeoutError:
        return FoundResult({}, (f"$: no result could be found and checked within {_MOST_SECONDS:g} s",))


def _find(text: str, schema: dict[str, Any] | None, given: Given | None) -> FoundResult | NoResult:
    return _found(text, OutputSchema.of(schema), given)


@dataclass(frozen=True, slots=True)
class _Several:
    """A list of more than one value where one object should be."""

    values: list[Json]

    @property
    def violation(self) -> str:
        kind = "objects" if all(isinstance(value, dict) for value in self.values) else "values"
        return f"$: a list of {len(self.values)} {kind} was printed, and a result is one object"


_Candidates = Iterator[tuple[dict[str, Any], bool, bool] | _Several]
"""Each with whether it asks to end the job, and whether it is a frame, which is a result only if it fits."""


class _Search:
    """``telling``: the schema asks for something, so that it can tell a result from what is around it."""

    def __init__(self, schema: OutputSchema, repeated: Repeated) -> None:
        self.telling = not schema.accepts_anything
        self.repeated = repeated
        self.why: str | None = None

    def passed_over(self, why: str) -> None:
        """Remember why something is no result; the first reason is told."""
        self.why = self.why or why

    def in_text(self, text: str, depth: int = 0) -> _Candidates:
        rest, cut = self.repeated.without_prompt(text)
        rest = rest.strip().removeprefix("\ufeff")
        if "{" in rest:
            yield from self._in_rest(rest, depth)
        if cut:
            self.passed_over("it only repeated its prompt")

    def _in_rest(self, rest: str, depth: int) -> _Candidates:
        """Candidates in a text that is not the prompt's."""
        whole = object_or_list(rest)
        if isinstance(whole, (dict, list)):
            yield from self._in_value(whole, depth)
            return
        said = False
        for value in self._among_prose(rest):
            if _is_message(value):  # of what an agent says on its way, the last counts
                if said:
                    continue
                said = True
            yield from self._in_value(value, depth)

    def _among_prose(self, text: str) -> Iterator[Json]:
        """The values that stand in a text, likeliest first."""
        window = Window.of(text, least=_SCANNED)
        places = window.places(most=MOST_CANDIDATES, most_read=_MOST_READ, least_read=_LEAST_READ)
        for part in _lines(places.rest):  # what the search did not come to
            yield object_or_list(part)
        yield from islice(places.likeliest, MOST_CANDIDATES)
        if places.examples:
            self.passed_over("the JSON in what it printed is an example, or stands within a sentence")
        for part in _lines(window.before):
            yield object_or_list(part)

    def _in_value(self, value: Json, depth: int) -> _Candidates:
        """Candidates in a value that was found in some place, or that a frame holds."""
        if depth > _DEEPEST:
            return
        if isinstance(value, str):
            yield from self.in_text(value, depth + 1)
        elif isinstance(value, list):
            yield from self._in_list(value, depth)
        elif isinstance(value, dict):
            yield from self._in_object(value, depth)

    def _in_list(self, values: list[Json], depth: int) -> _Candidates:
        plain = [value for value in values if not (isinstance(value, dict) and _is_frame(value))]
        if len(plain) > 1 and any(isinstance(value, (dict, list)) for value in plain):
            yield _Several(plain)
            return
        for value in islice(reversed(values), _MOST_LINES):
            yield from self._in_value(value, depth + 1)

    def _in_object(self, value: dict[str, Any], depth: int) -> _Candidates:
        if value.keys() <= _REPORT_KEYS and "item_id" in value and isinstance(value.get("result"), dict):
            yield value["result"], value.get("stop") is True, False  # what the report tool would have got
            return
        framed = _is_frame(value)
        if not framed:
            yield value, False, False
        if framed or self.telling:
            yield from self._inside(value, depth, framed)
        if framed and self.telling:
            yield value, False, True

    def _inside(self, value: Mapping[str, Any], depth: int, framed: bool) -> _Candidates:
        """What an object holds where agent programs put what was said. ``framed``: its parts are parts of a frame, too."""
        if depth > _DEEPEST or value.get("type") in _NOT_SAID or value.get("role") in _NOT_SAID:
            return
        for name in _INNER:
            part = value.get(name)
            if isinstance(part, list) and name in _RESULTS:
                yield from self._in_list(part, depth + 1)
                continue
            for inner in islice(reversed(part), _MOST_LINES) if isinstance(part, list) else (part,):
                if framed and isinstance(inner, dict) and name not in _RESULTS:
                    yield from self._inside(inner, depth + 1, framed)
                else:
                    yield from self._in_value(inner, depth + 1)


def _is_message(value: Json) -> bool:
    """Whether it is what Codex prints when its agent has said something."""
    if not isinstance(value, dict):
        return False
    part = value.get("item") if value.get("type") == "item.completed" else value.get("msg")
    return isinstance(part, dict) and part.get("type") in ("agent_message", "assistant_message")


def _is_frame(value: Mapping[str, Any]) -> bool:
    """Whether an object is what an agent program puts around a model's words."""
    kind = value.get("type")
    if isinstance(kind, str) and _EVENT.fullmatch(kind):
        return True
    holds = isinstance(kind, str) or any(name in value for name in _INNER)
    return holds and not _FRAME_KEYS.isdisjoint(value)


def _lines(text: str) -> Iterator[str]:
    """Lines that look like an object each, the last one first."""
    last = deque((line.strip() for line in text.split("\n")), maxlen=_MOST_LINES)
    return (line for line in reversed(last) if line.startswith("{") and line.endswith("}"))
