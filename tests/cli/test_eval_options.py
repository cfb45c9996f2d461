"""Options of ``manyhands eval`` by the names of the harness that eval files come from, and those that an evaluation has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.options import AgentOptions
from manyhands.cli.options import UsageError, help_text, options_of, parse
from manyhands.io.yaml_files import read_source
from manyhands.workloads.evals.settings import EvalSpec
from tests.support.batches import Ran, read_lines, run_command

SUITE = """\
targets:
  made_up: {provider: mock, response: "yes"}
  asked: {provider: cli, command: "echo asked >> asked.txt; cat record.json"}
execution: {target: asked, cache: true}
assert: [{type: contains, value: "yes"}]
tests: [{id: a, input: x, criteria: c}]
"""
RECORD = {
    "output": [
        {
            "role": "assistant",
            "tool_calls": [{"tool": "look", "input": {}, "duration_ms": 5}, {"tool": "open", "input": {}}],
        },
        {"role": "assistant", "content": "yes"},
    ],
    "cost_usd": 0.02,
    "token_usage": {"input": 3, "output": 4},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "e.yaml").write_text(SUITE)
    (tmp_path / "record.json").write_text(json.dumps(RECORD))
    return tmp_path


def evaluate(folder: Path, *words: str, name: str = "r") -> Ran:
    return run_command(folder, "eval", "e.yaml", f"--run_name={name}", *words)


def figures(folder: Path, name: str = "r") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "data" / name / "eval_summary.json").read_text())
    return value


def test_results_in_the_format_that_is_asked_for_and_a_trace(folder: Path) -> None:
    words = ("--out=r.txt", "--output-format=yaml", "--trace-file=t.jsonl", "--agent-timeout=60", "--max-retries=1")
    ran = evaluate(folder, *words, "--verbose", "--workers=2")
    assert ran.code == 0, ran.err
    assert "e.yaml: 1 test for asked (cli)" in ran.out
    assert "✓ e/a@asked 1.000" in ran.err
    assert "Results:  t.jsonl" in ran.out
    (document,) = [read_source(folder / "r.txt").value]
    assert document["test_id"] == "a"
    (line,) = read_lines(folder / "t.jsonl")
    duration = line.pop("duration_ms")
    assert duration > 0
    spans = [{"type": "tool", "name": "look", "duration_ms": 5}, {"type": "tool", "name": "open", "duration_ms": None}]
    told = {"test_id": "a", "dataset": "e", "target": "asked", "status": "passed", "score": 1, "cost_usd": 0.02}
    assert line == {**told, "token_usage": {"input": 3, "output": 4}, "spans": spans}
    assert figures(folder)["model_usage"]["cost"] == 0.02
    taken = evaluate(folder, "--trace_file=data/s/results.jsonl", name="s")
    assert taken.code == 2
    assert "a file of the run itself" in taken.err


def test_the_files_cache_can_be_switched_off(folder: Path) -> None:
    for name, words, asked in (("r", (), 1), ("s", (), 1), ("t", ("--no-cache",), 2)):
        assert evaluate(folder, *words, name=name).code == 0
        assert len((folder / "asked.txt").read_text().split()) == asked


def test_made_up_answers_take_the_time_that_is_asked_for(folder: Path) -> None:
    ran = evaluate(folder, "--dry-run", "--dry-run-delay-min=40", "--dry-run-delay-max=50")
    assert ran.code == 1, ran.err
    assert figures(folder)["working_seconds"] >= 0.04
    reversed_ = evaluate(folder, "--dry_run", "--dry_run_delay_min=5", "--dry_run_delay_max=0", name="t")
    assert (reversed_.code, "must not be more than --dry_run_delay_max" in reversed_.err) == (2, True)
    refused = evaluate(folder, "--dry_run_delay=40", name="s")
    assert refused.code == 2
    assert "--dry_run_delay goes with --dry_run" in refused.err


def test_what_targets_say_themselves_is_refused_with_a_line_that_says_so(folder: Path) -> None:
    ran = evaluate(folder, "--model=x", "--max-turns", "5", "--otel-file=x")
    assert ran.code == 2
    first, second, third = ran.err.splitlines()
    assert (
        first
        == "manyhands: error: --model: the targets of an evaluation say this themselves; write model below the target"
    )
    assert second.startswith("manyhands: error: --max-turns: the targets of an evaluation")
    assert third.startswith("manyhands: error: --otel-file: nothing is written for OpenTelemetry")
    assert not (folder / "data").exists()
    assert evaluate(folder, "--target=made_up").code == 0
    resumed = run_command(folder, "resume", "r", "--temperature=1")
    assert resumed.code == 2
    assert "write temperature below the target" in resumed.err


@pytest.mark.parametrize(
    ("option", "said"), [("--rerun-failed", "there is no run r"), ("--retry_failed", "--retry_errors")]
)
def test_who_wants_failed_tests_again_learns_the_option(folder: Path, option: str, said: str) -> None:
    ran = evaluate(folder, option)
    assert (ran.code, said in ran.err) == (2, True)


def test_the_help_has_nothing_that_does_nothing() -> None:
    text = help_text(EvalSpec, "manyhands eval FILE…", "", positional="eval_files")
    for name in ("model", "temperature", "sandbox", "max_turns", "api_key", "seed", "call_timeout"):
        assert f"--{name} " not in text
        assert name not in options_of(EvalSpec)
    for name in (
        "threshold",
        "agent_timeout",
        "max_retries",
        "dry_run_delay",
        "output_format",
        "trace_file",
        "max_cost",
    ):
        assert f"--{name} " in text


@pytest.mark.parametrize("name", sorted(set(AgentOptions.fields) - set(EvalSpec.fields)))
def test_every_option_of_agents_is_refused_by_a_line_of_its_own(name: str) -> None:
    with pytest.raises(UsageError, match=f"^--{name}: "):
        parse(EvalSpec, [f"--{name}=x"], "manyhands eval")
    assert parse(EvalSpec, [f"--{name}=x", "--help"], "manyhands eval").help
