"""Results that a process of its own writes while tests end: the same to the byte, and nothing left behind whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.core.jsonio import dumps, loads
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import perform_run
from manyhands.testing.commands import run
from manyhands.testing.eval_runs import perform_eval
from manyhands.workloads.evals.making import Session, open_eval
from manyhands.workloads.evals.results.process import FROM_TESTS, ResultsProcess
from manyhands.workloads.evals.results.writing import RESULTS, SUMMARY, Counting
from manyhands.workloads.evals.settings import EvalSpec

COUNTING = Counting((0.8,), 0.8, 0.95, 0)
SUITE = """\
execution: {target: bulk, trials: {count: 2}}
assert: [{type: contains, value: "4"}]
tests:
"""
TARGETS = """\
targets:
  - {name: bulk, provider: cli, command: "python3 bulk.py {OUTPUT_FILE}", provider_batching: true}
  - {name: each, provider: mock, response: "4"}
"""
BULK = """\
import json, os, sys
with open(os.environ["MANYHANDS_TEST_IDS_FILE"]) as ids, open(sys.argv[1], "w") as out:
    for number, line in enumerate(ids):
        if number % 7:
            out.write(json.dumps({"id": line.strip(), "text": str(number), "duration_ms": number}) + "\\n")
"""


def written(folder: Path, tests: int, suite: str = SUITE) -> Path:
    """A folder with an eval file: some tests pass, some fail, each seventh is an error."""
    folder.mkdir(exist_ok=True)
    lines = "".join(f"  - {{id: t{number}, criteria: c, input: q}}\n" for number in range(tests))
    (folder / "suite.yaml").write_text(suite + lines)
    (folder / "targets.yaml").write_text(TARGETS)
    (folder / "bulk.py").write_text(BULK)
    return folder


async def made(folder: Path) -> Session:
    """A run that is yet to be performed."""
    given = {"eval_files": [str(folder / "suite.yaml")], "data_dir": str(folder / "data"), "run_name": "run"}
    return await open_eval(EvalSpec.make(given), resume=False, notice=lambda text: None, environ=os.environ)


def started(folder: Path) -> ResultsProcess:
    process = ResultsProcess.started(folder, COUNTING)
    assert process is not None
    return process


def files_aside(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".new")]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


async def test_it_writes_what_would_be_written_afterwards(tmp_path: Path) -> None:
    session = await made(written(tmp_path, 60))
    process = started(session.folder)
    assert until(lambda: bool(files_aside(session.folder)))  # it waits for the first test to end
    await perform_run(session.folder, session.workload)
    lines, summary = (session.folder / RESULTS).read_bytes(), loads((session.folder / SUMMARY).read_bytes())
    (session.folder / RESULTS).unlink()
    figures = process.figures()
    assert (session.folder / RESULTS).read_bytes() == lines
    assert figures == {name: summary[name] for name in figures or {}}
    assert summary["tests"]["in"] == len(lines.splitlines()) == 60
    assert summary["tests"]["errors"] == 9
    assert not files_aside(session.folder)


async def test_it_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await made(written(tmp_path, 3))
    (tmp_path / "statistics.py").write_text("raise SystemExit('a file of somebody else')")
    monkeypatch.chdir(tmp_path)
    assert started(session.folder).figures() is not None


async def test_tests_that_have_not_ended_count_as_pending(tmp_path: Path) -> None:
    session = await made(written(tmp_path, 20))
    figures = started(session.folder).figures()
    assert figures is not None
    assert (figures["tests"]["in"], figures["tests"]["pending"]) == (20, 20)
    assert (session.folder / RESULTS).read_bytes() == b""


async def test_one_that_is_killed_says_so_and_leaves_the_old_results(tmp_path: Path) -> None:
    done = await perform_eval(written(tmp_path, 30))
    before = (done.folder / RESULTS).read_bytes()
    session = await made(written(tmp_path / "other", 30))  # it waits for tests to end, none of which does
    process = started(session.folder)
    assert until(lambda: bool(files_aside(session.folder)))
    process.close()
    assert process.figures() is None
    assert not files_aside(session.folder)
    process = started(done.folder)
    process.close()
    assert process.figures() is None
    assert (done.folder / RESULTS).read_bytes() == before


async def test_it_ends_with_its_owner_and_leaves_nothing(tmp_path: Path) -> None:
    session = await made(written(tmp_path, 20))
    _end_without_a_word(session.folder)
    assert not files_aside(session.folder)
    assert not (session.folder / RESULTS).exists()


def _end_without_a_word(folder: Path) -> None:
    """Begin the process, and end as an owner that is killed does."""
    order = {"folder": str(folder.absolute()), "counting": COUNTING.to_json(), "owner": os.getpid()}
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands.workloads.evals.results.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(dumps(order) + b"\n")
    process.stdin.flush()
    assert until(lambda: bool(files_aside(folder)))
    said, _ = process.communicate(timeout=60)  # the pipe is closed at this end
    assert (process.returncode, said) == (1, b"")


async def test_it_leaves_nothing_of_an_owner_that_dies_at_the_very_end(tmp_path: Path) -> None:
    done = await perform_eval(written(tmp_path, 20))
    before = (done.folder / RESULTS).stat()
    writer = _end_with_the_last_word(done.folder)
    assert until(lambda: not Path("/proc", writer).exists())
    assert (done.folder / RESULTS).stat() == before
    assert not files_aside(done.folder)


def _end_with_the_last_word(folder: Path) -> str:
    """Begin the process, say that nobody writes any more, and end as an owner that is killed then does; the process's number."""
    order = {"folder": str(folder.absolute()), "counting": COUNTING.to_json()}
    code = f"""
import json, os, subprocess, sys
order = json.dumps({{**{order!r}, "owner": os.getpid()}})
command = [sys.executable, "-m", "manyhands.workloads.evals.results.process"]
process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
process.stdin.write(f"{{order}}\\nend\\n".encode())
process.stdin.flush()
print(process.pid, flush=True)
os._exit(0)
"""
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return owner.stdout.strip()


