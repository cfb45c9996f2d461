"""``manyhands mcp`` over standard streams: the SDK's client and real processes."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import Tool

from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS
from manyhands.workloads.csv_jobs.service.jobs import JobService
from tests.support.commands import environment, run
from tests.support.mcp_clients import begun, content, over_streams, server_processes, words

SIMULATED = ("--model=simulated", "--toolsets=none")
SLOW = (*SIMULATED, "--simulated_latency=60")
ADDED = (
    "job_id",
    "item_id",
    "row_index",
    "source_id",
    "status",
    "attempt_count",
    "last_error",
    "result_json",
    "reported_at",
    "completed_at",
)
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
RESULT_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "score": {"type": "integer", "minimum": 1, "maximum": 10},
        "rationale": {"type": "string"},
        "signals": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["path", "score", "rationale", "signals"],
    "additionalProperties": False,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "rows.csv").write_text("path,area\na.rs,core\nb.rs,core\nc.rs,tools\n")
    yield tmp_path
    desk = JobService(tmp_path / "data", environ=environment())
    for job in desk.list():
        run_on_loop(desk.cancel(job.job_id, firm=True))


async def spawn(client: Client, **arguments: Any) -> dict[str, Any]:
    given = {"csv_path": "rows.csv", "instruction": "Score {path}.", **arguments}
    return content(await client.call_tool("spawn_agents_on_csv", given))


async def wait(client: Client, job_id: str) -> dict[str, Any]:
    answer = content(await client.call_tool("wait_agent_job", {"job_id": job_id}))
    assert not answer["timed_out"]
    status: dict[str, Any] = answer["status"]
    return status


async def listed(client: Client) -> dict[str, Tool]:
    return {tool.name: tool for tool in (await client.list_tools()).tools}


async def test_the_example_over_standard_streams(folder: Path) -> None:
    """Five rows, an instruction, a schema; wait, then the output's path and its head, without an export by hand."""
    names = ("agent_jobs.rs", "shell.rs", "control.rs", "exec_policy.rs", "mcp.rs")
    paths = [f"codex-rs/core/src/{name}" for name in names]
    table, output = folder / "security_rank_input_demo.csv", folder / "security_rank_output_demo.csv"
    table.write_text("path,area\n" + "".join(f"{path},core\n" for path in paths))
    async with over_streams(*SIMULATED, folder=folder) as client:
        answer = await spawn(
            client,
            csv_path=str(table),
            instruction="read the file (relative to repo root), skim first 200 lines, score security relevance 1-10, "
            "output JSON with keys path, score, rationale, signals array.",
            output_csv_path=str(output),
            output_schema=RESULT_SCHEMA,
        )
        assert answer["total_items"] == 5
        status = await wait(client, answer["job_id"])
    assert (status["status"], status["completed_items"], status["output_csv_path"]) == ("completed", 5, str(output))
    with output.open(newline="") as handle:
        head = list(csv.reader(handle))
    assert head[0] == ["path", "area", *ADDED]
    assert [row[0] for row in head[1:]] == paths
    results = [json.loads(row[head[0].index("result_json")]) for row in head[1:]]
    assert all(set(result) == set(RESULT_SCHEMA["properties"]) for result in results)  # type: ignore[call-overload]
    assert status["simulated"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_offered_as_declared(folder: Path, mode: str) -> None:
    """With the protocol of today's clients, and with the newest one."""
    began = time.monotonic()
    async with over_streams(*SIMULATED, folder=folder, mode=mode) as client:
        assert time.monotonic() - began < 15
        tools = await listed(client)
        assert client.server_info is not None
        assert client.server_info.name == "manyhands"
    assert list(tools) == list(DECLARATIONS)
    for name, tool in tools.items():
        declaration = DECLARATIONS[name]
        assert tool.input_schema == declaration.parameters
        assert tool.output_schema == declaration.result
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint == declaration.hints.read_only
        assert tool.description


async def test_exports_are_read_only_if_they_stay_in_our_folder(folder: Path) -> None:
    async with over_streams(*SIMULATED, "--own_exports", folder=folder) as client:
        export = (await listed(client))["export_agent_job_csv"]
        assert export.annotations is not None
        assert export.annotations.read_only_hint
        answer = await spawn(client, wait=True, job_name="mine")
        written = content(await client.call_tool("export_agent_job_csv", {"job_id": answer["job_id"]}))
        assert Path(written["output_csv_path"]).parent == folder / "data/mine/exports"
        refused = await client.call_tool("export_agent_job_csv", {"job_id": "mine", "output_csv_path": "/tmp/mine.csv"})
        assert refused.is_error


async def test_errors_are_a_sentence_for_the_model(folder: Path) -> None:
    async with over_streams(*SIMULATED, folder=folder) as client:
        for name, arguments, message in (
            ("spawn_agents_on_csv", {"csv_path": "rows.csv", "instruction": " "}, "instruction must be non-empty"),
            (
                "spawn_agents_on_csv",
                {"csv_path": "rows.csv", "instruction": "x", "max_concurrency": 2.5},
                "failed to parse function arguments: max_concurrency must be a whole number, not 2.5",
            ),
            ("get_agent_job_status", {"job_id": "nothing"}, "agent job nothing not found"),
            ("wait_agent_job", {"job_id": "nothing", "timeout_ms": 0}, "timeout_ms must be greater than zero"),
            ("no_such_tool", {}, "unknown tool no_such_tool"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert words(result) == message


async def test_an_answer_is_a_sentence_and_json_and_structured(folder: Path) -> None:
    async with over_streams(*SIMULATED, folder=folder) as client:
        answer = await client.call_tool("list_agent_jobs", {})
    sentence, as_json = words(answer).split("\n")
    assert sentence == "There are no jobs."
    assert json.loads(as_json) == answer.structured_content == {"jobs": [], "total_jobs": 0}


async def test_progress_comes_to_those_who_ask_and_never_goes_back(folder: Path) -> None:
    (folder / "rows.csv").write_text("path\n" + "".join(f"{number}\n" for number in range(40)))
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with over_streams(*SIMULATED, "--simulated_latency=0.3", folder=folder) as client:
        given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "max_concurrency": 8}
        answer = content(await client.call_tool("spawn_agents_on_csv", given, progress_callback=note))
    assert answer["completed_items"] == 40
    assert len(seen) > 1
    steps = [progress for progress, _, _ in seen]
    assert steps == sorted(set(steps))
    assert {total for _, total, _ in seen} == {40}
    assert all("of 40 rows ended" in (message or "") for _, _, message in seen)


async def test_a_cancelled_call_leaves_the_job_running(folder: Path) -> None:
    async with over_streams(*SLOW, folder=folder) as client:
        given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "job_name": "slow"}
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "spawn_agents_on_csv", given)
            await begun(client, "slow")
            group.cancel_scope.cancel()  # which the client tells the server
        with anyio.move_on_after(0.3) as scope:
            await client.call_tool("wait_agent_job", {"job_id": "slow"})
        assert scope.cancelled_caught
        assert content(await client.call_tool("get_agent_job_status", {"job_id": "slow"}))["runner_active"]


