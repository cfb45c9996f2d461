"""The JSON Schema for editors agrees with what is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from manyhands.io.keys import snake
from manyhands.io.search_paths import SearchPath
from manyhands.io.yaml_files import parse_source, read_yaml
from manyhands.workloads.evals.evalfile.files import files_below
from manyhands.workloads.evals.evalfile.keys import (
    Block,
    EvalBlock,
    HookBlock,
    SuiteExecution,
    TestBlock,
    TestExecution,
    TurnBlock,
)
from manyhands.workloads.evals.schema import eval_schema, targets_schema
from manyhands.workloads.evals.targets.kinds.registry import KINDS

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
EXAMPLE = """
description: Batch CLI demo using structured input
execution:
  target: batch_cli
tests:
  - id: case-001
    criteria: |-
      Batch runner returns JSON with decision=CLEAR.
    expected_output:
      - role: assistant
        content:
          decision: CLEAR
    input:
      - role: system
        content: You are a batch processor.
      - role: user
        content:
          request:
            type: screening_check
            jurisdiction: AU
          row:
            id: case-001
            name: Example A
            amount: 5000
    assert:
      - name: decision-check
        type: code_judge
        script: bun run ./scripts/check-output.ts
        cwd: .
targets:
  batch_cli:
    provider: cli
    commandTemplate: bun run ./scripts/batch-runner.ts --eval {EVAL_FILE} --output {OUTPUT_FILE}
    provider_batching: true
