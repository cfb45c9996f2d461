"""What launches of a worker command cost counts, and a budget holds for them: whole jobs, with programs that print what agents print."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import JobSpec
from tests.support.batches import Ran, run_command
from tests.support.job_folders import FUNCTION, JobFolder

# An agent program: what it does is in the row's text, what it costs in the row's name, if that is a number.
AGENT = """#!/usr/bin/env python3
import json, os, sys, time
prompt = sys.stdin.read()
row = json.load(open(os.environ["MANYHANDS_ROW_FILE"]))
with open("launches", "a") as log:
    log.write(row["name"] + "\\n")
text = row["text"]
cost = 0.25
if text.startswith("cost "):
    cost = float(text.split()[1])
while text == "until go" and not os.path.exists("go"):
    time.sleep(0.02)
kind = os.path.basename(sys.argv[0])
usage = {"input_tokens": 60, "output_tokens": 40}
result = json.dumps({"said": text})
failed = "fail" in text
if "silent" in text:
    print(result)
    sys.exit(3 if failed else 0)
if kind == "codex":
    events = [{"type": "thread.started", "thread_id": "t"}]
    if failed:
        events.append({"type": "turn.failed", "error": {"message": "no credit"}})
    else:
        events.append({"type": "item.completed", "item": {"type": "agent_message", "text": result}})
        events.append({"type": "turn.completed", "usage": usage})
    print("\\n".join(map(json.dumps, events)))
else:
    print(json.dumps({"type": "result", "subtype": "success", "is_error": failed, "session_id": "s",
        "result": "Credit balance is too low" if failed else "Here:\\n```json\\n" + result + "\\n```",
        "total_cost_usd": cost, "usage": usage}))
