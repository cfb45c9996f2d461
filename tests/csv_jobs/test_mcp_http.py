"""``manyhands mcp --http``: a real server, the SDK's client, and requests that must be refused."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest

from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS
from manyhands.workloads.csv_jobs.mcp.http import MAX_BODY_BYTES
from manyhands.workloads.csv_jobs.service.jobs import JobService
from tests.support.commands import environment
from tests.support.mcp_clients import HttpServer, begun, content, over_http, words

SIMULATED = ("--model=simulated", "--toolsets=none")
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


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    root.mkdir()
    for place in (tmp_path, root):
        (place / "rows.csv").write_text("path\na.rs\nb.rs\n")
    yield root
    desk = JobService(root / "data", environ=environment())
    for job in desk.list():
        run_on_loop(desk.cancel(job.job_id, firm=True))


async def post(server: HttpServer, headers: dict[str, str], body: Any = HELLO) -> tuple[int, str, dict[str, str]]:
    """A request as typed by hand; its status, body and headers. None as a value leaves a header out."""
    given = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {server.token}"}
    sent = {name: value for name, value in {**given, **headers}.items() if value}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url, data=data, headers={"Content-Type": "application/json", **sent}) as answer,
    ):
        return answer.status, await answer.text(), dict(answer.headers)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_job_over_http(folder: Path, mode: str) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        async with over_http(server.url, server.token, mode=mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(DECLARATIONS)
            given = {"csv_path": "rows.csv", "instruction": "Score {path}."}
            answer = content(await client.call_tool("spawn_agents_on_csv", given))
        async with over_http(server.url, server.token, mode=mode) as client:  # another client goes on
            status = content(await client.call_tool("wait_agent_job", {"job_id": answer["job_id"]}))["status"]
            assert (status["state"], status["completed_items"]) == ("completed", 2)
            failed = await client.call_tool("get_agent_job_status", {"job_id": "nothing"})
            assert failed.is_error
            assert words(failed) == "agent job nothing not found"
    assert Path(answer["output_csv_path"]).parent == folder


async def test_progress_over_http(folder: Path) -> None:
    (folder / "rows.csv").write_text("path\n" + "".join(f"{number}\n" for number in range(20)))
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    with HttpServer(*SIMULATED, "--simulated_latency=0.3", folder=folder) as server:
        async with over_http(server.url, server.token) as client:
            given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "max_concurrency": 4}
            answer = content(await client.call_tool("spawn_agents_on_csv", given, progress_callback=note))
    assert answer["completed_items"] == 20
    assert seen
    assert seen == sorted(set(seen))


async def test_only_requests_for_this_server_with_the_token_are_answered(folder: Path) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        port = urlsplit(server.url).port
        own = f"http://127.0.0.1:{port}"
        status, body, _ = await post(server, {})
        assert status == 200, body
        assert (await post(server, {"Origin": own}))[0] == 200
        assert (await post(server, {"Host": f"localhost:{port}"}))[0] == 200
        for headers, expected, reason in (
            ({"Authorization": ""}, 401, "a token is needed"),
            ({"Authorization": "Bearer "}, 401, "a token is needed"),
            ({"Authorization": "Basic abc"}, 401, "a token is needed"),
            ({"Authorization": "Bearer wrong"}, 401, "the token is not the one"),
            ({"Authorization": f"Bearer {server.token}x"}, 401, "the token is not the one"),
            ({"Authorization": "Bearer ü"}, 401, "the token is not the one"),
            ({"Host": "evil.example"}, 421, "names another server"),
            ({"Host": f"evil.example:{port}"}, 421, "names another server"),
            ({"Host": "127.0.0.1"}, 421, "names another server"),
            ({"Host": f"127.0.0.1:{port}.evil.example"}, 421, "names another server"),
            ({"Origin": "http://evil.example"}, 403, "another origin"),
            ({"Origin": f"http://evil.example:{port}"}, 403, "another origin"),
            ({"Origin": f"https://127.0.0.1:{port}"}, 403, "another origin"),
            ({"Origin": "null"}, 403, "another origin"),
            ({"Origin": f"{own}.evil.example"}, 403, "another origin"),
        ):
            status, body, said = await post(server, headers)
            assert (status, reason in json.loads(body)["error"]) == (expected, True), headers
            assert ("WWW-Authenticate" in said) == (expected == 401)
            assert server.token not in body
        assert server.said.count(server.token) == 1  # printed at the start, and never again


async def test_a_given_token_is_not_printed(folder: Path) -> None:
    token = "a-token-of-my-own-making"
    with HttpServer(*SIMULATED, folder=folder, environ={"MANYHANDS_MCP_TOKEN": token}) as server:
        assert token not in server.said
        async with over_http(server.url, token) as client:
            given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True}
            answer = content(await client.call_tool("spawn_agents_on_csv", given))
            assert answer["completed_items"] == 2
        server.end()
        assert token not in server.said
    for path in folder.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


async def test_no_runner_is_told_the_token(folder: Path) -> None:
    token = "a-token-of-my-own-making"
    slow = ("--simulated_latency=60",)
    with HttpServer(*SIMULATED, *slow, folder=folder, environ={"MANYHANDS_MCP_TOKEN": token}) as server:
        async with over_http(server.url, token) as client:
            given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "job_name": "slow"}
            await client.call_tool("spawn_agents_on_csv", given)
        runner = json.loads((folder / "data/slow/runner.json").read_text())["process"]
        assert token.encode() not in Path(f"/proc/{runner}/environ").read_bytes()


async def test_large_requests_are_refused(folder: Path) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        status, _, _ = await post(server, {}, b"x" * (MAX_BODY_BYTES + 1))
        assert status == 413
        assert (await post(server, {}))[0] == 200


async def test_paths_are_confined_to_the_current_folder(folder: Path) -> None:
    (folder / "link.csv").symlink_to(folder.parent / "rows.csv")
    with HttpServer(*SIMULATED, folder=folder) as server:
        async with over_http(server.url, server.token) as client:
            for outside in ("../rows.csv", "link.csv", str(folder.parent / "rows.csv"), "/etc/passwd"):
                for argument in ("csv_path", "output_csv_path"):
                    given = {"csv_path": "rows.csv", "instruction": "x", argument: outside}
                    result = await client.call_tool("spawn_agents_on_csv", given)
                    assert result.is_error
                    assert "outside the folders that this server may use" in words(result)
    assert not (folder / "data").exists()


async def test_roots_may_be_given(folder: Path) -> None:
    with HttpServer(*SIMULATED, f"--roots={folder.parent}", folder=folder) as server:
        async with over_http(server.url, server.token) as client:
            given = {"csv_path": "../rows.csv", "instruction": "Score {path}.", "wait": True}
            assert content(await client.call_tool("spawn_agents_on_csv", given))["completed_items"] == 2


async def test_a_header_says_that_a_worker_calls(folder: Path) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        async with over_http(server.url, server.token, {"X-Manyhands-Worker": "a guess"}) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "report_agent_job_result" in names
            assert "spawn_agents_on_csv" not in names
            result = await client.call_tool("spawn_agents_on_csv", {"csv_path": "rows.csv", "instruction": "x"})
            assert words(result).startswith("agent depth limit reached")
        async with over_http(server.url, server.token) as client:
            assert len((await client.list_tools()).tools) == len(DECLARATIONS)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_goes_away_stops_no_job(folder: Path, mode: str) -> None:
    with HttpServer(*SIMULATED, "--simulated_latency=60", folder=folder) as server:
        async with over_http(server.url, server.token, mode=mode) as client:
            given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "job_name": "slow"}
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "spawn_agents_on_csv", given)
                await begun(client, "slow")
                group.cancel_scope.cancel()
        async with over_http(server.url, server.token, mode=mode) as client:
            assert content(await client.call_tool("get_agent_job_status", {"job_id": "slow"}))["state"] == "running"
        assert server.end() == 0
    assert JobService(folder / "data", environ=environment()).status("slow").runner_active


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_also_while_a_call_waits(folder: Path, number: signal.Signals) -> None:
    answers: list[dict[str, Any]] = []
    with HttpServer(*SIMULATED, "--simulated_latency=60", folder=folder) as server:

        async def call_and_wait() -> None:
            given = {"csv_path": "rows.csv", "instruction": "Score {path}.", "wait": True, "job_name": "slow"}
            async with over_http(server.url, server.token) as client:
                await client.list_tools()  # the client checks the answer by it, and the server is gone then
                answers.append(content(await client.call_tool("spawn_agents_on_csv", given)))

        async with anyio.create_task_group() as group:
            group.start_soon(call_and_wait)
            async with over_http(server.url, server.token) as client:
                await begun(client, "slow")
            code = await anyio.to_thread.run_sync(server.end, number)
        assert code == 0
        assert "Traceback" not in server.said
    (answer,) = answers
    assert answer["timed_out"]  # the job goes on, and another server will tell
    assert JobService(folder / "data", environ=environment()).status(answer["job_id"]).runner_active


def test_it_listens_on_this_machine_only(folder: Path) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        port = urlsplit(server.url).port
        listening = [
            line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
        ]
        assert [address for address in listening if int(address.split(":")[1], 16) == port] == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize("host", ["::1", "127.0.0.2", "localhost"])
async def test_other_names_of_this_machine(folder: Path, host: str) -> None:
    with HttpServer(*SIMULATED, f"--host={host}", folder=folder) as server:
        async with over_http(server.url, server.token) as client:
            assert len((await client.list_tools()).tools) == len(DECLARATIONS)


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"can't listen on 127.0.0.1 port {port}"):
            HttpServer(*SIMULATED, f"--http={port}", folder=folder).__enter__()


def test_nothing_that_others_may_read_holds_a_secret(folder: Path) -> None:
    with HttpServer(*SIMULATED, folder=folder) as server:
        command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert server.token.encode() not in command
