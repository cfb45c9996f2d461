"""An endpoint that fails now and then, is dead, or wants money: through the command line, against real servers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse
from tests.support.batches import REASONED, ServerThread
from tests.support.commands import (
    Command,
    SimulatedProcess,
    batch_words,
    ledger,
    one_line,
    run,
    trajectories,
    write_prompts,
)
from tests.support.ports import held_port


@pytest.mark.parametrize(("prompts", "often"), [(300, 3), pytest.param(1000, 1, marks=pytest.mark.slow)])
def test_prompts_all_end_completed(tmp_path: Path, prompts: int, often: int) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=0]" for number in range(prompts)))
    rates: dict[str, Any] = {
        "rate_429": 0.10,
        "rate_500": 0.05,
        "rate_truncated": 0.02 * often,
        "rate_hang": 0.01 * often,
    }
    with SimulatedProcess(tmp_path, latency=0.01, retry_after=0.05, **rates) as server:
        options = {"base_url": server.base_url, "num_workers": 2, "concurrency": 50}
        ended = run(*batch_words(tmp_path, **options, call_timeout=2, batch_size=100))
        stats = server.stats()
    assert (ended.code, ended.err) == (0, "")
    assert ledger(tmp_path / "r")["completed"] == prompts
    assert trajectories(tmp_path / "r") == prompts
    assert min(stats["faults"][name] for name in ("429", "500", "truncated", "hang")) > 0
    assert (stats["ok"], stats["answered_again"]) == (prompts, 0)


def test_a_dead_endpoint_stops_the_run_and_a_living_one_finishes_it(tmp_path: Path) -> None:
    """One run with each executor, at the same time: each waits some seconds between its tries to connect."""
    runs = {executor: tmp_path / executor for executor in ("local", "processes")}
    with held_port() as port:
        with ExitStack() as stack:
            commands = []
            for executor, folder in runs.items():
                folder.mkdir()
                write_prompts(folder / "prompts.jsonl", (f"Question {number}" for number in range(30)))
                options = {"base_url": f"http://127.0.0.1:{port}/v1", "num_workers": 2, "concurrency": 10}
                commands.append(stack.enter_context(Command(*batch_words(folder, executor=executor, **options))))
            endings = [command.wait() for command in commands]
        for ended, folder in zip(endings, runs.values(), strict=True):
            assert ended.code == 1
            assert "can't connect: Connection refused" in one_line(ended)
            assert f"127.0.0.1:{port}" in one_line(ended)
            assert ledger(folder / "r")["pending"] == 30
            assert ended.to_go_on[-2:] == ["resume", str(folder / "r")]
        with SimulatedProcess(tmp_path, port=port):
            resumed = [run("--quiet", program=endings[0].to_go_on), run(*endings[1].to_go_on[-2:], "--quiet")]
    for again, folder in zip(resumed, runs.values(), strict=True):
        assert (again.code, again.err) == (0, "")
        assert ledger(folder / "r")["completed"] == trajectories(folder / "r") == 30


@pytest.mark.parametrize(
    ("executor", "status", "message"),
    [("processes", 402, "Insufficient credits"), ("local", 401, "No auth credentials found")],
    ids=["processes-402", "local-401"],
)
def test_no_money_and_a_wrong_key_stop_the_run_in_the_middle(
    tmp_path: Path, executor: str, status: int, message: str
) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(40)))
    refusing = True

    def reply(_request: RecordedRequest) -> Reply:
        if refusing and len(server.requests) > 12:
            return ScriptedResponse({"error": {"message": message, "code": status}}, status=status)
        return ScriptedResponse(REASONED, delay=0.05)

    with ServerThread(reply) as server:
        options = {"base_url": server.base_url, "executor": executor, "num_workers": 2, "concurrency": 2}
        ended = run(*batch_words(tmp_path, **options, model="some/model", keep_unreasoned=True))
        line = one_line(ended)
        assert ended.code == 1
        assert message in line
        assert line.startswith("manyhands: stopped: ")
        stopped = ledger(tmp_path / "r")
        assert (stopped["completed"], stopped["pending"], stopped["failed"]) == (12, 28, 0)
        assert len(server.requests) <= 12 + 4, "others were asked after the refusal"
        asked, refusing = len(server.requests), False
        resumed = run("resume", str(tmp_path / "r"), "--quiet")
        assert (resumed.code, resumed.err) == (0, "")
        assert len(server.requests) - asked == 28
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 40


def test_a_missing_key_is_named_before_anything_is_made(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", ["one", "two"])
    ended = run(*batch_words(tmp_path, model="some/model", base_url="https://openrouter.ai/api/v1"))
    assert ended.code == 2
    assert "OPENROUTER_API_KEY" in one_line(ended)
    assert not (tmp_path / "r").exists()
    with ServerThread() as server:
        assert run(*batch_words(tmp_path, model="some/model", base_url=server.base_url)).code == 0
    assert trajectories(tmp_path / "r") == 2


def test_a_key_that_is_missing_at_a_resume_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(6)))
    options = {"executor": "local", "num_workers": 1, "max_total_tokens": 5000}
    elsewhere = ("--base_url=https://openrouter.ai/api/v1", "--override=model", "--model=some/model")
    assert run(*batch_words(tmp_path, **options)).code == 1
    left = ledger(tmp_path / "r")["pending"]
    assert left
    without = run("resume", str(tmp_path / "r"), "--quiet", *elsewhere)
    assert without.code == 2
    assert "OPENROUTER_API_KEY" in one_line(without)
    resumed = run("resume", str(tmp_path / "r"), "--quiet", "--max_total_tokens=")
    assert (resumed.code, resumed.err) == (0, "")
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 6
