"""The example of a batch command in AgentV's documentation on that program's own toolchain: a runner and a judge in TypeScript.

Run where ``bun`` is on the path, or ``MANYHANDS_BUN`` names the program.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.batches import Ran, read_lines, run_command

BUN = os.environ.get("MANYHANDS_BUN") or shutil.which("bun")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BUN is None, reason="bun is not on the path, and MANYHANDS_BUN does not name it"),
]

CASE = """\
  - id: {id}
    criteria: |-
      Batch runner returns JSON with decision={decision}.
    expected_output:
      - role: assistant
        content:
          decision: {decision}
    input:
      - role: system
        content: You are a batch processor.
      - role: user
        content:
          request:
            type: screening_check
            jurisdiction: AU
          row:
            id: {id}
            name: {name}
            amount: {amount}
    assert:
      - name: decision-check
        type: code_judge
        script: bun run ./scripts/check-output.ts
        cwd: .
"""
EVAL = (
    "description: Batch CLI demo using structured input\nexecution:\n  target: batch_cli\ntests:\n"
    + CASE.format(id="case-001", decision="CLEAR", name="Example A", amount=5000)
    + CASE.format(id="case-002", decision="REVIEW", name="Example B", amount=25000)
)
TARGETS = """\
targets:
  batch_cli:
    provider: cli
    commandTemplate: bun run ./scripts/batch-runner.ts --eval {EVAL_FILE} --output {OUTPUT_FILE}
    provider_batching: true
"""
# A judge reads the test and the answer as JSON from standard input, in snake case, and prints its score as JSON.
JUDGE = """\
import { readFileSync } from 'node:fs';

const given = JSON.parse(readFileSync(0, 'utf8'));

function decisionOf(text: string | undefined): unknown {
  try {
    return JSON.parse(text ?? '').decision;
  } catch {
    return undefined;
  }
}

const wanted = (given.expected_output ?? []).map((message: any) => message.content?.decision).find(Boolean);
const found = decisionOf(given.answer);
const right = wanted === found;
console.log(
  JSON.stringify({
    score: Number(right),
    hits: right ? [`decision: ${found}`] : [],
    misses: right ? [] : [`decision: ${found} instead of ${wanted}`],
    reasoning: right ? 'The decision is the expected one.' : 'The decision is another one.',
  }),
);
"""
# AgentV's documentation has this runner's command line, its output and its answer to --healthcheck, and leaves the rest to the reader.
RUNNER = """\
import fs from 'node:fs';
import { YAML } from 'bun';

type Row = { id: string; name: string; amount: number };

function option(args: string[], name: string): string {
  const place = args.indexOf(name);
  if (place < 0 || !args[place + 1]) {
    throw new Error(`${name} is required`);
  }
  return args[place + 1];
}

function main() {
  const args = process.argv.slice(2);
  if (args.includes('--healthcheck')) {
    console.log('batch-runner: healthy');
    return;
  }
  const suite = YAML.parse(fs.readFileSync(option(args, '--eval'), 'utf8')) as { tests: any[] };
  const lines = suite.tests.map((test) => {
    const user = test.input.find((message: { role: string }) => message.role === 'user');
    const row = user.content.row as Row;
    const decision = row.amount < 10000 ? 'CLEAR' : 'REVIEW';
    return JSON.stringify({ id: test.id, text: JSON.stringify({ id: row.id, decision }) });
  });
  fs.writeFileSync(option(args, '--output'), lines.join('\\n') + '\\n');
}

main();
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my-eval.yaml").write_text(EVAL)
    (tmp_path / "agentv-targets.yaml").write_text(TARGETS)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "batch-runner.ts").write_text(RUNNER)
    (tmp_path / "scripts" / "check-output.ts").write_text(JUDGE)
    monkeypatch.setenv("PATH", f"{Path(BUN or '').parent}:{os.environ['PATH']}")
    return tmp_path


def evaluate(folder: Path) -> Ran:
    return run_command(folder, "eval", "my-eval.yaml", "--run_name=r", "--quiet")


def test_both_tests_score_1(folder: Path) -> None:
    checked = run_command(folder, "eval", "validate", ".")
    assert checked.code == 0, checked.err
    ran = evaluate(folder)
    assert ran.code == 0, ran.out + ran.err
    found = read_lines(folder / "data" / "r" / "results.jsonl")
    assert [(each["test_id"], each["score"], each["status"]) for each in found] == [
        ("case-001", 1, "passed"),
        ("case-002", 1, "passed"),
    ]
    assert found[0]["hits"] == ["decision: CLEAR"]
    assert found[1]["reasoning"] == "decision-check: The decision is the expected one."
    assert json.loads(found[1]["answer"]) == {"id": "case-002", "decision": "REVIEW"}


def test_its_healthcheck(folder: Path) -> None:
    (folder / "agentv-targets.yaml").write_text(TARGETS + "    healthcheck: true\n")
    assert evaluate(folder).code == 0
    (folder / "scripts" / "batch-runner.ts").write_text("process.exit(3);\n")
    ran = run_command(folder, "eval", "my-eval.yaml", "--run_name=s", "--quiet")
    assert ran.code == 2
    assert "target 'batch_cli' can't be used: the healthcheck failed" in ran.err
    assert not (folder / "data" / "s").exists()


def test_a_wrong_decision(folder: Path) -> None:
    (folder / "my-eval.yaml").write_text(EVAL.replace("decision: REVIEW", "decision: CLEAR"))
    ran = evaluate(folder)
    assert ran.code == 1
    found = read_lines(folder / "data" / "r" / "results.jsonl")
    assert [each["misses"] for each in found] == [[], ["decision: REVIEW instead of CLEAR"]]
