"""What was said in a test, as a page shows it: cut where there is no more room, and then it says so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import without_surrogates

MAX_MESSAGE_CHARACTERS = 20_000
"""Bytes of one message."""
MAX_NAME_CHARACTERS = 300
"""Characters of a name."""
_LINE = re.compile(r"(Test|Agent|System|SYSTEM) \(([^)\n]{1,40})\): ?(.*)", re.DOTALL)
_ESCAPED = "<>&\"'"
_ESCAPED_BYTES = 5
_AROUND = 200
"""Bytes of HTML around a text."""
_MAX_ANSWERS = 200
"""Questions of a test that are shown one by one."""
"""Bytes that such a character takes in HTML, at most."""
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


@dataclass(frozen=True, slots=True)
class Line:
    """One message. ``sender``: Test, Agent, System (filler), or SYSTEM (what the benchmark notes); empty where a line has no sender;
    ``moment``: as it is written in the result; ``more``: characters that are not shown."""

    sender: str
    moment: str
    text: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """A question of a test. ``question``: empty where it is not known."""

    question: str
    expected: str
    actual: str
    reasoning: str


class Room:
    """How much text still fits. ``size``: bytes of HTML, about."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def fit(self, text: str, most: int = MAX_MESSAGE_CHARACTERS) -> tuple[str, int]:
        """As much of a text as there is room for, and how many characters of it are left out."""
        allowed = max(0, min(self._left, most))
        # Each character takes a byte or more, so what is behind cannot be shown whatever it is.
        kept = shown_text(text[: allowed + 1])
        if (size := html_size(kept)) > allowed:
            kept = kept[: len(kept) * allowed // size]
            while html_size(kept) > allowed:
                kept = kept[: len(kept) * 9 // 10]
            size = allowed
        self._left -= size
        return kept, len(text) - len(kept)


def html_size(text: str) -> int:
    """Bytes that a text takes in HTML, at most."""
    return len(text.encode("utf-8")) + (_ESCAPED_BYTES - 1) * sum(map(text.count, _ESCAPED))


def shown_text(text: str) -> str:
    """A text from outside without what no page may hold."""
    return without_surrogates(text).translate(_CONTROLS)


def brief(text: object) -> str:
    """A name from outside, on one line and of a length that fits a line."""
    line = " ".join(shown_text(str(text)).split())
    return line if len(line) <= MAX_NAME_CHARACTERS else f"{line[:MAX_NAME_CHARACTERS]}…"


def task_log(result: Mapping[str, Any], room: Room) -> tuple[list[Line], int]:
    """The messages of a test, from its result; and how many there is no room for."""
    lines = [str(line) for line in _list(result.get("task_log"))]
    shown: list[Line] = []
    for line in lines:
        if room.is_full:
            break
        found = _LINE.fullmatch(line)
        sender, moment, text = found.groups() if found is not None else ("", "", line)
        kept, more = room.fit(text)
        shown.append(Line(sender, moment, kept, more))
    return shown, len(lines) - len(shown)


def answered(result: Mapping[str, Any], questions: Sequence[str], room: Room) -> list[Answered]:
    """What was expected, what came, and what was made of it: question by question where the result has as many of each, else at once."""
    expected = _list(result.get("expected_responses"))
    actual, reasoning = _list(result.get("actual_responses")), _list(result.get("reasoning"))
    if len(expected) == len(actual) == len(reasoning) <= _MAX_ANSWERS:
        asked = questions if len(questions) == len(actual) else [""] * len(actual)
        return [_answered(*each, room=room) for each in zip(asked, expected, actual, reasoning, strict=True)]
    joined = ["\n".join(map(_text, each)) for each in (questions, expected, actual, reasoning)]
    return [_answered(*joined, room=room)] if any(joined[1:]) else []


def _answered(*parts: Any, room: Room) -> Answered:
    return Answered(*(_noted(*room.fit(_text(part))) for part in parts))


def _noted(text: str, more: int) -> str:
    return f"{text}… ({more:,} more characters)" if more else text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
