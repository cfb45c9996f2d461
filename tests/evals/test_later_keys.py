"""What AgentV 4.42 added to eval files, and keys that mean nothing here, as a person meets them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from manyhands.graders.judged.rubric_items import RubricItem
from manyhands.graders.judged.rubrics import Points
from manyhands.io.locations import Location
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import EvalFile
from manyhands.workloads.evals.evalfile.loading import load_evals
from tests.support.batches import Ran, run_command

TARGETS = "targets: {t: {provider: cli, command: 'cat {PROMPT_FILE}'}}\nassert: [{type: contains, value: x}]\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(folder: Path, text: str, notices: list[str] | None = None, **environ: str) -> EvalFile:
    write(folder, {"e.yaml": text})
    around, told = SearchPath.of(folder, folder), [] if notices is None else notices
    return load_evals([folder / "e.yaml"], around, notices=told.append, environ=environ)[0]


def evaluate(folder: Path, *words: str, **environ: str) -> Ran:
    with patch.dict(os.environ, environ):
        return run_command(folder, "eval", "e.yaml", "--run_name=r", "--quiet", *words)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data/r/results.jsonl").read_text().splitlines()]


# --- Unknown keys


def test_unknown_keys_are_one_note_for_each_file_and_refused_if_a_person_wants_that(tmp_path: Path) -> None:
    tests = "".join(f"  - {{id: t{number}, input: x, nte: 1}}\n" for number in range(5))
    write(tmp_path, {"e.yaml": f"{TARGETS}owner: me\nx-own: 1\ntests:\n{tests}  - file://more.yaml\n"})
    write(
        tmp_path, {"more.yaml": "- {id: m, input: x, asert: [], assert: [{type: contains, value: x, negated: true}]}\n"}
    )

    ran = evaluate(tmp_path)

    assert ran.code == 0, ran
    assert [line for line in ran.err.splitlines() if "effect" in line] == [
        "note: e.yaml: unknown keys have no effect: owner (line 3), tests[0].nte (line 6, and 4 more)",
        "note: more.yaml: unknown keys have no effect: [0].asert (line 1; did you mean assert?), "
        "[0].assert[0].negated (line 1; did you mean negate?)",
    ]
    refused = run_command(tmp_path, "eval", "validate", "e.yaml", "--strict")
    assert refused.code == 2
    assert "e.yaml, line 3: owner: unknown key\n" in refused.err
    write(tmp_path, {"e.yaml": f"{TARGETS}tests: [file://more.yaml]\n"})
    refused = evaluate(tmp_path, "--strict", "--run_name=s")
    assert refused.code == 2
    assert "more.yaml, line 1: [0].asert: unknown key; did you mean assert?" in refused.err


def test_a_line_names_ten_unknown_keys(tmp_path: Path) -> None:
    notices: list[str] = []
    own = "".join(f"own{number}: 1\n" for number in range(2000))

    load(tmp_path, own + "tests: [{id: a, input: i, criteria: c}]", notices)

    assert len(notices) == 1
    assert notices[0].endswith("own9 (line 10) … and 1990 more")


def test_a_workflow_is_no_eval_file(tmp_path: Path) -> None:
    write(tmp_path, {"lint.yml": "name: x\non: {push: {}}\njobs: {}\n"})

    ran = run_command(tmp_path, "eval", "validate", "lint.yml")

    assert (ran.code, ran.err) == (2, "lint.yml, line 1: is a workflow of GitHub Actions, not an eval file\n")


# --- Configuration


def test_keys_without_an_effect_are_told_in_one_note_for_each_file(tmp_path: Path) -> None:
    written = """targets:
  - {name: a, provider: mock, log_format: json, bar: 1}
  - {name: b, provider: mock, log_format: json, fallback_targets: [a]}
