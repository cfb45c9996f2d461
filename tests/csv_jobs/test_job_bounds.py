"""What bounds a job (rows in work at once, rows that may fail), and what is said about values and places that can't be used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from manyhands.core.errors import ItemError, ToolError, UserError
from manyhands.core.failures import Cause
from manyhands.io.tables.formats import open_table
from manyhands.testing.context import MemoryContext
from manyhands.testing.scripted_server import ScriptedResponse
from manyhands.workloads.csv_jobs.mcp.calls import status_object, status_text
from manyhands.workloads.csv_jobs.mcp.declarations import SPAWN
from manyhands.workloads.csv_jobs.mcp.settings import ToolPaths, ToolSettings
from manyhands.workloads.csv_jobs.mcp.tools import Caller, JobTools
from manyhands.workloads.csv_jobs.prepared import dry_run
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import LIMIT_VARIABLE, JobSpec
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker
from tests.support.batches import ServerThread
from tests.support.commands import environment
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.job_rows import assignment

_CROWD = '''
import time
from pathlib import Path


def work(row):
    """How many rows were in work at most while this one was, waiting for a fourth."""
    mine, most = Path(f"in-work-{row['text']}"), 0
    mine.touch()
    end = time.monotonic() + 2
    while most < 4 and time.monotonic() < end:
        most = max(most, len(list(Path().glob("in-work-*"))))
        time.sleep(0.02)
    mine.unlink()
    return {"most": most}
'''


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path) as made:
        yield made


# --- Rows in work at once


@pytest.mark.parametrize("processors", [1, 2, 3, 4, 12, 64])
@pytest.mark.parametrize("asked", [1, 2, 3, 5, 7, 61, 64, 100])
def test_processes_share_what_is_allowed_evenly(asked: int, processors: int) -> None:
    spec = JobSpec.make(
        {"csv_path": "t.csv", "worker_function": "a:b", "max_concurrency": asked, "num_workers": processors}
    )
    count, each = spec.processes
    assert 1 <= count <= min(processors, asked)
    assert asked <= count * each < asked + count


def test_three_rows_at_once_are_three(folder: JobFolder) -> None:
    folder.write_rows([str(number) for number in range(6)])
    (folder.path / "work.py").write_text(_CROWD)
    assert folder.spawn(FUNCTION, "--num_workers=2", "--max_concurrency=3").code == 0
    assert max(result["most"] for result in folder.results()) == 3


# --- Rows that may fail


def test_at_the_threshold_no_other_row_is_claimed(folder: JobFolder) -> None:
    folder.write_rows(["one", "fail", "fail", "four", "five"])
    words = (FUNCTION, "--max_concurrency=1", "--max_attempts=1", "--fail_threshold=2")
    assert folder.spawn(*words).code == 1
    ended = [(row["status"], row["attempt_count"]) for row in folder.rows()]
    assert ended == [("completed", "1"), ("failed", "1"), ("failed", "1"), ("pending", "0"), ("pending", "0")]
    status = folder.status()
    assert (status["state"], status["pending_items"]) == ("failed", 2)
    assert "--fail_threshold=2" in status["last_error"]
    (folder.path / "rows.csv").unlink()
    assert folder.jobs("run", "j", "--fail_threshold=3").code == 1  # it counts on, and two is less than three
    assert [row["status"] for row in folder.rows()][3:] == ["completed", "completed"]


# --- Values


class _Model(BaseModel):
    score: float | None


@dataclasses.dataclass
class _Data:
    score: float


@pytest.mark.parametrize(
    "made",
    [
        lambda row: {"score": math.nan},
        lambda row: {"deep": [{"score": (1, math.inf)}]},
        lambda row: {"mixed": {1, 2}, "score": -math.inf},
        lambda row: _Model(score=math.nan),
        lambda row: _Data(math.nan),
    ],
)
async def test_numbers_that_json_has_not_do_not_become_null(made: Callable[[Any], Any]) -> None:
    with pytest.raises(ItemError, match="what JSON can't hold: a number that is NaN or infinite") as caught:
        await FunctionWorker("here:made", made).run(MemoryContext(), assignment())
    assert caught.value.cause is Cause.WORKER_ERROR


async def test_null_is_null() -> None:
    worker = FunctionWorker("here:made", lambda row: {"score": None, "of": [_Model(score=None), {3: 1.5}]})
    accepted = await worker.run(MemoryContext(), assignment())
    assert accepted.result == {"score": None, "of": [{"score": None}, {"3": 1.5}]}


# --- Places


def test_an_object_that_is_cut_off_is_faulted_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a":1}\n{"a":\r\n')
    problems = [row.problem for row in open_table(tmp_path / "t.jsonl").rows()]
    assert problems[0] is None
    assert "column 6" in (problems[1] or "")


def test_the_plan_names_columns_on_one_line(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text('name,"two\nlines"\na,b\n')
    words = ("rows.csv", "--instruction=x", "--dry_run=1", "--model=simulated", "--toolsets=none")
    printed = folder.jobs("spawn", *words).out
    assert "columns        name, 'two\\nlines'\n" in printed


async def test_bad_rows_are_told_apart_in_a_tools_answer(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n"1"1,2\n2,3\n"4"4,5\n')
    desk = JobService(tmp_path / "data", environ=environment())
    tools = JobTools(desk, ToolSettings(ToolPaths.of(tmp_path), {"worker_command": "true"}))
    with pytest.raises(ToolError) as caught:
        await tools.call(SPAWN, {"csv_path": "t.csv", "instruction": "x"}, Caller())
    first, second, hint = str(caught.value).split("; ")
    assert first.endswith("line 2: broken quoting: ',' expected after '\"'")
    assert second.endswith("line 4: broken quoting: ',' expected after '\"'")
    assert hint == "(on_bad_row=skip leaves such rows out)"


async def test_a_spawn_that_stops_waiting_accounts_for_every_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n2\n3\n")
    desk = JobService(tmp_path / "data", environ=environment())
    worker = {"worker_command": "sleep 60", "project": str(tmp_path), "data_dir": str(tmp_path / "data")}
    tools = JobTools(desk, ToolSettings(ToolPaths.of(tmp_path), worker, wait_limit=1.0))
    arguments = {"csv_path": "t.csv", "instruction": "x", "wait": True, "max_workers": 1}
    answer = (await tools.call(SPAWN, arguments, Caller())).content
    try:
        states = ("completed", "failed", "skipped", "cancelled", "running", "pending")
        assert answer["timed_out"] is True
        assert sum(answer[f"{state}_items"] for state in states) == answer["total_items"] == 3
    finally:
        await desk.cancel(answer["job_id"], firm=True)
        await desk.wait(answer["job_id"], 30)


# --- The plan


async def test_the_plan_heeds_the_machines_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    spec = JobSpec.make({"csv_path": str(tmp_path / "t.csv"), "instruction": "x", "worker_command": "true"})
    assert dict((await dry_run(spec, 0)).plan)["rows at once"] == "2"


@pytest.mark.parametrize("worker", [{"worker_command": "no-such-program"}, {"worker_function": "no_such_module:f"}])
async def test_a_worker_that_is_not_there_is_no_plan(worker: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    spec = JobSpec.make({"csv_path": str(tmp_path / "t.csv"), "instruction": "x", **worker})
    with pytest.raises(UserError, match=next(iter(worker))):
        await dry_run(spec, 0)


NOTHING = ScriptedResponse({"error": {"message": "The model `gone` does not exist"}}, 404)
LIMITED = ScriptedResponse({"error": {"message": "Rate limit reached"}}, 429, {"Retry-After": "300"})
AGENT = ("--model=gone", "--sandbox=local", "--max_concurrency=4")


def test_a_model_that_does_not_exist(tmp_path: Path) -> None:
    with JobFolder(tmp_path, [f"text {number}" for number in range(40)]) as folder, ServerThread([NOTHING]) as server:
        ended = folder.spawn(f"--base_url={server.base_url}", *AGENT)
        assert len(server.requests) < 40
        status = folder.status()
        log = (folder.folder() / "runner.log").read_text()
    assert ended.code == 1
    assert "The model `gone` does not exist" in ended.err
    assert "40 rows are left. To continue:" in ended.out
    assert (status["status"], status["pending_items"], status["failed_items"]) == ("failed", 40, 0)
    assert "The model `gone` does not exist" in status["last_error"]
    assert log.count("refused: ") == 1


def test_a_rate_limit_is_in_the_status_and_the_log(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["one"]) as folder, ServerThread([LIMITED]) as server:
        words = folder.spawn_words(f"--base_url={server.base_url}", *AGENT)
        with folder.begin(*words) as command:
            assert command.wait_until(lambda: "waiting until" in command.said)
            waiting = folder.status()["waiting"]
            status = JobService(folder.folder().parent, environ=environment()).status("j")
            shown = folder.jobs("status", "j").out
            waited = folder.jobs("wait", "j", "--timeout_ms=1500")
            log = (folder.folder() / "runner.log").read_text()
    assert waiting.startswith("waiting until ")
    assert "HTTP 429: Rate limit reached; 1 call waits" in waiting
    assert f"Now {waiting}" in shown
    assert (status_object(status)["waiting"] or "").startswith("waiting until ")
    assert "HTTP 429: Rate limit reached; 1 call waits." in status_text(status)
    assert waiting in waited.err
    assert "HTTP 429: Rate limit reached; 1 call waits" in log


def test_a_job_of_bad_rows_only_says_so(tmp_path: Path) -> None:
    with JobFolder(tmp_path) as folder:
        (tmp_path / "rows.csv").write_text('name,text\n"a"a,one\n"b"b,two\n')
        ended = folder.spawn("--worker_function=work.py:work", "--on_bad_row=skip")
    assert ended.code == 1
    assert "nothing was completed: 2 items discarded (bad_row 2); correct these rows" in ended.err
