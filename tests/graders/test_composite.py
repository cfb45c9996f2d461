"""``composite``: several graders as one, at every depth."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.usage import Usage
from manyhands.graders.protocol import Candidate, Score, ToolUse
from manyhands.graders.scoring import combine, grade_all
from manyhands.processes.scripts import ScriptResult
from manyhands.testing.agent_doubles import ScriptedModel
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.testing.grader_doubles import NamedJudges, ScriptedPrograms, grade, graders_of, make_grading

GOOD: dict[str, Any] = {"type": "contains", "value": "a"}
BAD: dict[str, Any] = {"type": "contains", "value": "z"}
HALF: dict[str, Any] = {"type": "execution_metrics", "name": "half", "max_duration_ms": 1, "max_cost_usd": 1}
BROKEN: dict[str, Any] = {"type": "llm_judge", "name": "broken", "prompt": "{{answer}}"}
NOTHING: dict[str, Any] = {"type": "field_accuracy", "name": "nothing", "fields": [{"path": "a"}]}
ANSWER = Candidate("t", "abc", duration_ms=1)


def composite(*members: Json, aggregator: Json = None, **more: Any) -> dict[str, Any]:
    chosen = {} if aggregator is None else {"aggregator": aggregator}
    return {"type": "composite", "assert": list(members), **chosen, **more}


async def held(*members: Json, **more: Any) -> Score:
    return await grade(composite(*members, **more), ANSWER)


# --- Aggregators without help


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ([GOOD, BAD], 0.5),
        ([GOOD, HALF, BAD], 0.5),
        ([{**GOOD, "weight": 3}, BAD], 0.75),
        ([{**GOOD, "weight": 0}, BAD], 0),
        ([GOOD, {**BAD, "negate": True}], 1),
        ([{**GOOD, "negate": True}, HALF], 0.25),
        ([{**GOOD, "required": True}, HALF], 0.75),
        ([GOOD, {**HALF, "required": 0.6}], 0),
        ([GOOD, {**HALF, "required": 0.5}], 0.75),
        ([GOOD, {**GOOD, "required": True, "negate": True}], 0),
    ],
)
async def test_weighted_average(members: list[Json], value: float) -> None:
    assert (await held(*members)).value == value
    assert (await held(*members, aggregator="weighted_average")).value == value
    assert (await held(*members, aggregator={"type": "weighted-average"})).value == value


async def test_weights_by_name() -> None:
    members = [{**GOOD, "name": "camelCase"}, {**BAD, "name": "other", "weight": 3}]
    weights = {"camelCase": 9, "other": 1}
    score = await held(*members, aggregator={"type": "weighted_average", "weights": weights})
    assert score.value == 0.9
    assert [member.weight for member in score.scores] == [9, 1]
    assert (await held(*members, aggregator={"weights": {"camelCase": 9}})).value == 0.75  # the other one has its own


@pytest.mark.parametrize(
    ("members", "threshold", "value", "verdict"),
    [
        ([GOOD, BAD], 0.5, 0.5, "pass"),
        ([GOOD, BAD], 0.51, 0.5, "fail"),
        ([GOOD, GOOD, BAD], 0.5, 2 / 3, "pass"),
        ([HALF, HALF], 0, 0, "pass"),
        ([{**GOOD, "weight": 3}, BAD], 0.75, 0.75, "pass"),
        ([GOOD, {**BAD, "required": True}], 0, 0, "fail"),
        ([{**BAD, "negate": True}], 1, 1, "pass"),
    ],
)
async def test_threshold(members: list[Json], threshold: float, value: float, verdict: str) -> None:
    score = await held(*members, aggregator={"type": "threshold", "threshold": threshold})
    assert (score.value, score.verdict) == (value, verdict)


async def test_a_borderline_member_passes_a_threshold() -> None:
    third = {"type": "composite", "name": "third", "assert": [GOOD, GOOD, BAD]}
    assert (await held(third, aggregator={"type": "threshold", "threshold": 1})).value == 1


async def test_minimum() -> None:
    assert (await held(GOOD, HALF, aggregator="minimum")).value == 0.5
    assert (await held(GOOD, {**BAD, "weight": 0}, aggregator="min")).value == 1
    assert (await held({**GOOD, "weight": 0}, aggregator="minimum")).value == 0


async def test_a_composite_is_a_grader_like_others() -> None:
    score = await held(GOOD, BAD, negate=True, weight=2, required=0.5)
    assert (score.value, score.weight, score.minimum) == (0.5, 2, 0.5)
    assert score.hits == ("[contains-z] the answer does not contain 'z'",)
    assert score.misses == ("[contains-a] the answer contains 'a'",)
    assert [(member.name, member.value) for member in score.scores] == [("contains-a", 1), ("contains-z", 0)]
    negated = await held(GOOD, BAD, aggregator={"type": "threshold", "threshold": 0.5}, negate=True)
    assert (negated.value, negated.verdict) == (0.5, "fail")  # of the value, not of the threshold


async def test_members_that_break() -> None:
    for aggregator in (
        "weighted_average",
        "minimum",
        {"type": "threshold", "threshold": 0},
        {"type": "code_judge", "path": "x"},
    ):
        score = await held(GOOD, {**BROKEN, "weight": 0}, aggregator=aggregator)
        assert (score.value, score.verdict) == (None, "error")
        assert "[broken] no judge is called None" in (score.error or "")
        assert len(score.scores) == 2
    outer = await held(composite(composite(BROKEN)), {**GOOD, "required": True}, negate=True)
    assert (outer.value, outer.verdict) == (None, "error")
    assert combine([outer]).verdict == "error"


@pytest.mark.parametrize("aggregator", ["weighted_average", "minimum", {"type": "threshold", "threshold": 1}])
async def test_members_with_nothing_to_compare_count_as_if_they_were_not_there(aggregator: Json) -> None:
    score = await held(GOOD, {**NOTHING, "weight": 9, "required": True}, aggregator=aggregator)
    assert (score.value, score.verdict) == (1, "pass")
    assert "nothing was left out: expected_output holds no object" in (score.reasoning or "")
    assert [member.value for member in score.scores] == [1, None]
    alone = await held(composite(NOTHING), {**NOTHING, "name": "other"}, aggregator=aggregator, negate=True)
    assert (alone.value, alone.verdict, alone.error) == (None, "left_out", None)
    assert "[other] expected_output holds no object" in (alone.left_out or "")
    assert combine([alone, score]).value == 1
    assert combine([alone]).value is None


async def test_members_that_can_not_go_on_are_the_engines_also_if_there_are_several() -> None:
    members = [{"type": "llm_judge", "prompt": f"{number} {{{{answer}}}}"} for number in range(3)]
    for entry in (composite(*members), composite(composite(*members), *members), composite(members[0])):
        model = ScriptedModel(default=ItemError(Cause.OVER_BUDGET, "no money"))
        with pytest.raises(ItemError) as raised:
            await grade(entry, "x", make_grading(judges=NamedJudges(model)))
        assert raised.value.cause is Cause.OVER_BUDGET


# --- Nesting, against values that were worked out by hand


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        # (1·1 + ((0·1 + 1·3) ÷ 4)·1) ÷ 2
        (composite(GOOD, composite(BAD, {**GOOD, "weight": 3})), 0.875),
        # 1 − (1 + 0.5) ÷ 2 = 0.25, three times as heavy as 1
        (composite({**composite(GOOD, HALF), "negate": True, "weight": 3}, GOOD), 0.4375),
        # the inner required member makes 0 of its composite only
        (composite(GOOD, composite(GOOD, {**HALF, "required": True})), 0.5),
        # … unless that is required too
        (composite(GOOD, composite(GOOD, {**HALF, "required": True}, required=0.1)), 0),
        # negated, the 0 is a 1, and a required one is content
        (composite(GOOD, composite(GOOD, {**HALF, "required": True}, negate=True, required=True)), 1),
        # two of the three inner ones pass, which is borderline, so both outer members pass
        (composite(composite(GOOD, GOOD, BAD), GOOD, aggregator={"type": "threshold", "threshold": 1}), 1),
        (composite(composite(composite(HALF, GOOD), BAD), composite(HALF)), 0.4375),
    ],
)
async def test_nested(entry: dict[str, Any], value: float) -> None:
    assert (await grade(entry, ANSWER)).value == value


_LEAVES = st.tuples(st.sampled_from([(GOOD, 1), (BAD, 0), (HALF, Fraction(1, 2))]), st.integers(0, 3), st.booleans())
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.tuples(st.lists(inner, min_size=1, max_size=3), st.integers(0, 3), st.booleans()),
    max_leaves=8,
)


def _entry(tree: Any) -> dict[str, Any]:
    content, weight, negate = tree
    entry = composite(*map(_entry, content)) if isinstance(content, list) else dict(content[0])
    return {**entry, "weight": weight, "negate": negate}


def _value(tree: Any) -> Fraction:
    """The specification's formula in exact arithmetic."""
    content, _, negate = tree
    if isinstance(content, list):
        total = sum(weight for _, weight, _ in content)
        value = sum((_value(each) * each[1] for each in content), Fraction(0)) / total if total else Fraction(0)
    else:
        value = Fraction(content[1])
    return 1 - value if negate else value


