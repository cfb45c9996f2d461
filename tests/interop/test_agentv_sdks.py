"""Graders written with AgentV's SDKs judge answers of an evaluation: in TypeScript with bun and with node, and in Python.

``AGENTV_SDK``: a folder with ``node_modules``, where ``@agentv/sdk`` is the SDK of 4.42, ``agentv`` the graders' part of that of 5, beside
``zod`` 3 and ``zod-to-json-schema``. ``AGENTV_SDK_PYTHON``: the folder that holds ``agentv_py``. ``bun`` and ``node`` are looked up in the
``PATH``, unless ``MANYHANDS_BUN`` names the former.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft7Validator, Draft202012Validator

from manyhands.core.jsonio import loads
from manyhands.graders.payloads import LATER, handed
from manyhands.graders.protocol import Candidate
from tests.support.batches import read_lines, run_command
from tests.support.grader_payloads import CANDIDATES, CONFIGS, SCHEMA, camel

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
SDK, PYTHON_SDK = os.environ.get("AGENTV_SDK"), os.environ.get("AGENTV_SDK_PYTHON")
BUN, NODE = os.environ.get("MANYHANDS_BUN") or shutil.which("bun"), shutil.which("node")
SDKS = ["@agentv/sdk", "agentv"]

CALL = {"tool": "read_file", "id": "c1", "input": {"filePath": "a.txt"}, "output": "text", "duration_ms": 12.5}
RECORD = {
    "output": [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "The answer is 42.", "end_time": "2026-01-01T00:00:09Z"},
    ],
    "token_usage": {"input": 10, "output": 5},
    "cost_usd": 0.25,
    "duration_ms": 1500,
}
EVAL = """\
execution: {target: command}
tests:
  - id: one
    criteria: Says 42.
    input:
      - {role: system, content: Be brief.}
      - role: user
        content: [{type: text, value: What is it?}, {type: file, value: notes.txt}]
    expected_output: [{role: assistant, content: {decisionCode: "42"}}]
    metadata: {someKey: 1}
    assertions:
"""
TARGETS = """\
targets:
  - {name: command, provider: cli, command: "cp answer.json {OUTPUT_FILE}", grader_target: judge}
  - {name: judge, provider: model, model: simulated}
"""
# What a grader is to see, as checks by name; then how each SDK wants them to be returned.
CHECKS = """\
const checks = {
  output: given.output === 'The answer is 42.',
  criteria: given.criteria === 'Says 42.',
  config: given.config.maxCalls === 3 && given.config.own === 'x',
  input: given.input.length === 2 && given.input[1].content[1].text === 'notes',
  files: given.inputFiles.length === 1 && given.inputFiles[0].endsWith('/notes.txt') && given.inputFiles[0].startsWith('/'),
  expected: given.expectedOutput[0].content.decisionCode === '42',
  metadata: given.metadata.someKey === 1,
  messages: given.messages.map((message) => message.role).join() === 'system,user,assistant,assistant',
  calls: given.messages[2].toolCalls[0].input.filePath === 'a.txt',
  trace: given.trace.eventCount === 1 && given.trace.events.some((event) => event.type === 'tool_result'),
  final: given.trace.events.at(-1).type === 'final_response' && given.trace.messages.length === 4,
  summary: given.traceSummary.toolDurations.readFile[0] === 12.5 && given.traceSummary.llmCallCount === 2,
  figures: given.tokenUsage.output === 5 && given.costUsd === 0.25 && given.durationMs === 1500 && given.trace.costUsd === 0.25,
  times: given.endTime === '2026-01-01T00:00:09.000Z' && given.startTime === null,
  absent: given.outputPath === undefined && given.fileChanges === null && given.workspacePath === null,
};
const all = Object.entries(checks);
const score = all.filter(([, good]) => good).length / all.length;
const result = given.version === 5
  ? { pass: score === 1, score, reason: 'r', checks: all.map(([text, pass]) => ({ text, pass, reason: 'because' })) }
  : { score, assertions: all.map(([text, passed]) => ({ text, passed })) };
