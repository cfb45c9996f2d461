"""``llm_judge``: what a judge is told, and what is made of its replies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.usage import Usage
from manyhands.graders.protocol import Candidate, Score
from manyhands.models.simulated.model import SimulatedModel
from manyhands.processes.scripts import Scripts
from manyhands.testing.agent_doubles import Reply, ScriptedModel
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.testing.grader_doubles import NamedJudges, ScriptedPrograms, graders_of, make_grading

GOOD = '{"score": 0.9, "hits": ["a"], "misses": [], "reasoning": "fine"}'


def candidate(**more: Any) -> Candidate:
    values: dict[str, Any] = {
        "question": "What is 6 × 7?",
        "criteria": "Says 42.",
        "input": ({"role": "user", "content": "What is 6 × 7?"},),
        "expected_output": ({"role": "assistant", "content": {"decisionCode": 42}},),
        "reference_answer": "forty-two",
        "output": ({"role": "assistant", "content": "It is 42."},),
        **more,
    }
    return Candidate("t", "It is 42.", **values)


async def judged(
    entry: dict[str, Any],
    *replies: Reply,
    model: Any = None,
    context: MemoryContext | None = None,
    programs: ScriptedPrograms | None = None,
    names: tuple[str | None, ...] = (None,),
    folder: Path | None = None,
    of: Candidate | None = None,
) -> tuple[Score, ScriptedModel]:
    asked = ScriptedModel(replies, usage=Usage(calls=1, input_tokens=10)) if model is None else model
    (grader,) = graders_of({"type": "llm_judge", **entry}, folder=folder)
    grading = make_grading(context, scripts=programs, judges=NamedJudges(asked, frozenset(names)))
    return await grader.grade(of or candidate(), grading), asked


async def test_a_score() -> None:
    score, model = await judged({}, GOOD)
    assert (score.value, score.verdict, score.hits, score.misses, score.reasoning) == (0.9, "pass", ("a",), (), "fine")
    assert score.usage.input_tokens == 10
    (request,) = model.requests
    assert request.settings.response_format is not None
    assert request.settings.response_format["json_schema"]["strict"] is True


async def test_our_own_prompt_has_sections() -> None:
    _, model = await judged({}, GOOD, of=candidate(file_changes="+ new"))
    text = model.requests[0].messages[-1]["content"]
    for name, inside in (
        ("criteria", "Says 42."),
        ("question", "What is 6 × 7?"),
        ("reference_answer", "forty-two"),
        ("answer", "It is 42."),
        ("file_changes", "+ new"),
    ):
        assert f"[[ ## {name} ## ]]\n{inside}" in text
    _, model = await judged({}, GOOD, of=Candidate("t", "", criteria="c"))
    text = model.requests[0].messages[-1]["content"]
    assert "reference_answer ##" not in text
    assert "(the answer is empty)" in text


async def test_without_anything_to_hold_it_against_there_is_no_score() -> None:
    score, _ = await judged({}, of=Candidate("t", "x"))
    assert "neither criteria nor an expected output" in (score.error or "")


async def test_prompts_of_ones_own() -> None:
    prompt = "A {{answer}} B {{ question }} C {{criteria}} D {{reference_answer}} E {{input}} F {{expected_output}} G {{output}} {{own}}"
    _, model = await judged({"prompt": prompt}, GOOD, of=candidate(criteria="{{answer}}"))
    text = model.requests[0].messages[-1]["content"]
    assert text.startswith("A It is 42. B What is 6 × 7? C {{answer}} D forty-two E [")
    assert '"decisionCode": 42' in text
    assert "{{own}}" in text
    assert "Reply with one JSON object" in text


async def test_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "judge.md").write_text("From a file: {{answer}}")
    _, model = await judged({"prompt": "judge.md"}, GOOD, folder=tmp_path)
    assert model.requests[0].messages[-1]["content"].startswith("From a file: It is 42.")
    (tmp_path / "blind.md").write_text("What do you think of {{question}}?")
    for name, words in (("blind.md", "shows the judge no answer"), ("gone.md", "there is no file")):
        with pytest.raises(UserError, match=words):
            graders_of({"type": "llm_judge", "prompt": name}, folder=tmp_path)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (3, "must be a text"),
        ("", "must be a text"),
        ({"script": []}, "must be a line for sh, or a list"),
        ({"script": ["x"], "other": 1}, "unknown key"),
    ],
)
def test_wrong_prompts(prompt: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        graders_of({"type": "llm_judge", "prompt": prompt})


async def test_prompts_that_a_program_prints() -> None:
    programs = ScriptedPrograms.printing("judge this!")
    context = MemoryContext()
    entry = {"prompt": {"script": ["make-prompt", "-x"]}, "strictness": 3}
    _, model = await judged(entry, GOOD, programs=programs, context=context)
    assert model.requests[0].messages[-1]["content"].startswith("judge this!")
    assert programs.calls[0]["command"] == ("make-prompt", "-x")
    assert programs.calls[0]["payload"]["config"] == {"strictness": 3}
    assert [step.kind for step in context.steps] == ["grade", "model"]
    score, _ = await judged(entry, programs=ScriptedPrograms.printing(""))
    assert "printed nothing" in (score.error or "")


async def test_programs_of_prompts_get_the_later_contract_where_they_are_of_later_versions(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "ask.mjs").write_text('import { definePromptTemplate } from "agentv";')
    (tmp_path / "prompts" / "plain.mjs").write_text("")
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"command": ["node", "prompts/plain.mjs"], "config": {"k": 1}}, True),
        ({"script": ["node", "prompts/ask.mjs"], "config": {"k": 1}}, True),
        ({"script": ["node", "prompts/plain.mjs"], "config": {"k": 1}}, False),
    )
    for prompt, later in cases:
        programs = ScriptedPrograms.printing("judge this!")
        (grader,) = graders_of({"type": "llm_grader", "prompt": prompt}, folder=tmp_path)
        grading = make_grading(scripts=programs, judges=NamedJudges(ScriptedModel([GOOD])))
        assert (await grader.grade(candidate(folder=tmp_path), grading)).error is None
        (call,) = programs.calls
        assert ("messages" in call["payload"]) is later
        assert (call["payload"]["answer"], call["payload"]["config"]) == (candidate().answer, {"k": 1})
        assert call["folder"] == (tmp_path / "prompts" if later else tmp_path)
        name = (prompt.get("command") or prompt["script"])[1]
        assert call["command"][1] == (str(tmp_path / name) if later else name)


async def test_programs_of_prompts_and_of_composites_know_the_workspace(tmp_path: Path) -> None:
    async with Scripts.opened(f"tests.{os.getpid()}.prompts", os.environ) as scripts:
        model = ScriptedModel([GOOD])
        show = "echo look at $AGENTV_WORKSPACE_PATH"
        (judge, whole) = graders_of(
            {"type": "llm_judge", "prompt": {"script": show}},
            {
                "type": "composite",
                "assert": [{"type": "contains", "value": "42"}],
                "aggregator": {
                    "type": "code_judge",
                    "path": 'echo "{\\"score\\": 1, \\"hits\\": [\\"$AGENTV_WORKSPACE_PATH\\"]}"',
                },
            },
            folder=tmp_path,
        )
        of = candidate(workspace=tmp_path / "work")
        grading = make_grading(MemoryContext(), judges=NamedJudges(model), scripts=scripts)
        assert (await judge.grade(of, grading)).value == 0.9
        assert model.requests[0].messages[-1]["content"].startswith(f"look at {tmp_path / 'work'}")
        score = await whole.grade(of, make_grading(MemoryContext(), scripts=scripts))
        assert (score.value, score.hits) == (1.0, (str(tmp_path / "work"),))


@pytest.mark.parametrize(
    "reply",
    [
        f"```json\n{GOOD}\n```",
        f"Well:\n{GOOD}\nThat is all.",
        f'<think>{{"score": 0}}</think>{GOOD}',
        '{"score": 0.9, "hits": ["a"], "reasoning": "fine", "verdict": "fail"}',
    ],
)
async def test_replies_are_read_leniently(reply: str) -> None:
    score, model = await judged({}, reply)
    assert (score.value, score.hits, score.reasoning) == (0.9, ("a",), "fine")
    assert len(model.requests) == 1


async def test_four_hits_and_misses_are_kept() -> None:
    many = [str(number) for number in range(9)]
    score, _ = await judged({}, json.dumps({"score": 1, "hits": many, "misses": many}))
    assert (score.value, score.hits, score.misses) == (1.0, ("0", "1", "2", "3"), ("0", "1", "2", "3"))


async def test_a_reply_that_can_not_be_used_is_asked_for_again() -> None:
    context = MemoryContext()
    score, model = await judged({}, "no idea", '{"score": "high"}', GOOD, context=context)
    assert score.value == 0.9
    assert score.usage.input_tokens == 30
    assert [len(request.messages) for request in model.requests] == [2, 4, 6]
    assert "no JSON object" in model.requests[1].messages[-1]["content"]
    assert "no number" in model.requests[2].messages[-1]["content"]
    assert [step.kind for step in context.steps] == ["model"] * 3


@pytest.mark.parametrize("given", [8, -0.5, 1.01, 10**400, "0.9", True, None])
async def test_a_score_out_of_bounds_is_asked_for_again(given: Any) -> None:
    """8 may be meant of 10, which is not 1."""
    score, model = await judged({}, json.dumps({"score": given, "hits": [], "misses": []}), GOOD)
    assert score.value == 0.9
    assert len(model.requests) == 2


async def test_three_such_replies_are_an_error_and_no_zero() -> None:
    score, model = await judged({}, "no", "no", "no", GOOD)
    assert (score.value, score.verdict) == (None, "error")
    assert "asked 3 times" in (score.error or "")
    assert score.usage.input_tokens == 30
    assert len(model.requests) == 3


async def test_a_judge_that_broke_is_asked_again_when_the_item_is_tried_again() -> None:
    first = MemoryContext()
    await judged({}, "no", "no", "no", context=first)
    crashing = MemoryContext(first.journal, crash=CrashPoint(1, "after_recording"))
    with pytest.raises(Crash):
        await judged({}, "no", context=crashing)
    third = MemoryContext(crashing.journal)
    score, model = await judged({}, "no", GOOD, context=third)
    assert (score.value, score.usage.input_tokens, len(model.requests)) == (0.9, 60, 2)
    assert [len(request.messages) for request in model.requests] == [4, 6]
    score, model = await judged({}, context=MemoryContext(third.journal))
    assert (score.value, model.requests) == (0.9, [])


async def test_an_endpoint_that_refuses_the_schema_is_asked_without() -> None:
    refused = ItemError(Cause.MODEL_REFUSED, "HTTP 400: response_format is not supported")
    score, model = await judged({}, refused, GOOD)
    assert score.value == 0.9
    assert [request.settings.response_format is None for request in model.requests] == [False, True]
    score, _ = await judged({}, refused, refused)
    assert score.error == "the judge judge can't be asked: HTTP 400: response_format is not supported"


async def test_what_passes_by_itself_is_the_engines() -> None:
    for cause in (Cause.RATE_LIMIT, Cause.MODEL_ERROR, Cause.OVER_BUDGET, Cause.AUTHENTICATION):
        with pytest.raises(ItemError) as raised:
            await judged({}, ItemError(cause, "x"))
        assert raised.value.cause is cause


async def test_judges_by_name() -> None:
    for key in ("target", "judge_target", "graderTarget"):
        score, _ = await judged({key: "strict"}, GOOD, names=("strict",))
        assert score.value == 0.9
    score, _ = await judged({"target": "gone"}, GOOD)
    assert score.error == "no judge is called gone"


async def test_no_call_is_paid_twice() -> None:
    for step in (1, 2):
        context = MemoryContext(crash=CrashPoint(step, "after_recording"))
        with pytest.raises(Crash):
            await judged({}, "no", GOOD, context=context)
        again = MemoryContext(context.journal)
        score, model = await judged({}, *(GOOD,) * (2 - step), context=again)
        assert score.value == 0.9
        assert len(model.requests) == 2 - step


async def test_the_simulated_judge_gives_scores() -> None:
    score, _ = await judged({}, model=SimulatedModel())
    assert score.error is None
    assert score.usage.simulated_calls == 1
    assert score.simulated
    assert score.to_json()["simulated"] is True
    assert "simulated" not in (await judged({}, GOOD))[0].to_json()


async def test_rubrics_of_a_judge() -> None:
    reply = {"checks": [{"id": "a", "satisfied": True}, {"id": "rubric-2", "satisfied": False}]}
    entry = {"prompt": "Own words: {{answer}}", "rubrics": [{"id": "a", "outcome": "x"}, "y"]}
    score, model = await judged(entry, json.dumps(reply))
    assert (score.value, score.type) == (0.5, "llm_judge")
    text = model.requests[0].messages[-1]["content"]
    assert text.startswith("Own words: It is 42.")
    assert "- a: x\n- rubric-2: y" in text
