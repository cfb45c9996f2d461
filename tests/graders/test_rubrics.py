"""``rubrics``: points, their replies and the formulas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps
from manyhands.graders.protocol import Candidate, Score
from manyhands.models.simulated.model import SimulatedModel
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.grader_doubles import FILE, NamedJudges, ScriptedPrograms, graders_of, make_grading

RANGES = [
    {"score_range": [0, 3], "outcome": "bad"},
    {"score_range": [4, 6], "outcome": "fair"},
    {"score_range": [7, 10], "outcome": "good"},
]


async def judged(criteria: Any, *replies: Any, model: Any = None, **keys: Any) -> tuple[Score, Any]:
    texts = [reply if isinstance(reply, str) else json.dumps(reply) for reply in replies]
    model = model or ScriptedModel(texts)
    (grader,) = graders_of({"type": "rubrics", "criteria": criteria, **keys})
    grading = make_grading(judges=NamedJudges(model))
    return await grader.grade(Candidate("t", "the answer", question="q"), grading), model


def checklist(**satisfied: bool) -> dict[str, Any]:
    return {"checks": [{"id": id, "satisfied": value, "reasoning": f"why {id}"} for id, value in satisfied.items()]}


def points(**given: float) -> dict[str, Any]:
    return {
        "checks": [{"id": id, "score": value, "reasoning": ""} for id, value in given.items()],
        "overall_reasoning": "so",
    }


def item(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "outcome": f"does {id}", **more}


async def test_weights_of_a_checklist() -> None:
    score, _ = await judged([item("a", weight=3), item("b", required=False)], checklist(a=True, b=False))
    assert (score.value, score.verdict) == (0.75, "borderline")
    assert score.hits == ("[a] does a: why a",)
    assert score.misses == ("[b] does b: why b",)
    assert score.details == {
        "checks": [
            {"id": "a", "satisfied": True, "reasoning": "why a"},
            {"id": "b", "satisfied": False, "reasoning": "why b"},
        ]
    }


async def test_a_required_point_makes_the_verdict_fail_and_leaves_the_score() -> None:
    score, _ = await judged([item("a", weight=9), item("b")], checklist(a=True, b=False))
    assert (score.value, score.verdict, score.reasoning) == (0.9, "fail", "required: b")


async def test_points_that_are_not_answered() -> None:
    criteria = [item("a"), item("b", required=False)]
    score, model = await judged(criteria, *[checklist(a=True)] * 3)
    assert (score.value, score.verdict) == (1.0, "pass")
    assert score.details is not None
    assert score.details["unanswered"] == ["b"]
    assert len(model.requests) == 3
    assert "did not answer the point 'b'" in model.requests[1].messages[-1]["content"]
    score, model = await judged(criteria, checklist(a=True), checklist(a=True, b=False))
    assert score.value == 0.5
    score, _ = await judged(criteria, *[checklist(b=True)] * 3)
    assert "did not answer the point 'a'" in (score.error or "")


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"checks": "yes"},
        checklist(other=True),
        {"checks": [{"id": "a", "satisfied": "yes"}]},
        {"checks": [{"id": "a", "satisfied": True}, {"id": "a", "satisfied": False}]},
        [],
    ],
)
async def test_replies_that_can_not_be_used(reply: Any) -> None:
    score, model = await judged([item("a")], *[reply] * 3)
    assert score.value is None
    assert score.error is not None
    assert len(model.requests) == 3


async def test_ranges() -> None:
    criteria = [item("a", score_ranges=RANGES, weight=2), item("b", score_ranges={0: "no", "5": "half", 10: "all"})]
    score, model = await judged(criteria, points(a=7, b=1))
    assert score.value == pytest.approx((2 * 7 + 1) / 3 / 10)
    assert score.hits == ("[a] does a (7 of 10)",)
    assert score.misses == ("[b] does b (1 of 10)",)
    assert score.details is not None
    assert score.details["raw_scores"] == {"a": 7, "b": 1}
    assert score.reasoning == "so"
    text = model.requests[0].messages[-1]["content"]
    assert "- a: does a\n    0 to 3: bad\n    4 to 6: fair\n    7 to 10: good\n- b: does b\n" in text
    assert "- b: does b\n    0 to 4: no\n    5 to 9: half\n    10 to 10: all" in text


@pytest.mark.parametrize(
    ("more", "given", "verdict"),
    [
        ({}, 8, "pass"),
        ({"required_min_score": 9}, 8, "fail"),
        ({"required_min_score": 8}, 8, "pass"),
        ({"required": True}, 9, "fail"),
        ({"required": True}, 10, "pass"),
        ({"required": False}, 8, "pass"),
        ({"required": True, "requiredMinScore": 5}, 8, "pass"),
    ],
)
async def test_minimums_of_ranges(more: dict[str, Any], given: float, verdict: str) -> None:
    score, _ = await judged([item("a", score_ranges=RANGES, **more)], points(a=given))
    assert (score.value, score.verdict) == (given / 10, verdict)


async def test_a_required_point_without_ranges_among_others_with_them() -> None:
    criteria = [item("a", score_ranges=RANGES), item("b", required=True), item("c")]
    for least, verdict in ((10, "pass"), (9, "fail")):
        score, _ = await judged(criteria, points(a=10, b=least, c=9))
        assert score.verdict == verdict


@pytest.mark.parametrize("wrong", [11, -1, True, "7", None])
async def test_points_out_of_range_are_asked_for_again(wrong: Any) -> None:
    score, model = await judged([item("a", score_ranges=RANGES)], points(a=wrong), points(a=6))
    assert score.value == 0.6
    assert len(model.requests) == 2


async def test_points_without_an_id_get_one_that_is_free() -> None:
    criteria = [item("rubric-2"), "y", item("rubric-2-2")]
    reply = dict.fromkeys(("rubric-2", "rubric-2-3", "rubric-2-2"), True)
    checks = {"checks": {name: {"satisfied": value} for name, value in reply.items()}}
    score, _ = await judged(criteria, json.dumps(checks))
    assert (score.value, len(score.hits)) == (1.0, 3)


async def test_texts_and_lists_of_texts() -> None:
    model = ScriptedModel([json.dumps({"checks": {"rubric-1": {"satisfied": True}, "rubric-2": {"satisfied": False}}})])
    (grader,) = graders_of("is polite", "is short")
    score = await grader.grade(Candidate("t", "x"), make_grading(judges=NamedJudges(model)))
    assert (score.value, score.hits, score.misses) == (0.5, ("[rubric-1] is polite",), ("[rubric-2] is short",))


@pytest.mark.parametrize(
    ("criteria", "words"),
    [
        ([], "must be a list of texts or of mappings"),
        (3, "must be a list"),
        ([{"id": "a"}], "outcome is required"),
        ([item("a"), item("a")], "is the id of another point"),
        ([item("a", weight=-1)], "must be 0 or more"),
        ([item("a", colour=1)], "unknown key"),
        ([item("a", score_ranges=RANGES[:2])], "must cover 0 to 10"),
        ([item("a", score_ranges=[*RANGES, RANGES[0]])], "must cover 0 to 10"),
        ([item("a", score_ranges=[{"score_range": [0, 10]}])], "have an outcome"),
        ([item("a", score_ranges=[{"outcome": "x"}])], "score_range"),
        ([item("a", score_ranges={1: "x"})], "from 0 on"),
        ([item("a", score_ranges={0: "x", 11: "y"})], "up to 10"),
        ([item("a", score_ranges={"low": "x"})], "whole numbers"),
        ([item("a", required_min_score=11)], "between 0 and 10"),
    ],
)
def test_wrong_entries(criteria: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        graders_of({"type": "rubrics", "criteria": criteria})


async def test_the_simulated_judge_answers_every_point() -> None:
    for criteria in (["a", "b", "c"], [item("x", score_ranges=RANGES), item("y")]):
        score, _ = await judged(criteria, model=SimulatedModel())
        assert score.error is None
        assert score.value is not None


Answers = st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=6)


@given(Answers)
async def test_the_formula(answers: list[tuple[float, bool]]) -> None:
    criteria = [item(f"p{index}", weight=weight) for index, (weight, _) in enumerate(answers)]
    reply = checklist(**{f"p{index}": satisfied for index, (_, satisfied) in enumerate(answers)})
    score, _ = await judged(criteria, reply)
    total = sum(weight for weight, _ in answers)
    wanted = sum(weight for weight, satisfied in answers if satisfied) / total if total else 0.0
    assert score.value == pytest.approx(wanted)


SCORE = dumps({"score": 0.5, "hits": [], "misses": [], "reasoning": "so"}).decode()
CHECKS = dumps({"checks": {"rubric-1": {"satisfied": True}, "short": {"satisfied": False}}}).decode()


@pytest.mark.parametrize("kind", ["llm-rubric", "llm_judge", "agent-rubric"])
@pytest.mark.parametrize(
    ("value", "reply", "told", "score"),
    [
        ("Greets politely", SCORE, "[[ ## criteria ## ]]\\nGreets politely", 0.5),
        ({"tone": "polite"}, SCORE, '"tone": "polite"', 0.5),
        (["Greets", {"id": "short", "description": "Is short", "weight": 3}], CHECKS, "- short: Is short", 0.25),
    ],
)
async def test_values(kind: str, value: Any, reply: str, told: str, score: float) -> None:
    model = ScriptedModel([reply])
    (grader,) = graders_of({"type": kind, "value": value, "target": "judge"})
    candidate = Candidate("t", "hi", criteria="something else")
    found = await grader.grade(candidate, make_grading(judges=NamedJudges(model, frozenset(("judge",)))))
    assert (found.value, found.error) == (score, None)
    asked = str(model.requests[0].messages)
    assert told in asked
    assert ("something else" in asked) == isinstance(value, list)


@pytest.mark.parametrize("kind", ["llm-rubric", "agent-rubric"])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"value": ""}, "[0].value: must be a text, a list of points, or an object"),
        ({"value": " "}, "[0].value: must be a text, a list of points, or an object"),
        ({"value": []}, "[0].value: must be a text, a list of points, or an object"),
        ({"value": 3}, "[0].value: must be a text, a list of points, or an object"),
        ({"value": ["a", 3]}, "[0].value[1]: must be a text or a mapping"),
        ({"value": [{"outcme": "a"}]}, "[0].value[0].outcme: unknown key; did you mean outcome?"),
        ({"value": [{"outcome": "a", "min_score": 5}]}, "[0].value[0].min_score: must be a number above 0 and up to 1"),
        ({"value": ["a"], "rubrics": ["b"]}, "[0].value: gives points, which rubrics does too"),
    ],
)
def test_values_that_can_not_be_meant(kind: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of({"type": kind, "target": "judge", **more})
    assert str(caught.value).startswith(f"{FILE}: {message}")


async def test_a_prompts_program_is_told_of_it_too() -> None:
    programs = ScriptedPrograms.printing("judge this")
    (grader,) = graders_of({"type": "llm_judge", "prompt": {"script": "print"}, "value": "x", "own": 1})
    await grader.grade(Candidate("t", "hi"), make_grading(scripts=programs, judges=NamedJudges(ScriptedModel([SCORE]))))
    assert programs.calls[0]["payload"]["config"] == {"own": 1, "value": "x"}
