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
_SMALL = frozenset({*_LINKS, "a", "an", "the", "also"})
"""Words beside which a name is part of a list, and no clause of its own."""
_BEFORE_A_CLAUSE = frozenset(
    {"but", "however", "although", "though", "while", "whereas", "yet", "until", "formerly", "previously", "then"}
)
_NOW = frozenset(
    {"now", "currently", "current", "presently", "nowadays", "today", "latest", "newest", "new", "last", "lately"}
    | {"recently", "recent", "later", "finally", "eventually", "actually", "anymore", "switched", "updated", "present"}
)
_NOW_PHRASES = re.compile(
    r"\b(?:at present|at the moment|these days|as of|has become|became|chang\w* (?:\w+ ){0,3}to)\b"
)
_NOT_NOW = re.compile(
    r"\b(?:before|until|till|up to) now\b|\b(?:at first|used to|to begin with|in the past|no longer)\b"
)
_PAST = frozenset(
    {"was", "were", "had", "went", "liked", "loved", "preferred", "favoured", "favored", "started", "began"}
    | {"first", "initially", "originally", "former", "old", "once", "past"}
)
_EARLIER = frozenset({"before", "beforehand", "earlier", "previously", "previous", "formerly", "prior", "ago"})
_TELLING = re.compile(
    r"\b(?:told|said|say|mention\w*|stated|shared|noted|informed|as you|according|as before|from before"
    r"|conversations?|chats?|messages?|discussions?)\b"
)
"""Where something was told before, it need not have been so before."""
_PRESENT = frozenset(
    {"is", "are", "am", "think", "guess", "believe", "bet", "like", "prefer", "love", "favour", "favor", "go", "goes"}
    | {f"{word}{mark}s" for word in ("it", "that", "name", "colour", "color", "favourite", "favorite") for mark in "'’"}
    | {"remains", "you're", "you’re", "i'm", "i’m"}
)
_NO_MORE_SO = re.compile(r"\b(?:used to|no longer|not any(?:more| longer)|formerly|former|old|in the past)\b")
"""Said of something, it is not so now."""
_UNDONE = re.compile(r"\b(?:but|until|though) (?:then )?you(?:['’]ve| have)? (?:since )?(?:changed|replaced)\b")
_UNKNOWN = re.compile(r"\b(?:unknown|unclear|know what|sure what)\b")
_DOUBT = frozenset({"or", "either", "maybe", "perhaps", "possibly", "might", "may", "could", "unless", "unsure"})
_NOT = frozenset({"not", "never", "neither", "nor", "without", "except", "unlike", "no", "cannot"})
_NOT_HARMED = frozenset(
    {"mistaken", "sure", "certain", "wrong", "only", "just", "forget", "forgotten", "doubt", "problem"}
)
"""Words behind a "not" that deny nothing of what follows."""
_SHORT_NOT = re.compile(r"\w+n['’]t")
_REPLACING = re.compile(
    r"replac(?:e|es|ed|ing)|supersed(?:es|ed|ing)|follow(?:s|ed|ing)|swapp(?:ed|ing)|trad(?:ed|ing)|exchang(?:ed|ing)"
    r"|abandon(?:ed|ing)|dropp(?:ed|ing)|ditch(?:ed|ing)|discard(?:ed|ing)"
)
_REFUSING = frozenset(
    {"hate", "hates", "hated", "dislike", "dislikes", "disliked", "refuse", "doubt", "forget", "whether"}
)
_DENYING_PAIRS = frozenset(
    {("instead", "of"), ("rather", "than"), ("other", "than"), ("no", "longer")}
    | {("anything", "but"), ("everything", "but"), ("preceded", "by"), ("place", "of"), ("over", "from")}
    | {("gave", "up"), ("given", "up"), ("know", "if"), ("sure", "if"), ("certain", "if"), ("tell", "if")}
)
_PREFERRED = re.compile(r"prefer(?:s|red)?|favou?r(?:s|ed)?|chose|picked")
_CHANGING = re.compile(r"(?:chang|switch|mov)(?:e|es|ed|ing)?")
_REPLACED = re.compile(r"(?:(?:has|had) been |is |was )?(?:replaced|superseded|followed) (?:by|with)\b")
_BECAME = re.compile(
    r"(?:(?:has|had|then|later|was|since) )*(?:(?:changed|turned|switched) (?:in)?to|became|become|gave way to|given way to)\b"
)
_NO_MORE = re.compile(
    r"(?:(?:is|was|are|were) )?(?:no longer|not|anymore|any more)\b|(?:is|was|are|were)n['’]t\b"
    r"|(?:is|was) (?:wrong|incorrect|out|outdated|gone)\b"
)
_WRONG = re.compile(r"\b(?:that|this|it|which) (?:is|was) (?:wrong|incorrect|outdated|not right|a mistake)\b")
_ASKING = re.compile(
    r"\W*(?:or |so |and |but )?(?:is|are|was|were|do|does|did|could|can|would|should|might|may|have|has|which|what|who)\b"
)
"""How a question begins that is put back; a name with a question mark is a guess."""
_CORRECTING = frozenset({"no", "nope", "wait", "correction", "actually", "sorry", "rather"})
_IN_BRACKETS = re.compile(r"\(([^()\n]{1,40})\)")
_MARKS = re.compile(r"[_`]+")
_TAG = re.compile(r"(?:isn['’]t it|is it not|right|correct|yes|no)\W*$")
_IN_ORDER = frozenset(
    {"then", "later", "afterwards", "finally", "next", "changed", "actually"}
    | {"correction", "sorry", "wait", "no", "rather", "instead"}
)
_REACH = 4
"""How many words a denial may stand before what it denies."""


