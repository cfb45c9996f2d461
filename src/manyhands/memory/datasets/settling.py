"""Which of several things an answer settles on, where it also names others: those that were so before, or are denied.

An answer is taken apart into sentences, and these into clauses. A thing that a clause denies ("not Olive", "no longer Olive", "instead of
Olive") is not named by it. What a clause says of the present ("now", "currently", "the latest") counts more than what it says of no time,
and that more than what it says of the past ("was", "before", "formerly", "used to"). A sentence settles on a thing if the clauses that
count most name that one alone, and nothing is offered beside it ("or", "maybe", a question).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise

_SENTENCE_ENDS = re.compile(r"(?:(?<![\d.!?])|(?<=\d[.!?]))[.!?]++(?=[\s*_\"'”’)]|$)|[()]")
"""What ends a sentence. The number of an item in a list, or the end of a line, does not: a list is one sentence."""
_WORDS = r"\w++(?:['’]\w++)?|->|→|=>|[,;:\n/]|(?<!\S)[-–—](?!\S)|—"
_SPLITS = frozenset({",", ";", ":", "\n", "-", "–", "—"})
_ARROWS = frozenset({"to", "into", "->", "→", "=>"})
_LINKS = frozenset({",", "or", "nor", "and", "/"})
_SMALL = frozenset({*_LINKS, "a", "an", "the", "also", "then"})
"""Words beside which a name is part of a list, and no clause of its own."""
_BEFORE_A_CLAUSE = frozenset(
    {"but", "however", "although", "though", "while", "whereas", "yet", "until", "formerly", "previously", "then"}
)
_NOW = frozenset(
    {
        "now",
        "currently",
        "current",
        "presently",
        "nowadays",
        "today",
        "latest",
        "newest",
        "new",
        "last",
        "lately",
        "recently",
    }
    | {"recent", "later", "finally", "eventually", "actually", "anymore", "switched", "updated"}
)
_NOW_PHRASES = re.compile(
    r"\b(?:at present|at the moment|these days|as of|has become|became|chang\w* (?:\w+ ){0,3}to)\b"
)
_NOT_NOW = re.compile(
    r"\b(?:before|until|till|up to) now\b|\b(?:at first|used to|to begin with|in the past|no longer)\b"
)
_PAST = frozenset(
    {"was", "were", "had", "went", "liked", "loved", "preferred", "favoured", "favored", "started", "began"}
    | {"first", "initially", "originally", "former", "old", "once"}
)
_EARLIER = frozenset({"before", "beforehand", "earlier", "previously", "previous", "formerly", "prior", "ago"})
_TELLING = re.compile(r"\b(?:told|said|say|mention\w*|stated|shared|noted|informed|as you|according)\b")
"""Where something was told before, it need not have been so before."""
_PRESENT = frozenset(
    {
        "is",
        "are",
        "am",
        "think",
        "guess",
        "believe",
        "bet",
        "like",
        "prefer",
        "love",
        "favour",
        "favor",
        "go",
        "goes",
        "remains",
    }
    | {f"{word}{mark}s" for word in ("it", "that", "name", "colour", "color", "favourite", "favorite") for mark in "'’"}
    | {"you're", "you’re", "i'm", "i’m"}
)
_DOUBT = frozenset({"or", "either", "maybe", "perhaps", "possibly", "might", "may", "could", "unless", "unsure"})
_NOT = frozenset({"not", "never", "neither", "nor", "without", "except", "unlike", "no"})
_NOT_HARMED = frozenset(
    {"mistaken", "sure", "certain", "wrong", "only", "just", "forget", "forgotten", "doubt", "problem"}
)
"""Words behind a "not" that deny nothing of what follows."""
_SHORT_NOT = re.compile(r"\w+n['’]t")
_REPLACING = re.compile(r"replac(?:e|es|ed|ing)|supersed(?:es|ed|ing)")
_REPLACED = re.compile(r"(?:(?:has|had) been |is |was )?(?:replaced|superseded|followed) (?:by|with)\b")
_NO_MORE = re.compile(r"(?:(?:is|was|are|were) )?(?:no longer|not|anymore|any more)\b|(?:is|was|are|were)n['’]t\b")
_TAG = re.compile(r"(?:isn['’]t it|is it not|right|correct|yes|no)\W*$")
_IN_ORDER = frozenset(
    {
        "then",
        "later",
        "afterwards",
        "finally",
        "actually",
        "correction",
        "sorry",
        "wait",
        "no",
        "rather",
        "instead",
        "changed",
        "next",
    }
)
_REACH = 3
"""How many words a denial may stand before what it denies."""


class _Weight(IntEnum):
    """How much a clause counts."""

    ASKED = 0
    PAST = 1
    PLAIN = 2
    PRESENT = 3
    NOW = 4


@dataclass(frozen=True, slots=True)
class _Word:
    """``name``: of the things that are told apart, as they were given, in small letters; empty for another word."""

    text: str
    name: str = ""


@dataclass(slots=True)
class _Clause:
    words: list[_Word] = field(default_factory=list)

    @property
    def has_names(self) -> bool:
        return any(word.name for word in self.words)

    @property
    def is_bare(self) -> bool:
        """Names and nothing else."""
        return all(word.name or word.text in _SMALL for word in self.words)


@dataclass(frozen=True, slots=True)
class _Settled:
    """What a sentence settles on, None if it names several. ``in_order``: whether it says that it follows on something."""

    name: str | None
    weight: _Weight
    in_order: bool


def settles_on(text: str, wanted: str, others: Collection[str]) -> bool:
    """Whether a text says that it is what is wanted, and none of the others."""
    things = {wanted.lower(), *(other.lower() for other in others)}
    return settled(text, things) == wanted.lower()


def says(text: str, thing: str) -> bool:
    """Whether a text names a thing, as whole words, in capitals or not, without denying it."""
    return any(_namings(text, thing))


def denies(text: str, thing: str) -> bool:
    """Whether a text names a thing only to deny it."""
    found = list(_namings(text, thing))
    return bool(found) and not any(found)


def _namings(text: str, thing: str) -> Iterator[bool]:
    """For each time that a text names a thing, in order by sentences, whether it is not denied."""
    for sentence, _ in _sentences(text.lower(), _reader({thing.lower()})):
        named = sum(bool(word.name) for word in sentence)
        kept = sum(bool(word.name) for word in _not_denied(sentence))
        yield from (place < kept for place in range(named))


def settled(text: str, things: Collection[str]) -> str | None:
    """The one of some things, given in small letters, that a text settles on; None if it does on none."""
    found = [
        result
        for sentence, is_asked in _sentences(text.lower(), _reader(things))
        if (result := _settled(sentence, is_asked)) is not None
    ]
    named = [each for each in found if each.name is not None]
    if not named:
        return None
    top = max(each.weight for each in named)
    if any(each.weight > top for each in found):
        return None  # what counts most names several
    best = [each for each in named if each.weight == top]
    if len({each.name for each in best}) > 1 and not best[-1].in_order:
        return None
    return best[-1].name


def _reader(things: Collection[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(thing) for thing in sorted(things, key=len, reverse=True))
    return re.compile(rf"(?P<name>(?<!\w)(?:{names})(?!\w))|{_WORDS}")


def _sentences(text: str, reader: re.Pattern[str]) -> Iterator[tuple[list[_Word], bool]]:
    """The words of each sentence that has a name, and whether it asks. One that begins with "or" goes on with the one before."""
    words: list[_Word] = []
    is_asked = False
    for part, asks in _parts(text):
        new = [_Word(found[0], found["name"] or "") for found in reader.finditer(part)]
        if not new:
            continue
        if words and new[0].text != "or":
            if any(word.name for word in words):
                yield words, is_asked
            words, is_asked = [], False
        words += new
        is_asked = is_asked or (asks and _TAG.search(part) is None)
    if any(word.name for word in words):
        yield words, is_asked


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for end in _SENTENCE_ENDS.finditer(text):
        yield text[at : end.start()], "?" in end[0]
        at = end.end()
    yield text[at:], False


def _settled(sentence: list[_Word], is_asked: bool) -> _Settled | None:
    clauses = [clause for clause in _clauses(sentence) if clause.has_names]
    doubted: set[str] = set()
    weighed: list[tuple[_Weight, set[str]]] = []
    for clause in clauses:
        live = {word.name for word in _not_denied(clause.words) if word.name}
        if not live:
            continue
        weight = _Weight.ASKED if is_asked else _weight(clause, alone=len(clauses) == 1)
        weighed.append((weight, live))
        if any(word.text in _DOUBT for word in clause.words):
            doubted |= live
    if not weighed:
        return None
    top = max(weight for weight, _ in weighed)
    in_order = any(word.text in _IN_ORDER for word in sentence)
    best = [live for weight, live in weighed if weight == top]
    names = doubted.union(*(best[-1:] if in_order else best))
    return _Settled(next(iter(names)) if len(names) == 1 else None, top, in_order)


def _weight(clause: _Clause, *, alone: bool) -> _Weight:
    words = {word.text for word in clause.words}
    text = " ".join(word.text for word in clause.words)
    if _NOT_NOW.search(text):
        return _Weight.PAST
    if words & _NOW or _NOW_PHRASES.search(text):
        return _Weight.NOW
    if words & _PAST or (words & _EARLIER and not _TELLING.search(text)):
        return _Weight.PAST
    if words & _PRESENT or (alone and clause.is_bare):
        return _Weight.PRESENT
    return _Weight.PLAIN


def _clauses(sentence: Sequence[_Word]) -> list[_Clause]:
    """What names nothing goes with what follows it, at the end with what is before; names in a list go together."""
    clauses: list[_Clause] = []
    waiting: list[_Word] = []
    for piece in _pieces(sentence):
        if not any(word.name for word in piece):
            waiting += [*piece, _Word(",")]
            continue
        clause = _Clause([*waiting, *piece])
        if clauses and not waiting and clause.is_bare:
            clauses[-1].words += [_Word(","), *piece]
        else:
            clauses.append(clause)
        waiting = []
    if clauses:
        clauses[-1].words += waiting
    return clauses


def _pieces(sentence: Sequence[_Word]) -> Iterator[list[_Word]]:
    piece: list[_Word] = []
    for at, word in enumerate(sentence):
        following = sentence[at + 1].text if at + 1 < len(sentence) else ","
        starts = word.text in _BEFORE_A_CLAUSE or (word.text in ("now", "currently") and following not in _SPLITS)
        if word.text in _SPLITS or (starts and any(each.name for each in piece)):
            if piece:
                yield piece
            piece = []
        if word.text not in _SPLITS:
            piece.append(word)
    if piece:
        yield piece


def _not_denied(words: Sequence[_Word]) -> list[_Word]:
    """Without the names that these words deny."""
    denied = [
        bool(word.name) and (_is_denied_before(words, at) or _is_denied_after(words, at))
        for at, word in enumerate(words)
    ]
    places = [at for at, word in enumerate(words) if word.name]
    for place, following in pairwise(places):
        between = {word.text for word in words[place + 1 : following]}
        # "not Olive or Red", "neither Olive nor Red"
        if denied[place] and between <= _LINKS and between & {"or", "nor", "and"} and _is_denied_before(words, place):
            denied[following] = True
    return [word for word, is_denied in zip(words, denied, strict=True) if not is_denied]


def _is_denied_before(words: Sequence[_Word], at: int) -> bool:
    before = words[max(0, at - _REACH - 1) : at]
    for distance, word in enumerate(reversed(before)):
        if word.name or word.text in _SPLITS or word.text in _NOT_HARMED or word.text == "but":
            return False
        previous = words[at - distance - 2].text if at - distance >= 2 else ""
        following = words[at - distance].text
        if word.text in _NOT or _SHORT_NOT.fullmatch(word.text):
            return True
        if _REPLACING.fullmatch(word.text) and following not in ("by", "with"):
            return True
        if (previous, word.text) in (("instead", "of"), ("rather", "than"), ("other", "than"), ("no", "longer")):
            return True
        if word.text in ("from", "after") and distance <= 1:
            return word.text == "after" or any(each.text in _ARROWS for each in words[at + 1 : at + 1 + 4 * _REACH])
    return False


def _is_denied_after(words: Sequence[_Word], at: int) -> bool:
    after = words[at + 1 : at + 1 + _REACH]
    if after and after[0].text in _ARROWS and any(word.name for word in after[1:]):
        return True  # "from Red to Olive to Purple"
    text = " ".join(word.text for word in after)
    if _REPLACED.match(text):
        return True
    found = _NO_MORE.match(text)
    if found is None:
        return False
    said = len(found[0].split())
    # "Purple not Olive" and "Purple, isn't it" deny something else.
    return not any(word.name or word.text in ("it", "that") for word in after[: said + 1])