async def test_the_servers_end_is_no_jobs_end(folder: Path) -> None:
    """The input ends; then the server is killed. Another server goes on where the first one stopped."""
    async with over_streams(*SLOW, folder=folder) as client:
        job_id = (await spawn(client))["job_id"]
    desk = JobService(folder / "data", environ=environment())
    assert desk.status(job_id).runner_active
    await use_until_killed(folder, job_id)
    assert desk.status(job_id).runner_active
    async with over_streams(*SLOW, folder=folder) as client:
        status = content(await client.call_tool("cancel_agent_job", {"job_id": job_id, "firm": True}))["status"]
        assert status["job_id"] == job_id
        assert (await wait(client, job_id))["status"] == "cancelled"


async def use_until_killed(folder: Path, job_id: str) -> None:
    """Call a server, and kill it."""
    with suppress(BaseExceptionGroup, MCPError):  # which it is, is the SDK's choice
        async with over_streams(*SLOW, folder=folder, forked=False) as client:
            (server,) = server_processes()
            assert content(await client.call_tool("get_agent_job_status", {"job_id": job_id}))["runner_active"]
            os.kill(server, signal.SIGKILL)
            await client.call_tool("get_agent_job_status", {"job_id": job_id}, read_timeout_seconds=5)
            raise AssertionError("a killed server answered")