class _Weight(IntEnum):
    """How much a clause counts."""

    PUT_BACK = 0
    FORMER = 1
    ASKED = 2
    PAST = 3
    PLAIN = 4
    PRESENT = 5
    NOW = 6


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    name: str = ""
    """If it names one of the things that are told apart: that thing, in small letters."""


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
    """What a sentence settles on."""

    name: str | None
    """None if it names several things."""
    weight: _Weight
    in_order: bool
    """Whether it says that it follows on something."""
    doubted: bool = False
    """Whether it says so only perhaps."""
    corrects: bool = False
    """Whether it takes back what was said before it."""


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
        yield from (position < kept for position in range(named))


def settled(text: str, things: Collection[str]) -> str | None:
    """The one of some things, given in small letters, that a text settles on; None if it does on none."""
    found: list[_Settled] = []
    for sentence, is_asked in _sentences(text.lower(), _reader(things)):
        result = _settled(sentence, is_asked)
        if result is not None:
            found = [result] if result.corrects else [*found, result]
    named = [each for each in found if each.name is not None]
    if not named:
        return None
    top = max(each.weight for each in named)
    if any(each.weight > top for each in found):
        return None  # what counts most names several
    best = [each for each in named if each.weight == top]
    after = found[len(found) - found[::-1].index(best[-1]) :]
    if any(each.doubted and each.weight > _Weight.PAST and each.name != best[-1].name for each in after):
        return None  # something else is offered afterwards
    if top <= _Weight.FORMER:
        return None  # what is so now is not said
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
    text = _MARKS.sub(" ", text)
    for part, asks in _parts(_IN_BRACKETS.sub(lambda found: _remark(found, reader), text)):
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


def _remark(found: re.Match[str], reader: re.Pattern[str]) -> str:
    """What is said in brackets, without them where it is said of what stands before: "Purple (now)"."""
    said = [(each[0], each["name"]) for each in reader.finditer(found[1])]
    is_remark = not any(name for _, name in said) and any(word in _NOW | _PAST | _EARLIER for word, _ in said)
    return found[1] if is_remark else found[0]


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for end in _SENTENCE_ENDS.finditer(text):
        yield text[at : end.start()], "?" in end[0]
        at = end.end()
    yield text[at:], False


def _settled(sentence: list[_Word], is_asked: bool) -> _Settled | None:
    clauses = [clause for clause in _clauses(sentence) if clause.has_names]
    weighed: list[tuple[_Weight, set[str]]] = []
    doubted: list[set[str]] = []
    text = " ".join(word.text for word in sentence)
    for clause in clauses:
        live = _after_before(clause.words) or {word.name for word in _not_denied(clause.words) if word.name}
        if not live:
            continue
        weight = _weight(clause, alone=len(clauses) == 1)
        if is_asked:
            weight = _Weight.PUT_BACK if _ASKING.match(text) else _Weight.ASKED
        weighed.append((weight, live))
        if any(word.text in _DOUBT for word in clause.words):
            doubted.append(live)
        elif clause.words[0].text == "but" and len(doubted) == len(weighed) - 1:
            del weighed[:-1]  # "perhaps you think of Olive, but it is Purple"
            doubted.clear()
    if not weighed:
        return None
    top = max(weight for weight, _ in weighed)
    in_order = any(word.text in _IN_ORDER for word in sentence)
    best = [live for weight, live in weighed if weight == top]
    names = set[str]().union(*doubted, *(best[-1:] if in_order else best))
    first = next((word.text for word in sentence if word.text not in _SPLITS), "")
    corrects = first in _CORRECTING and len(names) == 1 and top > _Weight.PAST
    return _Settled(next(iter(names)) if len(names) == 1 else None, top, in_order, bool(doubted), corrects)


