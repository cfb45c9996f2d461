"""Whatever a target answers, graders give a value from 0 to 1, and never break on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.jsonio import dumps
from manyhands.graders.combining import combine, grade_all
from manyhands.graders.protocol import Candidate, ToolUse
from manyhands.testing.grader_doubles import graders_of, make_grading

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
