"""What ``--override_task`` allows, refuses and records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import Ran, read_lines, run_command
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

WIDER = ("--network", "--memory=1")
OURS = os.readlink("/proc/self/ns/net")
LOOK = f"""#!/bin/bash
[ "$(readlink /proc/self/ns/net)" = "{OURS}" ] && echo 1 > net || echo 0 > net
head -c 200000000 /dev/zero | tail > /dev/null && echo 1 > memory || echo 0 > memory
"""
TELL = '#!/bin/bash\necho "{\\"net\\": $(cat net), \\"memory\\": $(cat memory)}" > /logs/verifier/reward.json\n'
TOML = '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 64\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_task(tmp_path / "tasks/a", toml=TOML, solve=LOOK, test=TELL)
    return tmp_path


def batch(folder: Path, name: str, *options: str) -> Ran:
    usual = ("tasks", "--agent=oracle", "--reward=net", "--sandbox=bubblewrap", "--executor=local", "--quiet")
    return run_command(folder, "batch", *usual, f"--run_name={name}", *options)


def rewards(folder: Path, name: str) -> dict[str, int]:
    (line,) = read_lines(folder / "data" / name / "trajectories.jsonl")
    found: dict[str, int] = json.loads(line["metadata"]["rewards"])
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--override_task",), {"net": 0, "memory": 0}),  # nothing else was said
        (WIDER, {"net": 0, "memory": 0}),
        (("--override_task", *WIDER), {"net": 1, "memory": 1}),
    ],
)
def test_in_a_batch(options: tuple[str, ...], expected: dict[str, int], folder: Path) -> None:
    ran = batch(folder, "r", *options)
    assert ran.code == 0, ran
    assert rewards(folder, "r") == expected


def test_in_an_evaluation(folder: Path) -> None:
    about = {"name": "wide", "provider": "agent", "agent": "oracle", "sandbox": "bubblewrap"}
    target = {**about, "network": True, "memory": 1}
    (folder / "tasks/targets.yaml").write_text(json.dumps({"targets": [target]}))
    (folder / "tasks/a/tests/test.sh").write_text(TELL.replace('\\"net', '\\"reward'))
    for name, options, expected in (("own", (), (0, 0)), ("override", ("--override_task",), (1, 1))):
        ran = run_command(folder, "eval", "tasks", "--target=wide", f"--run_name={name}", "--quiet", *options)
        assert ran.code in (0, 1), ran
        (result,) = read_lines(folder / f"data/{name}/results.jsonl")
        (verifier,) = result["scores"]
        found = verifier["details"]["rewards"]
        assert (found["reward"], found["memory"], result["score"]) == (*expected, expected[0])


def test_it_stays_with_its_run_and_is_refused_on_a_resume_of_another_one(folder: Path) -> None:
    assert batch(folder, "own", *WIDER).code == 0
    changed = batch(folder, "own", *WIDER, "--override_task", "--resume")
    assert changed.code == 2
    assert "override_task was False and is now True" in changed.err
    assert batch(folder, "wide", *WIDER, "--override_task").code == 0
    make_task(folder / "tasks/b", toml=TOML, solve=LOOK, test=TELL)
    resumed = run_command(folder, "resume", "data/wide", "--quiet")  # which names none of it
    assert resumed.code == 0, resumed
    lines = read_lines(folder / "data/wide/trajectories.jsonl")
    assert [json.loads(line["metadata"]["rewards"]) for line in lines] == [{"net": 1, "memory": 1}] * 2


@pytest.mark.parametrize("option", ["--override_task", "--timeout_multiplier=2", "--end_processes"])
def test_what_is_no_task_has_nothing_to_override(option: str, tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"prompt": "p"}\n')
    test = {"id": "one", "input": "x", "assert": [{"type": "regex", "value": ".*"}]}
    suite = {"targets": [{"name": "m", "provider": "mock", "response": "x"}], "tests": [test]}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    for words in (("batch", "plain.jsonl", "--model=simulated"), ("eval", "suite.yaml")):
        ran = run_command(tmp_path, *words, option)
        assert ran.code == 2, ran
        assert f"{option.partition('=')[0]} is for task folders" in ran.err
        assert not (tmp_path / "data").exists()