execution: {targets: [a, b]}
owner: me
tests: [{id: t, input: i, assert: [{type: contains, value: x, baz: 1}]}]
"""
    (tmp_path / "e.yaml").write_text(written)

    ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=r")
    notes = [line for line in ran.err.splitlines() if line.startswith("note: e.yaml")]
    assert notes == [
        "note: e.yaml: unknown keys have no effect: owner (line 5), tests[0].assert[0].baz (line 6), targets[0].bar (line 2)",
        "note: e.yaml: have no effect here: targets[0].log_format (line 2, and 1 more), targets[1].fallback_targets (line 3)",
    ]
    refused = run_command(tmp_path, "eval", "e.yaml", "--run_name=s", "--strict").err
    assert "owner: unknown key" in refused
    assert "log_format: unknown key" not in refused  # known keys are no mistakes


def test_the_configuration_has_defaults_below_the_file_and_the_command_line(tmp_path: Path) -> None:
    config = "execution: {verbose: true, trace_file: '.agentv/traces/t-{timestamp}.jsonl', workers: 7, otel_file: o, max_retries: 0}\n"
    write(tmp_path, {".agentv/config.yaml": config + "hooks: {before_session: 'touch ran'}\nresults: {repo: r}\n"})
    write(tmp_path, {"e.yaml": f"{TARGETS}tests: [{{id: a, input: x}}]\n"})

    ran = evaluate(tmp_path)

    assert ran.code == 0, ran
    assert "note: .agentv/config.yaml: have no effect here: execution.otel_file (line 1), results (line 3)" in ran.err
    assert ".agentv/config.yaml, line 2: hooks.before_session: is not run, as nobody typed it" in ran.err
    assert not (tmp_path / "ran").exists()
    (trace,) = (tmp_path / ".agentv/traces").iterdir()
    assert trace.name.startswith("t-20")
    assert json.loads(trace.read_text())["test_id"] == "a"
    assert "✓ e/a" in ran.err  # verbose
    assert "✓" not in evaluate(tmp_path, "--verbose=false", "--run_name=s").err
    file = load(tmp_path, f"{TARGETS}execution: {{workers: 2}}\ntests: [{{id: a, input: x}}]\n")
    assert (file.workers, load(tmp_path, f"{TARGETS}tests: [{{id: a, input: x}}]\n").workers) == (2, 7)


def test_a_configuration_that_is_a_program_is_not_read(tmp_path: Path) -> None:
    notices: list[str] = []
    write(tmp_path, {"agentv.config.ts": "export default {}"})

    load(tmp_path, "tests: [{id: a, input: i, criteria: c}]", notices)

    assert "agentv.config.ts: is not read, as it is a program" in notices[0]


# --- Tests and suites


def test_a_folder_of_tests(tmp_path: Path) -> None:
    write(tmp_path, {"cases/b/case.yaml": "criteria: c\ninput: ${{ WHAT }}\n", "cases/b/workspace/f.txt": "x"})
    write(
        tmp_path, {"cases/a/case.yml": "{id: own, criteria: c, input: i}", "cases/none/readme": "", "cases/.git/x": ""}
    )
    notices: list[str] = []

    file = load(tmp_path, "tests: ./cases/\n", notices, WHAT="that")

    assert [(test.id, test.input[0]["content"]) for test in file.tests] == [("own", "i"), ("b", "that")]
    workspace = file.tests[1].workspace
    assert workspace is not None
    assert workspace.template == tmp_path / "cases/b/workspace"
    assert notices == ["cases/none: no test, as there is no case.yaml in it"]


def test_files_that_go_with_every_input(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "A", "b.md": "B", "p.png": "not text"})
    text = """
input: Be brief.
input_files: [a.md]
tests:
  - {id: one, criteria: c, input: hi}
  - {id: own, criteria: c, input: [{role: system, content: s}, {role: user, content: hi}], input_files: [b.md]}
  - {id: none, criteria: c, input: hi, execution: {skip_defaults: true}}
  - {id: image, criteria: c, input: [{role: user, content: [{type: image, value: p.png}, see]}], execution: {skip_defaults: true}}
"""
    one, own, none, image = load(tmp_path, text).tests

    assert one.input[0]["content"] == "Be brief."
    assert one.input[1]["content"] == [{"type": "file", "value": "a.md"}, {"type": "text", "value": "hi"}]
    assert [message["role"] for message in own.input] == ["user", "system", "user"]
    assert own.input[2]["content"][0] == {"type": "file", "value": "b.md"}
    assert (list(one.references), list(own.references), none.input[0]["content"]) == (["a.md"], ["b.md"], "hi")
    assert image.files == (tmp_path / "p.png",)
    assert image.chat()[0]["content"] == '<image path="p.png">\n\nsee'


def test_what_a_suite_says_of_its_governance_is_in_each_tests_metadata(tmp_path: Path) -> None:
    text = """
governance: {owner: us, risks: [a, b], deep: {x: 1}}
name: No Slug
tests:
  - {id: a, criteria: c, input: i, suite: s, metadata: {governance: {owner: me, risks: [b, c], deep: {y: 2}}, k: 1}}
  - {id: b, criteria: c, input: i, execution: {threshold: 0.3}}
"""
    notices: list[str] = []
    first, second = load(tmp_path, text, notices).tests

    assert first.metadata == {"governance": {"owner": "me", "risks": ["a", "b", "c"], "deep": {"x": 1, "y": 2}}, "k": 1}
    assert second.metadata["governance"]["owner"] == "us"
    assert second.threshold == 0.3
    assert notices[0].startswith("e.yaml, line 3: name: 'No Slug' is no name")


def test_targets_that_a_file_lists_may_have_hooks_and_stand_for_others(tmp_path: Path) -> None:
    text = """
