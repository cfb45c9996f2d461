r"""``regex``: whether a regular expression is found in the answer.

The dialect is Python's, as the ``regex`` package understands it (its version 0 behaviour, a superset of the standard library's), but
without its approximate matching: braces that are no repetition are characters, as in the standard library and in JavaScript.
Two habits of JavaScript are understood besides: named groups ``(?<name>…)`` with ``\k<name>``, and flags, either in a key of
their own (``flags: i``) or as a literal (``/…/i``, where at least one flag follows the last slash). Of the flags, i, m and s mean what they
mean in both languages, x and a are Python's; d, g, u and v change nothing about whether something is found.

How large a pattern becomes when it is compiled is found out before: counted repetitions are written out in it, so that
``(?:(?:a{1000}){1000}){1000}`` would take all memory there is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import regex
from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.settings import shown
from manyhands.core.text import cut
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, all_or_nothing
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, SomeWords, key, read
from manyhands.io.locations import Location

AT_ONCE = 0.02
"""Seconds that a search may take on the event loop."""
MAX_SECONDS = 2.0
"""Seconds that it may take in a thread of its own, where it holds up nobody."""
MAX_PATTERN = 10_000
"""Characters."""
MAX_PATTERN_SIZE = 100_000
"""Elements of a compiled pattern, each of which takes about 250 bytes."""

_FLAGS = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL, "x": regex.VERBOSE, "a": regex.ASCII}
_WITHOUT_EFFECT = "dguv"
_KNOWN = frozenset((*_FLAGS, *_WITHOUT_EFFECT))
_LITERAL = regex.compile(r"/(?P<pattern>.+)/(?P<flags>[a-z]+)", regex.DOTALL)
_BRACE = regex.compile(
    r"\\[pPN]\{[^{}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\\?\Z)|\{\d+(?:,\d*)?\}|\{,\d+\}|(?P<brace>\{)", regex.DOTALL
)
_REFERENCE = regex.compile(r"(?P<before>(?<!\\)(?:\\\\)*)\\k<(?P<name>\w+)>")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\\?\Z)|\{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\}|.", re.DOTALL)


def _flags(value: Any) -> str:
    if not isinstance(value, str) or not _KNOWN.issuperset(value):
        raise ValueError(f"must be letters out of {''.join(sorted(_KNOWN))}")
    return value


class RegexEntry(Entry):
    """Settings of ``regex``."""

    value: SomeWords = key(..., "A regular expression that must be found in the answer.")
    flags: Annotated[str, BeforeValidator(_flags)] = key("", "i (case), m (lines), s (dot), x (verbose), a (ASCII).")


ENTRY = RegexEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for a pattern that can't be read."""
    settings = read(RegexEntry, entry, location)
    try:
        pattern = compiled(settings.value, settings.flags)
    except ValueError as error:
        raise location.at("value").error(str(error)) from None
    return RegexRule(entry["name"], entry["type"], settings.value, pattern)


def compiled(text: str, flags: str = "") -> regex.Pattern[str]:
    """The pattern. Raises ValueError that says what is wrong with it."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern has at most {MAX_PATTERN} characters, not {len(text)}")
    literal = _LITERAL.fullmatch(text)
    if literal and "y" in literal["flags"] and _KNOWN.issuperset(literal["flags"].replace("y", "")):
        raise ValueError(
            "the flag y (at the beginning only) is not known here; write \\A at the pattern's beginning instead"
        )
    if literal and _KNOWN.issuperset(literal["flags"]):
        text, flags = literal["pattern"], flags + literal["flags"]
    if written_out(text) > MAX_PATTERN_SIZE:
        raise ValueError(
            f"a pattern whose repetitions come to more than {MAX_PATTERN_SIZE:,} elements would take too much memory"
        )
    value = regex.VERSION0
    for flag in flags:
        value |= _FLAGS.get(flag, 0)
    try:
        return regex.compile(_REFERENCE.sub(r"\g<before>(?P=\g<name>)", _with_plain_braces(text)), value)
    except regex.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    except (OverflowError, RecursionError, MemoryError):
        raise ValueError("not a regular expression: it is too large") from None


def _with_plain_braces(text: str) -> str:
    """The pattern with a backslash before braces that begin no repetition: ``regex`` would take ``{e}`` and ``{i}`` for a leave to match
    what is not there."""
    return _BRACE.sub(lambda found: r"\{" if found["brace"] else found[0], text)


@dataclass(frozen=True, slots=True)
class RegexRule:
    """Searches the answer, for a bounded time."""

    name: str
    type: str
    written: str
    pattern: regex.Pattern[str]

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        found = await self._search(candidate.answer)
        hit = f"the answer matches {self._short}" + (f": {shown(found)}" if found else "")
        return all_or_nothing(self, found is not None, hit, f"nothing in the answer matches {self._short}")

    @property
    def _short(self) -> str:
        return cut(self.written, 200)

    async def _search(self, text: str) -> str | None:
        try:
            return _first(self.pattern, text, AT_ONCE)
        except TimeoutError:
            pass
        try:
            return await asyncio.to_thread(_first, self.pattern, text, MAX_SECONDS, True)
        except TimeoutError:
            raise GraderError(
                f"the search for {self._short} took more than {MAX_SECONDS:g} s in this answer of {len(text)} "
                "characters, so it was given up; the pattern may match in too many ways"
            ) from None


def _first(pattern: regex.Pattern[str], text: str, seconds: float, concurrent: bool = False) -> str | None:
    match = pattern.search(text, timeout=seconds, concurrent=concurrent)
    return None if match is None else match[0]


def written_out(pattern: str) -> int:
    """About how many elements a pattern has when each ``{n}`` and ``{n,m}`` is written out, at its larger number."""
    sizes = [0]
    last = 0
    for token in _TOKEN.finditer(pattern):
        numbers = [int(number) for number in (token["least"], token["most"]) if number]
        if token[0] == "(":
            sizes.append(0)
        elif token[0] == ")" and len(sizes) > 1:
            last = sizes.pop() + 1
            sizes[-1] += last
        elif numbers:
            sizes[-1] += last * (max(numbers) - 1)
            last *= max(numbers)
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)