async def test_a_job_whose_runner_was_killed_goes_on_with_the_next_server(folder: Path) -> None:
    # Workers that end only when the test lets them.
    worker = """sh -c 'while [ ! -e go ]; do sleep 0.05; done; echo "{\\"score\\": 1}"'"""
    async with over_streams("--worker_command", worker, folder=folder) as client:
        killed = (await spawn(client))["job_id"]
    desk = JobService(folder / "data", environ=environment())
    kill_runner(desk, killed)
    async with over_streams(*SLOW, "--no-run_interrupted", folder=folder) as client:
        cancelled = (await spawn(client))["job_id"]
        await client.call_tool("cancel_agent_job", {"job_id": cancelled, "firm": True})
        await wait(client, cancelled)
    assert desk.status(killed).state == "interrupted"
    async with over_streams(*SIMULATED, "--no-run_interrupted", folder=folder) as client:
        await asyncio.sleep(0.5)
        assert content(await client.call_tool("get_agent_job_status", {"job_id": killed}))["state"] == "interrupted"
    (folder / "go").touch()
    async with over_streams(*SIMULATED, folder=folder) as client:
        for _ in range(100):
            status = content(await client.call_tool("get_agent_job_status", {"job_id": killed}))
            if status["state"] != "interrupted":
                break
            await asyncio.sleep(0.1)
        status = await wait(client, killed)
        assert (status["state"], status["completed_items"]) == ("completed", 3)
        assert content(await client.call_tool("get_agent_job_status", {"job_id": cancelled}))["state"] == "cancelled"
    assert f"continuing job {killed}" in (folder / "stderr.txt").read_text()


def kill_runner(desk: JobService, job_id: str) -> None:
    process = json.loads((desk.status(job_id).folder / "runner.json").read_text())["process"]
    os.kill(process, signal.SIGKILL)
    end = time.monotonic() + 10
    while desk.status(job_id).runner_active:
        assert time.monotonic() < end
        time.sleep(0.05)


# --- Workers


async def test_a_worker_is_offered_the_report_and_no_new_jobs(folder: Path) -> None:
    async with over_streams(*SLOW, folder=folder) as client:
        job_id = (await spawn(client))["job_id"]
    async with over_streams(*SLOW, folder=folder, environ={"MANYHANDS_WORKER": "a guess"}) as client:
        assert set(await listed(client)) == {
            "get_agent_job_status",
            "wait_agent_job",
            "report_agent_job_result",
            "list_agent_jobs",
        }
        assert "one row" in (client.instructions or "")
        refused = await client.call_tool("spawn_agents_on_csv", {"csv_path": "rows.csv", "instruction": "x"})
        assert refused.is_error
        assert words(refused).startswith("agent depth limit reached")
        report = {"job_id": job_id, "item_id": "row-1", "result": {"score": 1}}
        answer = content(await client.call_tool("report_agent_job_result", report))
        assert not answer["accepted"]
        assert answer["reason"]