@settings(deadline=None)
@given(st.lists(_TREES, min_size=1, max_size=3))
async def test_trees_of_graders_follow_the_formula(trees: list[Any]) -> None:
    scores = await grade_all(graders_of(*map(_entry, trees)), ANSWER, make_grading())
    assert combine(scores).value == pytest.approx(float(_value((trees, 1, False))), abs=1e-12)


# --- A program as aggregator

PROGRAM = {"type": "code_judge", "path": "python3 combine.py"}


async def test_a_program() -> None:
    said = {
        "score": 0.4,
        "hits": ["x", " "],
        "misses": ["y"],
        "reasoning": "so",
        "verdict": "pass",
        "details": {"someKey": 1},
    }
    scripts = ScriptedPrograms.printing(said)
    grading = make_grading(scripts=scripts, seconds=7)
    score = await grade(composite(GOOD, {**BAD, "weight": 2}, aggregator=PROGRAM), ANSWER, grading)
    assert (score.value, score.verdict, score.hits, score.misses) == (0.4, "pass", ("x",), ("y",))
    assert (score.reasoning, score.details) == ("so", {"someKey": 1})
    (call,) = scripts.calls
    assert (call["command"], call["seconds"], call["folder"]) == ("python3 combine.py", 7, Path())
    assert call["payload"]["results"]["contains-z"] == {
        "score": 0.0,
        "verdict": "fail",
        "hits": [],
        "misses": ["the answer does not contain 'z'"],
        "expectedAspectCount": 1,
        "reasoning": None,
        "weight": 2.0,
    }