"""
GRADER = """\
import { %(define)s } from '%(sdk)s';
export default %(define)s((context) => {
  const given = new Proxy(context, { get: (of, name) => (name === 'version' ? %(version)d : of[name]) });
  %(checks)s
  return result;
});
"""
ASKING = """\
import { %(define)s, %(client)s } from '%(sdk)s';
export default %(define)s(async () => {
  const client = %(client)s();
  const before = await client.getInfo();
  const one = await client.invoke({ question: 'Is it?', systemPrompt: 'Judge.' });
  const two = await client.invokeBatch([{ question: 'a' }, { question: 'b' }]);
  let refused;
  try { await client.invoke({ question: 'c' }); } catch (error) { refused = error.statusCode; }
  const good = before.maxCalls === 3 && before.callCount === 0 && Boolean(one.rawText) && two.length === 2
    && one.output[0].role === 'assistant' && one.tokenUsage.input > 0 && refused === 429
    && (before.targetName ?? before.providerLabel) === 'judge'
    && (before.availableTargets ?? before.availableProviderLabels).includes('judge');
  return { pass: good, score: Number(good), reason: JSON.stringify([before, one, refused]) };
});
"""
PROMPT = """\
import { definePromptTemplate } from '%(sdk)s';
export default definePromptTemplate(
  ({ output, config, criteria, messages }) => `${criteria} ${config.strictness} ${output} ${messages.length}`,
);
"""
LONG = """\
import { defineAssertion } from '%s';
defineAssertion(({ output, config }) => ({ pass: output!.length > config!.minLength }));
"""
PYTHON = """\
import sys
sys.path.insert(0, %(sdk)r)
from agentv_py import Assertion, CodeGraderResult, TargetClient, define_code_grader

def evaluate(context):
    client = TargetClient.from_env()
    checks = {
        "output": context.output == "The answer is 42.",
        "expected": context.expected_output[0]["content"] == {"decisionCode": "42"},
        "config": context.config == {"max_calls": 3},
        "trace": context.trace["tool_calls"] == {"read_file": 1} and context.trace_summary["event_count"] == 1,
        "figures": (context.cost_usd, context.duration_ms) == (0.25, 1500.0),
        "judge": bool(client.invoke(question="Is it?")["rawText"]) and client.get_info()["callCount"] == 1,
        "batch": len(client.invoke_batch([{"question": "a"}])["responses"]) == 1,
    }
    assertions = [Assertion(name, good) for name, good in checks.items()]
    return CodeGraderResult(sum(checks.values()) / len(checks), assertions, {"kept": True})

define_code_grader(evaluate)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("answer.json", json.dumps(RECORD)), ("notes.txt", "notes"), ("targets.yaml", TARGETS)):
        (tmp_path / name).write_text(text)
    if SDK is not None:
        (tmp_path / "node_modules").symlink_to(Path(SDK, "node_modules"))
    if BUN is not None:
        monkeypatch.setenv("PATH", f"{Path(BUN).parent}:{os.environ['PATH']}")
    return tmp_path


def graded(folder: Path, *entries: dict[str, Any]) -> list[dict[str, Any]]:
    """The scores of graders of a test."""
    (folder / "x.eval.yaml").write_text(EVAL + "".join(f"      - {json.dumps(entry)}\n" for entry in entries))
    ran = run_command(
        folder, "eval", "x.eval.yaml", "--targets=targets.yaml", "--run_name=r", "--quiet", "--judge_target=judge"
    )
    (result,) = read_lines(folder / "data" / "r" / "results.jsonl")
    assert result.get("error") is None, (result["error"], ran.err)
    scores: list[dict[str, Any]] = result["scores"]
    return scores


@pytest.fixture(params=["bun", "node"])
def runtime(request: pytest.FixtureRequest) -> list[str]:
    if SDK is None:
        pytest.skip("AGENTV_SDK names no folder")
    if request.param == "bun":
        if BUN is None:
            pytest.skip("there is no bun")
        return ["bun", "run"]
    if NODE is None:
        pytest.skip("there is no node")
    return ["node"]


@pytest.mark.parametrize("sdk", SDKS)
def test_graders_in_typescript(sdk: str, runtime: list[str], folder: Path) -> None:
    old = sdk == SDKS[0]
    (folder / "scripts").mkdir()
    for name, define in (("code.mjs", "defineCodeGrader"), ("assertion.mjs", "defineAssertion")):
        filled = {"sdk": sdk, "define": define, "version": 4 if old else 5, "checks": CHECKS}
        (folder / "scripts" / name).write_text(GRADER % filled)
    client = "createTargetClient" if old else "createProviderClient"
    (folder / "ask.mjs").write_text(ASKING % {"sdk": sdk, "define": "defineCodeGrader", "client": client})
    kind, access = ("code-grader", "target") if old else ("script", "provider")
    own = {"own": "x", "config": {"max_calls": 3}}
    code, assertion, asking = graded(
        folder,
        {"name": "code", "type": kind, "command": [*runtime, "scripts/code.mjs"], **own},
        {"name": "assertion", "type": kind, "command": [*runtime, "../scripts/assertion.mjs"], "cwd": "scripts", **own},
        {"name": "asking", "type": kind, "command": [*runtime, "ask.mjs"], access: {"max_calls": 3}},
    )
    for score in (code, assertion):
        assert (score["score"], score["verdict"], score["misses"]) == (1, "pass", [])
        assert len(score["hits"]) == 15
    assert (asking["score"], asking["details"]["target_calls"]) == (1, 3), asking


