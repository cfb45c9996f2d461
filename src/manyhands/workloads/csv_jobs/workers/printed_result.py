"""Finding a worker's result in what it printed.

Scripts print an object, or lines of other things and an object at the end. Models print prose around it, and often fence it.
Agent programs put what the model said into objects of their own: a single one (``{"type": "result", "result": "…"}``), or one
a line for each event. All of these are looked through (``_Search``), the likeliest first; a frame is not taken for a result, nor
what the worker was given (``input_echo``), nor an example among prose (``Window``). A list of several is not one result.

Among prose counts: a fenced block of nothing but JSON; an object on lines of its own; and an object that ends the text, if it is the
only one on its line and that is no item of a list. Not, where the words around it say that it is an example (``for example``,
``could be``), or that there is no answer (``I could not …``). Objects within a sentence don't count.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from manyhands.core.jsonio import Json, TooDeep, canonical, check_depth, object_or_list
from manyhands.processes.killable import killable
from manyhands.tools.schema import may_take_long
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers.input_echo import EchoFilter, WorkerInput

MAX_CANDIDATES = 50
"""Objects that are held against the schema at most."""
_MAX_DEPTH = 8
"""Frames within frames, each of them a few objects deep."""
_SCANNED = 1 << 18
"""Characters, from the end, in which objects among prose are looked for."""
_MAX_WASTED_CHARS = 1 << 22
"""Characters that are read in vain, from opening braces that begin no object, before the search among prose is given up."""
_SMALL = 1 << 14
"""Characters of a text that is searched at once."""
_SMALL_PROMPT = 1 << 16
"""The same of a prompt that it is held against."""
_MAX_SECONDS = 5.0
_MIN_WASTED_CHARS = 2000
"""What a brace that begins no object counts for at least."""
_MAX_LINES = 2000
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
"""Types and roles of what is not an answer: questions, thoughts, and what was done on the way."""
_FRAME_KEYS = frozenset(("session_id", "sessionID", "thread_id", "is_error", "duration_ms", "stats", "msg"))
_REPORT_KEYS = frozenset(("job_id", "item_id", "result", "stop"))


@dataclass(frozen=True, slots=True)
class FoundResult:
    """An object that was found."""

    result: Any
    violations: tuple[str, ...]
    """Empty if it fits."""
    stop: bool = False
    """It requests to end the job."""


@dataclass(frozen=True, slots=True)
class NoResult:
    """There is none."""

    why: str | None = None
    """What looks like one but isn't, if anything."""


def searched(text: str, schema: OutputSchema, given: WorkerInput | None = None) -> FoundResult | NoResult:
    """The first candidate that fits, else the first of all with what does not fit of it, or why there is none.

    ``given``: what the worker got, which is no result if it only comes back. It can take long: see ``result_in``.
    """
    search = _Search(schema, EchoFilter(given, schema))
    first: FoundResult | None = None
    seen: set[bytes] = set()
    for candidate in islice(search.in_text(text), MAX_CANDIDATES):
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


async def result_in(text: str, schema: OutputSchema, given: WorkerInput | None = None) -> FoundResult | NoResult:
    """As ``searched``, in bounded time: what is not found and checked in time counts as a result that does not fit."""
    small = len(text) <= _SMALL and (given is None or len(given.prompt) <= _SMALL_PROMPT)
    if small and (schema.encoded is None or not may_take_long(schema.encoded, None)):
        return searched(text, schema, given)
    try:
        return await killable(_searched, text, schema.value, given, seconds=_MAX_SECONDS)
    except TimeoutError:
        return FoundResult({}, (f"$: no result could be found and checked within {_MAX_SECONDS:g} s",))


def _searched(text: str, schema: dict[str, Any] | None, given: WorkerInput | None) -> FoundResult | NoResult:
    return searched(text, OutputSchema.of(schema), given)


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

    def __init__(self, schema: OutputSchema, repeated: EchoFilter) -> None:
        self.telling = not schema.accepts_anything
        self.repeated = repeated
        self.why: str | None = None

    def passed_over(self, why: str) -> None:
        """Remember why something is no result; the first reason is reported."""
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
        window = Window.of(text, min_chars=_SCANNED)
        candidates = window.candidates()
        for part in _lines(candidates.rest):  # what the search did not come to
            yield object_or_list(part)
        yield from islice(candidates.likeliest, MAX_CANDIDATES)
        if candidates.examples:
            self.passed_over("the JSON in what it printed is an example, or stands within a sentence")
        for part in _lines(window.before):
            yield object_or_list(part)

    def _in_value(self, value: Json, depth: int) -> _Candidates:
        """Candidates in a value that was found somewhere, or that a frame holds."""
        if depth > _MAX_DEPTH:
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
        for value in islice(reversed(values), _MAX_LINES):
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
        if depth > _MAX_DEPTH or value.get("type") in _NOT_SAID or value.get("role") in _NOT_SAID:
            return
        for name in _INNER:
            part = value.get(name)
            if isinstance(part, list) and name in _RESULTS:
                yield from self._in_list(part, depth + 1)
                continue
            for inner in islice(reversed(part), _MAX_LINES) if isinstance(part, list) else (part,):
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
    last = deque((line.strip() for line in text.split("\n")), maxlen=_MAX_LINES)
    return (line for line in reversed(last) if line.startswith("{") and line.endswith("}"))