@pytest.mark.parametrize(
    ("output", "value", "verdict"),
    [
        ('log line\n{"score": 0.9}\n', 0.9, "pass"),
        ('{\n  "score": 7\n}', 1, "pass"),
        ({"score": -1, "verdict": "splendid"}, 0, "fail"),
        ({"score": 0.7}, 0.7, "borderline"),
    ],
)
async def test_what_programs_may_print(output: Json, value: float, verdict: str) -> None:
    grading = make_grading(scripts=ScriptedPrograms.printing(output))
    score = await grade(composite(GOOD, aggregator=PROGRAM), ANSWER, grading)
    assert (score.value, score.verdict) == (value, verdict)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ScriptResult(3, b"", b"oh dear\n", 0.1), "the program ended with exit code 3: oh dear"),
        (ScriptResult(None, b'{"score": 1}', b"", 9.0), "the program took more than 120 s and was stopped"),
        (ScriptResult(0, b"", b"", 0.1), "the program printed nothing"),
        (ScriptResult(0, b"[1]", b"", 0.1), "the program printed no JSON object: '[1]'"),
        (
            ScriptResult(0, b'{"verdict": "pass"}', b"", 0.1),
            "the program gave no score: {'verdict': 'pass'}",
        ),
        (ScriptResult(0, b'{"score": "1"}', b"", 0.1), "the program gave a score that is no number: '1'"),
    ],
)
async def test_programs_that_break(result: ScriptResult, message: str) -> None:
    context = MemoryContext()
    grading = make_grading(context, scripts=ScriptedPrograms([result]))
    score = await grade(composite(GOOD, aggregator=PROGRAM), ANSWER, grading)
    assert (score.value, score.verdict, score.error) == (None, "error", message)
    assert not context.steps  # so that a later try runs it again