def _after_before(words: Sequence[_Word]) -> set[str]:
    """What came after another thing that was so: "Before Purple it was Olive"; empty where nothing like that is said."""
    names = {word.name for word in words if word.name}
    after = {
        word.name
        for at, word in enumerate(words)
        if word.name
        and (
            (at >= 1 and words[at - 1].text == "before")
            or [each.text for each in words[max(0, at - 3) : at]] == ["before", "it", "was"]
        )
    }
    return after if after and names - after and any(word.text in _PAST for word in words) else set()


def _weight(clause: _Clause, *, alone: bool) -> _Weight:
    words = {word.text for word in clause.words}
    text = " ".join(word.text for word in clause.words)
    is_earlier = bool(words & _EARLIER) and not _TELLING.search(text)
    if _after_before(clause.words):
        return _Weight.PAST
    if _NO_MORE_SO.search(text):
        return _Weight.FORMER
    if _NOT_NOW.search(text):
        return _Weight.PAST
    if is_earlier and _UNKNOWN.search(text):
        return _Weight.FORMER
    if words & _NOW or _NOW_PHRASES.search(text):
        return _Weight.NOW
    if is_earlier or (words & _PAST and _UNDONE.search(text)):
        return _Weight.FORMER
    if words & _PAST:
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
            if clauses and _WRONG.search(" ".join(word.text for word in piece)):
                clauses[-1].words += [_Word(","), _Word("formerly")]
            else:
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
    positions = [at for at, word in enumerate(words) if word.name]
    for position, following in pairwise(positions):
        between = {word.text for word in words[position + 1 : following]}
        # "not Olive or Red", "neither Olive nor Red"
        if (
            denied[position]
            and between <= _LINKS
            and between & {"or", "nor", "and"}
            and _is_denied_before(words, position)
        ):
            denied[following] = True
    return [word for word, is_denied in zip(words, denied, strict=True) if not is_denied]


def _is_denied_before(words: Sequence[_Word], at: int) -> bool:
    before = words[max(0, at - _REACH - 1) : at]
    for distance, word in enumerate(reversed(before)):
        previous = words[at - distance - 2].text if at - distance >= 2 else ""
        following = words[at - distance].text
        if previous == "other" and at - distance >= 3 and words[at - distance - 3].text == "none":
            return False  # "none other than"
        if (previous, word.text) in _DENYING_PAIRS or (word.text in _REFUSING and not _denies(previous)):
            return True
        if word.name or word.text in _SPLITS or word.text in _NOT_HARMED or word.text == "but":
            return False
        if _denies(word.text):
            return True
        if _REPLACING.fullmatch(word.text) and following not in ("by", "with"):
            return True
        if (
            distance == 0
            and any(each.name for each in words[max(0, at - 2 * _REACH) : at])
            and _is_less(previous, word.text, words[max(0, at - 2 * _REACH) : at])
        ):
            return True
        if word.text in ("from", "after") and distance <= 1:
            return (
                word.text == "after"
                or any(each.text in _ARROWS for each in words[at + 1 : at + 1 + 4 * _REACH])
                or any(_CHANGING.fullmatch(each.text) for each in words[max(0, at - 2 * _REACH) : at])
            )
    return False


def _is_less(previous: str, word: str, before: Sequence[_Word]) -> bool:
    """Whether what follows is what something else is preferred to."""
    if word == "than":
        return previous in ("more", "better")
    return word in ("to", "over") and any(_PREFERRED.fullmatch(each.text) for each in before)


def _denies(word: str) -> bool:
    return word in _NOT or _SHORT_NOT.fullmatch(word) is not None


def _is_denied_after(words: Sequence[_Word], at: int) -> bool:
    after = words[at + 1 : at + 1 + _REACH]
    is_preferred = any(_PREFERRED.fullmatch(word.text) for word in words[max(0, at - 2 * _REACH) : at])
    if after and after[0].text in _ARROWS and any(word.name for word in after[1:]) and not is_preferred:
        return True  # "from Red to Olive to Purple"
    text = " ".join(word.text for word in after)
    if _REPLACED.match(text):
        return True
    if _BECAME.match(" ".join(word.text for word in words[at + 1 : at + 1 + 2 * _REACH])):
        return any(word.name for word in words[at + 1 : at + 1 + 2 * _REACH])
    found = _NO_MORE.match(text)
    if found is None:
        return False
    said = len(found[0].split())
    # "Purple not Olive" and "Purple, isn't it" deny something else.
    return not any(word.name or word.text in ("it", "that") for word in after[: said + 1])