@pytest.mark.parametrize("sdk", SDKS)
def test_prompts_in_typescript(sdk: str, runtime: list[str], folder: Path) -> None:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "ask.mjs").write_text(PROMPT % {"sdk": sdk})
    prompt = {"command": [*runtime, "prompts/ask.mjs"], "config": {"strictness": "high"}}
    (score,) = graded(folder, {"name": "j", "type": "llm-grader", "prompt": prompt})
    assert score["simulated"] is True


@pytest.mark.parametrize("sdk", SDKS)
def test_assertions_by_convention(sdk: str, folder: Path) -> None:
    if SDK is None or BUN is None:
        pytest.skip("AGENTV_SDK names no folder, or there is no bun")
    for place in ("assertions", "graders"):
        (folder / ".agentv" / place).mkdir(parents=True)
        (folder / ".agentv" / place / f"long-{place}.ts").write_text(LONG % sdk)
    first, second = graded(
        folder, {"type": "long-assertions", "min_length": 5}, {"type": "long-graders", "minLength": 50}
    )
    assert (first["score"], second["score"]) == (1, 0)


@pytest.mark.parametrize("sdk", SDKS)
def test_a_grader_that_breaks_is_no_zero(sdk: str, runtime: list[str], folder: Path) -> None:
    text = "import { defineCodeGrader } from '%s';\ndefineCodeGrader(() => { throw new Error('no luck'); });\n"
    (folder / "x.mjs").write_text(text % sdk)
    (folder / "x.eval.yaml").write_text(
        EVAL + f"      - {{type: script, command: {json.dumps([*runtime, 'x.mjs'])}}}\n"
    )
    run_command(folder, "eval", "x.eval.yaml", "--targets=targets.yaml", "--run_name=r", "--quiet")
    (result,) = read_lines(folder / "data" / "r" / "results.jsonl")
    assert (result["status"], result["score"]) == ("grader_error", None)
    assert "exit code 1: no luck" in result["error"]


def test_graders_in_python(folder: Path) -> None:
    if PYTHON_SDK is None:
        pytest.skip("AGENTV_SDK_PYTHON names no folder")
    (folder / "grader.py").write_text(PYTHON % {"sdk": PYTHON_SDK})
    for command in (["python3", "grader.py"], [sys.executable, "-I", "grader.py"]):
        (score,) = graded(
            folder, {"name": "p", "type": "code-grader", "command": command, "target": True, "config": {"max_calls": 3}}
        )
        assert (score["score"], score["misses"], score["details"]["kept"]) == (1, [], True)
        shutil.rmtree(folder / "data")


GENERATE = """\
import { zodToJsonSchema } from 'zod-to-json-schema';
import * as sdk from '%s';
const schema = sdk.ScriptGraderInputSchema ?? sdk.CodeGraderInputSchema;
console.log(JSON.stringify(zodToJsonSchema(schema, { removeAdditionalStrategy: 'strict', $refStrategy: 'none' })));
"""


@pytest.mark.parametrize("sdk", SDKS)
def test_what_graders_are_told_is_of_the_sdks_own_types(sdk: str, folder: Path) -> None:
    if SDK is None or NODE is None:
        pytest.skip("AGENTV_SDK names no folder, or there is no node")
    (folder / "schema.mjs").write_text(GENERATE % sdk)
    printed = subprocess.run([NODE, "schema.mjs"], cwd=folder, capture_output=True, check=True, timeout=60)
    theirs, ours = Draft7Validator(json.loads(printed.stdout)), Draft202012Validator(SCHEMA)

    @settings(suppress_health_check=[HealthCheck.differing_executors], deadline=None)
    @given(CANDIDATES, CONFIGS)
    def check(candidate: Candidate, config: Any) -> None:
        with handed(candidate, LATER, config) as payload:
            told = camel(loads(payload))
        assert [f"{list(error.path)}: {error.message}" for error in theirs.iter_errors(told)] == []
        told["input"], told["messages"] = [{"role": "robot"}], [{"role": "user", "content": None}]
        assert not theirs.is_valid(told)
        assert not ours.is_valid(told)

    check()
