"""Conditions on the cells and earlier results of a row: ``score >= 7 and lang in ["de", "fr"]``.

A language of its own, not a template language's expressions: there is nothing to call, nothing takes long, a value of the wrong type breaks
no row, and columns of any name can be named.

    condition  = alternative ("or" alternative)*
    alternative = negation ("and" negation)*
    negation   = "not" negation | comparison
    comparison = value (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not" "in") value)?
    value      = name | "{" any name "}" | number | text | "true" | "false" | "null" | "[" values "]" | "(" condition ")"

Cells of CSV tables are text, and models write numbers as text. So text that reads as a number or a truth value counts as that where it is
compared with one. Blank text is null.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import cut

Lookup = Callable[[str], Json]
"""Gives the value of a name."""
_Part = Callable[[Lookup], Json]

MAX_CHARS = 4000
MAX_DEPTH = 50
"""Parentheses, lists and ``not`` within each other."""
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | \{(?P<braced>[^{}]*)\}
      | (?P<word>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"\s*[+-]?(\d{1,300}(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\s*", re.ASCII)
_LOCAL_NUMBER = re.compile(r"\s*[+-]?(\d{1,300}|\d{1,3}(\.\d{3}){1,99})(,\d+)?\s*", re.ASCII)
_CONSTANTS: Mapping[str, Json] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip
_KEYWORDS = frozenset(("and", "or", "not", "in"))
_ESCAPES = {"n": "\n", "t": "\t"}
_ORDERS: Mapping[str, Callable[[Json, Json], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISONS = frozenset(("==", "!=", *_ORDERS))
_INSTEAD = {"=": "==", "&": "and", "|": "or", "!": "not"}
"""What is written for it here."""
_END = "the end"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read once."""

    text: str
    """As it is written."""
    names: tuple[str, ...]
    """The names in it, each once, in order of first appearance."""
    _part: _Part

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError that says what is wrong, and where."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"is longer than {MAX_CHARS} characters")
        parser = _Parser(text)
        part = parser.whole()
        return cls(text, tuple(parser.names), part)

    def holds(self, lookup: Lookup) -> bool:
        """Whether it is true. ``lookup``: the values of ``names``; raises nothing of its own."""
        return is_true(self._part(lookup))


# --- What values mean


def is_true(value: Json) -> bool:
    """Whether a value alone counts as true: not if it is null, false, 0, empty, or text that reads as one of these."""
    if isinstance(value, str):
        return value.strip().casefold() not in ("", "false") and _as_number(value) != 0
    return bool(value)


def equal(left: Json, right: Json) -> bool:
    """Whether two values are the same: text that reads as a number or a truth value equals that one, and blank text equals null."""
    left, right = _meant(left, right), _meant(right, left)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def ordered(left: Json, order: str, right: Json) -> bool:
    """``<``, ``<=``, ``>`` or ``>=`` of numbers, or of texts that are not both numbers. Between all others there is no order: False."""
    first, second = _as_number(left), _as_number(right)
    if first is not None and second is not None:
        return _ORDERS[order](first, second)
    if isinstance(left, str) and isinstance(right, str) and left.strip() and right.strip():
        return _ORDERS[order](left, right)
    return False


def contains(whole: Json, part: Json) -> bool:
    """``part in whole``: an element of a list, a piece of a text, a key of an object."""
    if isinstance(whole, list):
        return any(equal(part, each) for each in whole)
    if isinstance(whole, str):
        return isinstance(part, str) and bool(part) and part in whole
    return isinstance(whole, dict) and isinstance(part, str) and part in whole


