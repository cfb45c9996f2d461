"""Eval files: what is read from where, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import EvalFile, Test
from manyhands.workloads.evals.evalfile.loading import load_evals

SEED = """
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
  - id: case-002
    criteria: |-
      Batch runner returns JSON with decision=REVIEW.
    expected_output:
      - role: assistant
        content:
          decision: REVIEW
    input:
      - role: system
        content: You are a batch processor.
      - role: user
        content:
          request:
            type: screening_check
            jurisdiction: AU
          row:
            id: case-002
            name: Example B
            amount: 25000
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
"""AgentV's example of a batch command, with its targets in the same file."""


class Case:
    """A folder with files, one of them loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, text: str, name: str = "my.eval.yaml", **options: Any) -> EvalFile:
        self.write(name, text)
        return self.load_all([name], **options)[0]

    def load_all(self, names: Sequence[str], **options: Any) -> list[EvalFile]:
        around = SearchPath.of(options.pop("here", self.folder), options.pop("root", None))
        paths = [self.folder / name for name in names]
        if options.pop("strict", False):
            options["findings"] = Findings()
        return load_evals(paths, around, **{"notices": self.notices.append, **options})

    def refusal(self, text: str, name: str = "my.eval.yaml", **options: Any) -> str:
        with pytest.raises(UserError) as caught:
            self.load(text, name, **options)
        return str(caught.value)

    def test(self, text: str) -> Test:
        """The only test of a file with one."""
        (test,) = self.load(f"tests:\n  - id: t\n    criteria: c\n{text}").tests
        return test


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


ONE = "tests: [{id: a, criteria: c, input: hi}]\n"


# --- AgentV's example


def test_the_example_loads_as_it_is(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write("bin/bun", "").chmod(0o755)
    monkeypatch.setenv("PATH", str(case.folder / "bin"))
    file = case.load(SEED)

    assert file.dataset == "my.eval"
    assert file.target_names == ("batch_cli",)
    assert file.targets is not None
    assert list(file.targets.value) == ["batch_cli"]
    first = file.tests[0]
    assert first.id == "case-001"
    assert first.criteria == "Batch runner returns JSON with decision=CLEAR."
    assert first.input[0] == {"role": "system", "content": "You are a batch processor."}
    row = {"id": "case-001", "name": "Example A", "amount": 5000}
    request = {"type": "screening_check", "jurisdiction": "AU"}
    assert first.input[1] == {"role": "user", "content": {"request": request, "row": row}}
    assert first.expected_output == ({"role": "assistant", "content": {"decision": "CLEAR"}},)
    assert first.graders[0]["type"] == "code_judge"
    assert first.graders[0]["script"] == "bun run ./scripts/check-output.ts"
    assert [str(test.location) for test in file.tests] == [
        "my.eval.yaml, line 6: tests[0]",
        "my.eval.yaml, line 30: tests[1]",
    ]
    assert not case.notices


# --- Inputs and expected outputs


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        ("{a: 1}", [{"role": "user", "content": {"a": 1}}]),
        ("{role: admin, level: 3}", [{"role": "user", "content": {"role": "admin", "level": 3}}]),
        ("{role: system, content: x}", [{"role": "system", "content": "x"}]),
        ("[{role: user, content: {x: [1]}}]", [{"role": "user", "content": {"x": [1]}}]),
        ("[{role: user, content: [a, {type: text, value: b}, {own: 1}]}]", None),
        ("[{role: assistant, tool_calls: [{tool: f, input: {aB: 1}}]}, {role: tool, content: ok}]", None),
        ("012", [{"role": "user", "content": "012"}]),
    ],
)
def test_inputs(case: Case, written: str, messages: list[Any] | None) -> None:
    test = case.test(f"    input: {written}")

    if messages is not None:
        assert list(test.input) == messages
    else:
        assert test.input[0]["role"] in ("user", "assistant")


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        ("yes", [{"role": "assistant", "content": "yes"}]),
        ("1.50", [{"role": "assistant", "content": "1.50"}]),
        ("true", [{"role": "assistant", "content": "true"}]),
        ("{decisionCode: A}", [{"role": "assistant", "content": {"decisionCode": "A"}}]),
        ("{role: assistant, content: x}", [{"role": "assistant", "content": "x"}]),
        ("[1, 2]", [{"role": "assistant", "content": [1, 2]}]),
        ("[{a: 1}, {b: 2}]", [{"role": "assistant", "content": [{"a": 1}, {"b": 2}]}]),
        ("[{role: admin}]", [{"role": "assistant", "content": [{"role": "admin"}]}]),
        (
            "[{role: user, content: q}, {role: assistant, content: {a: 1}}]",
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": {"a": 1}}],
        ),
        ("[]", [{"role": "assistant", "content": []}]),
    ],
)
def test_expected_outputs(case: Case, written: str, messages: list[Any]) -> None:
    assert list(case.test(f"    input: i\n    expected_output: {written}").expected_output) == messages


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("input: ''", "tests[0].input: must not be empty"),
        ("input: []", "tests[0].input: must be a text, an object, or a list of messages"),
        (
            "input: [{role: usr, content: x}]",
            "tests[0].input[0].role: must be one of system, user, assistant, tool, not 'usr'; did you mean user?",
        ),
        ("input: [{role: user}]", "tests[0].input[0]: content (or tool_calls) is required"),
        ("input: [{role: user, content: 5}]", "tests[0].input[0].content: must be a text, an object or a list, not 5"),
        ("input: [hello]", "tests[0].input[0]: must be a message with role and content"),
        ("input: [{role: user, content: [5]}]", "tests[0].input[0].content[0]: must be a text or an object"),
        (
            "input: [{role: user, content: [{type: file}]}]",
            "tests[0].input[0].content[0].value: the path of a file is required",
        ),
        (
            "input: [{role: user, content: [{type: text, value: 3}]}]",
            "tests[0].input[0].content[0].value: a text is required",
        ),
        ("input: [{role: assistant, tool_calls: [f]}]", "tests[0].input[0].tool_calls: must be a list of objects"),
        ("input: i\n    expected_output: {role: boss, content: x}", "tests[0].expected_output.role: must be one of"),
        ("input: i\n    criteria2: x", "tests[0].criteria2: unknown key; did you mean criteria?"),
        (
            "input: i\n    execution: {skip_default: true}",
            "tests[0].execution.skip_default: unknown key; did you mean skip_defaults?",
        ),
        ("input: i\n    execution: {target: a, targets: [b]}", "tests[0].execution: give target or targets, not both"),
        (
            "input: i\n    execution: {trials: {count: 0}}",
            "tests[0].execution.trials.count: must be between 1 and 1000, not 0",
        ),
        (
            "input: i\n    execution: {trials: {count: 2, strategy: best}}",
            "tests[0].execution.trials.strategy: must be 'pass_at_k'",
        ),
        ("input: i\n    metadata: [1]", "tests[0].metadata: must be a mapping, not [1]"),
        ("input: i\n    tags: [1]", "tests[0].tags: must be a list of texts"),
        ("input: i\n    threshold: 2", "tests[0].threshold: must be between 0 and 1, not 2"),
        (
            "input: i\n    evaluator: llm_jduge",
            "tests[0].evaluator: unknown kind of grader 'llm_jduge'; did you mean llm_judge?",
        ),
        ("input: i\n    rubrics: be nice", "tests[0].rubrics: must be a list of rubrics"),
        ("input: i\n    assert: [{type: contians, value: x}]", "tests[0].assert[0].type: unknown kind of grader"),
        ("input: i\n    assert: [{type: contains}]", "tests[0].assert[0]: value is required"),
        ("input: i\n    turns: []", "tests[0].turns: goes with mode: conversation"),
        ("input: {a: 1}\n    input_files: [x.txt]", "tests[0].input: there is no file x.txt"),
        ("input_files: [x.txt]", "tests[0]: input is required"),
    ],
)
def test_wrong_fields_are_named(case: Case, field: str, said: str) -> None:
    message = case.refusal(f"tests:\n  - id: t\n    {field}\n    criteria: c", strict=True)

    assert said in message
    assert message.startswith("my.eval.yaml, line ")


def test_the_line_is_that_of_the_field(case: Case) -> None:
    text = "tests:\n  - id: t\n    criteria: c\n    input:\n      - role: user\n        content: x\n      - role: usr\n        content: y\n"

    assert case.refusal(text).startswith("my.eval.yaml, line 7: tests[0].input[1].role: ")


# --- Ids


@pytest.mark.parametrize(
    ("written", "name"), [("7", "7"), ("007", "007"), ("1.50", "1.50"), ("0x1F", "0x1F"), ("'7'", "7")]
)
def test_ids_that_are_numbers_are_taken_as_written(case: Case, written: str, name: str) -> None:
    assert case.load(f"tests: [{{id: {written}, criteria: c, input: i}}]").tests[0].id == name
    assert len(case.notices) == (0 if "'" in written else 1)


@pytest.mark.parametrize("written", ["''", "' '", "true", "[a]", "{a: 1}", '"a\\nb"'])
def test_other_ids_are_refused(case: Case, written: str) -> None:
    assert "my.eval.yaml, line 1: tests[0].id: must " in case.refusal(
        f"tests: [{{id: {written}, criteria: c, input: i}}]"
    )


def test_a_test_without_id(case: Case) -> None:
    assert "my.eval.yaml, line 1: tests[0]: id is required" in case.refusal("tests: [{criteria: c, input: i}]")


def test_duplicate_ids_are_refused_with_both_lines(case: Case) -> None:
    text = "tests:\n  - {id: a, criteria: c, input: i}\n  - {id: b, criteria: c, input: i}\n  - {id: a, criteria: d, input: j}\n"

    assert case.refusal(text) == "my.eval.yaml, line 4: tests[2].id: 'a' is the id of another test too, in line 2"


def test_the_same_id_in_two_files_is_refused_with_the_file(case: Case) -> None:
    case.write("more.jsonl", '{"id": "b", "criteria": "c", "input": "i"}\n{"id": "a", "criteria": "c", "input": "i"}\n')

    text = "tests:\n  - {id: a, criteria: c, input: i}\n  - file://more.jsonl\n"
    assert case.refusal(text) == "more.jsonl, line 2: id: 'a' is the id of another test too, in line 2 of my.eval.yaml"


# --- What a test needs


def test_criteria_are_optional_where_something_else_says_what_is_good(case: Case) -> None:
    for field in ("expected_output: x", "assert: [{type: contains, value: x}]"):
        assert case.load(f"tests: [{{id: a, input: i, {field}}}]").tests[0].criteria == ""
    assert case.load("assert: [{type: contains, value: x}]\ntests: [{id: a, input: i}]").tests[0].graders

    assert "criteria, expected_output or graders are required" in case.refusal("tests: [{id: a, input: i}]")


def test_null_counts_as_not_given(case: Case) -> None:
    test = case.test("    input: i\n    expected_output:\n    metadata: ~\n    assert:")

    assert (test.expected_output, test.metadata, test.graders) == ((), {}, ())


def test_a_file_needs_tests(case: Case) -> None:
    assert case.refusal("description: x") == "my.eval.yaml, line 1: tests is required"
    assert case.refusal("tests: []") == "my.eval.yaml: holds no tests"
    assert "must be a mapping" in case.refusal("- a")
    assert case.refusal("") == "my.eval.yaml, line 1: the file is empty"
    assert "tests: must be a list of tests" in case.refusal("tests: 3")


def test_other_kinds_of_files_are_refused(case: Case) -> None:
    assert case.refusal("x", "my.txt") == "my.txt: an eval file is .yaml, .yml or .jsonl, or a program: .eval.ts"
    with pytest.raises(UserError, match="there is no such file"):
        case.load_all(["none.yaml"])


# --- All problems at once


def test_all_problems_of_all_files_are_told_together(case: Case) -> None:
    case.write(
        "one.yaml", "nmae: x\ntests:\n  - {id: a}\n  - {id: b, criteria: c, input: [{role: x, content: y}], foo: 1}\n"
    )
    case.write("two.yaml", "a: [\n")

    with pytest.raises(UserError) as caught:
        case.load_all(["one.yaml", "two.yaml"], strict=True)

    lines = str(caught.value).split("\n")
    assert lines[0] == "one.yaml, line 1: nmae: unknown key; did you mean name?"
    assert lines[-1].startswith("two.yaml, line ")


def test_all_problems_of_a_file_are_told_together(case: Case) -> None:
    text = """