"""


@pytest.fixture(scope="module")
def evals() -> Draft202012Validator:
    return Draft202012Validator(eval_schema())


@pytest.fixture(scope="module")
def targets() -> Draft202012Validator:
    return Draft202012Validator(targets_schema())


def problems(validator: Draft202012Validator, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def test_they_are_schemas() -> None:
    for schema in (eval_schema(), targets_schema()):
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_example_fits(evals: Draft202012Validator) -> None:
    assert problems(evals, parse_source(EXAMPLE, "file").value) == []


def test_the_targets_of_the_example_fit(targets: Draft202012Validator) -> None:
    assert problems(targets, {"targets": parse_source(EXAMPLE, "file").value["targets"]}) == []


def test_all_examples_fit(evals: Draft202012Validator, targets: Draft202012Validator) -> None:
    schemas = {"eval": evals, "targets": targets}
    for path, kind in files_below(EXAMPLES, SearchPath.of(EXAMPLES)):
        if kind in schemas and path.suffix != ".jsonl":
            assert problems(schemas[kind], read_yaml(path)[0]) == [], path


@pytest.mark.parametrize(
    "text",
    [
        "evalcases: [{id: 7, expected_outcome: c, input_messages: [{role: user, content: i}], evaluators: [{type: contains, value: x}]}]",
        "tests: cases.jsonl",
        "tests: [{id: a, criteria: c, input: i}, {id: b, dependsOn: [a, 7], on_dependency_failure: run, input: i, criteria: c}]",
        "tests: [{id: a, mode: conversation, turns: [{input: i, assert: [be kind]}, {input: {a: 1}, expected_output: o}], window_size: 2}]",
        "tests: ['file://*.yaml', {id: a, criteria: c, input: {a: 1}, rubrics: [a], tags: fast, vars: {a: 1}}]",
        "assertions: [be kind, {include: shared}, {type: llm-judge, prompt: x}, {type: is_json}]\ntests: []",
        "execution: {targets: [a, b], trials: {count: 2, costLimitUsd: 3}, evaluators: []}\ntests: []\nx-own: 3",
        "assert: [{type: not-contains, value: x, minScore: 0.5}, {type: 'trajectory:tool-used', value: [a]}]\ntests: []",
        "assert: [{type: not-trajectory:tool-used, value: {name: a, min: 2}}, {type: skill-used, value: {pattern: a}}]\ntests: []",
        "assert: [{type: trajectory:tool-sequence, value: [a, {name: b}]}, {type: skill-trigger, skill: a}]\ntests: []",
        "assert: [{type: trajectory:tool-sequence, value: {mode: exact, steps: [a]}}]\ntests: []",
        "assert: [{type: trajectory:tool-args-match, value: {name: a, arguments: {b: 1}, ignore: c}}]\ntests: []",
        "assert: [{type: trajectory:step-count, value: {type: [tool, command], max: 3}}]\ntests: []",
        "assert: [{type: trajectory:goal-success, value: x}, {type: llm-rubric, value: [a, {outcome: b}]}]\ntests: []",
        "assert: [{type: rubrics, criteria: [{outcome: b, min_score: 0.7}]}, {type: llm-rubric, value: a}]\ntests: []",
        "preprocessors: [{type: xlsx, command: [a, b]}]\nassert: [{type: is_json, preprocessors: [{type: a, command: b}]}]\ntests: []",
        "name: a\nversion: 1.0\nauthor: {name: x}\nrequires: {agentv: '>=2'}\ntests: []\n$schema: agentv-eval-v2",
        "workspace: {template: t, beforeAll: {command: x}}\ntests: []",
        "targets: [{name: a, provider: CLI, command: [a]}, {name: b, provider: Azure_OpenAI, endpoint: x, deployment: m}]\ntests: []",
    ],
)
def test_what_is_read_fits(evals: Draft202012Validator, text: str) -> None:
    assert problems(evals, parse_source(text, "file").value) == []


# A value for every key that has other names.
VALUES: dict[str, Any] = {
    "assert": [{"type": "is_json"}],
    "tests": [{"id": "a"}],
    "dataset": "d",
    "targets": {},
    "input": "i",
    "criteria": "c",
    "expected_output": "e",
    "budget_usd": 1,
    "script": "x",
    "judge_target": "j",
    "provider_batching": True,
    "files_format": "{path}",
    "verbose": True,
    "keep_temp_files": True,
    "command": "x",
    "executable": "x",
    "args": "x",
    "model": "m",
    "base_url": "https://x",
    "header": {"X-Team": "mine"},
    "max_tokens": 5,
    "call_timeout": 5,
    "version": "1",
    "function": "m:f",
    "path": "p",
    "log_dir": "l",
    "model_reasoning_effort": "low",
    "tools": "read,bash",
    "thinking": "low",
    "container_env": {"A": "b", "C": None},
    "workspace": "w",
}


def spellings(block: type[Block]) -> Iterator[tuple[str, Any]]:
    """Every key that has other names, in all ways it may be written."""
    for word, key in block.spellings.items():
        head, *tail = word.split("_")
        for spelled in {word, word.replace("_", "-"), head + "".join(part.capitalize() for part in tail)}:
            yield spelled, VALUES[key]


def test_all_names_of_keys_fit(evals: Draft202012Validator, targets: Draft202012Validator) -> None:
    for block, wrapped in (
        (EvalBlock, lambda entry: entry),
        (SuiteExecution, lambda entry: {"execution": entry}),
        (TestBlock, lambda entry: {"tests": [{"id": "a", **entry}]}),
        (TurnBlock, lambda entry: {"tests": [{"id": "a", "turns": [{"input": "i", **entry}]}]}),
        (TestExecution, lambda entry: {"tests": [{"id": "a", "execution": entry}]}),
        (HookBlock, lambda entry: {"workspace": {"before_all": entry}}),
    ):
        for word, value in spellings(block):
            assert problems(evals, wrapped({word: value})) == [], word
            assert problems(evals, wrapped({f"{word}x": value})) != [], word
    for name, kind in KINDS.items():
        whole = {key: value for key, value in VALUES.items() if key in required(kind.block())}
        for word, value in spellings(kind.block()):
            entry = {**whole, "provider": name}
            entry.pop(kind.block().spellings.get(snake(word), word), None)
            assert problems(targets, {"targets": {"t": {**entry, word: value}}}) == [], (name, word)
            assert problems(targets, {"targets": {"t": {**entry, f"{word}x": value}}}) != [], (name, word)


def required(block: type[Block]) -> list[str]:
    return [name for name, field in block.model_fields.items() if field.is_required()]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tests: [{criteria: c}]", "$.tests[0]"),
        ("tests: [{id: a, critera: c}]", "$.tests[0]"),
        ("tests: [{id: a, execution: {skip: true}}]", "$.tests[0].execution"),
        ("tests: [{id: a, assert: [{type: contains, vlaue: x}]}]", "$.tests[0].assert[0]"),
        ("assert: [{type: not-contains, vlaue: x}]\ntests: []", "$.assert[0]"),
        ("assert: [{type: 'trajectory:tool-used', valeu: x}]\ntests: []", "$.assert[0]"),
        ("assert: [{type: 'trajectory:step-count', value: {mni: 3}}]\ntests: []", "$.assert[0].value"),
        ("preprocessors: [{type: a, comand: b}]\ntests: []", "$.preprocessors"),
        ("tests: []\nnmae: x", "$"),
        ("targets: {a: {provider: cli}, b: {command: x}}", "$.targets.b"),
        ("targets: {a: {provider: cli, comand: x}}", "$.targets.a"),
        ("targets: {a: {provider: agent, max_turns: many}}", "$.targets.a.max_turns"),
        ("execution: {trials: {}}", "$.execution.trials"),
        ("tests: [{id: a, on_dependency_failure: stop}]", "$.tests[0].on_dependency_failure"),
        ("tests: [{id: a, mode: conversation, turns: [{inputs: x}]}]", "$.tests[0].turns[0]"),
        ("tests: [{id: a, mode: conversation, turns: []}]", "$.tests[0].turns"),
    ],
)
def test_what_is_refused_does_not_fit(evals: Draft202012Validator, text: str, place: str) -> None:
    found = problems(evals, parse_source(text, "file").value)

    assert [problem.split(":")[0] for problem in found][:1] == [place]


def test_settings_of_targets_may_be_variables(targets: Draft202012Validator) -> None:
    value = {"targets": {"a": {"provider": "agent", "max_turns": "${{ TURNS }}", "temperature": "${{ T:-0 }}"}}}

    assert problems(targets, value) == []
