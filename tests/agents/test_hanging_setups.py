"""Set-up and collecting commands that hang: ended with all that they started, recorded with their cause, and counted, in every workload."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.jsonio import loads
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.testing.scripted_server import RecordedRequest, Reply
from tests.support.batches import REASONED, BatchFolder, ServerThread, read_lines, run_command
from tests.support.job_folders import JobFolder, report

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

SLEEP = f"sleep {1_000_000 + os.getpid()}"
HANGS = f"trap '' TERM; (setsid {SLEEP} &) ; echo it hangs; {SLEEP}; {SLEEP}"
STOPPED = "stopped at its time limit of 0.25 s"
FAILED = f"the setup command failed ({STOPPED}): it hangs"
LIMITED = ("--sandbox=bubblewrap", "--setup_timeout=0.25", "--quiet")
# Only one of two rows has a command, which no other one can delay.
ROWS = [{"id": "a", "prompt": "p", "first": HANGS}, {"id": "b", "prompt": "p", "first": ""}]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    words = SLEEP.replace(" ", "\0").encode()
    assert [each for each in Path("/proc").glob("[0-9]*") if words in _command_line(each)] == []


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_in_a_batch(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ROWS)
    with ServerThread([REASONED]) as server:
        usual = (f"--base_url={server.base_url}", *LIMITED)
        ran = folder.batch(*usual, "--setup_field=first")
        assert (ran.code, len(server.requests)) == (1, 1), ran
        (failure,) = folder.lines("failures.jsonl")
        assert (failure["item"], failure["cause"], failure["message"]) == ("id:a#0", "invalid_input", FAILED)
        statistics = folder.json("statistics.json")
        assert statistics["failures"] == {"invalid_input": 1}
        assert statistics["items"] == {"pending": 0, "completed": 1, "discarded": 0, "failed": 1, "cancelled": 0}
        ran = folder.batch(*usual, f"--collect={HANGS}", "--run_name=c", "--max_samples=1")
        assert ran.code == 0, ran
    (line,) = folder.lines(name="c")
    assert (line["metadata"]["collected"], line["metadata"]["collected_problem"]) == ("it hangs\n", STOPPED)


def test_in_a_job(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def reply(request: RecordedRequest) -> Reply:
        return report(request, {"ok": True})

    with JobFolder(tmp_path) as folder, ServerThread(reply) as server:
        usual = ("--model=m", f"--base_url={server.base_url}", "--toolsets=terminal", "--executor=local", *LIMITED)
        words = folder.spawn_words(*usual, "--setup_field=first", "--instruction={prompt}", f"--collect={HANGS}")
        ended = folder.jobs("spawn", "rows.jsonl", *words[2:])
        assert (ended.code, len(server.requests)) == (1, 1), ended
        hung, other = folder.rows()
        assert (hung["status"], hung["last_error"], other["status"]) == ("failed", FAILED, "completed")
        assert (other["collected"], other["collected_problem"]) == ("it hangs\n", STOPPED)
        found = folder.status()
    assert (found["total_items"], found["completed_items"], found["failed_items"]) == (2, 1, 1)


def test_in_an_evaluation(tmp_path: Path) -> None:
    target: dict[str, Any] = {"provider": "agent", "model": "simulated", "toolsets": ["terminal"]}
    target |= {"sandbox": "bubblewrap", "setup_timeout": 0.25}
    targets = [{"name": "sets up", "setup": HANGS, **target}, {"name": "collects", "collect": HANGS, **target}]
    tests = [{"id": "one", "input": "x", "assert": [{"type": "regex", "value": ".*"}]}]
    suite = {"targets": targets, "execution": {"targets": ["sets up", "collects"]}, "tests": tests}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    ran = run_command(tmp_path, "eval", "suite.yaml", "--run_name=r", "--quiet")
    assert ran.code == 3, ran
    setup, collect = read_lines(tmp_path / "data/r/results.jsonl")
    assert (setup["status"], setup["cause"], setup["error"]) == ("error", "invalid_input", FAILED)
    assert "answer" not in setup or not setup["answer"]
    assert (collect["status"], collect["collected"], collect["collected_problem"]) == ("passed", "it hangs\n", STOPPED)
    ledger = loads((tmp_path / "data/r/summary.json").read_bytes())["ledger"]
    assert (ledger["items"], ledger["completed"], ledger["failed"]) == (2, 1, 1)
    assert ledger["by_cause"]["failed"] == {"invalid_input": 1}