tests:
  - {id: a}
  - {id: b, criteria: c, input: [{role: x, content: y}]}
  - {id: c, criteria: c, input: i, foo: 1, bar: 2}
"""

    lines = case.refusal(text, strict=True).split("\n")

    assert [line.split(":")[0] for line in lines] == [f"my.eval.yaml, line {line}" for line in (3, 3, 4, 5, 5)]


def test_at_most_fifty_problems_are_told(case: Case) -> None:
    tests = "".join(f"  - {{id: t{number}, criteria: c, input: i, foo: 1}}\n" for number in range(60))

    lines = case.refusal("tests:\n" + tests, strict=True).split("\n")

    assert len(lines) == 51
    assert lines[-1] == "… and 10 more problems"


# --- Invalid tests may be left out


def test_invalid_tests_can_be_skipped_and_are_listed(case: Case) -> None:
    text = "tests:\n  - {id: a, criteria: c, input: i}\n  - {id: b, criteria: c}\n  - 5\n  - {id: a, criteria: c, input: i}\n"

    file = case.load(text, skip_invalid=True)

    assert [test.id for test in file.tests] == ["a"]
    assert [(test.id, test.location.line) for test in file.invalid] == [("b", 3), (None, 4), ("a", 5)]
    assert file.invalid[0].message == "my.eval.yaml, line 3: tests[1]: input is required"


def test_problems_of_the_file_itself_are_never_skipped(case: Case) -> None:
    assert "nmae" in case.refusal("nmae: x\n" + ONE, skip_invalid=True, strict=True)


def test_a_file_of_invalid_tests_only_is_refused(case: Case) -> None:
    assert "none of its tests is valid" in case.refusal("tests: [{id: a}]", skip_invalid=True)


# --- The suite


def test_what_the_suite_says_goes_to_all_tests(case: Case) -> None:
    file = case.load(
        """