def test_settings_without_effect_are_said() -> None:
    notices: list[str] = []
    graders_of(
        composite(GOOD, aggregator={"type": "minimum", "threshold": 0.5}),
        {"type": "llm_judge", "prompt": "{{answer}}", "strictness": 3},
        {"type": "llm_judge", "prompt": {"script": "x"}, "strictness": 3},
        notices=notices,
    )
    assert notices == [
        "checks.yaml: [0].aggregator.threshold: has no effect with minimum",
        "checks.yaml: [1].strictness: has no effect, as only a prompt that is a program gets it",
    ]


async def test_a_required_member_saves_the_aggregator() -> None:
    scripts = ScriptedPrograms()
    score = await grade(composite({**BAD, "required": True}, aggregator=PROGRAM), ANSWER, make_grading(scripts=scripts))
    assert (score.value, scripts.calls) == (0, [])
    assert "[contains-z] 0 is below the required 0.8" in score.misses


# --- A model as aggregator

MODEL = {"type": "llm_judge", "prompt": "Results:\n{{EVALUATOR_RESULTS_JSON}}\nJudge them."}


async def test_a_model() -> None:
    model = ScriptedModel(['I think {"score": 0.7, "hits": ["x"], "misses": [], "reasoning": "fine"}'])
    grading = make_grading(judges=NamedJudges(model))
    score = await grade(composite(GOOD, aggregator=MODEL), ANSWER, grading)
    assert (score.value, score.verdict, score.hits, score.reasoning) == (0.7, "borderline", ("x",), "fine")
    assert score.usage == model.usage
    assert (score.name, score.type) == ("composite", "composite")
    (request,) = model.requests
    text = request.messages[-1]["content"] or ""
    assert text.startswith('Results:\n{\n  "contains-a": {\n    "score": 1.0,')
    assert "EVALUATOR_RESULTS_JSON" not in text


async def test_an_answer_does_not_become_the_results() -> None:
    model = ScriptedModel(['{"score": 1}'])
    entry = composite(GOOD, aggregator={"type": "llm_judge", "prompt": "{{answer}}: {{ EVALUATOR_RESULTS_JSON }}"})
    await grade(entry, "a {{EVALUATOR_RESULTS_JSON}}", make_grading(judges=NamedJudges(model)))
    text = model.requests[0].messages[-1]["content"] or ""
    assert text.startswith("a {{EVALUATOR_RESULTS_JSON}}: {")


async def test_a_model_is_asked_again() -> None:
    model = ScriptedModel(["no idea", '{"score": "high"}', '{"score": 1}'])
    score = await grade(composite(GOOD, aggregator=MODEL), ANSWER, make_grading(judges=NamedJudges(model)))
    assert (score.value, score.usage.calls) == (1, 3)
    model = ScriptedModel(default="no idea")
    score = await grade(composite(GOOD, aggregator=MODEL), ANSWER, make_grading(judges=NamedJudges(model)))
    assert (score.value, len(model.requests)) == (None, 3)
    assert score.error == "the judge's reply holds no JSON object: 'no idea' (asked 3 times)"


async def test_a_judge_by_name() -> None:
    judges = NamedJudges(ScriptedModel(['{"score": 1}']), frozenset(("strict",)))
    entry = composite(GOOD, aggregator={**MODEL, "target": "strict"})
    assert (await grade(entry, ANSWER, make_grading(judges=judges))).value == 1
    score = await grade(composite(GOOD, aggregator=MODEL), ANSWER, make_grading(judges=judges))
    assert (score.value, score.error) == (None, "no judge is called None")


