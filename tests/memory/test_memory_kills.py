"""``manyhands memory run`` killed with SIGKILL at random, with the simulated model behind its HTTP server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from manyhands.engine.journal.reader import run_id_of
from tests.support.commands import Command, SimulatedProcess, alive, marked_processes, one_line, run
from tests.support.memory_benchmarks import START, log_of, opened, performed, records_of, write_configuration

DATASETS: tuple[Any, ...] = (
    "colours",
    "shopping",
    "name_list",
    "jokes",
    "sallyanne",
    {"name": "kv", "args": {"num_kv_pairs": 20}},
    "prospective_memory",
    "trigger_response",
    "spy_meeting",
)
SPAN = 32_000


def words(folder: Path, agent: str, data: str, **options: object) -> list[str]:
    settings: dict[str, object] = {
        "configuration": folder / "small.yml",
        "agent_name": agent,
        "data_dir": folder / data,
        "tokenizer": "estimate",
        "start_time": START,
        "quiet": True,
        "yes": True,
        **options,
    }
    return ["memory", "run", *(f"--{name}={value}" for name, value in settings.items())]


async def killed_and_resumed(folder: Path, kills: int, longest: float, examples: int = 1) -> int:
    """Compare a session that is killed with one that isn't; how often it was killed."""
    write_configuration(folder, DATASETS, span=SPAN, examples=examples)
    chance = Random(os.environ.get("MEMORY_KILL_SEED", "3"))
    with SimulatedProcess(folder) as server:
        settings: dict[str, Any] = {"max_prompt_size": 16_000, "max_response_tokens": 200, "base_url": server.base_url}
        whole = opened(folder, "simulated", data_dir=str(folder / "whole"), **settings)
        assert (await performed(whole)).exit_code == 0
        once = Counter(each.digest for each in server.asked())
        first, killed = server.count(), 0
        place = folder / "killed/tests/small"
        while True:
            before = server.count()
            with Command(*words(folder, "simulated", "killed", **settings)) as command:
                wanted = before + chance.randint(1, 4)
                if killed >= kills or not command.wait_until(lambda: server.count() >= wanted, 60.0):  # noqa: B023
                    assert command.wait().code == 0
                    break
                await asyncio.sleep(chance.random() * longest)
                command.kill()
                killed += 1
        again = Counter(each.digest for each in server.asked(first))
    assert log_of(place) == log_of(whole.folder)
    (ours,), (theirs,) = records_of(place).values(), records_of(whole.folder).values()
    for name in ("score", "datasets", "tests", "total_tokens", "agent_tokens"):
        assert ours[name] == theirs[name], name
    assert ours["total_tokens"] > SPAN / 2
    assert again.keys() == once.keys()
    assert 0 <= again.total() - once.total() <= killed  # at each kill at most the one in flight is asked again
    return killed


async def test_a_killed_session_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    assert await killed_and_resumed(tmp_path, 2, 0.02) == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_session_killed_again_and_again(tmp_path: Path) -> None:
    assert await killed_and_resumed(tmp_path, 60, 0.05, examples=3) >= 20


def test_a_killed_run_leaves_no_program(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    (tmp_path / "agent.py").write_text(
        "import os, pathlib, signal, sys\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nsignal.pause()\n"
    )
    started = tmp_path / "started"
    with Command(*words(tmp_path, f"command:{sys.executable} {tmp_path}/agent.py {started}", "data")) as command:
        assert command.wait_until(lambda: started.exists() and started.read_text())
        pid = int(started.read_text())
        run_id = run_id_of(tmp_path / "data/tests/small")
        assert pid in marked_processes(run_id)
        command.kill()
    end = time.monotonic() + 20
    while marked_processes(run_id) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)


def test_an_interrupted_command_ends_with_130_and_goes_on(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    with Command(*words(tmp_path, "simulated", "data", simulated_latency=0.3)) as command:
        place = tmp_path / "data/tests/small/results"
        assert command.wait_until(lambda: list(place.glob("*/master_log.jsonl")))
        command.interrupt(signal.SIGINT)
        ended = command.wait()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert ended.to_go_on
    again = run(*ended.to_go_on[1:], folder=tmp_path)
    assert again.code == 0, again.err


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    for options, says in (({"concurrency": "many"}, "concurrency"), ({"agent_name": "human"}, "needs a terminal")):
        agent = options.pop("agent_name", "forgetful")
        assert says in one_line(run(*words(tmp_path, agent, "data", **options)))
