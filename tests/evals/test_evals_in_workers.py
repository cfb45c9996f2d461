"""Evaluations in worker processes: the same results as in one process, limits that hold over all of them, and workers that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.evals.in_python.evaluate import evaluate
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.commands import Command, Ended, run
from tests.support.eval_runs import perform_eval

OWN = """\
import asyncio, fcntl, os, signal, sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent

def log(*words):
    with (HERE / "calls.log").open("a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@contextmanager
def counted(name):
    def change(by):
        with (HERE / f"{name}.now").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            now = int(file.read() or 0) + by
            file.truncate(0)
            file.write(str(now))
        return now
    log("at", name, change(1))
    yield
    change(-1)

async def two(asked):
    log("two", asked["id"], os.getpid())
    with counted("two"):
        await asyncio.sleep(0.03)
    if asked["id"] == "broken":
        raise ValueError("no luck")
    return {"text": "yes", "cost_usd": 0.01}

async def quick(asked):
    return "yes"

async def samples(asked):
    log("samples", asked["id"], asked["trial"])
    return {"text": "no yes yes".split()[asked["trial"]], "cost_usd": 0.01}

async def shared(asked):
    workspace = Path(asked["workspace"])
    before = sorted(path.name for path in workspace.iterdir())
    (workspace / asked["id"]).touch()
    return "yes " + " ".join(before)

async def killed(asked):
    log("begin", asked["id"])
    if asked["id"] == "t2" and not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.01)
    log("end", asked["id"])
    return "yes"
"""
BULK = """\
import json, sys
from pathlib import Path
with Path("calls.log").open("a") as file:
    file.write("bulk\\n")
ids = Path(sys.argv[1]).read_text().split()
records = [{"id": each, "text": "yes", "duration_ms": 5} for each in ids if each != "t3"]
Path(sys.argv[2]).write_text("".join(json.dumps(each) + "\\n" for each in records))
"""
HALF = """\
import json, sys, time
from pathlib import Path
ids = Path(sys.argv[1]).read_text().split()
with Path("calls.log").open("a") as file:
    print(*ids, file=file)
lines = [json.dumps({"id": each, "text": "yes", "duration_ms": 5}) + "\\n" for each in ids]
if not Path("half").exists():
    Path(sys.argv[2]).write_text("".join(lines[:3]))
    Path("half").touch()
    time.sleep(60)
