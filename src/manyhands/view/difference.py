"""Two conversations side by side: which message answers to which, and the words in which they differ.

Messages are lined up by role and likeness, their order kept. The work is counted, so that it ends after a while for any two conversations,
and gives the same for the same two wherever it is done; servers do it in a process of its own besides, which is killed at a deadline.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from manyhands.core.errors import ItemError
from manyhands.core.messages import Message, text_of
from manyhands.processes.killable import killable
from manyhands.view.text import pretty_json

MAX_LINES = 5_000
"""Lines of one side whose words are compared."""
MAX_CHARACTERS = 1_000_000
"""Characters of one side whose words are compared."""
MAX_MESSAGES = 2_000
"""Messages of one side that are lined up by what they say."""
MAX_WORK = 2_000_000
"""Steps of comparing that all messages together may take; a step takes less than a microsecond."""
_MAX_EDITS = 1_000
"""Words or lines in which two texts may differ for the least number of them to be found."""
_MAX_GRID = 40_000
"""Pairs of messages that are looked at to find the best ones among them."""
_MAX_LIKENESS_TEXT = 20_000
"""Characters at the beginning of a message by which it is found to be like another one."""
_WAIT_SECONDS = 15.0
"""Seconds for a process to be free or started."""
_SAME_ROLE = 0.2
"""What it is worth that two messages stand beside each other that share a role alone; the words they share are worth up to 1."""
_MIN_SHARED = 0.2
"""The part of its words that the shorter of two texts shares with the other one, if the words are to be marked one by one."""

Op: TypeAlias = Literal["equal", "removed", "added"]
Spans: TypeAlias = tuple[tuple[Op, str], ...]
"""A text in stretches: what both sides have, and what only this side has (``removed`` at the left, ``added`` at the right)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of two messages that are beside each other."""

    name: str
    """``reasoning``, ``content``, or ``call 1``, ``call 2`` …: a call's name and arguments."""
    left: Spans
    """Joined, they are the text. Empty if this side has no such part."""
    right: Spans


@dataclass(frozen=True, slots=True)
class Pair:
    """Two messages beside each other, or one that has none beside it."""

    left: int | None
    """Its position among the messages of the left side, from 0."""
    right: int | None
    kind: Literal["equal", "changed", "only-left", "only-right"]
    parts: tuple[Part, ...] = ()
    """Of messages that differ: every part, also those that are equal. Empty where words were not compared."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two conversations lined up. Every message of both is in one pair, and each side is in its order."""

    pairs: tuple[Pair, ...]
    note: str = ""
    """Why words are not marked, where they are not, as a sentence."""


_Shown: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A message's role, and its parts: their names and texts."""
_TOO_LARGE = f"Words are not compared: one side has more than {MAX_LINES:,} lines or {MAX_CHARACTERS:,} characters."


async def difference(left: Sequence[Message], right: Sequence[Message], *, seconds: float = 2.0) -> Difference:
    """The difference between two conversations, found in a process that is killed after so many seconds. Words are not marked then, nor
    where no process can be started, nor if a side has more than 5,000 lines, 1,000,000 characters or 2,000 messages; and no further ones
    once the work of comparing has reached its bound."""
    one, other = await asyncio.to_thread(_shown, left), await asyncio.to_thread(_shown, right)
    if _too_large(one) or _too_large(other):
        return _unmarked(one, other, _TOO_LARGE)
    try:
        async with asyncio.timeout(seconds + _WAIT_SECONDS):
            return await killable(_compared, one, other, seconds=seconds)
    except TimeoutError:
        return _unmarked(one, other, f"Words are not compared: that would take more than {seconds:g} s.")
    except ItemError as error:
        return _unmarked(one, other, f"Words are not compared: {error}.")


def message_parts(message: Message) -> dict[str, str]:
    """What is compared of a message: the texts of its parts by their names."""
    fields: Mapping[str, Any] = message
    parts = {"reasoning": text_of(fields.get("reasoning")), "content": text_of(fields.get("content"))}
    calls = fields.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else (), 1):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name, arguments = function.get("name"), pretty_json(function.get("arguments") or "", MAX_CHARACTERS)
            parts[f"call {number}"] = f"{text_of(name)}\n{arguments}"
    return {name: text for name, text in parts.items() if text}


def _shown(messages: Sequence[Message]) -> list[_Shown]:
    return [(str(message.get("role")), tuple(message_parts(message).items())) for message in messages]


def _too_large(messages: Sequence[_Shown]) -> bool:
    texts = [text for _, parts in messages for _, text in parts]
    return (
        len(messages) > MAX_MESSAGES
        or sum(map(len, texts)) > MAX_CHARACTERS
        or sum(text.count("\n") + 1 for text in texts) > MAX_LINES
    )


