"""AgentV's example of a batch command: its eval file, its targets, its runner and its judge (these two ported to Python)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Ran, read_lines, run_command

EVAL = """\
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
"""
TARGETS = """\
# In agentv-targets.yaml or eval file
targets:
  batch_cli:
    provider: cli
    commandTemplate: bun run ./scripts/batch-runner.ts --eval {EVAL_FILE} --output {OUTPUT_FILE}
    provider_batching: true
"""
RUNNER = """\
import json
import sys
from pathlib import Path

from ruamel.yaml import YAML


def main():
    if "--healthcheck" in sys.argv:
        print("batch-runner: healthy")
        return
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    with open("invocations.txt", "a") as log:
        log.write("invoked\\n")
    tests = YAML(typ="safe").load(Path(options["--eval"]))["tests"]
    with open(options["--output"], "w") as output:
        for test in tests:
            row = next(m["content"]["row"] for m in test["input"] if m["role"] == "user")
            found = {"id": row["id"], "decision": "CLEAR" if row["amount"] < 10000 else "REVIEW"}
            output.write(json.dumps({"id": test["id"], "text": json.dumps(found)}) + "\\n")


main()
"""
JUDGE = """\
import json
import sys

given = json.load(sys.stdin)
expected = None
for message in given.get("expected_output") or []:
    if isinstance(message["content"], dict):
        expected = message["content"]["decision"]
        break
try:
    candidate = json.loads(given.get("answer") or "")["decision"]
except (ValueError, KeyError):
    candidate = None
hits, misses = [], []
if expected == candidate:
    hits.append(f"decision matches: {expected}")
else:
    misses.append(f"mismatch: expected={expected} actual={candidate}")
score = 0 if misses else 1
reasoning = f"Batch runner output {'matches' if score else 'did not match'} expected."
print(json.dumps({"score": score, "hits": hits, "misses": misses, "reasoning": reasoning}))
"""
# There is no bun here, so a program of that name runs the ports. The files themselves are as the document has them.
BUN = """\
#!/bin/sh
shift
script="$1"
shift
exec {python} "${{script%.ts}}.py" "$@"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scripts, bin_folder = tmp_path / "scripts", tmp_path / "bin"
    scripts.mkdir()
    bin_folder.mkdir()
    (tmp_path / "my-eval.yaml").write_text(EVAL)
    (tmp_path / "agentv-targets.yaml").write_text(TARGETS)
    (scripts / "batch-runner.py").write_text(RUNNER)
    (scripts / "check-output.py").write_text(JUDGE)
    bun = bin_folder / "bun"
    bun.write_text(BUN.format(python=sys.executable))
    bun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    return tmp_path


def evaluate(folder: Path, *words: str) -> Ran:
    return run_command(folder, "eval", "my-eval.yaml", "--run_name=r", "--quiet", *words)


def results(folder: Path) -> list[dict[str, Any]]:
    return read_lines(folder / "data" / "r" / "results.jsonl")


def check_both_passed(folder: Path, ran: Ran) -> None:
    assert ran.code == 0, ran.err
    found = results(folder)
    assert [(each["test_id"], each["score"], each["status"]) for each in found] == [
        ("case-001", 1, "passed"),
        ("case-002", 1, "passed"),
    ]
    assert found[0]["hits"] == ["decision matches: CLEAR"]
    assert found[1]["reasoning"] == "decision-check: Batch runner output matches expected."
    assert json.loads(found[1]["answer"]) == {"id": "case-002", "decision": "REVIEW"}
    assert found[0]["input"][1]["content"]["row"] == {"id": "case-001", "name": "Example A", "amount": 5000}
    assert found[0]["expected_output"] == [{"role": "assistant", "content": {"decision": "CLEAR"}}]
    assert (folder / "invocations.txt").read_text() == "invoked\n"


def test_with_a_file_of_targets(folder: Path) -> None:
    ran = evaluate(folder)
    check_both_passed(folder, ran)
    assert "✓ case-001 1.000" in ran.out.replace("  ", " ")