sys.exit(1 if "exit" in text else 0)
"""
CLAUDE = "--worker_command=./claude -p --output-format json"
CODEX = "--worker_command=./codex exec --json -m gpt-5 -"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path) as made:
        for name in ("claude", "codex", "agent"):
            program = tmp_path / name
            program.write_text(AGENT)
            program.chmod(0o755)
        yield made


def spawn(folder: JobFolder, *options: str) -> Ran:
    return run_command(folder.path, "jobs", *folder.spawn_words("--quiet", *options))


def launches(folder: JobFolder) -> int:
    log = folder.path / "launches"
    return len(log.read_text().splitlines()) if log.exists() else 0


def refused(folder: JobFolder, *options: str) -> str:
    ran = spawn(folder, *options)
    assert (ran.code, ran.out, folder.folder().exists()) == (2, "", False), ran
    assert (ran.err.startswith("manyhands: error: "), ran.err.count("\n")) == (True, 1), ran.err
    return ran.err


def until(condition: Callable[[], Any]) -> None:
    for _ in range(1500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it took too long")


# --- What is refused


@pytest.mark.parametrize("worker", ["--worker_command=./agent", FUNCTION])
@pytest.mark.parametrize(
    "option",
    [
        "--model=simulated",
        "--temperature=0.5",
        "--top_p=1",
        "--max_tokens=5",
        "--base_url=http://127.0.0.1:1/v1",
        "--api_key=sk-0123456789abcdef",
        "--providers_allowed=a",
        "--provider_sort=price",
        "--reasoning_effort=low",
        "--reasoning_disabled",
        "--seed=3",
        "--simulated_latency=1",
        "--max_turns=3",
        "--ephemeral_system_prompt=x",
        "--prefill_messages_file=prefill.json",
        "--toolsets=none",
        "--sandbox=local",
        "--network",
        "--sandbox_disk=1",
        "--min_free=1",
        "--mcp_config=mcp.json",
        "--sequential_tools",
        "--call_timeout=5",
        "--tool_timeout=5",
    ],
)
def test_what_the_worker_does_not_heed_is_refused(folder: JobFolder, worker: str, option: str) -> None:
    said = refused(folder, worker, option)
    assert option.partition("=")[0] in said
    assert worker.partition("=")[0] in said
    assert "0123456789" not in said


@pytest.mark.parametrize(
    "option", ["--max_cost=1", "--max_total_tokens=1000", "--prices=p.yaml", "--max_corrections=1"]
)
def test_a_function_has_no_budget(folder: JobFolder, option: str) -> None:
    assert "--worker_function" in refused(folder, FUNCTION, option)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--worker_command=./claude -p", "--max_cost=1"), "--output-format=json"),
        (("--worker_command=./claude -p --output-format text", "--max_total_tokens=9"), "--output-format=json"),
        (("--worker_command=./codex exec -", "--max_cost=1"), "--json"),
        (("--worker_command=./codex exec --json -", "--max_cost=1"), "--model"),
        (("--worker_command=./codex exec --json -m nobodys -", "--max_cost=1"), "no price is known for nobodys"),
    ],
)
def test_a_budget_that_nothing_can_bind_is_refused(folder: JobFolder, options: tuple[str, ...], why: str) -> None:
    assert why in refused(folder, *options)
    assert why in refused(folder, *options, "--dry_run")


def test_settings_that_say_nothing_are_not_refused(folder: JobFolder) -> None:
    assert spawn(folder, "--worker_command=./agent", "--temperature=None", "--max_seconds=100").code == 0


def test_a_job_that_goes_on_refuses_as_much(folder: JobFolder) -> None:
    assert spawn(folder, "--worker_command=./agent").code == 0
    for option in ("--model=x", "--temperature=1", "--override=model --model=x"):
        ran = run_command(folder.path, "jobs", "run", "j", "--retry_failed", *option.split())
        assert ran.code in (0, 2)
    folder.write_rows(["silent fail"])
    assert spawn(folder, "--worker_command=./agent", "--job_name=again").code == 1
    ran = run_command(folder.path, "jobs", "run", "again", "--retry_failed", "--model=x")
    assert (ran.code, "--model: for the built-in agent only" in ran.err) == (2, True), ran


@pytest.mark.parametrize(
    "values",
    [
        {"worker_command": "true", "model": "x"},
        {"worker_command": "true", "reasoning_config": {"effort": "low"}},
        {"worker_function": "a:b", "max_cost": 1.0},
        {"worker_command": "claude -p", "max_cost": 1.0},
    ],
)
async def test_python_callers_are_refused_as_much(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    spec = JobSpec.make({"csv_path": str(tmp_path / "t.csv"), "instruction": "x", **values})
    with pytest.raises(UserError, match=next(reversed(values))):
        await JobService(tmp_path / "data", environ=os.environ).spawn(spec, notice=print)
    assert not (tmp_path / "data").exists()


# --- What is counted


def test_what_claude_costs_is_in_the_ledger_the_status_and_the_rows_steps(folder: JobFolder) -> None:
    ran = spawn(folder, CLAUDE)
    assert ran.code == 0, ran
    assert folder.results() == [{"said": "one"}, {"said": "two"}, {"said": "three"}]
    usage = folder.status()["usage"]
    assert (usage["cost"], usage["input_tokens"], usage["output_tokens"], usage["calls"]) == (0.75, 180, 120, 3)
    assert "$0.7500" in ran.out
    summary = json.loads((folder.folder() / "summary.json").read_text())
    assert summary["usage"]["cost"] == 0.75
    shown = run_command(folder.path, "jobs", "show", "j", "row-1", "--json").out
    assert json.loads(shown)["steps"][0]["usage"]["cost"] == 0.25


def test_what_codex_uses_is_counted_and_priced_by_the_model_in_the_command(folder: JobFolder) -> None:
    (folder.path / "p.yaml").write_text("mine: {input: 10000, output: 10000}\n")
    assert (
        spawn(folder, "--worker_command=./codex exec --json --model mine -", "--prices=p.yaml", "--max_cost=9").code
        == 0
    )
    usage = folder.status()["usage"]
    assert (usage["cost"], usage["input_tokens"], usage["unpriced_calls"]) == (3.0, 180, 0)
    assert spawn(folder, "--worker_command=./codex exec --json -", "--job_name=k").code == 0
    usage = folder.status("k")["usage"]
    assert (usage["cost"], usage["output_tokens"], usage["unpriced_calls"]) == (0.0, 120, 3)


def test_tries_that_failed_cost_too(folder: JobFolder) -> None:
    folder.write_rows(["fail", "fail exit"])
    ran = spawn(folder, CLAUDE)
    assert ran.code == 1
    assert (folder.status()["usage"]["cost"], launches(folder)) == (1.0, 4)
    errors = [row["last_error"] for row in folder.rows()]
    assert errors == [
        "worker reported a failure: Credit balance is too low",
        "worker exited with code 1: Credit balance is too low",
    ]


def test_a_plain_command_costs_nothing_that_is_known(folder: JobFolder) -> None:
    folder.write_rows(["silent", "silent"])
    assert spawn(folder, "--worker_command=./agent").code == 0
    assert folder.status()["usage"]["calls"] == 0


# --- Budgets


@pytest.mark.parametrize("concurrency", [1, 64])
def test_a_budget_stops_the_job_before_the_launch_that_would_pass_it(folder: JobFolder, concurrency: int) -> None:
    folder.write_rows(str(number) for number in range(12))
    ran = spawn(folder, CLAUDE, "--max_cost=1.1", f"--max_concurrency={concurrency}")
    assert ran.code == 1
    status = folder.status()
    assert (status["completed_items"], status["failed_items"], status["pending_items"], launches(folder)) == (
        4,
        0,
        8,
        4,
    )
    assert status["usage"]["cost"] == 1.0
    assert "max_cost" in status["last_error"]
    again = run_command(folder.path, "jobs", "run", "j", "--quiet")
    assert (again.code, launches(folder)) == (1, 4)
    more = run_command(folder.path, "jobs", "run", "j", "--quiet", "--max_cost=9")
    assert (more.code, launches(folder)) == (0, 12)


def test_a_budget_of_tokens_holds_for_codex(folder: JobFolder) -> None:
    folder.write_rows(str(number) for number in range(8))
    assert spawn(folder, CODEX, "--max_total_tokens=350").code == 1
    status = folder.status()
    assert (status["completed_items"], launches(folder)) == (3, 3)
    assert "max_total_tokens" in status["last_error"]


def test_failed_launches_use_up_the_budget(folder: JobFolder) -> None:
    folder.write_rows(["fail"] * 8)
    assert spawn(folder, CLAUDE, "--max_cost=1", "--max_concurrency=1").code == 1
    assert launches(folder) == 4


def test_the_first_launch_that_shows_no_cost_stops_the_job(folder: JobFolder) -> None:
    folder.write_rows(["silent"] * 8)
    ran = spawn(folder, "--worker_command=./agent", "--max_cost=5")
    assert ran.code == 1
    assert "the cost of a launch of the worker command is known when it has ended" in ran.err
    status = folder.status()
    assert (status["completed_items"], status["pending_items"], launches(folder)) == (1, 7, 1)
    assert "did not say what it cost" in status["last_error"]
    assert run_command(folder.path, "jobs", "run", "j", "--quiet", "--max_cost=None").code == 0
    assert launches(folder) == 8


def test_a_program_of_ones_own_may_say_what_it_cost(folder: JobFolder) -> None:
    assert spawn(folder, "--worker_command=./agent", "--max_cost=5").code == 0
    assert folder.status()["usage"]["cost"] == 0.75


def test_a_first_launch_that_fails_without_a_word_stops_the_job_and_later_ones_count_as_the_dearest(
    folder: JobFolder,
) -> None:
    folder.write_rows(["silent fail", "one"])
    assert spawn(folder, "--worker_command=./agent", "--max_cost=5", "--max_concurrency=1").code == 1
    assert (launches(folder), folder.status()["pending_items"]) == (1, 2)
    (folder.path / "launches").unlink()
    folder.write_rows(["one", "silent fail", "two", "three", "four"])
    words = ("--max_cost=1", "--max_concurrency=1", "--max_attempts=1", "--job_name=k")
    assert spawn(folder, "--worker_command=./agent", *words).code == 1
    assert (launches(folder), folder.status("k")["completed_items"]) == (4, 3)


def test_a_budget_holds_over_a_kill(folder: JobFolder) -> None:
    folder.write_rows(["one", *["until go"] * 3, *["more"] * 6])
    words = folder.spawn_words(CLAUDE, "--max_cost=2", "--max_concurrency=4", "--detach", "--quiet")
    assert folder.jobs(*words).code == 0
    until(lambda: launches(folder) >= 4)
    os.kill(folder.runner(), signal.SIGKILL)
    until(lambda: not folder.status()["runner_active"])
    (folder.path / "go").touch()
    assert run_command(folder.path, "jobs", "run", "j", "--quiet").code == 1
    # What was in flight at the kill may have been paid: it counts as much as the dearest before it.
    assert launches(folder) * 0.25 <= 2
    status = folder.status()
    assert status["pending_items"] >= 3
    assert "max_cost" in status["last_error"]


def test_a_dearer_launch_than_all_before_is_reserved_from_then_on(folder: JobFolder) -> None:
    folder.write_rows(["cost 0.1", "cost 0.6", "cost 0.1", "cost 0.1"])
    assert spawn(folder, CLAUDE, "--max_cost=1.2", "--max_concurrency=1").code == 1
    assert launches(folder) == 2
    assert "has cost up to $0.6000 a launch" in folder.status()["last_error"]


# --- Echoes, in whole jobs


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("cat", "only repeated its prompt"),
        ("cat {row_file}", "only repeated the row"),
        ("cat {schema_file}", "only repeated the output schema"),
        ("echo {prompt}", "only repeated its prompt"),
        ("printenv MANYHANDS_ROW", "only repeated the row"),
    ],
)
def test_a_command_that_only_repeats_has_no_result(folder: JobFolder, command: str, why: str) -> None:
    schema = json.dumps({"type": "object", "properties": {"text": {"type": "string"}}})
    ran = spawn(folder, f"--worker_command={command}", f"--output_schema={schema}", "--max_attempts=1")
    assert ran.code == 1
    assert folder.results() == [None] * 3
    assert {row["status"] for row in folder.rows()} == {"failed"}
    assert all(why in row["last_error"] for row in folder.rows())
    assert why in ran.out