name: my-suite
dataset: data
tags: [fast]
version: 1.0
input: Be brief.
assert: [{type: contains, value: s}]
evaluator: llm_judge
execution: {targets: [x, y], trials: {count: 3, strategy: mean, cost_limit_usd: 0.5}, workers: 4, threshold: 0.7}
tests:
  - {id: a, criteria: c, input: [{role: user, content: hi}], assert: [{type: contains, value: own}], rubrics: [kind], tags: [slow, fast]}
  - {id: b, criteria: c, input: hi, execution: {skip_defaults: true, target: x, trials: {count: 1}}, conversation_id: k}
"""
    )
    one, two = file.tests

    assert [message["content"] for message in one.input] == ["Be brief.", "hi"]
    assert [(entry["type"], entry.get("value")) for entry in one.graders] == [
        ("rubrics", None),
        ("contains", "own"),
        ("contains", "s"),
    ]
    assert one.graders[0] == {"name": "rubric", "type": "rubrics", "criteria": ["kind"]}
    assert one.tags == ("fast", "slow")
    assert one.default_grader == "llm_judge"
    assert one.trials == file.trials
    assert file.trials is not None
    assert (file.trials.count, file.trials.strategy, file.trials.cost_limit_usd) == (3, "mean", 0.5)
    assert (file.dataset, file.workers, file.threshold, file.target_names) == ("data", 4, 0.7, ("x", "y"))
    assert [message["content"] for message in two.input] == ["hi"]
    assert two.graders == ()
    assert two.targets == ("x",)
    assert two.trials is not None
    assert two.trials.count == 1
    assert two.conversation_id == "k"


def test_a_suites_input_is_enough(case: Case) -> None:
    assert case.load("input: Hi.\ntests: [{id: a, criteria: c}]").tests[0].question == "Hi."
    assert "input is required" in case.refusal(
        "input: Hi.\ntests: [{id: a, criteria: c, execution: {skip_defaults: true}}]"
    )


def test_problems_of_suite_graders_are_told_once(case: Case) -> None:
    text = "assert:\n  - {type: contains}\ntests: [{id: a, input: i}, {id: b, input: i}]\n"

    assert case.refusal(text) == "my.eval.yaml, line 2: assert[0]: value is required"


def test_workspaces_are_merged_field_by_field(case: Case) -> None:
    for name in ("base", "own", "sub"):
        (case.folder / name).mkdir()
    file = case.load(
        """
