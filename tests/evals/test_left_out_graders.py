"""Graders that have nothing to compare: neither 0 nor 1, and said in results, reports and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Ran, read_lines, run_command

FIELDS = "{type: field_accuracy, name: fields, fields: [{path: decision}]}"
HAS = "{type: contains, name: has, value: CLEAR}"
HAS_NOT = "{type: contains, name: lacks, value: REVIEW}"
EXPECTED = "expected_output: {decision: CLEAR}"
OTHERS = ["criteria: c", "expected_output: CLEAR", "expected_output: {reason: none}", "expected_output: {}"]


def evaluate(folder: Path, *tests: str, words: tuple[str, ...] = (), head: str = "") -> Ran:
    answer = json.dumps({"decision": "CLEAR"})
    lines = [f"targets: {{m: {{provider: mock, response: '{answer}'}}}}", head, "tests:"]
    lines += [f"- {{id: t{number}, {test}}}" for number, test in enumerate(tests)]
    (folder / "e.yaml").write_text("\n".join(lines))
    return run_command(folder, "eval", "e.yaml", "--run_name=r", *words)


def results(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "data" / "r" / "results.jsonl")


@pytest.mark.parametrize("other", OTHERS)
def test_a_grader_with_nothing_to_compare_is_no_part_of_the_score(tmp_path: Path, other: str) -> None:
    graders = f"assert: [{FIELDS}, {HAS}]"
    ran = evaluate(tmp_path, f"input: x, {EXPECTED}, {graders}", f"input: x, {other}, {graders}")
    assert ran.code == 0
    whole, part = results(tmp_path)
    assert (whole["score"], part["score"], part["status"]) == (1, 1, "passed")
    assert "notices" not in whole
    (notice,) = part["notices"]
    assert notice.startswith("grader left out of the score: fields: expected_output ")
    fields, has = part["scores"]
    assert (fields["score"], fields["verdict"], has["score"]) == (None, "left_out", 1)
    assert fields["left_out"] in notice
    assert "note: grader fields had nothing to compare in 1 test, and was left out of its score" in ran.err
    summary = json.loads((tmp_path / "data/r/eval_summary.json").read_text())
    assert summary["graders_left_out"] == {"fields": 1}


def test_it_does_not_make_a_failure_any_better(tmp_path: Path) -> None:
    ran = evaluate(tmp_path, f"input: x, criteria: c, assert: [{FIELDS}, {HAS_NOT}]")
    assert ran.code == 1
    assert (results(tmp_path)[0]["score"], results(tmp_path)[0]["status"]) == (0, "failed")


@pytest.mark.parametrize("negate", ["", "not-"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_test_that_nothing_could_grade_has_no_score_and_is_not_green(tmp_path: Path, other: str, negate: str) -> None:
    graders = f"assert: [{FIELDS.replace('field_acc', negate + 'field_acc')}]"
    ran = evaluate(
        tmp_path,
        f"input: x, {EXPECTED}, assert: [{HAS}]",
        f"input: x, {other}, {graders}",
        words=("--output=o.xml", "--output=o.html", "--output=o.jsonl"),
    )
    assert ran.code == 3
    record = results(tmp_path)[1]
    assert (record["score"], record["status"], record.get("verdict")) == (None, "ungraded", None)
    assert "- t1 (simulated) ungraded" in ran.out
    assert "grader left out of the score: fields: expected_output" in ran.err
    xml = (tmp_path / "o.xml").read_text()
    assert "no grader had anything to compare; grader left out of the score: fields: expected_output" in xml
    assert "expected_output " in (tmp_path / "o.html").read_text()
    summary = json.loads((tmp_path / "data/r/eval_summary.json").read_text())
    assert (summary["tests"]["ungraded"], summary["mean_score"]["tests"]) == (1, 1)


def test_tests_without_a_score_are_fine_where_that_was_asked_for(tmp_path: Path) -> None:
    test = f"input: x, criteria: c, assert: [{FIELDS}]"
    assert evaluate(tmp_path, test, words=("--allow_ungraded",)).code == 0


def test_trials_and_many_tests_are_counted_once(tmp_path: Path) -> None:
    tests = [f"input: x, criteria: c, assert: [{HAS}, {{type: composite, name: both, assert: [{FIELDS}]}}]"] * 25
    ran = evaluate(tmp_path, *tests, words=("--trials=2",))
    assert ran.code == 0
    assert "note: grader both > fields had nothing to compare in 25 tests, and was left out of their scores" in ran.err


def test_a_trial_that_nothing_could_grade_leaves_the_test_without_a_score(tmp_path: Path) -> None:
    ran = evaluate(tmp_path, f"input: x, criteria: c, assert: [{FIELDS}]", words=("--trials=2",))
    assert ran.code == 3
    assert (results(tmp_path)[0]["score"], results(tmp_path)[0]["status"]) == (None, "ungraded")


@pytest.mark.parametrize(
    ("turns", "score", "status"),
    [
        (f"[{{input: a, assert: [{FIELDS}]}}]", None, "ungraded"),
        (f"[{{input: a, assert: [{FIELDS}]}}, {{input: b}}]", None, "ungraded"),
        (f"[{{input: a, assert: [{FIELDS}]}}, {{input: b, assert: [{HAS_NOT}]}}]", 0, "failed"),
        (f"[{{input: a, assert: [{FIELDS}]}}, {{input: b, {EXPECTED}, assert: [{FIELDS}]}}]", 1, "passed"),
    ],
)
def test_turns_of_conversations(tmp_path: Path, turns: str, score: float | None, status: str) -> None:
    evaluate(tmp_path, f"mode: conversation, turns: {turns}")
    (record,) = results(tmp_path)
    assert (record["score"], record["status"]) == (score, status)
    assert record["turns"][0]["score"] is None
    assert record["notices"][0].startswith("grader left out of the score: turn-1, fields: expected_output")
