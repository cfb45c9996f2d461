"""External commands as workers that report over MCP: the whole way, with real processes.

The worker here is a small program; a Codex or Claude Code command line does the same: it starts ``manyhands mcp`` from its configuration,
hands on three variables of its environment, and calls the report tool.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import manyhands
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.jobs import JobService
from tests.support.commands import environment
from tests.support.forked import forked_program
from tests.support.mcp_clients import HttpServer, content, over_http, over_streams

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}, "path": {"type": "string"}},
    "required": ["score", "path"],
    "additionalProperties": False,
}
HANDED_ON = ("MANYHANDS_WORKER", "MANYHANDS_JOB_ID", "MANYHANDS_DATA_DIR")
WORKER = f"""
import asyncio, json, os, sys
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

HANDED_ON = {HANDED_ON!r}

def over_streams():
    given = {{name: os.environ[name] for name in (*HANDED_ON, "PATH", "PYTHONPATH")}}
    command, *args = SERVER
    return stdio_client(StdioServerParameters(command=command, args=args, env=given))

def over_http(url, token):
    headers = {{"Authorization": "Bearer " + token, "X-Manyhands-Worker": os.environ["MANYHANDS_WORKER"]}}
    return streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers))

async def main():
    row = json.loads(os.environ["MANYHANDS_ROW"])
    ids = {{"job_id": os.environ["MANYHANDS_JOB_ID"], "item_id": os.environ["MANYHANDS_ITEM_ID"]}}
    where = over_http(*sys.argv[1:]) if sys.argv[1:] else over_streams()
    said = []
    async with Client(where) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert "report_agent_job_result" in tools and "spawn_agents_on_csv" not in tools, tools
        good = {{"score": len(row["path"]), "path": row["path"]}}
        for result in ({{"score": "many", "path": row["path"]}}, good, good):
            answer = await client.call_tool("report_agent_job_result", {{**ids, "result": result}})
            said.append(answer.structured_content)
        other = {{**ids, "item_id": "another"}}
        answer = await client.call_tool("report_agent_job_result", {{**other, "result": good}})
        said.append(answer.structured_content)
    with open(row["path"] + ".json", "w") as handle:
        json.dump(said, handle)

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "rows.csv").write_text("path\na\nbb\n")
    server = forked_program(Path(manyhands.__file__).with_name("__main__.py"), "mcp")
    (tmp_path / "worker.py").write_text(f"SERVER = {server!r}\n{WORKER}")
    yield tmp_path
    desk = JobService(tmp_path / "data", environ=environment())
    for job in desk.list():
        run_on_loop(desk.cancel(job.job_id, firm=True))


def command(folder: Path, *words: str) -> str:
    return shlex.join(forked_program(folder / "worker.py", *words))


def check(folder: Path, answer: dict[str, Any]) -> None:
    """Each row has its result, and each worker was told of its mistakes."""
    assert (answer["state"], answer["completed_items"]) == ("completed", 2), answer
    with Path(answer["output_csv_path"]).open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [json.loads(row["result_json"]) for row in rows] == [
        {"score": 1, "path": "a"},
        {"score": 2, "path": "bb"},
    ]
    for name in ("a", "bb"):
        unfit, accepted, again, foreign = json.loads((folder / f"{name}.json").read_text())
        assert not unfit["accepted"]
        assert "does not fit" in unfit["reason"]
        assert unfit["violations"] == ["$.score: 'many' is not of type 'integer'"]
        assert accepted == {"accepted": True, "reason": None, "violations": []}
        assert (again["accepted"], bool(again["reason"])) == (False, True)
        assert (foreign["accepted"], bool(foreign["reason"])) == (False, True)


async def test_a_worker_reports_through_a_server_of_its_own(folder: Path) -> None:
    given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "output_schema": SCHEMA, "wait": True}
    async with over_streams("--worker_command", command(folder), folder=folder) as client:
        answer = content(await client.call_tool("spawn_agents_on_csv", given))
    check(folder, answer)


async def test_a_worker_reports_over_http(folder: Path) -> None:
    """A second server, over the same data folder, is the one that workers know."""
    given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "output_schema": SCHEMA, "wait": True}
    with HttpServer(folder=folder) as known:
        worker = command(folder, known.url, known.token)
        with HttpServer("--worker_command", worker, folder=folder) as server:
            async with over_http(server.url, server.token) as client:
                answer = content(await client.call_tool("spawn_agents_on_csv", given))
    check(folder, answer)


async def test_what_a_worker_asks_to_stop_is_stopped(folder: Path) -> None:
    text = (
        (folder / "worker.py")
        .read_text()
        .replace('{**ids, "result": result}', '{**ids, "result": result, "stop": True}')
    )
    (folder / "worker.py").write_text(text)
    (folder / "rows.csv").write_text("path\na\nbb\nccc\ndddd\n")
    given = {"csv_path": "rows.csv", "instruction": "x", "max_concurrency": 1, "wait": True}
    async with over_streams("--worker_command", command(folder), folder=folder) as client:
        answer = content(await client.call_tool("spawn_agents_on_csv", given))
    assert answer["status"] == "cancelled"
    assert answer["job_error"] == "cancelled by worker request"
    assert answer["completed_items"] >= 1
    assert answer["pending_items"] >= 1