workspace:
  template: base
  before_each: {script: [echo, hi], timeout_ms: 500, cwd: sub}
tests:
  - {id: a, criteria: c, input: i, workspace: {template: own, afterAll: {command: ls -l}}}
  - {id: b, criteria: c, input: i}
"""
    )
    workspace = file.tests[0].workspace

    assert workspace is not None
    assert workspace.template == case.folder / "own"
    assert workspace.before_each is not None
    assert (workspace.before_each.argv, workspace.before_each.seconds) == (("echo", "hi"), 0.5)
    assert workspace.before_each.folder == case.folder / "sub"
    assert workspace.after_all is not None
    assert workspace.after_all.argv == ("sh", "-c", "ls -l")
    assert file.tests[1].workspace == file.workspace


def test_the_default_grader_has_its_present_name(case: Case) -> None:
    tests = "tests:\n  - {id: a, criteria: c, input: i}\n  - {id: b, criteria: c, input: i, evaluator: isJson}\n"

    assert [test.default_grader for test in case.load("evaluator: llm-grader\n" + tests).tests] == [
        "llm_judge",
        "is_json",
    ]
    assert "my.eval.yaml, line 1: evaluator: unknown kind of grader" in case.refusal("evaluator: lml\n" + tests)


# --- Variables


def test_variables_of_suite_and_test(case: Case) -> None:
    file = case.load(
        """
