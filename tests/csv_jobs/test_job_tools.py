"""The tools for jobs without a transport: real jobs, performed by real processes with the simulated model or a Python function."""

from __future__ import annotations

import asyncio
import csv
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from jsonschema import Draft202012Validator

from manyhands.core.errors import ToolError
from manyhands.core.settings import Secret
from manyhands.runs.folders import open_reader
from manyhands.workloads.csv_jobs.mcp import declarations as declared
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS, STATUS_RESULT
from manyhands.workloads.csv_jobs.mcp.settings import ToolPaths, ToolSettings
from manyhands.workloads.csv_jobs.mcp.tools import Caller, JobTools
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import JobStatus
from tests.support.commands import environment

ORIGINAL_STATUS = {
    "job_id",
    "status",
    "total_items",
    "pending_items",
    "running_items",
    "completed_items",
    "failed_items",
    "output_csv_path",
    "runner_active",
}
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
WORKER = """
import os, time
from pathlib import Path

here = Path(__file__).parent

def work(row):
    if row["path"] == "bad" and not (here / "mended").exists():
        raise ValueError("this row is bad")
    while (here / "slow").exists():
        time.sleep(0.05)
    return {"score": len(row["path"])}
"""


class Site:
    """A folder with a table and a worker, and tools for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.desk = JobService(self.data, environ=environment())
        (folder / "worker.py").write_text(WORKER)
        self.write("a", "bb", "ccc")

    def write(self, *paths: str) -> None:
        (self.folder / "rows.csv").write_text("path\n" + "".join(f"{path}\n" for path in paths))

    def tools(self, **settings: Any) -> JobTools:
        worker = {"worker_function": f"{self.folder / 'worker.py'}:work", "executor": "local"}
        given = {"paths": ToolPaths.of(self.folder), "worker": worker, **settings}
        return JobTools(self.desk, ToolSettings(**given))

    def flag(self, name: str, there: bool = True) -> None:
        (self.folder / name).touch() if there else (self.folder / name).unlink()

    def options_of(self, job_id: str) -> dict[str, Any]:
        with closing(open_reader(self.desk.status(job_id).folder)) as reader:
            options: dict[str, Any] = reader.meta("spec")["options"]
            return options


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    for job in made.desk.list():
        await made.desk.cancel(job.job_id, firm=True)


async def call(tools: JobTools, name: str, caller: Caller | None = None, /, **arguments: Any) -> dict[str, Any]:
    """A call's answer, which must be what the tool's schema says."""
    reply = await tools.call(name, arguments, caller or Caller())
    Draft202012Validator(dict(DECLARATIONS[name].result)).validate(reply.content)
    assert reply.text
    return reply.content


async def spawned(tools: JobTools, **arguments: Any) -> dict[str, Any]:
    return await call(tools, declared.SPAWN, **{"csv_path": "rows.csv", "instruction": "Score {path}.", **arguments})


async def ended(tools: JobTools, job_id: str) -> dict[str, Any]:
    answer = await call(tools, declared.WAIT, job_id=job_id)
    assert not answer["timed_out"]
    status: dict[str, Any] = answer["status"]
    return status


def rows_of(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="") as handle:
        return list(csv.DictReader(handle))


# --- What clients are told


def test_arguments_are_those_of_the_original() -> None:
    original = {
        declared.SPAWN: (
            {"csv_path", "instruction"},
            {
                "id_column": "string",
                "output_csv_path": "string",
                "output_schema": "object",
                "max_concurrency": "number",
                "max_workers": "number",
                "max_runtime_seconds": "number",
                "job_name": "string",
                "auto_export": "boolean",
            },
        ),
        declared.RUN: ({"job_id"}, {"max_concurrency": "number", "auto_export": "boolean"}),
        declared.STATUS: ({"job_id"}, {}),
        declared.WAIT: ({"job_id"}, {"timeout_ms": "number"}),
        declared.EXPORT: ({"job_id"}, {"output_csv_path": "string"}),
        declared.REPORT: ({"job_id", "item_id", "result"}, {"stop": "boolean"}),
    }
    for name, (required, optional) in original.items():
        parameters = DECLARATIONS[name].parameters
        assert set(parameters["required"]) == required
        assert parameters["additionalProperties"] is False
        for argument, kind in optional.items():
            assert parameters["properties"][argument]["type"] == kind
    for tool in DECLARATIONS.values():
        Draft202012Validator.check_schema(dict(tool.parameters))
        Draft202012Validator.check_schema(dict(tool.result))


def test_hints_are_honest() -> None:
    read_only = {name for name, tool in DECLARATIONS.items() if tool.hints.read_only}
    assert read_only == {declared.STATUS, declared.WAIT, declared.LIST}
    open_world = {name for name, tool in DECLARATIONS.items() if tool.hints.open_world}
    assert open_world == {declared.SPAWN, declared.RUN, declared.RETRY}


# --- The original's tools


async def test_a_job_from_its_spawn_to_its_results(place: Site) -> None:
    tools = place.tools()
    answer = await spawned(tools, id_column="path", job_name="scores", output_schema=SCHEMA)
    assert UUID(answer["job_id"]).version == 4
    assert answer["started"]
    assert answer["total_items"] == 3
    assert answer["job_name"] == "scores"
    assert answer["output_csv_path"] == str(place.folder / f"rows.agent-job-{answer['job_id'][:8]}.csv")
    status = await ended(tools, answer["job_id"])
    assert set(STATUS_RESULT["required"]) >= ORIGINAL_STATUS
    assert {key: status[key] for key in ("status", "state", "completed_items", "failed_items", "runner_active")} == {
        "status": "completed",
        "state": "completed",
        "completed_items": 3,
        "failed_items": 0,
        "runner_active": False,
    }
    rows = rows_of(answer["output_csv_path"])
    assert [(row["item_id"], row["status"], row["result_json"]) for row in rows] == [
        ("a", "completed", '{"score":1}'),
        ("bb", "completed", '{"score":2}'),
        ("ccc", "completed", '{"score":3}'),
    ]


async def test_a_spawn_that_waits_has_the_later_shape(place: Site) -> None:
    place.write("a", "bad")
    answer = await spawned(place.tools(), wait=True, id_column="path")
    assert answer["status"] == "failed"
    assert answer["state"] == "completed_with_failures"
    assert (answer["total_items"], answer["completed_items"], answer["failed_items"]) == (2, 1, 1)
    assert answer["job_error"] == "job completed with 1 failed item"
    (error,) = answer["failed_item_errors"]
    assert (error["item_id"], error["source_id"]) == ("bad", "bad")
    assert "this row is bad" in error["last_error"]
    assert not answer["timed_out"]
    assert answer["next_step"] is None
    assert Path(answer["output_csv_path"]).exists()


async def test_a_spawn_waits_no_longer_than_the_server_allows(place: Site) -> None:
    place.flag("slow")
    tools = place.tools(wait_limit=1.5)
    answer = await spawned(tools, wait=True)
    assert answer["timed_out"]
    assert answer["status"] == "running"
    assert answer["job_id"] in answer["next_step"]
    place.flag("slow", there=False)
    assert (await ended(place.tools(), answer["job_id"]))["state"] == "completed"


async def test_all_good_rows_leave_nothing_to_report(place: Site) -> None:
    answer = await spawned(place.tools(), wait=True)
    assert answer["job_error"] is None
    assert answer["failed_item_errors"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instruction": "  \n"}, "instruction must be non-empty"),
        ({"instruction": None}, "failed to parse function arguments: missing field `instruction`"),
        ({"csv_path": None}, "failed to parse function arguments: missing field `csv_path`"),
        ({"max_concurrency": 2.5}, "failed to parse function arguments: max_concurrency must be a whole number"),
        ({"max_workers": -1}, "failed to parse function arguments: max_workers must not be negative"),
        ({"max_runtime_seconds": "60"}, "failed to parse function arguments: max_runtime_seconds must be"),
        ({"max_runtime_seconds": 0}, "max_runtime_seconds must be >= 1"),
        ({"csv_path": "nowhere.csv"}, "nowhere.csv"),
        ({"id_column": "Path"}, "id_column Path was not found in csv headers"),
        ({"instruction": "Score {score}."}, "score"),
        ({"output_schema": {"type": "nonsense"}}, "output_schema"),
        ({"output_schema": {"$ref": "file:///etc/passwd"}}, "output_schema"),
        ({"output_schema": "schema.json"}, "failed to parse function arguments: output_schema must be a JSON object"),
        ({"on_bad_row": "ignore"}, "failed to parse function arguments: on_bad_row must be fail or skip"),
        ({"encoding": "klingon"}, "klingon"),
        ({"instruction_file": "rows.csv"}, "give instruction or instruction_file, not both"),
        ({"instruction_file": "nowhere.txt", "instruction": ""}, "can't read instruction_file"),
        ({"instruction_file": "/dev/zero", "instruction": ""}, "can't read instruction_file"),
        ({"instruction_file": "large.txt", "instruction": ""}, "is longer than"),
        ({"instruction_file": "latin.txt", "instruction": ""}, "is not UTF-8 text"),
        ({"job_name": "a\nb"}, "job_name must be text without control characters"),
    ],
)
async def test_a_spawn_that_can_not_be_is_refused_in_a_sentence(
    place: Site, arguments: dict[str, Any], message: str
) -> None:
    (place.folder / "large.txt").write_text("x" * 2_000_000)
    (place.folder / "latin.txt").write_bytes(b"\xff")
    with pytest.raises(ToolError) as caught:
        await spawned(place.tools(), **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not place.desk.list()


async def test_an_instruction_from_a_file(place: Site) -> None:
    (place.folder / "what.txt").write_text("Score {path}, please.")
    tools = place.tools()
    answer = await spawned(tools, instruction="", instruction_file="what.txt")
    assert place.options_of(answer["job_id"])["instruction"] == "Score {path}, please."


async def test_calls_have_no_say_in_what_works_and_how_much(place: Site) -> None:
    tools = place.tools(max_concurrency=7)
    forbidden = {
        "worker_command": "touch owned",
        "worker_function": "os:system",
        "model": "expensive",
        "sandbox": "local",
        "project": "/",
        "api_key": "key",
        "base_url": "http://elsewhere/v1",
        "mcp_config": "mcp.json",
        "max_concurrency_limit": 1000,
        "max_depth": 9,
        "data_dir": "/tmp",
        "max_cost": 1,
        "temperature": None,
        "of_the_original": True,
    }
    answer = await spawned(tools, max_concurrency=500, wait=True, **forbidden)
    assert answer["completed_items"] == 3
    (remark,) = answer["notices"]
    assert "the options of this server decide" in remark
    assert all(name in remark for name in ("model", "max_cost", "worker_command"))
    assert not any(name in remark for name in ("temperature", "of_the_original"))
    options = place.options_of(answer["job_id"])
    assert options["worker_command"] is None
    assert options["worker_function"].endswith("worker.py:work")
    assert options["max_concurrency_limit"] == 7
    assert options["max_depth"] == 1
    assert options["model"] != "expensive"
    assert not (place.folder / "owned").exists()


async def test_max_workers_counts_where_max_concurrency_is_missing(place: Site) -> None:
    tools = place.tools()
    one = await spawned(tools, max_workers=3)
    two = await spawned(tools, max_workers=3, max_concurrency=0)
    assert place.options_of(one["job_id"])["max_concurrency"] == 3
    assert place.options_of(two["job_id"])["max_concurrency"] == 0  # which becomes 1


async def test_wait_says_whether_time_ran_out(place: Site) -> None:
    place.flag("slow")
    tools = place.tools(wait_limit=0.5)
    job_id = (await spawned(tools))["job_id"]
    seen: list[JobStatus] = []

    async def look(status: JobStatus) -> None:
        seen.append(status)

    answer = await call(tools, declared.WAIT, Caller(on_progress=look), job_id=job_id, timeout_ms=900_000)
    assert answer["timed_out"]
    assert answer["status"]["state"] == "running"
    assert "wait_agent_job" in answer["next_step"]
    assert seen
    for wrong in (0, -5):
        with pytest.raises(ToolError, match="timeout_ms must be greater than zero"):
            await call(tools, declared.WAIT, job_id=job_id, timeout_ms=wrong)
    with pytest.raises(ToolError, match="failed to parse function arguments: timeout_ms"):
        await call(tools, declared.WAIT, job_id=job_id, timeout_ms="soon")


async def test_run_goes_on_where_a_cancelled_job_stopped(place: Site) -> None:
    place.flag("slow")
    tools = place.tools()
    job_id = (await spawned(tools, max_concurrency=1))["job_id"]
    assert not (await call(tools, declared.RUN, job_id=job_id))["started"]  # somebody performs it
    await call(tools, declared.CANCEL, job_id=job_id, firm=True)
    status = await ended(tools, job_id)
    assert status["status"] == "cancelled"
    assert status["pending_items"] > 0
    place.flag("slow", there=False)
    answer = await call(tools, declared.RUN, job_id=job_id, max_concurrency=100, auto_export=False)
    assert answer["started"]
    status = await ended(tools, job_id)
    assert status["state"] == "completed"
    assert not (await call(tools, declared.RUN, job_id=job_id))["started"]  # nothing is left


async def test_export_goes_where_it_is_told(place: Site) -> None:
    tools = place.tools()
    job_id = (await spawned(tools, wait=True))["job_id"]
    for name in ("output_csv_path", "path"):
        answer = await call(tools, declared.EXPORT, job_id=job_id, **{name: f"new/{name}.csv"})
        assert answer == {
            "job_id": job_id,
            "output_csv_path": str(place.folder / f"new/{name}.csv"),
            "row_count": 3,
        }
        assert len(rows_of(answer["output_csv_path"])) == 3
    own = place.tools(paths=ToolPaths.of(place.folder, own_exports=True))
    answer = await call(own, declared.EXPORT, job_id=job_id, output_csv_path="now.csv")
    assert Path(answer["output_csv_path"]).parent == place.data / job_id / "exports"
    assert len(rows_of(answer["output_csv_path"])) == 3


async def test_reports_are_for_workers(place: Site) -> None:
    place.flag("slow")
    tools = place.tools()
    job_id = (await spawned(tools))["job_id"]
    answer = await call(tools, declared.REPORT, job_id=job_id, item_id="row-1", result={"score": 1})
    assert not answer["accepted"]
    assert "only the agent" in answer["reason"]
    worker = Caller(secret="a guess", depth=1)
    answer = await call(tools, declared.REPORT, worker, job_id=job_id, item_id="row-1", result={"score": 1})
    assert not answer["accepted"]
    assert answer["reason"]
    answer = await call(tools, declared.REPORT, worker, job_id="nothing", item_id="row-1", result={})
    assert answer["reason"] == "agent job nothing not found"
    for result in ([1], "text", 5, None):
        with pytest.raises(ToolError, match=r"^result must be a JSON object$"):
            await call(tools, declared.REPORT, worker, job_id=job_id, item_id="row-1", result=result)


# --- Ours


async def test_retry_puts_failed_rows_back(place: Site) -> None:
    place.write("a", "bad", "ccc")
    tools = place.tools()
    job_id = (await spawned(tools, wait=True, id_column="path"))["job_id"]
    with pytest.raises(ToolError, match="unknown"):
        await call(tools, declared.RETRY, job_id=job_id, item_ids=["unknown"])
    place.flag("mended")
    answer = await call(tools, declared.RETRY, job_id=job_id, item_ids=["bad"])
    assert (answer["retried_items"], answer["started"]) == (1, True)
    status = await ended(tools, job_id)
    assert (status["state"], status["completed_items"]) == ("completed", 3)
    assert (await call(tools, declared.RETRY, job_id=job_id))["retried_items"] == 0


async def test_list_names_the_newest_jobs_first(place: Site) -> None:
    tools = place.tools()
    assert await call(tools, declared.LIST) == {"jobs": [], "total_jobs": 0}
    first = await spawned(tools, wait=True)
    second = await spawned(tools, wait=True, job_name="second")
    answer = await call(tools, declared.LIST)
    assert [job["job_id"] for job in answer["jobs"]] == [second["job_id"], first["job_id"]]
    answer = await call(tools, declared.LIST, limit=1)
    assert [job["job_name"] for job in answer["jobs"]] == ["second"]
    assert answer["total_jobs"] == 2


async def test_a_job_is_found_by_its_name_too(place: Site) -> None:
    tools = place.tools()
    answer = await spawned(tools, wait=True, job_name="my scores")
    status = await call(tools, declared.STATUS, job_id="my scores")
    assert status["job_id"] == answer["job_id"]


async def test_a_key_goes_to_its_own_endpoint_and_no_other(place: Site) -> None:
    """Two endpoints, one key: a job of the other endpoint must not be given it."""
    (place.folder / "rows.csv").write_text("path\na\n")
    async with endpoint() as (url, seen), endpoint() as (other, seen_there):
        key = Secret("the-key-of-this-server")
        worker = {"toolsets": "none", "model": "m", "base_url": url, "api_key": key, "max_attempts": 1}
        tools = place.tools(worker=worker)
        there = place.tools(worker={**worker, "base_url": other, "api_key": Secret("another-key")})
        here_id = (await spawned(tools, wait=True))["job_id"]
        there_id = (await spawned(there, wait=True))["job_id"]
        assert set(seen) == {"Bearer the-key-of-this-server"}
        assert set(seen_there) == {"Bearer another-key"}
        seen.clear()
        for job_id in (here_id, there_id):
            assert (await call(tools, declared.RETRY, job_id=job_id))["started"]
            await ended(tools, job_id)
        assert set(seen) == {"Bearer the-key-of-this-server"}
        assert "Bearer the-key-of-this-server" not in seen_there


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[str, list[str]]]:
    """A model server that refuses everything; its address, and the keys that it was sent."""
    seen: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({"error": {"message": "no", "code": 400}}, status=400)

    application = web.Application()
    application.router.add_post("/v1/chat/completions", refuse)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", seen
    finally:
        await runner.cleanup()


# --- Who may do what


@pytest.mark.parametrize("name", ["nothing", "", "..", ".", "../data", "x" * 5000])
async def test_unknown_jobs_are_said_to_be_unknown(place: Site, name: str) -> None:
    for tool in (declared.STATUS, declared.WAIT, declared.RUN, declared.EXPORT, declared.CANCEL, declared.RETRY):
        with pytest.raises(ToolError, match="not found"):
            await call(place.tools(), tool, job_id=name)


async def test_jobs_in_other_folders_are_out_of_reach(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's own settings say which command is run, so that a folder that anybody may have put there must not be run."""
    tools = place.tools()
    job_id = (await spawned(tools, wait=True, job_name="real"))["job_id"]
    planted = place.folder / "planted"
    shutil.move(place.data / "real", planted)
    monkeypatch.chdir(place.folder)
    for name in (str(planted), "planted", "../planted", "data/../planted", job_id):
        with pytest.raises(ToolError, match="not found"):
            await call(tools, declared.RUN, job_id=name)


