"""An endpoint that fails now and then, is dead, or wants money: through the command line, against real servers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.batches import REASONED, ServerThread
from manyhands.testing.commands import Ended, SimulatedProcess, batch_words, run, write_prompts
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse

PROMPTS = 1000

pytestmark = pytest.mark.xdist_group("faults")


def ledger(folder: Path) -> dict[str, Any]:
    """The run's ledger, which must add up."""
    found: dict[str, Any] = json.loads((folder / "r" / "summary.json").read_text())["ledger"]
    states = ("completed", "discarded", "failed", "cancelled", "pending")
    assert found["items"] == sum(found[state] for state in states)
    return found


def one_line(ended: Ended) -> str:
    """The only line on standard error."""
    assert "Traceback" not in ended.err
    assert len(ended.errors) == 1, ended.err
    assert ended.err.startswith("manyhands: ")
    return ended.errors[0]


def trajectories(folder: Path) -> int:
    return len((folder / "r" / "trajectories.jsonl").read_text().splitlines())


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_thousand_prompts_all_end_completed(tmp_path: Path, executor: str) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=0]" for number in range(PROMPTS)))
    rates = {"rate_429": 0.10, "rate_500": 0.05, "rate_truncated": 0.02, "rate_hang": 0.01}
    with SimulatedProcess(tmp_path, latency=0.01, retry_after=0.05, **rates) as server:
        options = {"base_url": server.base_url, "executor": executor, "num_workers": 2, "concurrency": 50}
        ended = run(*batch_words(tmp_path, **options, call_timeout=2, batch_size=100))
        stats = server.stats()
    assert (ended.code, ended.err) == (0, "")
    assert ledger(tmp_path)["completed"] == PROMPTS
    assert trajectories(tmp_path) == PROMPTS
    assert min(stats["faults"][name] for name in ("429", "500", "truncated", "hang")) > 0
    assert (stats["ok"], stats["answered_again"]) == (PROMPTS, 0)


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_dead_endpoint_stops_the_run_and_a_living_one_finishes_it(tmp_path: Path, executor: str) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(30)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    options = {"base_url": f"http://127.0.0.1:{port}/v1", "executor": executor, "num_workers": 2, "concurrency": 10}
    ended = run(*batch_words(tmp_path, **options))
    assert ended.code == 1
    assert "can't connect: Connection refused" in one_line(ended)
    assert f"127.0.0.1:{port}" in one_line(ended)
    assert ledger(tmp_path)["pending"] == 30
    assert f"30 items are left. To go on:  manyhands resume {tmp_path / 'r'}" in ended.out
    with SimulatedProcess(tmp_path, port=port):
        resumed = run("resume", str(tmp_path / "r"), "--quiet")
    assert (resumed.code, resumed.err) == (0, "")
    assert ledger(tmp_path)["completed"] == trajectories(tmp_path) == 30


@pytest.mark.parametrize("executor", ["local", "processes"])
@pytest.mark.parametrize(
    ("status", "message"), [(402, "Insufficient credits"), (401, "No auth credentials found")], ids=["402", "401"]
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
        stopped = ledger(tmp_path)
        assert (stopped["completed"], stopped["pending"], stopped["failed"]) == (12, 28, 0)
        assert len(server.requests) <= 12 + 4, "others were asked after the refusal"
        asked, refusing = len(server.requests), False
        resumed = run("resume", str(tmp_path / "r"), "--quiet")
        assert (resumed.code, resumed.err) == (0, "")
        assert len(server.requests) - asked == 28
    assert ledger(tmp_path)["completed"] == trajectories(tmp_path) == 40


def test_a_missing_key_is_named_before_anything_is_made(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", ["one", "two"])
    ended = run(*batch_words(tmp_path, model="some/model", base_url="https://openrouter.ai/api/v1"))
    assert ended.code == 2
    assert "OPENROUTER_API_KEY" in one_line(ended)
    assert not (tmp_path / "r").exists()
    with ServerThread() as server:
        assert run(*batch_words(tmp_path, model="some/model", base_url=server.base_url)).code == 0
    assert trajectories(tmp_path) == 2


def test_a_key_that_is_missing_at_the_resume_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    """An address that is taken for OpenRouter's needs a key; here it is given the first time only."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(6)))
    refusing = True

    def reply(_request: RecordedRequest) -> Reply:
        if refusing and len(server.requests) > 2:
            return ScriptedResponse({"error": {"message": "Insufficient credits"}}, status=402)
        return REASONED

    with ServerThread(reply) as server:
        options = {"base_url": server.openrouter_url, "executor": "local", "num_workers": 1}
        assert run(*batch_words(tmp_path, **options, model="some/model", api_key="sk-test")).code == 1
        refusing = False
        without = run("resume", str(tmp_path / "r"), "--quiet")
        line = one_line(without)
        assert without.code == 2
        assert "--api_key" in line
        resumed = run("resume", str(tmp_path / "r"), "--quiet", "--api_key=sk-test")
        assert (resumed.code, resumed.err) == (0, "")
    assert ledger(tmp_path)["completed"] == trajectories(tmp_path) == 6
    assert b"sk-test" not in b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