vars: {lang: German, limits: {max: 3, names: [a]}, both: suite}
input: "Speak {{ lang }}."
tests:
  - id: a
    vars: {both: test, "dotted.name": d}
    criteria: "{{both}} and {{ nothing }}"
    input: {ask: "{{ limits.max }}", text: "at most {{ limits.max }}: {{limits.names}}", "{{lang}}": 1, d: "{{ dotted.name }}"}
    expected_output: "{{ limits }}"
    assert: [{type: contains, value: "{{ lang }}"}, {type: llm_judge, prompt: "{{ answer }} in {{ lang }}"}]
  - {id: b, criteria: "{{ both }}", input: x}
"""
    )
    one, two = file.tests

    assert one.input[0]["content"] == "Speak German."
    assert one.input[1]["content"] == {"ask": 3, "text": 'at most 3: ["a"]', "{{lang}}": 1, "d": "d"}
    assert one.criteria == "test and {{ nothing }}"
    assert one.expected_output[0]["content"] == {"max": 3, "names": ["a"]}
    assert one.graders[0]["value"] == "German"
    assert one.graders[1]["prompt"] == "{{ answer }} in German"
    assert two.criteria == "suite"


def test_what_is_almost_a_variable_is_named_once(case: Case) -> None:
    test = "{criteria: 'in {{ twon }}', input: {a: ['{{ town.zip }}', '{{ town }}', '{{ answer }}']}"
    case.write(
        "e.yaml",
        f"vars: {{town: Rome}}\ntests: [{test}, id: a}}, {test}, id: b}}, {test}, vars: {{twon: x}}, id: c}}]\n",
    )
    (file,) = case.load_all(["e.yaml"])
    assert file.notices == (
        "e.yaml: {{ town.zip }} is no variable and stays as it is; did you mean {{ town }}?",
        "e.yaml: {{ twon }} is no variable and stays as it is; did you mean {{ town }}?",
    )


def test_without_variables_braces_are_text(case: Case) -> None:
    assert case.test("    input: 'say {{ name }}'").question == "say {{ name }}"


# --- Where tests come from


def test_external_files_and_patterns_in_order(case: Case) -> None:
    case.write("cases/b.yaml", "- {id: b, criteria: c, input: i}\n")
    case.write("cases/a.yaml", "- {id: a, criteria: c, input: i}\n- {id: a2, criteria: c, input: i}\n")
    case.write("cases/.hidden.yaml", "- {id: h, criteria: c, input: i}\n")
    case.write("cases/deep/c.jsonl", '\n{"id": 3, "criteria": "c", "input": "i"}\n')
    case.write("cases/empty.jsonl", "\n")
    text = (
        "tests:\n  - {id: own, criteria: c, input: i}\n  - file://cases/*.yaml\n  - file://cases/{deep/c,empty}.jsonl\n"
    )

    file = case.load(text)

    assert [test.id for test in file.tests] == ["own", "a", "a2", "b", "3"]
    assert [str(test.location) for test in file.tests][1:] == [
        "cases/a.yaml, line 1: [0]",
        "cases/a.yaml, line 2: [1]",
        "cases/b.yaml, line 1: [0]",
        "cases/deep/c.jsonl, line 2",
    ]
    assert "cases/empty.jsonl: holds no tests" in case.notices


@pytest.mark.parametrize("written", ["./cases.jsonl", "cases.jsonl", "file://cases.jsonl", "file://cases.*"])
def test_tests_may_be_a_path(case: Case, written: str) -> None:
    case.write("cases.jsonl", '{"id": "a", "criteria": "c", "input": "i"}\n')

    assert [test.id for test in case.load(f"tests: {written}").tests] == ["a"]


def test_problems_in_other_files_are_named_there(case: Case) -> None:
    case.write("cases.yaml", "- {id: a, criteria: c, input: i}\n- {id: b, criteria: c, inptu: i}\n")
    case.write("map.yaml", "tests: []\n")
    case.write("bad.jsonl", '{"id": "x", "criteria": "c", "input": "i"}\n{oops\n')
    case.write("cases.txt", "x")

    assert "cases.yaml, line 2: [1].inptu: unknown key; did you mean input?" in case.refusal(
        "tests: cases.yaml", strict=True
    )
    assert "map.yaml, line 1: must be a list of tests" in case.refusal("tests: map.yaml")
    assert "bad.jsonl, line 2: not JSON" in case.refusal("tests: bad.jsonl")
    assert "my.eval.yaml, line 1: tests: there is no file" in case.refusal("tests: none.yaml")
    assert "my.eval.yaml, line 1: tests[0]: no file fits no/*.yaml" in case.refusal("tests: ['file://no/*.yaml']")
    assert "a file of tests is .yaml, .yml, .json, .jsonl or .csv" in case.refusal("tests: cases.txt")
    assert "tests[0]: must be a mapping, not 'cases.yaml'" in case.refusal("tests: [cases.yaml]")


def test_a_bad_line_can_be_skipped(case: Case) -> None:
    case.write("bad.jsonl", '{"id": "x", "criteria": "c", "input": "i"}\n{oops\n')

    file = case.load("tests: bad.jsonl", skip_invalid=True)

    assert [test.id for test in file.tests] == ["x"]
    assert file.invalid[0].message.startswith("bad.jsonl, line 2: not JSON")


def test_a_file_of_tests_that_is_named_twice(case: Case) -> None:
    case.write("e.yaml", 'tests: ["file://m*.yaml", file://more.yaml]\n')
    case.write("more.yaml", "- {id: a, input: x, criteria: c}\n")
    with pytest.raises(
        UserError, match=r"^more\.yaml, line 1: \[0\]\.id: 'a' comes again, as its file is named twice$"
    ):
        case.load_all(["e.yaml"])


def test_an_id_that_comes_twice_in_json_lines(case: Case) -> None:
    case.write("d.jsonl", '{"id": "a", "input": "x", "criteria": "c"}\n' * 2)
    with pytest.raises(UserError, match=r"^d\.jsonl, line 2: id: 'a' is the id of another test too, in line 1$"):
        case.load_all(["d.jsonl"])


def test_variables_stand_for_their_values_in_graders_that_are_included(case: Case) -> None:
    case.write("shared.yaml", "- {type: contains, value: '{{ town }} {{ answer }}'}\n- {include: ./more.yaml}\n")
    case.write("more.yaml", "- {type: latency, threshold: '{{ most }}'}\n")
    case.write(
        "e.yaml",
        "vars: {most: 5}\nassert: [{include: ./shared.yaml}]\ntests:\n"
        "  - {id: a, input: x, vars: {town: Rome}}\n  - {id: b, input: x, vars: {town: Oslo, most: 7}}\n",
    )
    (file,) = case.load_all(["e.yaml"])
    values = [(test.graders[0]["value"], test.graders[1]["threshold"]) for test in file.tests]
    assert values == [("Rome {{ answer }}", 5), ("Oslo {{ answer }}", 7)]


def test_tests_that_are_nothing(case: Case) -> None:
    case.write("e.yaml", "description: d\ntests:\n")
    with pytest.raises(UserError, match=r"^e\.yaml, line 2: tests: must be a list of tests; nothing is there$"):
        case.load_all(["e.yaml"])


def test_a_file_of_tests_that_names_another_one(case: Case) -> None:
    case.write("e.yaml", "tests: [file://more.yaml]\n")
    case.write("more.yaml", "- {id: a, input: x, criteria: c}\n- file://rest.yaml\n")
    with pytest.raises(UserError) as caught:
        case.load_all(["e.yaml"])
    assert str(caught.value) == (
        "more.yaml, line 2: [1]: 'file://rest.yaml': only the eval file itself may name files of tests"
    )


# --- JSON Lines


def test_json_lines_with_a_sidecar(case: Case) -> None:
    case.write("data.jsonl", '{"id": "a", "criteria": "c", "input": "i"}\n{"id": "b", "criteria": "c", "input": "j"}\n')
    case.write(
        "data.yaml",
        "description: d\ndataset: mine\nexecution: {target: t}\ninput: before\nassert: [{type: contains, value: x}]\n",
    )

    (file,) = case.load_all(["data.jsonl"])

    assert (file.dataset, file.target_names) == ("mine", ("t",))
    assert [test.input[0]["content"] for test in file.tests] == ["before", "before"]
    assert [test.graders[0]["value"] for test in file.tests] == ["x", "x"]


def test_the_sidecar_called_eval_goes_first(case: Case) -> None:
    case.write("data.jsonl", '{"id": "a", "criteria": "c", "input": "i"}\n')
    case.write("data.yaml", "dataset: second\n")
    case.write("data.eval.yaml", "dataset: first\ntests: data.jsonl\n")

    assert case.load_all(["data.jsonl"])[0].dataset == "first"
    assert case.load_all(["data.eval.yaml"])[0].dataset == "first"


def test_a_second_sidecar_is_named_as_one_that_does_not_count(case: Case) -> None:
    case.write("data.jsonl", '{"id": "a", "criteria": "c", "input": "i"}\n')
    case.write("data.yaml", "dataset: first\n")
    assert case.load_all(["data.jsonl"])[0].notices == ()

    case.write("data.yml", "dataset: second\n")
    (file,) = case.load_all(["data.jsonl"])
    assert file.dataset == "first"
    assert file.notices == ("data.jsonl: its sidecar is data.yaml; data.yml beside it does not count",)

    case.write("data.eval.yaml", "dataset: third\n")
    (file,) = case.load_all(["data.jsonl"])
    assert file.dataset == "third"
    assert file.notices == ("data.jsonl: its sidecar is data.eval.yaml; data.yaml and data.yml beside it do not count",)


def test_json_lines_without_a_sidecar(case: Case) -> None:
    case.write("data.jsonl", '{"id": 1.50, "criteria": "c", "input": {"aB": 1}}\n')

    (file,) = case.load_all(["data.jsonl"])

    assert file.dataset == "data"
    assert file.tests[0].id == "1.50"
    assert file.tests[0].input[0]["content"] == {"aB": 1}


def test_a_sidecar_with_other_tests_is_refused(case: Case) -> None:
    case.write("data.jsonl", '{"id": "a", "criteria": "c", "input": "i"}\n')
    case.write("data.yaml", "tests: other.jsonl\n")

    with pytest.raises(UserError, match=r"data\.yaml, line 1: tests: this is the sidecar of data\.jsonl"):
        case.load_all(["data.jsonl"])


# --- Files


def test_files_are_looked_for_upwards_and_here(case: Case) -> None:
    case.write("root/a/near.txt", "near")
    case.write("root/a/b/near.txt", "nearest")
    case.write("root/top.txt", "top")
    here = case.write("here/here.txt", "here").parent
    text = """