def _unmarked(left: Sequence[_Shown], right: Sequence[_Shown], note: str) -> Difference:
    return Difference(tuple(_in_order(left, right)), note)


def _in_order(left: Sequence[_Shown], right: Sequence[_Shown]) -> Iterator[Pair]:
    """Messages paired by their roles alone, as they come."""
    here = there = 0
    while here < len(left) and there < len(right):
        if left[here][0] == right[there][0]:
            yield Pair(here, there, "equal" if left[here] == right[there] else "changed")
            here, there = here + 1, there + 1
        elif len(left) - here > len(right) - there:
            yield Pair(here, None, "only-left")
            here += 1
        else:
            yield Pair(None, there, "only-right")
            there += 1
    yield from (Pair(index, None, "only-left") for index in range(here, len(left)))
    yield from (Pair(None, index, "only-right") for index in range(there, len(right)))


def _compared(left: Sequence[_Shown], right: Sequence[_Shown]) -> Difference:
    comparison = _Comparison(left, right)
    pairs = tuple(comparison.pairs())
    note = "Not all words are compared: there are too many differences." if comparison.work.is_partial else ""
    return Difference(pairs, note)


# --- What two sequences have in common


class _Work:
    """How much more may be done."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self.is_partial = False
        """Whether something was not compared."""

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def spend(self, steps: int) -> bool:
        """Whether so many steps may still be made."""
        self._left -= steps
        self.is_partial = self.is_partial or self.is_over
        return not self.is_over


Blocks: TypeAlias = list[tuple[int, int, int]]
"""Stretches that are equal, in order: where each begins in the one and in the other sequence, and its length."""


def _common(left: Sequence[Hashable], right: Sequence[Hashable], work: _Work) -> Blocks:
    """What two sequences have in common, so that as little as can be is left. If too much is left, only their beginnings and ends."""
    ids: dict[Hashable, int] = {}
    one = [ids.setdefault(each, len(ids)) for each in left]
    other = [ids.setdefault(each, len(ids)) for each in right]
    (_, _, start), (_, _, end) = _ends_in_common(one, other)
    work.spend((len(one) + len(other)) // 8)
    first, second = range(start, len(one) - end), range(start, len(other) - end)
    shared = {one[index] for index in first} & {other[index] for index in second}
    kept = [index for index in first if one[index] in shared]
    kept_other = [index for index in second if other[index] in shared]
    matches = _fewest_edits([one[index] for index in kept], [other[index] for index in kept_other], work)
    if matches is None:
        work.is_partial, matches = True, []
    pairs = [(kept[here], kept_other[there]) for here, there in matches]
    ends = ((len(one) - end + index, len(other) - end + index) for index in range(end))
    return _slid(_joined([*zip(range(start), range(start), strict=True), *pairs, *ends]), one, other)


def _ends_in_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> Blocks:
    """What two sequences have in common at their beginnings and at their ends, either of which may be nothing."""
    limit = min(len(one), len(other))
    start = _shared_start(one, other, limit)
    end = _shared_start(one[::-1], other[::-1], limit - start)
    return [(0, 0, start), (len(one) - end, len(other) - end, end)]


def _shared_start(one: Sequence[Hashable], other: Sequence[Hashable], limit: int) -> int:
    return next((index for index in range(limit) if one[index] != other[index]), limit)


def _joined(pairs: Iterable[tuple[int, int]]) -> Blocks:
    blocks: Blocks = []
    for here, there in pairs:
        if blocks and (blocks[-1][0] + blocks[-1][2], blocks[-1][1] + blocks[-1][2]) == (here, there):
            blocks[-1] = (*blocks[-1][:2], blocks[-1][2] + 1)
        else:
            blocks.append((here, there, 1))
    return blocks


def _slid(blocks: Blocks, one: Sequence[int], other: Sequence[int]) -> Blocks:
    """The same with each stretch that only one side has as far behind as it can be: ``a. b.`` after ``a.`` has ``b.`` of its own, not
    ``. b``."""
    slid: Blocks = []
    for here, there, length in blocks:
        if not slid:
            slid.append((here, there, length))
            continue
        last_here, last_there, last_length = slid[-1]
        gap_here, gap_there = last_here + last_length, last_there + last_length
        moved = 0
        if gap_here == here:
            while moved < length and other[gap_there + moved] == other[there + moved]:
                moved += 1
        elif gap_there == there:
            while moved < length and one[gap_here + moved] == one[here + moved]:
                moved += 1
        slid[-1] = (last_here, last_there, last_length + moved)
        if moved < length:
            slid.append((here + moved, there + moved, length - moved))
    return slid


def _fewest_edits(one: Sequence[int], other: Sequence[int], work: _Work) -> list[tuple[int, int]] | None:
    """The pairs of positions of a longest common subsequence; None if it takes more edits, or more work, than may be.

    The greedy algorithm of E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986): ``ends[k]`` is how far into the first
    sequence one gets with so many edits on the diagonal k (position in the first minus position in the second).
    """
    most = min(len(one) + len(other), _MAX_EDITS)
    ends = array("l", [-1]) * (2 * most + 3)
    middle = most + 1
    ends[middle + 1] = 0
    rows: list[array[int]] = []
    for edits in range(most + 1):
        rows.append(ends[middle - edits - 1 : middle + edits + 2])
        if not work.spend(_one_edit_more(one, other, edits, ends)):
            return None
        last = len(one) - len(other)
        if abs(last) <= edits and ends[middle + last] >= len(one):
            return _way_back(rows, len(one), len(other))
    return None


def _one_edit_more(one: Sequence[int], other: Sequence[int], edits: int, ends: array[int]) -> int:
    """Bring ``ends`` from one edit fewer to ``edits``, and give the steps that it took."""
    length, other_length, steps = len(one), len(other), 0
    middle = len(ends) // 2
    for k in range(-edits, edits + 1, 2):
        below, above = ends[middle + k - 1] + 1, ends[middle + k + 1]
        start = here = above if k == -edits or (k != edits and below <= above) else below
        there = here - k
        while here < length and there < other_length and one[here] == other[there]:
            here += 1
            there += 1
        ends[middle + k] = here
        steps += here - start + 1
    return steps


def _way_back(rows: Sequence[array[int]], here: int, there: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(rows) - 1, -1, -1):
        k, row = here - there, rows[edits]
        below, above = row[edits + k], row[edits + k + 2]
        down = k == -edits or (k != edits and below < above)
        start = above if down else below + 1
        while here > start:
            here, there = here - 1, there - 1
            pairs.append((here, there))
        here, there = (here, there - 1) if down else (here - 1, there)
    return pairs[::-1]


# --- Which message answers to which


class _Comparison:
    """Lines up two conversations, and marks the words of messages that stand beside each other."""

    def __init__(self, left: Sequence[_Shown], right: Sequence[_Shown]) -> None:
        self.work = _Work(MAX_WORK)
        """Of comparing words. Lining up has as much of its own: when that is used up, roles alone decide."""
        self._lining_up = _Work(MAX_WORK // 2)
        self._sides = (left, right)
        self._words: dict[tuple[int, int], frozenset[str]] = {}

    def pairs(self) -> Iterator[Pair]:
        here = there = 0
        for left, right in (*self._beside(), tuple(map(len, self._sides))):
            yield from (Pair(index, None, "only-left") for index in range(here, left))
            yield from (Pair(None, index, "only-right") for index in range(there, right))
            if left < len(self._sides[0]):
                yield self._pair(left, right)
            here, there = left + 1, right + 1

    def _pair(self, left: int, right: int) -> Pair:
        one, other = self._sides[0][left], self._sides[1][right]
        if one == other:
            return Pair(left, right, "equal")
        if self.work.is_over:
            return Pair(left, right, "changed")
        parts, other_parts = dict(one[1]), dict(other[1])
        names = sorted({*parts, *other_parts}, key=_place)
        return Pair(
            left,
            right,
            "changed",
            tuple(_part(name, parts.get(name, ""), other_parts.get(name, ""), self.work) for name in names),
        )

    def _beside(self) -> list[tuple[int, int]]:
        """The positions of messages that stand beside each other, in order."""
        found: list[tuple[int, int]] = []
        left, right = self._sides
        for one, other, is_equal in _gaps(_ends_in_common(left, right), len(left), len(right)):
            found += zip(one, other, strict=True) if is_equal else self._among(one, other)
        return found

    def _among(self, one: range, other: range) -> list[tuple[int, int]]:
        """The same of stretches of both sides: of long ones, the messages that are equal divide them into shorter ones."""
        if len(one) * len(other) <= _MAX_GRID:
            return self._most_alike(one, other)
        found: list[tuple[int, int]] = []
        left, right = (
            [side[index] for index in stretch] for side, stretch in zip(self._sides, (one, other), strict=True)
        )
        for first, second, is_equal in _gaps(_common(left, right, self._lining_up), len(one), len(other)):
            here, there = one[first.start : first.stop], other[second.start : second.stop]
            if is_equal:
                found += zip(here, there, strict=True)
            elif len(here) * len(there) <= _MAX_GRID:
                found += self._most_alike(here, there)
            else:
                found += self._by_role(here, there)
        return found

    def _by_role(self, one: range, other: range) -> Iterator[tuple[int, int]]:
        roles = [self._sides[0][index][0] for index in one], [self._sides[1][index][0] for index in other]
        for here, there, length in _common(*roles, self._lining_up):
            yield from zip(one[here : here + length], other[there : there + length], strict=True)

    def _most_alike(self, one: range, other: range) -> list[tuple[int, int]]:
        """The pairs of messages of one role whose likeness is largest in sum; of several ways, the one that pairs the first ones."""
        width = len(other) + 1
        best = [0.0] * ((len(one) + 1) * width)
        likeness = [0.0] * len(best)
        for here in range(len(one) - 1, -1, -1):
            for there in range(len(other) - 1, -1, -1):
                cell = here * width + there
                likeness[cell] = self._likeness(one[here], other[there])
                best[cell] = max(best[cell + width], best[cell + 1], best[cell + width + 1] + likeness[cell])
        pairs: list[tuple[int, int]] = []
        here = there = 0
        while here < len(one) and there < len(other):
            cell = here * width + there
            if likeness[cell] and best[cell] == best[cell + width + 1] + likeness[cell]:
                pairs.append((one[here], other[there]))
                here, there = here + 1, there + 1
            elif best[cell] == best[cell + width]:
                here += 1
            else:
                there += 1
        return pairs

    def _likeness(self, left: int, right: int) -> float:
        if self._sides[0][left][0] != self._sides[1][right][0]:
            return 0.0
        one, other = self._words_of(0, left), self._words_of(1, right)
        if not one or not other or not self._lining_up.spend(1 + min(len(one), len(other)) // 8):
            return _SAME_ROLE
        return _SAME_ROLE + 2 * len(one & other) / (len(one) + len(other))

    def _words_of(self, side: int, index: int) -> frozenset[str]:
        words = self._words.get((side, index))
        if words is None:
            text = "\n".join(text for _, text in self._sides[side][index][1])[:_MAX_LIKENESS_TEXT]
            words = self._words[side, index] = frozenset(_WORDS.findall(text)) - {" ", "\n"}
        return words


def _gaps(blocks: Blocks, length: int, other_length: int) -> Iterator[tuple[range, range, bool]]:
    """All of two sequences in stretches: those that are equal, and those between them, of which one side may be empty."""
    here = there = 0
    for start, other_start, count in (*blocks, (length, other_length, 0)):
        if here < start or there < other_start:
            yield range(here, start), range(there, other_start), False
        if count:
            yield range(start, start + count), range(other_start, other_start + count), True
        here, there = start + count, other_start + count


# --- The words of a text


def _place(name: str) -> tuple[int, int]:
    """Where a part stands among those of its message."""
    number = name.removeprefix("call ")
    return (2, int(number)) if number != name else (("reasoning", "content").index(name), 0)


_SINGLE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Letters of scripts (Thai, Burmese, Khmer, Japanese, Chinese) that put no space between words: each counts as a word."""
_WORDS = re.compile(f"[{_SINGLE}]|(?:(?![{_SINGLE}])\\w)+|[^\\S\\n]+|\\n|[^\\w\\s]")


