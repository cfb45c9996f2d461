"""What judges were paid for is never asked again: runs with judges of every kind that are killed on the way."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.jsonio import loads
from tests.support.commands import Command, SimulatedProcess, run

TESTS = 3
CALLS = 7
"""Calls of judges for one test."""
WORDS = ("suite.yaml", "--run_name=r", "--workers=1", "--fail_on=never")
AT_ONCE = 5
"""Judges that are asked at the same time for one test, as the suite below has it."""
PROGRAM = """
import json, os, sys, urllib.request
answer = json.load(sys.stdin)["answer"]
for question in ("How well is this said?", "How true is this?"):
    request = urllib.request.Request(
        os.environ["AGENTV_TARGET_PROXY_URL"] + "/invoke",
        json.dumps({"question": f"{question} {answer} {sys.argv[1]}"}).encode(),
        {"Authorization": "Bearer " + os.environ["AGENTV_TARGET_PROXY_TOKEN"]},
    )
    with urllib.request.urlopen(request) as reply:
        text = json.load(reply)["rawText"]
print(json.dumps({"score": len(text) % 10 / 10}))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SimulatedProcess]:
    with SimulatedProcess(tmp_path, latency=0.02) as found:
        yield found


def write_suite(folder: Path, server: SimulatedProcess) -> None:
    folder.mkdir()
    (folder / "judge.py").write_text(PROGRAM)
    judge = {"provider": "model", "model": "simulated", "base_url": server.base_url}
    answers = {"provider": "cli", "command": "echo {EVAL_ID} >> asked.txt; echo The answer to {EVAL_ID}."}
    inner = {
        "name": "inner",
        "type": "composite",
        "assert": [{"type": "llm_judge", "prompt": "Inner: {{answer}}"}, {"type": "contains", "value": "answer"}],
        "aggregator": {"type": "llm_judge", "prompt": "All in all: {{EVALUATOR_RESULTS_JSON}} of {{answer}}"},
    }
    graders = [
        {"type": "llm_judge"},
        {"type": "rubrics", "criteria": ["is short", "is true"]},
        {"type": "composite", "assert": [inner, {"type": "llm_judge", "prompt": "Outer: {{answer}}"}]},
        {"type": "code_judge", "name": "program", "script": "python3 judge.py x", "target": True},
    ]
    tests = [{"id": f"t{number}", "input": "x", "criteria": f"is good {number}"} for number in range(TESTS)]
    suite = {
        "targets": {"program": {**answers, "judge_target": "judge"}, "judge": judge},
        "execution": {"target": "program"},
        "assert": graders,
        "tests": tests,
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


def results(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "data" / "r" / "results.jsonl").read_bytes().splitlines()
    kept = ("test_id", "status", "score", "scores")
    return [{name: record[name] for name in kept} for record in map(loads, lines)]


def asked(server: SimulatedProcess, start: int) -> Counter[tuple[str, int | None]]:
    return Counter((each.digest, each.seed) for each in server.asked(start))


def perform_with_kills(
    folder: Path, server: SimulatedProcess, *, kills: int, calls: int
) -> Counter[tuple[str, int | None]]:
    """Perform the suite, killed each time after so many more calls, to its end. Gives how often each call was made."""
    write_suite(folder, server)
    begin = server.count()
    words: tuple[str, ...] = ("eval", *WORDS)
    for _ in range(kills):
        wanted = server.count() + calls
        with Command(*words, folder=folder) as command:
            assert command.wait_until(lambda: server.count() >= wanted)  # noqa: B023
            command.send(signal.SIGKILL)
            command.wait()
        words = ("resume", "data/r")
    ended = run(*words, folder=folder)
    assert ended.code in (0, 1), ended.err
    return asked(server, begin)


def check_calls(found: Counter[tuple[str, int | None]], folder: Path, *, kills: int) -> None:
    assert len(found) == CALLS * TESTS
    assert found.total() - len(found) <= kills * AT_ONCE  # what was in flight when it was killed
    assert (folder / "asked.txt").read_text().split() == [f"t{number}" for number in range(TESTS)]


def test_after_a_kill_no_call_of_a_judge_is_made_again(tmp_path: Path, server: SimulatedProcess) -> None:
    folder = tmp_path / "killed"
    found = perform_with_kills(folder, server, kills=1, calls=CALLS + 3)
    check_calls(found, folder, kills=1)
    assert all(record["score"] is not None for record in results(folder))


@pytest.mark.slow
def test_many_kills_change_nothing(tmp_path: Path, server: SimulatedProcess) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = perform_with_kills(whole, server, kills=0, calls=0)
    assert set(expected.values()) == {1}
    found = perform_with_kills(killed, server, kills=5, calls=4)
    check_calls(found, killed, kills=5)
    assert found.keys() == expected.keys()
    assert results(killed) == results(whole)