def test_with_targets_in_the_eval_file(folder: Path) -> None:
    (folder / "agentv-targets.yaml").unlink()
    (folder / "my-eval.yaml").write_text(EVAL + TARGETS)
    check_both_passed(folder, evaluate(folder))


def test_from_another_folder(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    ran = run_command(elsewhere, "eval", "../my-eval.yaml", "--run_name=r", "--quiet", "--data_dir=../data")
    check_both_passed(folder, ran)


def test_the_healthcheck(folder: Path) -> None:
    check = "    healthcheck: {command: bun run ./scripts/batch-runner.ts --healthcheck}\n"
    (folder / "agentv-targets.yaml").write_text(TARGETS + check)
    check_both_passed(folder, evaluate(folder))


def test_a_wrong_decision_fails_and_is_told(folder: Path) -> None:
    (folder / "my-eval.yaml").write_text(EVAL.replace("decision: REVIEW", "decision: CLEAR"))
    ran = evaluate(folder)
    assert ran.code == 1
    assert [(each["score"], each["misses"]) for each in results(folder)] == [
        (1, []),
        (0, ["mismatch: expected=CLEAR actual=REVIEW"]),
    ]
    assert "✗ case-002 0.000 mismatch: expected=CLEAR actual=REVIEW" in ran.out.replace("  ", " ")


def test_tool_calls_of_the_documents_second_record(folder: Path) -> None:
    record = {
        "id": "case-001",
        "text": '{"decision": "CLEAR"}',
        "output": [
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "tool": "screening_check",
                        "input": {"origin_country": "NZ", "amount": 5000},
                        "output": {"decision": "CLEAR", "reasons": []},
                    }
                ],
            },
            {"role": "assistant", "content": {"decision": "CLEAR"}},
        ],
    }
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    grader = "      - {name: tools, type: tool_trajectory, mode: exact, expected: [{tool: screening_check}]}\n"
    (folder / "my-eval.yaml").write_text(EVAL.replace("        cwd: .\n", "        cwd: .\n" + grader, 1))
    ran = evaluate(folder, "--from_output=records.jsonl", "--test_id=case-001")
    assert ran.code == 0, ran.out + ran.err
    (found,) = results(folder)
    assert found["score"] == 1
    assert found["trace"]["tool_calls_by_name"] == {"screening_check": 1}
    assert found["output"] == record["output"]


# --- Broken in every way