def _part(name: str, left: str, right: str, work: _Work) -> Part:
    if left == right:
        return Part(name, (("equal", left),), (("equal", right),))
    ones: list[tuple[Op, str]] = []
    others: list[tuple[Op, str]] = []
    lines, other_lines = left.splitlines(keepends=True), right.splitlines(keepends=True)
    for one, other, is_equal in _gaps(_common(lines, other_lines, work), len(lines), len(other_lines)):
        text, other_text = "".join(lines[one.start : one.stop]), "".join(other_lines[other.start : other.stop])
        if is_equal:
            ones.append(("equal", text))
            others.append(("equal", text))
        else:
            for op, piece, other_piece in _changed_words(text, other_text, work):
                ones.append(("equal" if op else "removed", piece))
                others.append(("equal" if op else "added", other_piece))
    return Part(name, _merged(ones), _merged(others))


def _merged(spans: Sequence[tuple[Op, str]]) -> Spans:
    return tuple(
        (op, text) for op, group in groupby(spans, key=itemgetter(0)) if (text := "".join(each for _, each in group))
    )


def _changed_words(left: str, right: str, work: _Work) -> list[tuple[bool, str, str]]:
    """Two texts in stretches that are equal or not. What is equal between two differences but holds no word counts as different, and
    everything does if hardly a word is shared: marks on every second word are harder to read than none."""
    if not left or not right or work.is_over:
        return [(False, left, right)]
    one, other = _WORDS.findall(left), _WORDS.findall(right)
    stretches = [
        (is_equal, "".join(one[first.start : first.stop]), "".join(other[second.start : second.stop]))
        for first, second, is_equal in _gaps(_common(one, other, work), len(one), len(other))
    ]
    shared = sum(len(text) for is_equal, text, _ in stretches if is_equal and _has_word(text))
    if shared < _MIN_SHARED * min(len(left), len(right)):
        return [(False, left, right)]
    last = len(stretches) - 1
    return [
        (is_equal and (index in (0, last) or _has_word(text)), text, other_text)
        for index, (is_equal, text, other_text) in enumerate(stretches)
    ]


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))