Path(sys.argv[2]).write_text("".join(lines))
"""


def python(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "provider": "python", "function": f"own.py:{name}", **more}


def write(folder: Path, name: str, targets: list[dict[str, Any]], tests: list[dict[str, Any]], **more: Any) -> None:
    (folder / "own.py").write_text(OWN)
    (folder / "bulk.py").write_text(BULK)
    tests = [{"input": "x", "criteria": "c", **test} for test in tests]
    execution = {"targets": [target["name"] for target in targets], **more.pop("execution", {})}
    suite = {
        "targets": targets,
        "execution": execution,
        "assert": [{"type": "contains", "value": "yes"}],
        **more,
        "tests": tests,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(suite))


def everything(folder: Path) -> list[str]:
    """Writes files with whatever tests share; their names."""
    command = f"{sys.executable} bulk.py {{TEST_IDS_FILE}} {{OUTPUT_FILE}}"
    bulk = {"name": "bulk", "provider": "cli", "provider_batching": True, "command": command, "cwd": str(folder)}
    plain: list[dict[str, Any]] = [{"id": f"t{number}"} for number in range(6)]
    depending: list[dict[str, Any]] = [
        {"id": "broken"},
        {"id": "skipped", "depends_on": ["broken"]},
        {"id": "late", "depends_on": ["t0"]},
    ]
    write(folder, "plain", [python("two", workers=2), bulk], [*plain, *depending])
    write(folder, "samples", [python("samples")], plain, execution={"trials": {"count": 3, "strategy": "pass_at_k"}})
    hooks = {
        name: {"command": ["sh", "-c", f"echo {name} >> {folder}/calls.log"]} for name in ("before_all", "after_all")
    }
    write(folder, "shared", [python("shared")], plain, workspace={"isolation": "shared", "hooks": hooks})
    (folder / "look.py").write_text("import json, sys\njson.load(sys.stdin)\nprint(json.dumps({'score': 1.0}))\n")
    grader = [{"name": "look", "type": "code_judge", "script": [sys.executable, "look.py"]}]
    write(folder, "graded", [python("quick")], plain, **{"assert": grader})
    return ["plain.yaml", "samples.yaml", "shared.yaml", "graded.yaml"]


def results(folder: Path, name: str) -> list[dict[str, Any]]:
    """Without what is of this execution alone."""

    own = ("duration_ms", "workspace_path", "timestamp")

    def lasting(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lasting(each) for key, each in value.items() if key not in own}
        return list(map(lasting, value)) if isinstance(value, list) else value

    lines = (folder / "data" / name / "results.jsonl").read_text().splitlines()
    return [lasting(json.loads(line)) for line in lines]


def calls(folder: Path) -> list[str]:
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Ended]]:
    """The same evaluation in this process and in three others."""
    found = {}
    for executor in ("local", "processes"):
        folder = tmp_path_factory.mktemp(executor)
        words = ("eval", *everything(folder), "--run_name=r", f"--executor={executor}", "--num_workers=3")
        found[executor] = folder, run(*words, folder=folder)
    return found


def test_results_are_the_same_wherever_tests_are_executed(both: dict[str, tuple[Path, Ended]]) -> None:
    (here, alone), (there, ended) = both["local"], both["processes"]
    assert ended.code == alone.code == 3
    assert results(there, "r") == results(here, "r")
    statuses = {(each["dataset"], each["target"], each["test_id"]): each["status"] for each in results(there, "r")}
    assert statuses["plain", "two", "skipped"] == "skipped"
    assert statuses["plain", "bulk", "t3"] == "error"
    assert statuses["plain", "two", "late"] == "passed"
    assert statuses["samples", "samples", "t5"] == "passed"
    summaries = [json.loads((each / "data/r/summary.json").read_bytes()) for each in (here, there)]
    assert summaries[0]["ledger"] == summaries[1]["ledger"]


def test_what_is_done_once_is_done_once_whoever_does_it(both: dict[str, tuple[Path, Ended]]) -> None:
    folder, _ = both["processes"]
    said = calls(folder)
    assert [said.count(word) for word in ("bulk", "before_all", "after_all")] == [1, 1, 1]
    assert sorted(line for line in said if line.startswith("samples")) == [
        f"samples t{number} {trial}" for number in range(6) for trial in range(2)
    ]
    found = {
        each["test_id"]: each["answer"].split()[1:] for each in results(folder, "r") if each["dataset"] == "shared"
    }
    assert sorted(map(len, found.values())) == list(range(6))


def test_a_targets_limit_holds_over_all_workers(both: dict[str, tuple[Path, Ended]]) -> None:
    folder, _ = both["processes"]
    said = calls(folder)
    assert len({line.split()[2] for line in said if line.startswith("two")}) > 1  # workers
    assert {line for line in said if line.startswith("at two")} == {"at two 1", "at two 2"}


def test_a_worker_that_is_killed_loses_no_test(tmp_path: Path) -> None:
    write(tmp_path, "suite", [python("killed", workers=2)], [{"id": f"t{number}"} for number in range(8)])
    words = ("eval", "suite.yaml", "--run_name=r", "--executor=processes", "--num_workers=2")
    ended = run(*words, folder=tmp_path)
    assert (ended.code, len(results(tmp_path, "r"))) == (0, 8)
    said = calls(tmp_path)
    assert (said.count("begin t2"), said.count("end t2")) == (2, 1)
    again = [number for number in range(8) if said.count(f"begin t{number}") > 1]
    assert len(again) <= 2  # what was in the process that died


def test_a_command_whose_worker_is_killed_is_invoked_again_for_what_it_left(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(HALF)
    bulk = {"name": "bulk", "provider": "cli", "provider_batching": True, "cwd": str(tmp_path)}
    bulk["command"] = f"{sys.executable} half.py {{TEST_IDS_FILE}} {{OUTPUT_FILE}}"
    write(tmp_path, "suite", [bulk], [{"id": f"t{number}"} for number in range(6)])
    words = ("eval", "suite.yaml", "--run_name=r", "--executor=processes", "--num_workers=2")
    with Command(*words, folder=tmp_path) as command:
        command.wait_until(lambda: (tmp_path / "half").exists())
        for worker in command.workers():
            os.kill(worker, signal.SIGKILL)
        assert command.wait().code == 0
    assert calls(tmp_path) == ["t0 t1 t2 t3 t4 t5", "t3 t4 t5"]
    assert [each["status"] for each in results(tmp_path, "r")] == ["passed"] * 6


def test_functions_that_only_this_process_has_are_refused(tmp_path: Path) -> None:
    tests = [{"id": "a", "input": "x", "assert": [{"type": "contains", "value": "yes"}]}]
    with pytest.raises(UserError) as refused:
        evaluate(tests=tests, target=lambda prompt: "yes", executor="processes", data_dir=tmp_path)
    assert str(refused.value) == (
        'executor="processes": other processes can\'t get functions that are given in Python (lambda:target); name them as '
        'module:function, or leave executor="local"'
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("workspace", "given", "why"),
    [
        ({"isolation": "shared"}, {}, "its workspace is one that tests share, which takes one machine"),
        ({"hooks": {"after_all": {"command": ["true"]}}}, {}, "after_all runs after all tests of a workspace"),
        ({}, {"regrade": "other"}, "--regrade goes with local or processes"),
    ],
)
async def test_what_takes_one_machine_is_refused_on_a_cluster(
    tmp_path: Path, workspace: dict[str, Any], given: dict[str, Any], why: str
) -> None:
    write(tmp_path, "suite", [python("quick")], [{"id": "a"}], workspace=workspace)
    if given:
        await perform_eval(tmp_path, "other")
    with pytest.raises(UserError, match=re.escape(why)):
        await perform_eval(tmp_path, executor="ray", **given)
    assert not (tmp_path / "data/run").exists()


async def test_the_modules_of_targets_and_graders_are_named(tmp_path: Path) -> None:
    (tmp_path / "marks.py").write_text("def mark(test):\n    return 1.0\n\ndef other(answer):\n    return 1.0\n")
    inner = [{"type": "python", "callable": "marks.py:other(answer)"}]
    graders = [{"type": "python", "function": "marks:mark"}, {"type": "composite", "name": "all", "assert": inner}]
    write(tmp_path, "suite", [python("quick")], [{"id": "a"}, {"id": "b"}], **{"assert": graders})
    run = await perform_eval(tmp_path)
    assert run.code == 0
    with closing(JournalReader(run.folder)) as reader:
        workload = EvalsWorkload(reader.meta("spec"), run.folder)
    assert set(workload.modules) == {("own.py", tmp_path), ("marks", tmp_path), ("marks.py", tmp_path)}