execution:
  targets:
    - plain
    - {name: other, use_target: "${{ BASE }}", hooks: {before_each: {command: [echo, hi], timeout_ms: 500}}}
    - {name: unset, use_target: "${{ NONE }}"}
tests: [{id: a, criteria: c, input: i}]
"""
    file = load(tmp_path, text, BASE="real")

    assert file.target_names == ("plain", "other", "unset")
    assert [ref.use_target for ref in file.target_refs] == [None, "real", None]
    assert {name: (hook.argv, hook.seconds) for name, hook in file.target_refs[1].hooks.items()} == {
        "before_each": (("echo", "hi"), 0.5)
    }


def test_a_workspace_in_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, {"shared/w.yaml": "template: tree\nbefore_all: {command: 'true'}\n", "shared/tree/f": ""})

    test = load(tmp_path, "workspace: shared/w.yaml\ntests: [{id: a, criteria: c, input: i}]\n").tests[0]

    assert test.workspace is not None
    assert test.workspace.template == tmp_path / "shared/tree"
    with pytest.raises(Exception, match=r"^e\.yaml, line 1: workspace: there is no file .*none\.yaml$"):
        load(tmp_path, "workspace: none.yaml\ntests: [{id: a, criteria: c, input: i}]\n")


def test_a_judge_is_told_what_operators_of_points_mean() -> None:
    items = [RubricItem(id=name, outcome="o", operator=name) for name in ("correctness", "contradiction")]

    points = Points.of(items, Location("e.yaml"))

    assert "- contradiction (operator: contradiction): o" in points.listed()
    assert points.task.index("must not contradict") > points.task.index("the operator correctness")
    assert "operator" not in Points.of([RubricItem(id="a", outcome="o")], Location("e.yaml")).task


# --- Variables of the environment


def test_variables_of_the_environment_in_tests(tmp_path: Path) -> None:
    text = """
description: ${{ NONE }}
execution: {threshold: "${{ LIMIT }}"}
tests:
  - id: a
    criteria: must be ${{ WORD }} and ${{ NONE:-clear }}
    input: [{role: system, content: "${{ NONE }}"}, {role: user, content: "${{ LIMIT }}, ${{ secrets.X }}"}]
    expected_output: {limit: "${{ LIMIT }}", tricky: "${{ TRICKY }}"}
  - file://more.jsonl
"""
    write(tmp_path, {"more.jsonl": '{"id": "m", "criteria": "c", "input": "${{ FROM_FILE }} ${{ GONE }}"}\n'})
    write(tmp_path, {".env": "FROM_FILE=dotenv\nWORD=overruled\n"})
    notices: list[str] = []

    file = load(tmp_path, text, notices, WORD="short", LIMIT="0.25", TRICKY="${{ WORD }}")

    first, second = file.tests
    assert (file.threshold, first.criteria) == (0.25, "must be short and clear")
    assert [message["content"] for message in first.input] == ["", "0.25, ${{ secrets.X }}"]
    assert first.expected_output[0]["content"] == {"limit": 0.25, "tricky": "${{ WORD }}"}
    assert second.input[0]["content"] == "dotenv "
    assert notices == [
        "e.yaml: environment variable NONE is not set, and taken as empty text",
        "more.jsonl: environment variable GONE is not set, and taken as empty text",
    ]


def test_secrets_are_not_recorded_and_put_in_again(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-a-person"
    text = """
targets: {t: {provider: cli, command: 'tr a-z A-Z < {PROMPT_FILE}; test -e go'}}
assert: [{type: contains, value: SAY S3CR3T-VALUE}]
tests: [{id: a, input: "say ${{ MY_API_KEY }} ${{ PLAIN }}"}]
"""
    write(tmp_path, {"e.yaml": text})
    assert evaluate(tmp_path, "--max_retries=0", MY_API_KEY=secret, PLAIN="before").code == 3
    recorded = b"".join(path.read_bytes() for path in (tmp_path / "data/r").rglob("*") if path.is_file())
    assert secret.encode() not in recorded
    assert b"${{ MY_API_KEY }}" in recorded

    missing = run_command(tmp_path, "resume", "r", "--retry_errors", "--quiet")
    assert missing.code == 2
    assert "MY_API_KEY is not set, which the test had when the run was made" in missing.err

    (tmp_path / "go").write_text("")
    again = {"MY_API_KEY": secret, "PLAIN": "after"}
    with patch.dict(os.environ, again):
        ran = run_command(tmp_path, "resume", "r", "--retry_errors", "--quiet")
    assert ran.code == 0, ran
    assert "test a has changed (input)" in ran.err  # of PLAIN: the run keeps what it was made with
    assert "BEFORE" in json.dumps(results(tmp_path))