async def test_jobs_within_jobs_are_bounded(folder: Path) -> None:
    """How deep a worker is follows from the job that it works in."""
    deeper, worker = (*SLOW, "--max_depth=2"), {"MANYHANDS_WORKER": "a guess"}
    data = {"MANYHANDS_DATA_DIR": str(folder / "data")}
    async with over_streams(*deeper, folder=folder) as client:
        outer = (await spawn(client))["job_id"]
    async with over_streams(*deeper, folder=folder, environ=worker) as client:
        assert "spawn_agents_on_csv" not in await listed(client)  # nobody knows how deep it is
    elsewhere = (*deeper, "--data_dir=elsewhere")
    async with over_streams(*elsewhere, folder=folder, environ={**worker, **data, "MANYHANDS_JOB_ID": outer}) as client:
        assert len(await listed(client)) == len(DECLARATIONS)
        inner = (await spawn(client))["job_id"]
    async with over_streams(*deeper, folder=folder, environ={**worker, **data, "MANYHANDS_JOB_ID": inner}) as client:
        assert "spawn_agents_on_csv" not in await listed(client)


# --- The process


def server(*options: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "manyhands", "mcp", *SIMULATED, *options],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def test_the_end_of_the_input_ends_the_server(folder: Path) -> None:
    process = server(folder=folder)
    output, said = process.communicate("", timeout=20)
    assert (process.returncode, output, said) == (0, "", "")


def test_the_end_of_the_input_amid_a_call_leaves_nothing_half_made(folder: Path) -> None:
    process = server("--simulated_latency=60", folder=folder)
    assert process.stdin is not None
    given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "job_name": "left"}
    call = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "spawn_agents_on_csv", "arguments": given},
    }
    for message in (HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call):
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    end = time.monotonic() + 20
    while not (folder / "data/left").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    process.communicate(timeout=20)
    assert process.returncode == 0
    status = JobService(folder / "data", environ=environment()).status("left")
    assert (status.state, status.total_items) == ("running", 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server(folder: Path, number: signal.Signals) -> None:
    process = server(folder=folder)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(HELLO) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["protocolVersion"] == "2025-06-18"
    process.send_signal(number)
    output, said = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "")
    assert "Traceback" not in said


def test_only_the_protocol_is_on_standard_output(folder: Path) -> None:
    """What no client understands is an error message, not an end."""
    process = server(folder=folder)
    output, said = process.communicate("no JSON\n[1, 2]\n{}\n", timeout=20)
    assert process.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in output.splitlines())
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--roots=nowhere",), "--roots names 'nowhere', which is no folder"),
        (("--http=70000",), "--http must be between 0 and 65535"),
        (("--http=0", "--host=0.0.0.0"), "--host must be a loopback address"),
        (("--http=0", "--host=example.org"), "--host must be a loopback address"),
        (("--http=0", "--token=short"), "--token must be 16 or more visible ASCII characters"),
        (("--wait_limit=0",), "--wait_limit must be between 1 and"),
        (("--csv_path=rows.csv",), "unknown option --csv_path"),
        (("--worker_command=a", "--worker_function=b:c"), "--worker_command or --worker_function, not both"),
        (("--prices=nowhere.yaml",), "nowhere.yaml"),
        (("--worker_command=true", "--temperature=1"), "--temperature"),
    ],
)
def test_what_can_not_be_served_is_refused_at_once(folder: Path, options: tuple[str, ...], message: str) -> None:
    ended = run("mcp", *SIMULATED, *options, folder=folder)
    assert (ended.code, ended.out) == (2, ""), ended
    assert message in ended.err
    assert "short" not in ended.err


def test_without_the_sdk_one_line_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys; sys.modules['mcp'] = None; sys.modules['mcp_types'] = None\n"
        "from manyhands.cli.main import main; sys.exit(main(['mcp', '--model=simulated']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert done.stderr.startswith("manyhands: error: manyhands mcp needs an extra: pip install 'manyhands[mcp]'")
    assert len(done.stderr.splitlines()) == 1


def test_help_explains_the_servers_options_and_none_of_a_single_job(folder: Path) -> None:
    ended = run("mcp", "--help", folder=folder)
    assert ended.code == 0
    for option in ("--http PORT", "--roots A,B", "--worker_command", "--model", "--data_dir", "--wait_limit"):
        assert option in ended.out
    for option in ("--csv_path", "--instruction", "--id_column", "--output_schema", "--job_name"):
        assert option not in ended.out