def _meant(value: Json, other: Json) -> Json:
    """A value as it is to be compared with another one."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None if other is None else value
    if isinstance(other, bool):
        return {"true": True, "false": False}.get(value.strip().casefold(), value)
    number = _as_number(value) if isinstance(other, (int, float)) else None
    return value if number is None else number


class LocalText(str):
    """A cell of a table whose numbers have decimal commas: ``1.234,5`` counts as 1234.5 where it is compared with a number."""

    __slots__ = ()


def _as_number(value: Json) -> int | float | None:
    if isinstance(value, LocalText) and _LOCAL_NUMBER.fullmatch(value):
        value = value.replace(".", "").replace(",", ".")
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value) if set(value) & set(".eE") else int(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- Reading


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    """Reads a condition from the left, one word ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.names: dict[str, None] = {}
        self._next = self._token()

    def whole(self) -> _Part:
        part = self._either()
        if self._next.kind != _END:
            if self._next.text in _COMPARISONS:
                raise self._wrong("compare two values at a time, and join comparisons with 'and'")
            raise self._wrong("'and' or 'or' is expected")
        return part

    def _either(self) -> _Part:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda lookup: any(is_true(part(lookup)) for part in parts)

    def _both(self) -> _Part:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda lookup: all(is_true(part(lookup)) for part in parts)

    def _negation(self) -> _Part:
        if not self._take("not"):
            return self._comparison()
        part = self._deeper(self._negation)
        return lambda lookup: not is_true(part(lookup))

    def _comparison(self) -> _Part:
        left = self._value()
        sign = self._next.text if self._next.kind == "sign" else ""
        if sign in _COMPARISONS:
            self._advance()
            return _compared(left, sign, self._value())
        negated = self._take("not")
        if self._take("in"):
            whole = self._value()
            return lambda lookup: contains(whole(lookup), left(lookup)) is not negated
        if negated:
            raise self._wrong("'in' is expected behind 'not'")
        return left

    def _value(self) -> _Part:
        token = self._next
        if token.kind == "sign" and token.text == "(":
            self._advance()
            part = self._deeper(self._either)
            self._expect(")")
            return part
        if token.kind == "sign" and token.text == "[":
            self._advance()
            return self._deeper(self._list)
        if token.kind in ("sign", _END) or (token.kind == "word" and token.text in _KEYWORDS):
            raise self._wrong("a name or a value is expected")
        if token.kind == "number" and _as_number(token.text) is None:
            raise self._wrong("a number has at most 300 digits, and its exponent 3")
        self._advance()
        if token.kind == "braced" or (token.kind == "word" and token.text not in _CONSTANTS):
            self.names[token.text] = None
            return lambda lookup: lookup(token.text)
        constant = _constant(token)
        return lambda lookup: constant

    def _list(self) -> _Part:
        parts: list[_Part] = []
        while not self._take("]"):
            parts.append(self._value())
            if not self._take(","):
                self._expect("]")
                break
        return lambda lookup: [part(lookup) for part in parts]

    def _deeper(self, read: Callable[[], _Part]) -> _Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"nested more than {MAX_DEPTH} deep")
        part = read()
        self._depth -= 1
        return part

    def _take(self, text: str) -> bool:
        """Go on if the next word is this one, and say whether it is."""
        found = self._next.text == text and self._next.kind in ("sign", "word")
        if found:
            self._advance()
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(f"'{text}' is expected")

    def _advance(self) -> None:
        self._next = self._token()

    def _token(self) -> _Token:
        found = _TOKEN.match(self._text, self._at)
        start = len(self._text) - len(self._text[self._at :].lstrip())
        if found is None:
            if start == len(self._text):
                return _Token(_END, "", start)
            raise _at(self._text, start, _unreadable(self._text[start:]))
        self._at = found.end()
        kind = str(found.lastgroup)
        return _Token(kind, found[kind], start)

    def _wrong(self, message: str) -> ValueError:
        return _at(self._text, self._next.at, message)


def _compared(left: _Part, sign: str, right: _Part) -> _Part:
    if sign in _ORDERS:
        return lambda lookup: ordered(left(lookup), sign, right(lookup))
    same = sign == "=="
    return lambda lookup: equal(left(lookup), right(lookup)) is same


def _constant(token: _Token) -> Json:
    if token.kind == "number":
        return _as_number(token.text)
    if token.kind == "text":
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), token.text[1:-1], flags=re.DOTALL)
    return _CONSTANTS[token.text]


def _unreadable(rest: str) -> str:
    if rest[0] in "\"'":
        return "the quotation has no end"
    if rest[0] in _INSTEAD:
        return f"write '{_INSTEAD[rest[0]]}'"
    return "can't be read"


def _at(text: str, position: int, message: str) -> ValueError:
    rest = text[position:]
    return ValueError(f"{message} at {shown(cut(rest, 30))}" if rest else f"{message} at its end")