async def test_where_tests_have_workspaces_it_leaves_the_results_to_its_owner(tmp_path: Path) -> None:
    suite = "workspace: {template: box}\nexecution: {target: mine}\nassert: [{type: contains, value: '4'}]\ntests:\n"
    folder = written(tmp_path, 3, suite)
    (folder / "box").mkdir()
    (folder / "box" / "a.txt").write_text("a")
    (folder / "targets.yaml").write_text("targets: [{name: mine, provider: cli, command: 'echo 4 > {OUTPUT_FILE}'}]")
    done = await perform_eval(folder, keep_workspaces=True)
    before = (done.folder / RESULTS).read_bytes()
    assert b'"workspace_path":' in before
    assert started(done.folder).figures() is None
    assert (done.folder / RESULTS).read_bytes() == before


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_large_runs_use_it_and_survive_its_death_and_their_own(tmp_path: Path, signal_number: signal.Signals) -> None:
    folder = written(tmp_path, 0, SUITE.replace("bulk, trials: {count: 2}", "each").removesuffix("tests:\n"))
    tests = ({"id": f"t{number}", "criteria": "c", "input": "q"} for number in range(FROM_TESTS))
    (folder / "suite.jsonl").write_bytes(b"\n".join(map(dumps, tests)))
    command = ["eval", "suite.jsonl", "--run_name=run"]
    with subprocess.Popen(
        [sys.executable, "-m", "manyhands", *command],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as owner:
        results = folder / "data" / "run"
        assert until(lambda: results.exists() and bool(files_aside(results)))
        (writer,) = {int(name.split(".")[-2]) for name in files_aside(results)}
        assert writer != owner.pid
        os.kill(owner.pid, signal_number)
        owner.wait(120)
    assert until(lambda: not Path("/proc", str(writer)).exists())
    assert not files_aside(results)
    done = run("resume", "data/run", folder=folder)
    assert done.code == 0, done.err
    with closing(JournalReader(results)) as reader:
        assert reader.counts() == {("completed", ""): FROM_TESTS}
    ids = [loads(line)["test_id"] for line in (results / RESULTS).read_bytes().splitlines()]
    assert ids == [f"t{number}" for number in range(FROM_TESTS)]
    assert loads((results / SUMMARY).read_bytes())["tests"]["passed"] == FROM_TESTS
