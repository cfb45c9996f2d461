"""Names of all versions of the format become one; data stays as it is."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import EvalFile, Test
from manyhands.workloads.evals.evalfile.loading import load_evals

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff\ufffe\uffff"), max_size=30
)
KEYS = TEXTS | st.sampled_from(
    [
        "camelCase",
        "snake_case",
        "kebab-case",
        "UPPER",
        "expectedOutput",
        "input_messages",
        "assert",
        "type",
        "id",
        "evaluators",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)


def load(text: str, notices: list[str] | None = None, name: str = "my.yaml", *, strict: bool = False) -> EvalFile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text)
        found = [] if notices is None else notices
        around = SearchPath.of(Path(folder), Path(folder))
        return load_evals([path], around, notices=found.append, findings=Findings() if strict else None)[0]


PRESENT = """
tests:
  - id: a
    criteria: c
    input: [{role: user, content: i}]
    expected_output: [{role: assistant, content: o}]
    assert: [{type: contains, value: x}]
assert: [{type: contains, value: y}]
execution: {target: t}
"""
HISTORY = [
    (PRESENT, []),
    (
        """
evalcases:
  - id: a
    expected_outcome: c
    input_messages: [{role: user, content: i}]
    expected_messages: [{role: assistant, content: o}]
    evaluators: [{type: contains, value: x}]
execution: {evaluators: [{type: contains, value: y}], target: t}
""",
        [
            "my.yaml: 'evalcases' is an obsolete name of 'tests'",
            "my.yaml: 'evaluators' is an obsolete name of 'assert'",
            "my.yaml: graders below 'execution' are at an obsolete location; 'assert' is a key of its own",
            "my.yaml: 'expected_outcome' is an obsolete name of 'criteria'",
            "my.yaml: 'input_messages' is an obsolete name of 'input'",
            "my.yaml: 'expected_messages' is an obsolete name of 'expected_output'",
        ],
    ),
    (
        """
eval_cases:
  - id: a
    criteria: c
    input: [{role: user, content: i}]
    expectedOutput: [{role: assistant, content: o}]
    execution: {evaluators: [{type: contains, value: x}]}
execution: {assert: [{type: contains, value: y}]}
target: t
""",
        [
            "my.yaml: 'eval_cases' is an obsolete name of 'tests'",
            "my.yaml: graders below 'execution' are at an obsolete location; 'assert' is a key of its own",
            "my.yaml: 'evaluators' is an obsolete name of 'assert'",
            "my.yaml: 'target' is at an obsolete location; it belongs below 'execution'",
        ],
    ),
    (
        """
tests:
  - {id: a, criteria: c, input: i, expected-output: o, assertions: [{type: contains, value: x}]}
assertions: [{type: contains, value: y}]
execution: {target: t}
""",
        [],
    ),
]


def seen(test: Test) -> dict[str, Any]:
    value = test.to_json()
    del value["place"]
    return value


@pytest.mark.parametrize(("text", "notices"), HISTORY)
def test_names_of_all_versions_give_the_same_test(text: str, notices: list[str]) -> None:
    told: list[str] = []

    file = load(text, told)

    assert seen(file.tests[0]) == seen(load(PRESENT).tests[0])
    assert file.target_names == ("t",)
    assert sorted(told) == sorted(notices)


def test_a_notice_is_told_once_a_file() -> None:
    told: list[str] = []
    tests = "".join(f"  - {{id: t{number}, expected_outcome: c, input: i}}\n" for number in range(5))

    load("tests:\n" + tests, told)

    assert told == ["my.yaml: 'expected_outcome' is an obsolete name of 'criteria'"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tests: []\neval_cases: []", "my.yaml, line 2: eval_cases: is the same key as tests, which is given too"),
        (
            "tests: [{id: a, criteria: c, expected_outcome: d, input: i}]",
            "expected_outcome: is the same key as criteria",
        ),
        (
            "tests: [{id: a, input: i, assert: [a], execution: {evaluators: [b]}}]",
            "tests[0].assert: graders are given twice",
        ),
        (
            "execution:\n  evaluators: [{type: nope}]\ntests: [{id: a, input: i}]",
            "my.yaml, line 2: execution.evaluators[0].type: ",
        ),
        (
            "execution: {taget: a}\ntests: [{id: a, input: i, criteria: c}]",
            "execution.taget: unknown key; did you mean target?",
        ),
        ("evalCase: []", "my.yaml, line 1: evalCase: unknown key; did you mean evalcases?"),
        ("prompts: []\ntests: []", "my.yaml, line 1: prompts: must not be empty"),
        (
            "tests: [{id: a, criteria: c, input: i}]\nexecution: [x]",
            "my.yaml, line 2: execution: must be a mapping, not ['x']",
        ),
    ],
)
def test_what_contradicts_itself_or_is_unknown_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load(text, strict=True)

    assert said in str(caught.value)


def test_keys_of_ones_own_begin_with_x() -> None:
    text = "x-shared: &shared {criteria: c}\ntests: [{id: a, input: i, <<: *shared, x-note: {any: thing}}]"

    assert load(text).tests[0].criteria == "c"


# --- Data is never altered


@given(OBJECTS, JSON, OBJECTS, OBJECTS, st.booleans())
def test_data_stays_as_it_is(content: Any, expected: Any, metadata: Any, arguments: Any, lines: bool) -> None:
    wanted = {"content": content, "expected": expected}
    calls = [{"tool": "search", "input": arguments, "output": wanted}]
    test = {
        "id": "a",
        "criteria": "c",
        "input": [{"role": "user", "content": wanted}, {"role": "assistant", "tool_calls": calls}],
        "expected_output": [{"role": "assistant", "content": wanted, "tool_calls": calls}],
        "metadata": metadata,
        "assert": [
            {"type": "tool_trajectory", "mode": "in_order", "expected": [{"tool": "search", "args": arguments}]}
        ],
    }

    text = json.dumps(test) if lines else json.dumps({"tests": [test]}, ensure_ascii=False)
    found = load(text, name="my.jsonl" if lines else "my.yaml").tests[0]

    for each in (found, Test.from_json(json.loads(json.dumps(found.to_json())))):
        assert list(each.input) == test["input"]
        assert list(each.expected_output) == test["expected_output"]
        assert each.metadata == metadata
        assert each.graders[0]["expected"][0]["args"] == arguments


@given(OBJECTS, OBJECTS)
def test_variables_are_put_in_as_they_are(value: Any, other: Any) -> None:
    test = {"id": "a", "criteria": "c", "vars": {"v": value}, "input": {"here": "{{ v }}", "beside": other}}

    found = load(json.dumps({"tests": [test]}, ensure_ascii=False)).tests[0].input[0]["content"]

    assert found["here"] == value
    assert set(found["beside"]) == set(other)
