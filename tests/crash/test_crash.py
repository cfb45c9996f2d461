"""SIGKILL at random instants, as a person's machine would do it: the bounded form of ``make crash-test``."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.core.jsonio import loads
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.crash.rounds import MOST_ROUNDS, Round, Site, Victim, Work, slow_server
from tests.crash.sandbox_rounds import Kind, SandboxRound
from tests.support.batches import REASONED, ServerThread
from tests.support.commands import Command, batch_words, run, write_prompts

WORK = Work(24)
SAMPLED = Work(12, samples=2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("crash")
    with slow_server(folder) as server:
        yield Site(folder, server)


@pytest.mark.parametrize(
    ("victim", "executor", "work", "kills"),
    [
        ("owner", "processes", WORK, 2),
        pytest.param("owner", "local", SAMPLED, 3, marks=pytest.mark.slow),
        ("worker", "processes", SAMPLED, 2),
        ("start", "local", WORK, 2),
        ("export", "processes", WORK, 2),
        pytest.param("tree", "processes", WORK, 2, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_comes_out_as_an_undisturbed_one(
    site: Site, victim: Victim, executor: str, work: Work, kills: int
) -> None:
    instants = random.Random(f"{victim}/{executor}")
    for _ in range(MOST_ROUNDS):
        report = Round(site, work, victim, executor, instants).perform(kills)
        assert report.violations == []
        if report.kills:
            return
    raise AssertionError("nothing was killed")


@pytest.mark.parametrize(
    ("kind", "executor", "sandbox"),
    [
        ("outer", "processes", "bubblewrap"),
        ("shell", "local", "bubblewrap"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("init", "local", "bubblewrap"),
                ("entering", "processes", "bubblewrap"),
                ("guard", "processes", "local"),
            )
        ),
    ],
)
def test_a_killed_sandbox_costs_no_recorded_call(site: Site, kind: Kind, executor: str, sandbox: str) -> None:
    work = Work(24, sandbox=sandbox)
    instants = random.Random(f"{kind}/{executor}")
    for _ in range(3):  # a process may be gone on a busy machine before it can be killed
        report = SandboxRound(site, work, kind, executor, instants).perform(2)
        assert report.violations == []
        if report.kills:
            return
    pytest.fail("nothing could be killed in three rounds")


TURNS = 5
APPEND = {"command": "echo more >> grown; sleep 0.15; wc -l < grown"}


@pytest.mark.parametrize("executor", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_command_that_was_cut_off_is_undone_before_it_is_done_again(tmp_path: Path, executor: str) -> None:
    """Each command leaves its workspace other than it found it: whoever does one twice gets another answer."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(6)))
    instants, folder, kills = random.Random(executor), tmp_path / "r", 0
    with ServerThread(_appender) as server:
        words = batch_words(
            tmp_path, base_url=server.base_url, model="some/model", executor=executor, num_workers=2, concurrency=3
        )
        for _ in range(3):
            asked = len(server.requests)
            with Command(*words) as command:
                command.wait_until(lambda: len(server.requests) > asked)  # noqa: B023 - called at once
                if not command.ends_within(instants.uniform(0.05, 0.25)):
                    command.kill()
                    kills += 1
            words = ["resume", str(folder), "--quiet"]
        resumed = run(*words)
        assert resumed.code == 0, resumed.err
        assert kills >= 2
        assert len(server.requests) <= 6 * (TURNS + 1) + kills * 6
    results = []
    for text in (folder / "trajectories.jsonl").read_text().splitlines():
        entry = loads(text)
        assert entry["metadata"]["attempt"] == 1
        results.append(
            re.findall(
                r'"output": "(\d+)', "".join(turn["value"] for turn in entry["conversations"] if turn["from"] == "tool")
            )
        )
    assert results == [[str(turn) for turn in range(1, TURNS + 1)]] * 6


def _appender(request: RecordedRequest) -> Reply:
    """A model that wants the same command some times, then answers."""
    done = sum(message["role"] == "tool" for message in request.body["messages"])
    if done == TURNS:
        return REASONED
    call = {"id": f"call_{done}", "type": "function", "function": {"name": "terminal", "arguments": json.dumps(APPEND)}}
    return chat_response(None, reasoning="More.", tool_calls=[call])
