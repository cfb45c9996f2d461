"""ROUGE-L with stems, against values worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.workloads.memory.datasets.answers.matching import rouge_l, stems

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
