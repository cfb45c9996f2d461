"""How reports write figures and texts from outside, which are cut at the limit of a report's size, and then it says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from manyhands.core.jsonio import without_surrogates
from manyhands.core.statistics import Interval, Mean, Paired
from manyhands.runs.shown.blocks import Tone

NOTHING = "–"


def share(value: float | None) -> str:
    """A score from 0 to 1."""
    return NOTHING if value is None else f"{value:.3f}"


def interval(found: Interval | None, scale: float = 1, decimals: int = 3) -> str:
    """An interval in brackets; nothing if there is none."""
    return "" if found is None else f"[{scale * found.low:.{decimals}f} … {scale * found.high:.{decimals}f}]"


METHODS = {
    "wilson": "Wilson's score interval",
    "wilson, clustered": "Wilson's score interval, for as many independent tests as say as much (tests of a dataset depend on each other)",
    "t": "Student's t interval",
    "t, clustered": "Student's t interval with the standard error of clusters (tests of a dataset depend on each other)",
}
"""What methods of intervals are called in full."""


def method(found: Interval | None) -> str:
    """By which formula an interval was found."""
    return "no interval" if found is None else METHODS.get(found.method, found.method)


def methods(found: Iterable[Interval | None]) -> str:
    """By which formulas several intervals were found, in a sentence; empty if there are none."""
    named = dict.fromkeys(method(each) for each in found if each is not None)
    return f"Intervals of 95 %: {'; '.join(named)}." if named else ""


def estimate(found: Mean) -> str:
    """A mean score with its interval."""
    return f"{share(found.value)} {interval(found.interval)}".rstrip()


def percent(found: Mean) -> str:
    """A mean score in percent, with its interval."""
    if found.value is None:
        return NOTHING
    return f"{100 * found.value:.1f} % {interval(found.interval, 100, 1)}".rstrip()


def difference(found: Paired | None) -> str:
    """A mean difference of scores, with its interval; of too few datasets it has none, and that is said."""
    if found is None or found.difference.value is None:
        return NOTHING
    return (
        f"{found.difference.value:+.3f} {interval(found.difference.interval) or '(too few datasets for an interval)'}"
    )


def p_value(found: Paired | None) -> str:
    """How likely as large a difference is by chance alone."""
    if found is None or found.p_value is None:
        return NOTHING
    return "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def money(value: float | None) -> str:
    """US dollars; small sums to a hundredth of a cent."""
    if value is None:
        return NOTHING
    return f"${value:,.4f}" if 0 < abs(value) < 1 else f"${value:,.2f}"


def duration(seconds: float) -> str:
    """Seconds as days, hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def score_tone(score: float | None) -> Tone:
    """What a score from 0 to 1 means to a person."""
    if score is None:
        return "muted"
    return "good" if score >= 1 else "warn" if score > 0 else "bad"


MAX_MESSAGE_BYTES = 20_000
"""Bytes of one message."""
MAX_NAME_CHARACTERS = 300
"""Characters of a name."""
_LINE = re.compile(r"(Test|Agent|System|SYSTEM) \(([^)\n]{1,40})\): ?(.*)", re.DOTALL)
_ESCAPED = "<>&\"'"
_ESCAPED_BYTES = 5
"""Bytes that such a character takes in HTML, at most."""
_MAX_ANSWERS = 200
"""Questions of a test that are shown one by one."""
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


@dataclass(frozen=True, slots=True)
class Line:
    """One message."""

    sender: str
    """Test, Agent, System (filler), or SYSTEM (what the benchmark notes); empty where a line has no sender."""
    moment: str
    """The time, as it is written in the result."""
    text: str
    more: int = 0
    """Characters that are not shown."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A question of a test, and how it was answered."""

    question: str
    """Empty where it is not known."""
    expected: str
    actual: str
    reasoning: str


class TextBudget:
    """How much text still fits. ``size``: bytes of HTML, about."""

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def fit(self, text: str, max_bytes: int = MAX_MESSAGE_BYTES) -> tuple[str, int]:
        """As much of a text as fits, and how many characters of it are left out."""
        allowed = max(0, min(self._left, max_bytes))
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


def task_log(result: Mapping[str, Any], budget: TextBudget) -> tuple[list[Line], int]:
    """The messages of a test, from its result; and how many do not fit."""
    lines = [str(line) for line in _list(result.get("task_log"))]
    shown: list[Line] = []
    for line in lines:
        if budget.is_full:
            break
        found = _LINE.fullmatch(line)
        sender, moment, text = found.groups() if found is not None else ("", "", line)
        kept, more = budget.fit(text)
        shown.append(Line(sender, moment, kept, more))
    return shown, len(lines) - len(shown)


def answered(result: Mapping[str, Any], questions: Sequence[str], budget: TextBudget) -> list[Answered]:
    """What was expected, what came, and what was made of it: question by question where the result has as many of each, else at once."""
    expected = _list(result.get("expected_responses"))
    actual, reasoning = _list(result.get("actual_responses")), _list(result.get("reasoning"))
    if len(expected) == len(actual) == len(reasoning) <= _MAX_ANSWERS:
        headings = questions if len(questions) == len(actual) else [""] * len(actual)
        return [_answered(*each, budget=budget) for each in zip(headings, expected, actual, reasoning, strict=True)]
    joined = ["\n".join(map(_text, each)) for each in (questions, expected, actual, reasoning)]
    return [_answered(*joined, budget=budget)] if any(joined[1:]) else []


def _answered(*parts: Any, budget: TextBudget) -> Answered:
    return Answered(*(_noted(*budget.fit(_text(part))) for part in parts))


def _noted(text: str, more: int) -> str:
    return f"{text}… ({more:,} more characters)" if more else text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
