"""JSON that stands among prose, and which of it is meant as a result.

What counts: a fenced block of nothing but JSON; an object on lines of its own; and an object that ends the text, if it is the only one on
its line and that is no item of a list. Not, where the words around it say that it is an example (``for example``, ``could be``), or that
there is no answer (``I could not …``). Objects within a sentence don't count.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass

from manyhands.core.jsonio import Json, TooDeep, check_depth, object_or_list

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
class Places:
    """``likeliest``: values in their order; ``examples``: whether there are others, which are not meant as a result; ``rest``: the text
    that was not searched."""

    likeliest: tuple[Json, ...]
    examples: bool
    rest: str


@dataclass(frozen=True, slots=True)
class _Block:
    begin: int
    end: int
    value: Json


@dataclass(frozen=True, slots=True)
class Window:
    """The end of a text, from the beginning of a line on; ``before``: the rest. It begins within a line that is very long, which is then in
    ``before``, too."""

    before: str
    text: str

    @classmethod
    def of(cls, text: str, *, least: int) -> Window:
        """``least``: characters that it has, if there are so many."""
        begin = max(0, len(text) - least)
        start = text.rfind("\n", 0, begin) + 1 if begin else 0
        if begin - start <= least:
            return cls(text[:start], text[start:])
        end = text.find("\n", begin)  # of a line that is too long to be searched as a whole
        return cls(text[: len(text) if end < 0 else end], text[begin:])

    def places(self, *, most: int, most_read: int, least_read: int) -> Places:
        """Look through it. ``most``: values of each kind that are found at most, the last ones of the text; ``most_read``: characters that
        are read in vain, from openings that begin no JSON, before that is given up; ``least_read``: what such an opening counts for at
        least."""
        fences, passed = _fences(self.text), 0
        blocks, reached = self._blocks(fences, most_read, least_read)
        found: list[_Block] = []
        fenced = False
        for block in reversed(fences):
            if len(found) == most:
                break
            meant = self._is_meant(block)
            found += [block] * meant
            passed += not meant
            fenced = fenced or meant
        most += len(found)
        ending: list[_Block] = []
        starts = [0, *(line.end() for line in re.finditer("\n", self.text))]
        for block, earlier in zip(reversed(blocks), [*(block.end for block in reversed(blocks[:-1])), 0], strict=False):
            if len(found) == most:
                break
            start = starts[bisect_right(starts, block.begin) - 1]
            if (
                earlier <= start
                and _INDENT.fullmatch(self.text, start, block.begin)
                and _NO_MORE.match(self.text, block.end)
            ):
                meant = self._is_meant(block)
                found += [block] * meant
            else:
                meant = block is blocks[-1] and self._ends_text(block, start, earlier)
                ending += [block] * meant
            passed += not meant and isinstance(block.value, dict)
        found.sort(key=lambda block: block.begin, reverse=True)
        order = [*found, *ending] if fenced else [*ending, *found]
        return Places(tuple(block.value for block in order), bool(passed), self.text[reached:])

    def _blocks(self, fences: list[_Block], most_read: int, least_read: int) -> tuple[list[_Block], int]:
        """JSON wherever it stands, but for what fences hold; and how far the search came."""
        decoder = json.JSONDecoder(parse_constant=_refuse)
        begins = [fence.begin for fence in fences]
        found: list[_Block] = []
        place, left = 0, most_read
        while opening := _OPENING.search(self.text, place):
            if left <= 0:
                return found, opening.start()
            place = opening.start()
            around = bisect_right(begins, place) - 1
            if around >= 0 and place < fences[around].end:
                place = fences[around].end
                continue
            try:
                value, end = decoder.raw_decode(self.text, place)
                check_depth(self.text[place:end])
            except TooDeep:
                place = end
            except (ValueError, RecursionError) as error:
                left -= least_read + getattr(error, "pos", len(self.text)) - place
                place += 1
            else:
                found.append(_Block(place, end, value))
                place = end
        return found, len(self.text)

    def _ends_text(self, block: _Block, start: int, earlier: int) -> bool:
        """``start``: of the line that it begins in; ``earlier``: where the value before it ends."""
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
    fence, begin, inner, place = "", 0, 0, 0
    for line in text.split("\n"):
        bare = line.strip()
        after = place + len(line) + 1
        if fence and bare == fence:
            value = object_or_list(text[inner:place].strip())
            if isinstance(value, (dict, list)):
                found.append(_Block(begin, min(after, len(text)), value))
            fence = ""
        elif not fence and (opening := _FENCE.match(bare)):
            fence, begin, inner = opening[0], place, after
        place = after
    return found


def _last_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text[-_NEAR:])[-1]


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
