"""``value`` of ``llm-rubric`` and ``agent-rubric``: points, or what counts instead of a test's criteria."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps
from manyhands.graders.protocol import Candidate
from manyhands.testing.grader_doubles import FILE, NamedJudges, ScriptedPrograms, graders_of, make_grading
from manyhands.testing.scripted_model import ScriptedModel

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