_FENCE = re.compile(r"`{3,}|~{3,}")
_OPENING = re.compile(r"[{\[]")
_TAG = r"(answer|final_answer|json|output|report|response|result)"
_INDENT = re.compile(rf"[ \t`]{{0,200}}(<{_TAG}>[ \t]{{0,20}})?", re.IGNORECASE)
_NO_MORE = re.compile(rf"[ \t\r`]{{0,200}}(</{_TAG}>[ \t\r]{{0,20}})?(\n|\Z)", re.IGNORECASE)
_CLOSING = " \t\r\n.`*\"')!"
"""What may follow an object that ends a text."""
_BULLET = re.compile(r"\s*([-*•+]|\d+[.)])\s")
_NEAR = 400
"""Characters before and behind an object in which its meaning is looked for."""
_EXAMPLE = re.compile(
    r"""(
      \b(for|as\ an?|an?|another|here\ is\ an?)\s+(\w+\s+)?example\b | \bexamples?(\s+(of|output|answer|result|response|for)\b|\W*$)
    | \bfor\ instance\b | \be\.\s?g\. | \bi\.\s?e\.\s+something\b | \bhypothetical
    | \bif\ (I|it|there|this|that)\ (could|had|were|was)\b
    | \b(could|might)\ (be|look|read|return)\b(\s+(like|as|this|that|these|one|of|any|the|so|follows|following|form|object|JSON))*\W*$
    | \b(format|form|schema|shape|structure)\s+(is|would\ be|should\ be)\b
    | \b(such\ as|something\ like|looks?\ like|of\ the\ form|instead\ of)(\s+(this|so|that|these|the\ following))?\W*$
    | \bz\.\s?B\. | \bzum\ Beispiel\b | \bpar\ exemple\b | \bpor\ ejemplo\b
    )[^.!?]*$""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words that make an example of what follows them in the same sentence."""
_NO_ANSWER = re.compile(
    r"""\bI\b[^.!?\n]{0,60}?\b((could|can|was|am|were|would)(\ not|n['’]t)(\ been)?|cannot|unable|failed)\b\W+(\w+\W+){0,3}?
      (access|answer|assess|complete|decide|determine|do|evaluate|fetch|fulfil\w*|get|give|judge|know|load|locate|open|produce|provide|rate|reach
       |read|retrieve|say|score|see|tell|view|find(?!\s+(any|anything|other|more|further|no)\b))\b
    | \bI\b[^.!?\n]{0,60}?\b(do|did|have)(\ not|n['’]t)\W+(\w+\W+){0,2}?(know|read|open(ed)?|seen?|score|rate|answer|have|had|got|get)\b
    | \b(answer|result|score|value|it|this)\s+(could|can)(\ ?not|n['’]t)\s+be\b
    | ^\W*(would|could|might)\ (be|have|look|work|do)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words behind an object by which it was no answer, or only a possible one."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The values in a text that may be the result."""

    likeliest: tuple[Json, ...]
    """In their order."""
    examples: bool
    """Whether there are others, which are not meant as a result."""
    rest: str
    """The text that was not searched."""


@dataclass(frozen=True, slots=True)
class _Block:
    begin: int
    end: int
    value: Json


@dataclass(frozen=True, slots=True)
class Window:
    """The end of a text, from the beginning of a line on."""

    before: str
    """The rest. A line that is very long is in both."""
    text: str

    @classmethod
    def of(cls, text: str, *, min_chars: int) -> Window:
        """``min_chars``: how long it is at least, if the text is."""
        begin = max(0, len(text) - min_chars)
        start = text.rfind("\n", 0, begin) + 1 if begin else 0
        if begin - start <= min_chars:
            return cls(text[:start], text[start:])
        end = text.find("\n", begin)  # of a line that is too long to be searched as a whole
        return cls(text[: len(text) if end < 0 else end], text[begin:])

    def candidates(self) -> Candidates:
        """The values in it that are meant as a result: of each kind the last ``MAX_CANDIDATES``."""
        fences = _fences(self.text)
        blocks, reached = self._blocks(fences)
        fenced, refused_fences = self._meant_fences(fences)
        standing, ending, refused_blocks = self._meant_blocks(blocks)
        found = sorted([*fenced, *standing], key=lambda block: block.begin, reverse=True)
        order = [*found, *ending] if fenced else [*ending, *found]
        return Candidates(tuple(block.value for block in order), refused_fences or refused_blocks, self.text[reached:])

    def _meant_fences(self, fences: list[_Block]) -> tuple[list[_Block], bool]:
        """Those of the fenced blocks that are meant, the last first; and whether there are others."""
        meant: list[_Block] = []
        refused = False
        for block in reversed(fences):
            if len(meant) == MAX_CANDIDATES:
                break
            if self._is_meant(block):
                meant.append(block)
            else:
                refused = True
        return meant, refused

    def _meant_blocks(self, blocks: list[_Block]) -> tuple[list[_Block], list[_Block], bool]:
        """Values on lines of their own that are meant; the one that ends the text, if it is; and whether there are other objects."""
        starts = [0, *(line.end() for line in re.finditer("\n", self.text))]
        ends = [0, *(block.end for block in blocks)]
        standing: list[_Block] = []
        ending: list[_Block] = []
        refused = False
        for block, earlier in zip(reversed(blocks), reversed(ends[:-1]), strict=True):
            if len(standing) == MAX_CANDIDATES:
                break
            start = starts[bisect_right(starts, block.begin) - 1]
            if self._stands_alone(block, start, earlier):
                meant = self._is_meant(block)
                standing += [block] * meant
            else:
                meant = block is blocks[-1] and self._ends_text(block, start, earlier)
                ending += [block] * meant
            refused = refused or (not meant and isinstance(block.value, dict))
        return standing, ending, refused

    def _stands_alone(self, block: _Block, start: int, earlier: int) -> bool:
        """Whether nothing else is on its lines. ``start``: of the line that it begins in; ``earlier``: where the value before it ends."""
        if earlier > start or not _INDENT.fullmatch(self.text, start, block.begin):
            return False
        return _NO_MORE.match(self.text, block.end) is not None

    def _blocks(self, fences: list[_Block]) -> tuple[list[_Block], int]:
        """JSON wherever it stands, but for what fences hold; and how far the search came before it was given up."""
        decoder = json.JSONDecoder(parse_constant=_refuse)
        begins = [fence.begin for fence in fences]
        found: list[_Block] = []
        position, left = 0, _MAX_WASTED_CHARS
        while opening := _OPENING.search(self.text, position):
            if left <= 0:
                return found, opening.start()
            position = opening.start()
            around = bisect_right(begins, position) - 1
            if around >= 0 and position < fences[around].end:
                position = fences[around].end
                continue
            try:
                value, end = decoder.raw_decode(self.text, position)
                check_depth(self.text[position:end])
            except TooDeep:
                position = end
            except (ValueError, RecursionError) as error:
                left -= _MIN_WASTED_CHARS + getattr(error, "pos", len(self.text)) - position
                position += 1
            else:
                found.append(_Block(position, end, value))
                position = end
        return found, len(self.text)

    def _ends_text(self, block: _Block, start: int, earlier: int) -> bool:
        """``start`` and ``earlier`` as above."""
        if earlier > start or self.text[block.end :].strip(_CLOSING):
            return False
        lead = self.text[start : block.begin]
        return _BULLET.match(lead) is None and _EXAMPLE.search(_last_sentence(lead)) is None

    def _is_meant(self, block: _Block) -> bool:
        """Whether the words around a block let it be a result."""
        behind = self.text[block.end : block.end + _NEAR].lstrip("`~ \t\r\n")
        before = self.text[max(0, block.begin - _NEAR) : block.begin].rstrip("`~ \t\r\n")
        fence = before.rpartition("\n")[2].strip()
        if _FENCE.match(fence):  # of a block that is not closed
            before = before.rpartition("\n")[0].rstrip()
        lead = before.rpartition("\n")[2].strip()
        if lead.startswith(("{", "[")):
            lead = ""
        paragraph = behind.partition("\n\n")[0]
        return _EXAMPLE.search(_last_sentence(lead)) is None and _NO_ANSWER.search(paragraph) is None


def _fences(text: str) -> list[_Block]:
    """Fenced blocks of nothing but JSON, each with its fences."""
    found: list[_Block] = []
    fence, begin, inner, position = "", 0, 0, 0
    for line in text.split("\n"):
        bare = line.strip()
        after = position + len(line) + 1
        if fence and bare == fence:
            value = object_or_list(text[inner:position].strip())
            if isinstance(value, (dict, list)):
                found.append(_Block(begin, min(after, len(text)), value))
            fence = ""
        elif not fence and (opening := _FENCE.match(bare)):
            fence, begin, inner = opening[0], position, after
        position = after
    return found


def _last_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text[-_NEAR:])[-1]


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