BROKEN_RUNNER = """\
import json
import os
import sys
import time

output = dict(zip(sys.argv[1::2], sys.argv[2::2]))["--output"]
with open("invocations.txt", "a") as log:
    log.write("invoked\\n")


def record(test_id, decision, **more):
    return json.dumps({"id": test_id, "text": json.dumps({"decision": decision}), **more})


def write(*lines):
    with open(output, "w") as file:
        file.write("".join(line + "\\n" for line in lines))


A, B = record("case-001", "CLEAR"), record("case-002", "REVIEW")
"""
WAYS: dict[str, tuple[str, str, int, str]] = {
    # way: (what the runner does, what becomes of the two tests, the exit code, what is said)
    "all is well": ("write(A, B)", "passed passed", 0, ""),
    "in another order": ("write(B, A)", "passed passed", 0, ""),
    "an id too many": ("write(A, B, record('case-003', 'CLEAR'))", "passed passed", 0, "unknown id case-003 in line 3"),
    "a missing id": ("write(A)", "passed error", 3, "no record for test case-002"),
    "an empty file": ("write()", "error error", 3, "the output file is empty"),
    "no file": ("pass", "error error", 3, "the output file was not written"),
    "a non-zero exit": ("write(A, B); sys.exit('boom')", "passed passed", 3, "exit code 1: boom"),
    "a non-zero exit halfway": ("write(A); sys.exit('boom')", "passed error", 3, "no record for test case-002"),
    "a timeout": ("write(A); time.sleep(60)", "passed error", 3, "the command timed out after 3 s"),
    "a line that is no JSON": ("write(A, '{oops', B)", "passed passed", 0, "line 2 is not JSON"),
    "a record that is no JSON": ("write(A, B[:-1])", "passed error", 3, "line 2, which seems to be it, is not JSON"),
    "a line that is no object": ("write(A, '[1]', B)", "passed passed", 0, "line 2 is not an object"),
    "a line without id": ('write(A, \'{"text": "x"}\', B)', "passed passed", 0, "line 2 has no id"),
    "a numeric id": ("write(A, record(2, 'REVIEW'))", "passed error", 3, "unknown id 2 in line 2"),
    "a record twice": ("write(A, B, A)", "passed passed", 0, "id case-001 twice, identical records"),
    "two records of one id": (
        "write(A, B, record('case-001', 'REVIEW'))",
        "error passed",
        3,
        "id case-001 twice, different records (lines 1 and 3)",
    ),
    "messages that are none": (
        "write(A, record('case-002', 'REVIEW', output='x'))",
        "passed error",
        3,
        "output is not a list",
    ),
    "token usage that is none": (
        "write(A, record('case-002', 'REVIEW', token_usage={'input': 1}))",
        "passed passed",
        0,
        "token_usage without both",
    ),
    "a cost that is no number": (
        "write(A, record('case-002', 'REVIEW', cost_usd='1'))",
        "passed error",
        3,
        "cost_usd is not a number",
    ),
    "a negative cost": ("write(A, record('case-002', 'REVIEW', cost_usd=-1))", "passed passed", 0, "negative cost_usd"),
    "an error of the runner's own": (
        "write(A, record('case-002', 'REVIEW', error='no luck'))",
        "passed error",
        3,
        "no luck",
    ),
    "an array": ("write('[' + A + ', ' + B + ']')", "passed passed", 0, "one JSON array was read as lines"),
    "a wrong decision": ("write(A, record('case-002', 'CLEAR'))", "passed failed", 1, "actual=CLEAR"),
}


@pytest.mark.parametrize("way", WAYS)
def test_broken_in_one_way(way: str, folder: Path) -> None:
    body, statuses, code, said = WAYS[way]
    (folder / "scripts" / "batch-runner.py").write_text(f"{BROKEN_RUNNER}{body}\n")
    limit = "    timeout_seconds: 3\n" if "sleep" in body else ""
    (folder / "agentv-targets.yaml").write_text(TARGETS + limit)
    ran = evaluate(folder)
    assert ran.code == code, ran.out + ran.err
    found = results(folder)
    assert [each["test_id"] for each in found] == ["case-001", "case-002"]
    assert " ".join(each["status"] for each in found) == statuses
    # Nothing is scored that is an error, and graders have not seen it.
    scores = {"passed": 1, "failed": 0, "error": None}
    assert [each["score"] for each in found] == [scores[each["status"]] for each in found]
    assert [bool(each.get("scores")) for each in found] == [each["status"] != "error" for each in found]
    # The command is never run again unasked.
    assert (folder / "invocations.txt").read_text() == "invoked\n"
    summary = (folder / "data" / "r" / "eval_summary.json").read_text()
    told = json.loads(summary)["commands"]
    everything = json.dumps([found, told], ensure_ascii=False) + ran.out + ran.err
    assert said.replace('"', "'") in everything.replace('\\"', "'")


def test_ids_that_come_twice_are_refused_before_anything_runs(folder: Path) -> None:
    (folder / "my-eval.yaml").write_text(EVAL.replace("- id: case-002", "- id: case-001"))
    ran = evaluate(folder)
    assert ran.code == 2
    assert "my-eval.yaml, line 29: tests[1].id: 'case-001' is the id of another test too, in line 5" in ran.err
    assert not (folder / "invocations.txt").exists()
    assert not (folder / "data").exists()
