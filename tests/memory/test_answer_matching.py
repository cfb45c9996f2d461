"""How answers are read and compared: the parser that repairs JSON, and ROUGE-L with stems against values worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.workloads.memory.datasets.answers.matching import NotJson, rouge_l, stems, tolerant_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES, max_size=4) | st.dictionaries(st.text(), VALUES, max_size=4)


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 2]))
def test_strict_json_is_taken_as_it_is(value: Any, indent: int | None) -> None:
    assert tolerant_json(json.dumps(value, indent=indent)) == value


@settings(deadline=None)
@given(CONTAINERS)
def test_prose_around_json_does_not_matter(value: Any) -> None:
    text = json.dumps(value)
    assert tolerant_json(f"Sure, here it is: {text}") == value
    assert tolerant_json(f"{text}\nIs there anything else?") == value
    assert tolerant_json(f"Here is the list:\n\n{text}\n\nIs that right?") == value


@settings(deadline=None)
@given(CONTAINERS)
def test_a_fenced_block_is_taken(value: Any) -> None:
    text = json.dumps(value, indent=1)
    if "```" not in text:
        assert tolerant_json(f"As [1] says:\n```json\n{text}\n```\nBye {{}}") == value
        assert tolerant_json(f"As [1] says:\n```\n{text}\n```") == value
        assert tolerant_json(f"```json\n[0]\n```\n```javascript\n{text}\n```") == value
        assert tolerant_json(f"```json\n[0]\n```\nno, rather\n```json\n{text}\n```") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["a", "b",]', ["a", "b"]),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1, // the first\n"b": 2 // the second\n}', {"a": 1, "b": 2}),
        ('["a", "b", ...]', ["a", "b"]),
        ('["a", ..., "z"]', ["a", "z"]),
        ('["a" "b"]', ["a", "b"]),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a", "b": 2}', {"a": None, "b": 2}),
        ('["a\nb"]', ["ab"]),
        ('["a", "b]', ["a", "b"]),
        ('["a", b"]', ["a", "b"]),
        (
            '[{"item": "Milk", "quantity": 2}, {"item": "Soap", "quantity": 1},\n]',
            [{"item": "Milk", "quantity": 2}, {"item": "Soap", "quantity": 1}],
        ),
        ('The names are\n["Ann",\n"Ben"]\n\nCurrent information about the user:\n{"name": "Ben"}', ["Ann", "Ben"]),
    ],
)
def test_repairs(text: str, value: Any) -> None:
    assert tolerant_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "   ", "I don't know.", '["a", "b"', '{"a": 1', "['a', 'b']", "[" * 5000, "{" * 100_000, "[,]" * 500]
)
def test_what_can_not_be_repaired(text: str) -> None:
    with pytest.raises(NotJson):
        tolerant_json(text)


@settings(deadline=None)
@given(st.text(alphabet='[]{}",:/.a1 \n`'))
def test_any_text_gives_a_value_or_an_error(text: str) -> None:
    try:
        json.dumps(tolerant_json(text))
    except NotJson:
        pass


WORDS = st.lists(st.sampled_from(["the", "quick", "brown", "foxes", "jump", "over", "lazy", "dogs"]), max_size=8)


@pytest.mark.parametrize(
    ("expected", "given_text", "score"),
    [
        ("police killed the gunman", "police kill the gunman", 1.0),
        ("police killed the gunman", "the gunman kill police", 0.5),
        ("Here is a tissue for you", "Here's a tissue for you!", 2 * (5 / 6) * (5 / 6) / (10 / 6)),
        ("one two three", "four five", 0.0),
        ("one", "", 0.0),
        ("", "", 0.0),
    ],
)
def test_known_values(expected: str, given_text: str, score: float) -> None:
    assert rouge_l(expected, given_text) == pytest.approx(score)


def test_stems() -> None:
    assert stems("Potatoes, light-bulbs and 3 Candles!") == ["potato", "light", "bulb", "and", "3", "candl"]


@settings(deadline=None)
@given(WORDS, WORDS)
def test_is_symmetric_and_a_share(one: list[str], other: list[str]) -> None:
    score = rouge_l(" ".join(one), " ".join(other))
    assert 0 <= score <= 1
    assert score == pytest.approx(rouge_l(" ".join(other), " ".join(one)))
    assert rouge_l(" ".join(one), " ".join(one)) == (1.0 if one else 0.0)


@settings(deadline=None)
@given(WORDS, WORDS)
def test_the_common_part_against_another_way_to_find_it(one: list[str], other: list[str]) -> None:
    def longest(left: list[str], right: list[str]) -> int:
        if not left or not right:
            return 0
        if left[0] == right[0]:
            return 1 + longest(left[1:], right[1:])
        return max(longest(left[1:], right), longest(left, right[1:]))

    common = longest(one, other)
    score = 2 * common / (len(one) + len(other)) if common else 0.0
    assert rouge_l(" ".join(one), " ".join(other)) == pytest.approx(score)
