"""Many scores as one, against tables that were worked out by hand from the specification's formulas."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.statistics import inverse, weighted_mean
from manyhands.graders.protocol import Candidate, Grading, Score, ToolUse, verdict_of
from manyhands.graders.scoring import Configured, checked, combine, negated
from manyhands.testing.grader_doubles import graders_of, make_grading


def score(value: float | None, weight: float = 1, minimum: float | None = None, **more: object) -> Score:
    verdict = "error" if value is None else verdict_of(value)
    return Score("a", "t", value, verdict, weight=weight, minimum=minimum, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scores", "value", "verdict"),
    [
        ([(1, 1)], 1.0, "pass"),
        ([(0.8, 1)], 0.8, "pass"),
        ([(0.79, 1)], 0.79, "borderline"),
        ([(0.6, 1)], 0.6, "borderline"),
        ([(0.59, 1)], 0.59, "fail"),
        ([(1, 1), (0, 1)], 0.5, "fail"),
        ([(1, 3), (0, 1)], 0.75, "borderline"),
        ([(1, 0), (0, 1)], 0.0, "fail"),
        ([(1, 0), (1, 0)], 0.0, "fail"),
        ([(1, 2), (0.5, 3), (0.25, 5)], 0.475, "fail"),  # (2 + 1.5 + 1.25) ÷ 10
        ([(0.9, 1), (0.9, 1), (0.6, 1)], 0.8, "pass"),  # 2.4 ÷ 3, which is 0.7999999999999999 in binary
        ([(0.7, 0.1), (0.9, 0.1)], 0.8, "pass"),
        ([(1, 4), (0, 1)], 0.8, "pass"),
        ([(1, 1e308), (1, 1e308)], 1.0, "pass"),
        ([(0.1, 1), (0.1, 1), (0.1, 1)], 0.1, "fail"),
    ],
)
def test_weighted_means(scores: list[tuple[float, float]], value: float, verdict: str) -> None:
    total = combine([score(each, weight) for each, weight in scores])
    assert (total.value, total.verdict, total.error) == (value, verdict, None)


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ([(1, 1, None), (0.79, 1, 0.8)], 0.0),
        ([(1, 1, None), (0.8, 1, 0.8)], 0.9),
        ([(1, 1, 1), (0.5, 1, 0.5)], 0.75),
        ([(1, 1, 1), (0.5, 0, 0.6)], 0.0),  # a weight of 0 does not make it less required
        ([(0, 1, None), (1, 1, 0.8)], 0.5),
    ],
)
def test_required_graders(scores: list[tuple[float, float, float | None]], value: float) -> None:
    assert combine([score(*each) for each in scores]).value == value


def test_another_pass_limit() -> None:
    assert combine([score(0.5)], 0.5).verdict == "pass"
    assert combine([score(0.9)], 0.95).verdict == "borderline"
    assert combine([score(0.6)], 0.6).verdict == "pass"


def test_what_is_gathered() -> None:
    first = Score("one", "t", 1.0, "pass", hits=("a", "b"), misses=("c",), reasoning="good")
    second = Score("two", "t", 0.0, "fail", hits=("d",), reasoning=None)
    third = Score("three", "t", 0.0, "fail", misses=("e",), reasoning="bad")
    total = combine([first, second, third])
    assert (total.hits, total.misses) == (("a", "b", "d"), ("c", "e"))
    assert total.reasoning == "one: good | three: bad"
    assert combine([second]).reasoning is None


def test_a_broken_grader_leaves_no_value() -> None:
    broken = Score("judge", "t", None, "error", weight=0, error="it crashed")
    total = combine([score(1, hits=("x",)), broken])
    assert (total.value, total.verdict, total.error, total.hits) == (None, "error", "judge: it crashed", ("x",))
    assert combine([broken, score(0, minimum=0.8)]).value is None


def test_nothing_to_combine() -> None:
    with pytest.raises(ValueError, match="no scores"):
        combine([])


_VALUES = st.floats(0, 1)
_WEIGHTS = st.floats(0, 1e6)


@given(st.lists(st.tuples(_VALUES, _WEIGHTS), min_size=1, max_size=6))
def test_the_mean_is_the_formula_in_exact_arithmetic(pairs: list[tuple[float, float]]) -> None:
    mean = weighted_mean(pairs)
    counted = [value for value, weight in pairs if weight]
    if not counted:
        assert mean == 0
        return
    total = sum(Fraction(repr(weight)) for _, weight in pairs)
    goal = sum(Fraction(repr(value)) * Fraction(repr(weight)) for value, weight in pairs) / total
    assert mean == float(goal)
    assert min(counted) <= mean <= max(counted)
    assert mean == weighted_mean(list(reversed(pairs)))


@given(_VALUES, st.floats(0.001, 100), st.integers(1, 5))
def test_equal_scores_stay_what_they_are(value: float, weight: float, count: int) -> None:
    assert combine([score(value, weight)] * count).value == value


# --- Negation


@pytest.mark.parametrize(
    ("value", "opposite", "verdict"),
    [
        (1.0, 0.0, "fail"),
        (0.0, 1.0, "pass"),
        (0.7, 0.3, "fail"),
        (0.3, 0.7, "borderline"),
        (0.2, 0.8, "pass"),
        (0.1, 0.9, "pass"),
    ],
)
def test_negation(value: float, opposite: float, verdict: str) -> None:
    found = negated(Score("a", "t", value, "borderline", hits=("h",), misses=("m",), reasoning="why"), 0.8)
    assert (found.value, found.verdict, found.hits, found.misses) == (opposite, verdict, ("m",), ("h",))
    assert found.reasoning == f"[Negated] why (original score {value:g})"


@given(st.integers(0, 1000))
def test_negation_twice(thousandths: int) -> None:
    value = thousandths / 1000
    assert inverse(inverse(value)) == value


class Fixed:
    """A grader that finds, or raises, what it is told."""

    name = "fixed"
    type = "fixed"

    def __init__(self, found: Score | Exception) -> None:
        self.found = found

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


async def found_by(found: Score | Exception, pass_limit: float = 0.8, **keys: object) -> Score:
    configured = Configured(Fixed(found), "n", "k", **keys)  # type: ignore[arg-type]
    return await configured.grade(Candidate("t", ""), make_grading(pass_limit=pass_limit))


async def test_what_all_graders_have() -> None:
    found = await found_by(score(0.7), weight=3, required=0.5, negate=True)
    assert (found.name, found.type, found.value, found.weight, found.minimum) == ("n", "k", 0.3, 3, 0.5)
    assert combine([found]).value == 0  # the minimum is held against the negated value


@pytest.mark.parametrize(("required", "minimum"), [(True, 0.9), (False, None), (None, None), (0.4, 0.4), (1, 1)])
async def test_required_means_the_pass_limit(required: object, minimum: float | None) -> None:
    assert (await found_by(score(1), 0.9, required=required)).minimum == minimum


@pytest.mark.parametrize(
    "found",
    [
        ValueError("no way"),
        Score("a", "t", None, "pass"),
        Score("a", "t", 0.5, "pass", error="broke half-way"),
        Score("a", "t", float("nan"), "pass"),
    ],
)
async def test_graders_that_break(found: Score | Exception) -> None:
    result = await found_by(found, negate=True)
    assert (result.value, result.verdict) == (None, "error")
    assert result.error


@pytest.mark.parametrize(
    ("limit", "verdicts"), [(0.8, ["borderline", "fail"]), (0.7, ["pass", "fail"]), (0.4, ["pass", "pass"])]
)
async def test_the_runs_pass_limit_holds_for_graders_of_every_kind(limit: float, verdicts: list[str]) -> None:
    fields = [{"path": name, "weight": weight} for name, weight in (("a", 7), ("b", 3))]
    calls = [{"tool": name} for name in "abcdefg"]
    candidate = Candidate(
        "t",
        '{"a": 1}',
        expected_output=({"role": "assistant", "content": {"a": 1, "b": 2}},),
        tool_uses=tuple(ToolUse(name) for name in "abc"),
        duration_ms=5,
    )
    entries = [
        {"type": "field_accuracy", "fields": fields},
        {"type": "execution_metrics", "max_tool_calls": 5, "max_llm_calls": 1},
        {"type": "tool_trajectory", "mode": "superset", "expected": calls},
    ]
    grading = make_grading(pass_limit=limit)
    scores = [await grader.grade(candidate, grading) for grader in graders_of(*entries)]
    assert [score.value for score in scores] == [0.7, 0.5, pytest.approx(3 / 7)]
    assert [score.verdict for score in scores] == [verdicts[0], verdicts[1], verdicts[1]]
    (composite,) = graders_of(
        {"type": "composite", "assert": entries, "aggregator": {"type": "threshold", "threshold": 1}}
    )
    passed = verdicts[0] != "fail" and verdicts[1] == "pass"
    assert (await composite.grade(candidate, grading)).verdict == ("pass" if passed else "fail")


def test_values_out_of_bounds() -> None:
    assert checked(score(1.5)).value == 1
    assert checked(score(-2)).value == 0
    assert checked(score(0.5)).value == 0.5


def test_lists_carry_weights() -> None:
    grader, other = graders_of(
        {"type": "is_json", "weight": 2.5, "required": True}, {"type": "is_json", "negate": "yes"}
    )
    assert isinstance(grader, Configured)
    assert isinstance(other, Configured)
    assert (grader.weight, grader.required, grader.negate) == (2.5, True, False)
    assert (other.weight, other.required, other.negate) == (1, None, True)


def test_what_weighs_nothing_is_no_score_beside_what_was_left_out() -> None:
    total = combine([score(1.0, weight=0), score(None, left_out="no fields")], pass_limit=0.8)
    assert (total.value, total.error, total.left_out) == (None, None, ("a: no fields",))
    total = combine([score(0.1, weight=0, minimum=0.5), score(None, left_out="no fields")], pass_limit=0.8)
    assert total.value == 0.0