tests:
  - id: t
    criteria: c
    input:
      - role: user
        content:
          - {type: file, value: near.txt}
          - {type: file, value: /top.txt}
          - {type: file, value: here.txt}
          - {type: file, value: near.txt}
"""
    case.write("root/a/b/x.yaml", text)

    (file,) = case.load_all(["root/a/b/x.yaml"], here=here, root=case.folder / "root")

    files = [case.folder / name for name in ("root/a/b/near.txt", "root/top.txt", "here/here.txt")]
    assert list(file.tests[0].files) == files


def test_a_missing_file_is_an_error(case: Case) -> None:
    text = "tests:\n  - id: t\n    criteria: c\n    input:\n      - role: user\n        content:\n          - {type: file, value: no.txt}\n"

    assert case.refusal(text).startswith("my.eval.yaml, line 7: tests[0].input[0].content[0]: there is no file no.txt")


def test_input_files_go_before_the_text(case: Case) -> None:
    case.write("doc.txt", "text")

    test = case.test("    input: read it\n    input_files: [doc.txt]")

    content = [{"type": "file", "value": "doc.txt"}, {"type": "text", "value": "read it"}]
    assert list(test.input) == [{"role": "user", "content": content}]
    assert test.files == (case.folder / "doc.txt",)


def test_guidelines_are_files_that_fit_a_pattern(case: Case) -> None:
    case.write(".agentv/config.yaml", "guideline_patterns: ['**/*.rules.md', 'docs/{a,b}/*']\n")
    case.write("sub/one.rules.md", "Be\r\nkind.")
    case.write("docs/a/two.txt", "Be brief.")
    case.write("docs/c/three.txt", "not")
    files = ["one.rules.md", "docs/a/two.txt", "docs/c/three.txt"]
    content = [{"type": "file", "value": name} for name in files]
    case.write("sub/x.yaml", f"tests: [{{id: t, criteria: c, input: [{{role: user, content: {content}}}]}}]")

    (file,) = case.load_all(["sub/x.yaml"], root=case.folder)

    test = file.tests[0]
    assert test.guidelines == "Be\nkind.\n\nBe brief."
    assert [path.name for path in test.guideline_files] == ["one.rules.md", "two.txt"]
    assert [path.name for path in test.files] == ["three.txt"]
    assert "rules" not in test.prompt()


def test_a_wrong_configuration_is_named(case: Case) -> None:
    case.write(".agentv/config.yaml", "guideline_patterns: [3]\n")

    assert "config.yaml, line 1: guideline_patterns[0]: must be a pattern, not 3" in case.refusal(ONE)


# --- To and from JSON


def test_a_test_survives_json(case: Case) -> None:
    (case.folder / "w").mkdir()
    case.write("doc.rules", "x")
    case.write(".agentv/config.yaml", "guideline_patterns: ['*.rules']\n")
    test = case.test(
        """    input: read it
    input_files: [doc.rules]
    expected_output: {aB: [1, 2.5, null, {"x-Y": true}]}
    metadata: {keepMe: {As: is}}
    assert: [{type: composite, aggregator: {type: weighted_average}, assert: [{name: m, type: contains, value: x}]}]
    execution: {targets: [a, b], trials: {count: 2}}
    workspace: {template: w, before_all: {script: [a]}}
    threshold: 0.5
"""
    )

    again = Test.from_json(test.to_json())

    assert again.to_json() == test.to_json()
    assert str(again.location) == str(test.location)
    for name in Test.__slots__:
        if name != "location":
            assert getattr(again, name) == getattr(test, name), name
