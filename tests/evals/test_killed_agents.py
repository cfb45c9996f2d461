"""SIGKILL within what an evaluation's agent runs in its sandbox before and after its conversation."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import read_lines
from tests.support.commands import Command, Ended, SimulatedProcess, run

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

TESTS = 2
EVAL = ("eval", "suite.yaml", "--run_name=r", f"--workers={TESTS}", "--quiet")
RESUME = ("resume", "data/r", "--quiet")
# Each waits for a variable that a killed session does not have.
SETUP = 'echo setup >>log; mkdir made; until [ "$SET_UP" ]; do sleep 0.05; done; echo "ready {test_id}" >>log'
COLLECT = 'echo collecting >>log; rm known; until [ "$COLLECTED" ]; do sleep 0.05; done; cat log; ls'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedProcess]:
    with SimulatedProcess(tmp_path_factory.mktemp("model")) as found:
        yield found


def write_suite(folder: Path, server: SimulatedProcess) -> None:
    (folder / "template").mkdir(parents=True)
    (folder / "template" / "known").write_text("known\n")
    target = {
        "name": "agent",
        "provider": "agent",
        "model": "simulated",
        "base_url": server.base_url,
        "toolsets": ["terminal"],
        "sandbox": "bubblewrap",
        "workspace": "template",
        "setup": SETUP,
        "collect": COLLECT,
        "env": {"SET_UP": None, "COLLECTED": None},
    }
    passes = [{"type": "regex", "value": ".*"}]
    tests = [{"id": f"t{number}", "input": f"Work on {number}.", "assert": passes} for number in range(TESTS)]
    (folder / "suite.yaml").write_text(json.dumps({"targets": [target], "tests": tests}))


def given(*names: str) -> Mapping[str, str]:
    """The variables, of which those named have a value."""
    return {name: "yes" * (name in names) for name in ("SET_UP", "COLLECTED")}


def killed(folder: Path, words: tuple[str, ...], environ: Mapping[str, str], line: str) -> None:
    """Perform until every test's log has a line, then kill the owner."""

    def reached() -> bool:
        logs = [log.read_text().splitlines() for log in (folder / "data").rglob("log")]
        return sum(line in log for log in logs) == TESTS

    with Command(*words, folder=folder, environ=environ) as command:
        assert command.wait_until(reached, pause=0.02), command.said
        command.send(signal.SIGKILL)
        command.wait()


def ended_well(ended: Ended) -> None:
    assert ended.code == 0, ended


def results(folder: Path) -> list[dict[str, Any]]:
    kept = ("test_id", "status", "score", "answer", "collected", "collected_problem", "file_changes", "token_usage")
    return [{name: line.get(name) for name in kept} for line in read_lines(folder / "data/r/results.jsonl")]


def test_setup_and_collection_that_were_cut_off_are_undone_and_nothing_is_paid_twice(
    tmp_path: Path, server: SimulatedProcess
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write_suite(whole, server)
    write_suite(cut, server)
    ended_well(run(*EVAL, folder=whole, environ=given("SET_UP", "COLLECTED")))
    expected, begin = results(whole), server.count()
    for line in expected:
        log, _, left = line["collected"].partition("collecting\n")
        assert log.startswith(f"setup\nready {line['test_id']}\n"), line
        assert {"log", "made"} <= set(left.split()), line
        assert "known" not in left

    killed(cut, EVAL, given(), "setup")
    assert server.count() == begin
    killed(cut, RESUME, given("SET_UP"), "collecting")
    ended_well(run(*RESUME, folder=cut, environ=given("SET_UP", "COLLECTED")))
    assert results(cut) == expected
    assert set(Counter(each.digest for each in server.asked(begin)).values()) == {1}
    assert server.count() == 2 * begin
    ended_well(run("check", "data/r", folder=cut))