async def test_workers_start_no_jobs(place: Site) -> None:
    tools, worker = place.tools(), Caller(secret="secret", depth=1)
    offered = {tool.name for tool in tools.available(worker)}
    assert offered == {declared.STATUS, declared.WAIT, declared.REPORT, declared.LIST}
    for name in set(DECLARATIONS) - offered:
        with pytest.raises(ToolError, match="agent depth limit reached"):
            await call(tools, name, worker, csv_path="rows.csv", instruction="x", job_id="x")
    own = place.tools(paths=ToolPaths.of(place.folder, own_exports=True))
    assert {tool.name for tool in own.available(worker)} == {*offered, declared.EXPORT}
    deeper = place.tools(max_depth=2)
    assert len(deeper.available(worker)) == len(DECLARATIONS)


async def test_a_caller_that_leaves_stops_nothing(place: Site) -> None:
    tools = place.tools()
    calling = asyncio.ensure_future(spawned(tools))
    await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await tools.settled()
    (job,) = place.desk.list()
    assert (await ended(tools, job.job_id))["state"] == "completed"


async def test_paths_outside_the_roots_are_refused_by_each_tool(place: Site, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(place.folder / "rows.csv", root)
    (root / "link.csv").symlink_to(place.folder / "rows.csv")
    tools = place.tools(paths=ToolPaths.of(root, ["."]))
    for outside in ("../rows.csv", "link.csv", str(place.folder / "rows.csv")):
        for name in ("csv_path", "output_csv_path"):
            with pytest.raises(ToolError, match=f"{name} .* is outside the folders"):
                await spawned(tools, **{name: outside})
        with pytest.raises(ToolError, match=r"instruction_file .* is outside the folders"):
            await spawned(tools, instruction="", instruction_file=outside)
    answer = await spawned(tools, wait=True)
    assert Path(answer["output_csv_path"]).parent == root
    with pytest.raises(ToolError, match="outside the folders"):
        await call(tools, declared.EXPORT, job_id=answer["job_id"], output_csv_path="/tmp/x.csv")
    elsewhere = await spawned(place.tools(), wait=True)
    with pytest.raises(ToolError, match="outside the folders"):
        await call(tools, declared.EXPORT, job_id=elsewhere["job_id"])
