"""Rules: graders that look at the answer's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.testing.grader_doubles import grade


@pytest.mark.parametrize(
    ("kind", "value", "answer", "expected"),
    [
        ("contains", "CLEAR", "it is CLEAR.", 1),
        ("contains", "CLEAR", "it is clear.", 0),
        ("contains", "a\nb", "x a\nb y", 1),
        ("contains", " ", "ab", 0),
        ("icontains", "STRASSE", "Große Straße", 1),
        ("icontains", "clear", "CLEAR", 1),
        ("icontains", "clear", "cleer", 0),
        ("contains_any", ["x", "b"], "abc", 1),
        ("contains_any", ["x", "y"], "abc", 0),
        ("contains_any", ["A"], "abc", 0),
        ("contains_all", ["a", "c"], "abc", 1),
        ("contains_all", ["a", "x"], "abc", 0),
        ("icontains_any", ["X", "B"], "abc", 1),
        ("icontains_all", ["A", "B"], "abc", 1),
        ("icontains_all", ["A", "X"], "abc", 0),
        ("equals", "yes", " yes\n", 1),
        ("equals", " yes ", "yes", 1),
        ("equals", "yes", "Yes", 0),
        ("equals", "", "  ", 1),
        ("equals", "a\nb\n", "a\nb", 1),
        ("starts_with", "Dear", "\n Dear Sir", 1),
        ("starts_with", "Dear", "My Dear", 0),
        ("ends_with", "Yours\n", "… Yours", 1),
        ("ends_with", "Yours", "Yours, Ada", 0),
    ],
)
async def test_texts(kind: str, value: str | list[str], answer: str, expected: float) -> None:
    score = await grade({"type": kind, "value": value}, answer)
    assert score.value == expected
    assert score.verdict == ("pass" if expected else "fail")
    assert (len(score.hits), len(score.misses)) == ((1, 0) if expected else (0, 1))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"a": 1}', 1),
        (" [1, 2]\n", 1),
        ("5", 1),
        ('"text"', 1),
        ("null", 1),
        ("", 0),
        ("yes", 0),
        ('{"a": 1} and more', 0),
        ("{'a': 1}", 0),
        ("NaN", 0),
        ("[" * 100_000, 0),
        ("[" * 5000 + "]" * 5000, 0),
    ],
)
async def test_json(answer: str, expected: float) -> None:
    assert (await grade({"type": "is_json"}, answer)).value == expected


async def test_what_is_said() -> None:
    score = await grade({"type": "contains_all", "value": ["a", "x", "y"]}, "abc")
    assert score.misses == ("the answer does not contain 'x', 'y'",)
    score = await grade({"type": "icontains", "value": "A"}, "abc")
    assert score.hits == ("the answer contains 'A' (case ignored)",)
    score = await grade({"type": "ends_with", "value": "x"}, "abc")
    assert score.misses == ("the answer does not end with 'x'",)
    score = await grade({"type": "equals", "value": "x" * 1000}, "y" * 1000)
    assert len(score.misses[0]) < 500


@settings(deadline=None)
@given(st.text(max_size=20), st.text(min_size=1, max_size=5), st.text(max_size=20))
async def test_what_was_put_in_is_found(before: str, value: str, after: str) -> None:
    answer = before + value + after
    for kind in ("contains", "icontains"):
        assert (await grade({"type": kind, "value": value}, answer)).value == 1
    assert (await grade({"type": "equals", "value": answer}, answer)).value == 1
    assert (await grade({"type": "starts_with", "value": answer or "x"}, answer or "x")).value == 1