async def test_prompts_in_files(tmp_path: Path) -> None:
    (tmp_path / "judge.md").write_text("From a file: {{EVALUATOR_RESULTS_JSON}}")
    model = ScriptedModel(['{"score": 1}'])
    (grader,) = graders_of(composite(GOOD, aggregator={"type": "llm_judge", "prompt": "judge.md"}), folder=tmp_path)
    await grader.grade(ANSWER, make_grading(judges=NamedJudges(model)))
    assert (model.requests[0].messages[-1]["content"] or "").startswith("From a file: {")


# --- Steps


async def test_what_was_asked_is_not_asked_again() -> None:
    entry = composite(
        composite(GOOD, aggregator=MODEL, name="one"),
        composite(GOOD, aggregator=PROGRAM, name="two"),
        composite(GOOD, aggregator=MODEL, name="three"),
    )
    first = MemoryContext()
    model = ScriptedModel(['{"score": 0.25}', '{"score": 0.5}'])
    grading = make_grading(first, judges=NamedJudges(model), scripts=ScriptedPrograms.printing({"score": 1}))
    score = await grade(entry, ANSWER, grading)
    assert first.performed == 3
    again = MemoryContext(first.journal)
    silent = make_grading(again, judges=NamedJudges(ScriptedModel()), scripts=ScriptedPrograms())
    assert await grade(entry, ANSWER, silent) == score
    assert again.performed == 0
    assert score.usage == Usage(calls=2, input_tokens=20, output_tokens=10, simulated_calls=2)


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_crashes_between_tries(step: int) -> None:
    entry = composite(GOOD, aggregator=MODEL)
    model = ScriptedModel(["one", "two", '{"score": 1}'])
    first = MemoryContext(crash=CrashPoint(step, "after_recording"))
    with pytest.raises(Crash):
        await grade(entry, ANSWER, make_grading(first, judges=NamedJudges(model)))
    second = MemoryContext(first.journal)
    score = await grade(entry, ANSWER, make_grading(second, judges=NamedJudges(model)))
    assert (score.value, len(model.requests)) == (1, 3)


