"""Rows of jobs executed by a worker on another machine: in a folder that has only what such a worker gets."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.attempt import Failed
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.steering.control import request
from manyhands.workloads.csv_jobs.mcp.settings import ToolPaths, ToolSettings
from manyhands.workloads.csv_jobs.mcp.tools import JobTools
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workers.report_folder import report_folder
from manyhands.workloads.csv_jobs.workers.reports import ReportInbox
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload
from tests.support.node_folders import Elsewhere

ASKED = """
import json, os, sys, time
names = ("MANYHANDS_DATA_DIR", "MANYHANDS_JOB_ID", "MANYHANDS_ITEM_ID", "MANYHANDS_WORKER")
with open("asked.new", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
os.rename("asked.new", "asked.json")
while not os.path.exists("told"):
    time.sleep(0.01)
"""
WORK = """
calls = []
def work(row, assignment):
    calls.append(assignment.stage and assignment.stage.name)
    if assignment.stage and assignment.stage.name == "second" and len(calls) == 2:
        raise ValueError("not yet")
    return {assignment.stage.name: row["text"]}
"""


async def spawned(folder: Path, **options: Any) -> CsvJobsWorkload:
    (folder / "rows.csv").write_text("text\none\ntwo\n")
    values = {
        "csv_path": str(folder / "rows.csv"),
        "project": str(folder),
        "job_name": "j",
        "executor": "ray",
        **options,
    }
    values.setdefault("instruction", "Say {text}.")
    made = await JobService(folder / "data", environ={}).spawn(
        JobSpec.make(values), notice=lambda text: None, start=False
    )
    with closing(JournalReader(made.folder)) as reader:
        return CsvJobsWorkload(reader.meta("spec"), made.folder)


@asynccontextmanager
async def elsewhere(folder: Path, **options: Any) -> AsyncIterator[Elsewhere]:
    owner = await spawned(folder, **options)
    async with Elsewhere.opened(folder / "data" / "j", owner, folder / "node") as worker:
        yield worker


async def test_what_a_command_prints_is_its_result(tmp_path: Path) -> None:
    script = 'import os; print(\'{"row": %s}\' % os.environ["MANYHANDS_ROW_INDEX"])'
    async with elsewhere(tmp_path, worker_command=shlex.join([sys.executable, "-S", "-c", script])) as worker:
        record = await worker.completed("row-2")
        assert [each.name for each in (worker.folder / "workspaces").iterdir()] == ["2-1"]
    assert (record["result"], record["via"]) == ({"row": 1}, "stdout")


async def test_a_command_reports_to_the_worker_that_launched_it(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ASKED)
    async with elsewhere(tmp_path, worker_command=shlex.join([sys.executable, "-S", "ask.py"])) as worker:
        running = asyncio.ensure_future(worker.completed("row-1"))
        asked = tmp_path / "asked.json"
        while not asked.exists() and not running.done():
            await asyncio.sleep(0.01)
        given = json.loads(asked.read_text())
        service = JobService(Path(given["MANYHANDS_DATA_DIR"]), environ={})
        ids = given["MANYHANDS_JOB_ID"], given["MANYHANDS_ITEM_ID"]
        foreign = await service.report(*ids, {"said": "one"}, stop=False, secret="guessed")
        accepted = await service.report(*ids, {"said": "one"}, stop=True, secret=given["MANYHANDS_WORKER"])
        tools = JobTools(service, ToolSettings(ToolPaths.of(tmp_path), {}, 1, 10.0, 1))
        assert tools.depth_in(ids[0]) == 1
        (tmp_path / "told").touch()
        record = await running
        assert (foreign.accepted, accepted.accepted) == (False, True)
        assert (record["result"], record["via"], record["stop"]) == ({"said": "one"}, "mcp", True)
        folder = worker.folder / "reports"
        assert len(list(folder.iterdir())) == 1
    assert list(folder.iterdir()) == []


async def test_stages_take_over_what_an_earlier_attempt_had_done(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    stages = [{"name": "first", "instruction": "a"}, {"name": "second", "instruction": "b {first}"}]
    options = {"stages": stages, "instruction": None, "worker_function": "work.py:work"}
    async with elsewhere(tmp_path, **options) as worker:
        failed = await worker.run("row-1")
        assert isinstance(failed, Failed), failed
        assert failed.failure.message.startswith("stage second: ")
        record = await worker.completed("row-1", attempt=2)
        kinds = worker.kinds("row-1", attempt=2)
    assert {name: stage["state"] for name, stage in record["result"].items()} == {
        "first": "completed",
        "second": "completed",
    }
    assert kinds == ["stages_taken_over", "worker", "stage"]


async def test_agents_work_there(tmp_path: Path) -> None:
    async with elsewhere(tmp_path, model="simulated", output_schema='{"type": "object"}') as worker:
        assert (await worker.completed("row-1"))["via"] == "tool"
        assert worker.written() == set()


async def test_the_modules_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    job = await spawned(tmp_path, worker_function="work.py:work")
    assert job.modules == [("work.py", tmp_path)]
    (tmp_path / "tool.py").write_text(
        'def shout(text: str) -> str:\n    """Make it loud."""\n    return text.upper()\n'
    )
    job = await spawned(tmp_path, job_name="k", model="simulated", tools=[str(tmp_path / "tool.py")])
    assert job.modules == [(str(tmp_path / "tool.py"), tmp_path)]


async def test_jobs_within_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--max_depth: workers on the nodes of a cluster can't start jobs"):
        await spawned(tmp_path, model="simulated", max_depth=2)


async def test_what_a_killed_worker_left_for_reports_is_removed_by_the_next(tmp_path: Path) -> None:
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    run = tmp_path / "j"
    for process in (ended.pid, os.getpid(), os.getppid()):
        (run / "reports" / str(process) / "j").mkdir(parents=True)
    (run / "run.db").touch()
    async with report_folder(run, ReportInbox("id")) as data_dir:
        assert sorted(os.listdir(run / "reports")) == sorted(map(str, (os.getpid(), os.getppid())))
        assert sorted(os.listdir(data_dir / "j")) == ["run.db", "runner.json"]
        assert await request(data_dir / "j", {"op": "cancel"}) == {"error": "only reports are taken here"}
    assert os.listdir(run / "reports") == [str(os.getppid())]
