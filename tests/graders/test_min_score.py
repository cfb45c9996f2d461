"""``min_score``: from which score on a grader passes, and with ``required`` its minimum; and what is said of scores below a minimum."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps
from manyhands.graders.protocol import Candidate, Score, ToolUse, verdict_of
from manyhands.graders.scoring import combine, grade_all, own_verdict, shortfall
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.grader_doubles import NamedJudges, ScriptedPrograms, grade, graders_of, make_grading

TWO_OF_THREE = {"type": "tool_trajectory", "mode": "any_order", "minimums": {"a": 1, "b": 1, "c": 1}}
ANSWER = Candidate("t", "x", output=[], tool_uses=[ToolUse("a"), ToolUse("b")])
"""Scores 2 ÷ 3 by that."""


@pytest.mark.parametrize(
    ("more", "verdict", "minimum"),
    [
        ({}, "borderline", None),
        ({"min_score": 0.6}, "pass", None),
        ({"min_score": 0.7}, "fail", None),  # never borderline: the person said what is enough
        ({"minScore": 0.66}, "pass", None),
        ({"min-score": 1}, "fail", None),
        ({"required": True}, "borderline", 0.8),
        ({"required": True, "min_score": 0.6}, "pass", 0.6),
        ({"required": True, "min_score": 0.7}, "fail", 0.7),
        ({"required": 0.9, "min_score": 0.6}, "pass", 0.6),  # min_score goes first
        ({"required": 0.6, "min_score": 0.9}, "fail", 0.9),
        ({"required": False, "min_score": 0.9}, "fail", None),
        ({"required": 0.6}, "borderline", 0.6),
        ({"negate": True, "min_score": 0.3}, "pass", None),
        ({"negate": True, "min_score": 0.4, "required": True}, "fail", 0.4),
    ],
)
async def test_the_verdict_and_the_minimum(more: dict[str, Any], verdict: str, minimum: float | None) -> None:
    score = await grade({**TWO_OF_THREE, **more}, ANSWER)
    least = next((value for name, value in more.items() if name.startswith("min")), None)
    assert (score.verdict, score.minimum, score.min_score) == (verdict, minimum, least)
    assert score.to_json().get("min_score") == least
    assert combine([score]).value == (0 if minimum is not None and (score.value or 0) < minimum else score.value)


async def test_the_pass_limit_of_the_run_is_another() -> None:
    (grader,) = graders_of({**TWO_OF_THREE, "min_score": 0.6, "required": True})
    score = await grader.grade(ANSWER, make_grading(pass_limit=0.95))
    assert (score.verdict, score.minimum) == ("pass", 0.6)
    (grader,) = graders_of({**TWO_OF_THREE, "min_score": 0.9})
    assert (await grader.grade(ANSWER, make_grading(pass_limit=0.1))).verdict == "fail"


@pytest.mark.parametrize("value", [0, -0.1, 1.01, 70, True, "0.5", [0.5], float("nan")])
def test_what_can_not_be_meant(value: Any) -> None:
    entry = {"type": "contains", "value": "x", "min_score": value}
    for entries, place in (
        ([entry], "[0].min_score"),
        ([{"type": "composite", "assert": [entry]}], "[0].assert[0].min_score"),
    ):
        with pytest.raises(UserError) as caught:
            graders_of(*entries)
        assert str(caught.value).startswith(f"checks.yaml: {place}: must be a number above 0 and up to 1")
        assert "\n" not in str(caught.value)


def test_a_number_that_has_no_effect_is_said() -> None:
    notices: list[str] = []
    graders_of({"type": "is_json", "required": 0.6, "min_score": 0.9}, notices=notices)
    assert notices == ["checks.yaml: [0].required: 0.6 has no effect beside min_score, which holds instead"]
    for fine in ({"required": True}, {"required": 0.9}, {}, {"required": False}):
        notices.clear()
        graders_of({"type": "is_json", "min_score": 0.9, **fine}, notices=notices)
        assert notices == []


@given(st.floats(0, 1), st.floats(0.001, 1), st.floats(0.01, 1))
def test_a_verdict_by_ones_own_limit(value: float, least: float, limit: float) -> None:
    own = own_verdict(value, verdict_of(value, limit), least, limit)
    assert own == ("pass" if value >= least else "fail")


@given(st.floats(0.6, 1), st.floats(0.001, 1))
def test_what_failed_for_another_reason_stays_so(value: float, least: float) -> None:
    assert own_verdict(value, "fail", least, 0.8) == "fail"


# --- In composites


@pytest.mark.parametrize(
    ("members", "threshold"),
    [
        ([{"min_score": 0.6}, {"min_score": 0.7}], 0.5),
        ([{}, {"min_score": 0.7}], 0.5),  # borderline passes, below one's own limit does not
        ([{"min_score": 0.9}, {"min_score": 0.7}], 0),
        ([{"negate": True, "min_score": 0.3}, {"min_score": 0.5}], 1),
    ],
)
async def test_members_pass_from_their_own_limit_on(members: list[dict[str, Any]], threshold: float) -> None:
    entry = {
        "type": "composite",
        "assert": [{**TWO_OF_THREE, **more} for more in members],
        "aggregator": {"type": "threshold", "threshold": 0.5},
    }
    assert (await grade(entry, ANSWER)).value == threshold
    assert (await grade({"type": "composite", "assert": [entry]}, ANSWER)).value == threshold


async def test_a_required_member_two_composites_down() -> None:
    inner = {
        "type": "composite",
        "name": "inner",
        "assert": [{**TWO_OF_THREE, "name": "m", "required": True, "min_score": 0.7}],
    }
    outer = {"type": "composite", "name": "outer", "assert": [inner, {"type": "contains", "value": "x"}]}
    score = await grade(outer, ANSWER)
    assert score.value == 0.5
    assert combine([score]).misses[0] == "[inner] [m] 0.666667 is below the required 0.7"
    fine = await grade(
        {**outer, "assert": [{**inner, "assert": [{**TWO_OF_THREE, "required": True, "min_score": 0.5}]}]}, ANSWER
    )
    assert fine.value == 2 / 3


async def test_a_composite_has_a_limit_too() -> None:
    entry = {"type": "composite", "assert": [TWO_OF_THREE], "required": True, "min_score": 0.7}
    score = await grade(entry, ANSWER)
    assert (score.verdict, combine([score]).value) == ("fail", 0)
    assert (await grade({**entry, "min_score": 0.6}, ANSWER)).verdict == "pass"


async def test_an_aggregators_verdict_against_the_score_stays() -> None:
    entry = {
        "type": "composite",
        "assert": [TWO_OF_THREE],
        "aggregator": {"type": "code_judge", "path": "judge"},
        "min_score": 0.5,
    }
    (grader,) = graders_of(entry)
    said = ScriptedPrograms.printing({"score": 0.9, "verdict": "fail"}, {"score": 0.4, "verdict": "pass"})
    assert (await grader.grade(ANSWER, make_grading(scripts=said))).verdict == "fail"
    assert (await grader.grade(ANSWER, make_grading(scripts=said))).verdict == "fail"


# --- What is said of scores below a minimum


async def test_the_misses_say_why_a_test_scores_nothing() -> None:
    graders = graders_of(
        {"type": "contains", "value": "x"},
        {**TWO_OF_THREE, "name": "tools", "required": True},
        {"type": "contains", "name": "word", "value": "q", "required": 0.5},
    )
    total = combine(await grade_all(graders, ANSWER, make_grading()))
    assert (total.value, total.verdict) == (0, "fail")
    assert total.misses[:2] == (
        "tools: 0.666667 is below the required 0.8",
        "word: 0 is below the required 0.5",
    )
    assert len(total.misses) == 4


@pytest.mark.parametrize(
    ("value", "minimum", "text"),
    [
        (0.5, 0.8, "0.5 is below the required 0.8"),
        (0.0, 1.0, "0 is below the required 1"),
        (0.7999999999, 0.8, "0.7999999999 is below the required 0.8"),
    ],
)
def test_the_two_numbers_never_look_the_same(value: float, minimum: float, text: str) -> None:
    assert shortfall(Score("a", "t", value, "fail", minimum=minimum)) == text


@given(st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0.01, 1)), min_size=1, max_size=5))
def test_a_line_for_each_that_is_below(pairs: list[tuple[float, float | None]]) -> None:
    scores = [Score(f"g{at}", "t", value, "", minimum=least) for at, (value, least) in enumerate(pairs)]
    total = combine(scores)
    below = [score.name for score in scores if score.minimum is not None and (score.value or 0) < score.minimum]
    assert [miss.partition(":")[0] for miss in total.misses] == below
    assert not below or total.value == 0


# --- Points of rubrics


def checks(*points: float) -> str:
    return dumps({"checks": {f"p{at}": {"score": given} for at, given in enumerate(points)}}).decode()


@pytest.mark.parametrize(
    ("point", "given", "verdict"),
    [
        ({"min_score": 0.7}, 7, "pass"),
        ({"min_score": 0.7}, 6, "fail"),
        ({"minScore": 0.75}, 7, "fail"),
        ({"min_score": 0.57}, 6, "pass"),
        ({"required_min_score": 7}, 7, "pass"),
        ({"required_min_score": 7}, 6, "fail"),
        ({"min_score": 0.5, "required_min_score": 9}, 6, "pass"),  # min_score counts
        ({"min_score": 0.5, "required": True}, 5, "pass"),
        ({"required": True}, 9, "fail"),
    ],
)
@pytest.mark.parametrize("kind", ["rubrics", "llm_judge"])
async def test_minimums_of_points(point: dict[str, Any], given: float, verdict: str, kind: str) -> None:
    key = "criteria" if kind == "rubrics" else "rubrics"
    points = [
        {"id": "p0", "outcome": "good", **point},
        {"id": "p1", "outcome": "well", "score_ranges": {0: "no", 5: "yes"}, "weight": 9},
    ]
    (grader,) = graders_of({"type": kind, key: points})
    judges = NamedJudges(ScriptedModel([checks(given, 10)]))
    score = await grader.grade(Candidate("t", "x", criteria="c"), make_grading(judges=judges))
    assert (score.verdict, score.error) == (verdict, None)


@pytest.mark.parametrize("value", [0, 7, 1.5, True, "0.5"])
def test_points_have_a_share_and_no_number_of_points(value: Any) -> None:
    with pytest.raises(
        UserError, match=r"criteria\[0\]\.min_score: must be a number above 0 and up to 1, the share of the 10"
    ):
        graders_of({"type": "rubrics", "criteria": [{"outcome": "good", "min_score": value}]})