# --- What is wrong


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "composite"}, "[0]: assert is required"),
        (
            composite(GOOD, aggregator="vote"),
            "[0].aggregator.type: must be one of weighted_average, threshold, minimum",
        ),
        (composite(GOOD, aggregator=5), "[0].aggregator: must be a mapping, not 5"),
        (composite(GOOD, aggregator={"typ": "minimum"}), "[0].aggregator.typ: unknown key; did you mean type?"),
        (
            composite(GOOD, aggregator={"weights": {"b": 1}}),
            "[0].aggregator.weights.b: no member has that name; they are called contains-a",
        ),
        (
            composite(GOOD, aggregator={"weights": {"contains-a": -1}}),
            "[0].aggregator.weights: must be a mapping of members' names to numbers",
        ),
        (composite(GOOD, aggregator="threshold"), "[0].aggregator: threshold is required for threshold"),
        (
            composite(GOOD, aggregator={"type": "threshold", "threshold": 2}),
            "[0].aggregator.threshold: must be between 0 and 1",
        ),
        (composite(GOOD, aggregator="code_judge"), "[0].aggregator: path is required for code_judge"),
        (composite(GOOD, aggregator="llm_judge"), "[0].aggregator: prompt is required for llm_judge"),
        (
            composite(GOOD, aggregator={"type": "llm_judge", "prompt": "Judge."}),
            "[0].aggregator.prompt: must hold {{EVALUATOR_RESULTS_JSON}}",
        ),
        (composite({**GOOD, "weight": -1}), "[0].assert[0].weight: must be 0 or more"),
        (composite(composite({"type": "contains"})), "[0].assert[0].assert[0]: value is required"),
    ],
)
def test_settings_that_are_wrong(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of(entry)
    assert str(caught.value).startswith(f"checks.yaml: {message}")


FIELDS = [
    {"path": "a", "match": match, "weight": weight, "required": required}
    for match, weight, required in (("exact", 1, True), ("numeric_tolerance", 2, True), ("date", 0, False))
]
CALLS = [{"tool": "a", "args": {"x": 1}, "max_duration_ms": 5}, {"tool": "b"}]
ENTRIES: list[dict[str, Any]] = [
    {"type": "contains", "value": "a"},
    {"type": "icontains_all", "value": ["A", "b"], "negate": True},
    {"type": "regex", "value": r"(?<word>\w+) \k<word>"},
    {"type": "is_json"},
    {"type": "latency", "threshold": 5},
    {"type": "token_usage", "max_total": 5},
    {"type": "execution_metrics", "max_tool_calls": 1, "target_exploration_ratio": 0.5},
    {"type": "tool_trajectory", "mode": "any_order", "minimums": {"a": 1}},
    *(
        {"type": "tool_trajectory", "mode": mode, "args_match": match, "expected": CALLS}
        for mode in ("in_order", "exact", "superset", "subset")
        for match in ("exact", "superset", "subset", ["x", "y[0]"])
    ),
    *(
        {"type": f"{prefix}{kind}", "value": value, "min_score": 0.5}
        for prefix in ("", "not-")
        for kind, value in (
            ("trajectory:tool-used", ["a", "shell"]),
            ("trajectory:tool-used", {"pattern": "r*", "min": 2}),
            ("trajectory:tool-sequence", {"steps": ["a", "b"], "mode": "exact"}),
            ("trajectory:tool-args-match", {"name": "*", "args": {"x": [1]}, "ignore": "y", "defaults": {"a": 1}}),
            ("trajectory:step-count", {"type": ["command", "message"], "max": 1}),
            ("skill-used", {"pattern": "a*"}),
        )
    ),
    {"type": "skill-trigger", "skill": "a"},
    {
        "type": "composite",
        "assert": [{"type": "equals", "value": "a"}, {"type": "ends_with", "value": "b", "weight": 3}],
    },
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "x", "y", "cmd", "skill", "path"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_USES = st.builds(
    ToolUse, st.sampled_from(["a", "b", "read", "shell", "Skill", ""]), _JSON, _JSON, st.none() | st.floats(0, 10)
)
_ANSWERS = st.text(max_size=30) | _JSON.map(lambda value: dumps(value).decode())
_CANDIDATES = st.builds(
    Candidate,
    st.just("t"),
    _ANSWERS,
    output=st.none()
    | st.just([])
    | st.lists(st.fixed_dictionaries({"role": st.just("assistant"), "content": _JSON}), max_size=2),
    tool_uses=st.lists(_USES, max_size=4),
    duration_ms=st.none() | st.floats(0, 10),
    token_usage=st.none() | st.fixed_dictionaries({"input": st.integers(0, 9)}, optional={"output": st.integers(0, 9)}),
)


@settings(deadline=None)
@given(_CANDIDATES)
async def test_every_rule(candidate: Candidate) -> None:
    scores = await grade_all(graders_of(*ENTRIES), candidate, make_grading())
    assert [score.error for score in scores] == [None] * len(ENTRIES)
    assert all(score.value is not None and 0 <= score.value <= 1 for score in scores)
    assert all(score.verdict in ("pass", "borderline", "fail") for score in scores)
    assert combine(scores).value is not None
    dumps([score.to_json() for score in scores])


@pytest.mark.parametrize("expected", [{"a": "2025-01-15"}, {"a": 5}, {"b": 1}])
@settings(deadline=None)
@given(answer=_ANSWERS)
async def test_fields_of_any_answer(expected: dict[str, Any], answer: str) -> None:
    matches = {"2025-01-15": ("exact", "date"), 5: ("exact", "numeric_tolerance")}.get(expected.get("a"), ("exact",))
    fields = [field for field in FIELDS if field["match"] in matches]
    candidate = Candidate("t", answer, expected_output=[{"role": "assistant", "content": expected}])
    (score,) = await grade_all(graders_of({"type": "field_accuracy", "fields": fields}), candidate, make_grading())
    assert score.error is None
    assert (score.value is None) == (score.left_out is not None) == ("a" not in expected)
    assert 0 <= (score.value or 0) <= 1
