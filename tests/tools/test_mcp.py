"""Mounting MCP servers: real ones, over standard streams and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError, UserError
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.mcp.config import McpConfig, interpolated, load_mcp_config
from manyhands.tools.mcp.tools import Mounted, mounted, wire_name
from manyhands.tools.protocol import Tool, ToolEnvironment
from manyhands.tools.standard import standard_registry
from tests.support.forked import forked_program
from tests.support.ports import held_port

SERVER = Path(__file__).with_name("mcp_server_for_tests.py")


async def no_sandbox() -> Sandbox:
    raise AssertionError("MCP tools use no sandbox")


def environment(timeout: float = 20.0, max_output: int = 5000) -> ToolEnvironment:
    return ToolEnvironment(sandbox=no_sandbox, clock=SystemClock(), timeout=timeout, max_output=max_output)


def stdio(how: str = "stdio", forked: bool = True, **more: Any) -> dict[str, Any]:
    """``forked``: the server is forked, which is quick, and a process stands in for it; otherwise it is a child, as are its own."""
    command, *args = forked_program(SERVER, how) if forked else [sys.executable, str(SERVER), how]
    return {"command": command, "args": args, **more}


def config(**servers: dict[str, Any]) -> McpConfig:
    return McpConfig.model_validate({"servers": servers, "source": "mcp.json"})


def found(addition: Mounted, name: str) -> Tool:
    return next(tool for tool in addition.tools if tool.name == name)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also while it is being read
        return False


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as port:
        yield port


@pytest.fixture
def http_port(port: int) -> Iterator[int]:
    process = serve(port)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def serve(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(forked_program(SERVER, "http", str(port)))
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the server did not come up")


async def test_tools_of_a_stdio_server() -> None:
    async with mounted(config(calc=stdio())) as addition:
        registry = addition.added_to(standard_registry(plugins=False))
        assert registry.groups["calc"] == tuple(tool.name for tool in addition.tools)
        add = found(addition, "calc__add")
        assert add.description == "Add two numbers."
        assert not add.changes_world
        assert (await add.call({"a": 2, "b": 3}, environment())).content == 5
        picture = await found(addition, "calc__picture").call({}, environment())
        assert picture.content == "a dot\n[image of type image/png, 9 bytes, not shown]"
        long = await found(addition, "calc__long").call({"size": 100_000}, environment())
        assert len(long.content) <= 5000
        assert "characters left out" in long.content
        assert sum(tool.name.startswith("calc__odd_name_") for tool in addition.tools) == 1
        assert registry.get("calc__add").parameters["required"] == ["a", "b"]


async def test_arguments_are_checked_by_the_servers_own_schema() -> None:
    async with mounted(config(calc=stdio())) as addition:
        add = found(addition, "calc__add")
        with pytest.raises(ToolError, match=r"argument 'b' was \"three\".*It takes: a \(required\), b \(required\)"):
            await add.call({"a": 2, "b": "three"}, environment())
        with pytest.raises(ToolError, match="'b' is a required property"):
            await add.call({"a": 2}, environment())


async def test_an_error_of_the_tool_goes_to_the_model() -> None:
    async with mounted(config(calc=stdio())) as addition:
        with pytest.raises(ToolError, match="no such city"):
            await found(addition, "calc__fail").call({"message": "no such city"}, environment())


async def test_calls_run_beside_each_other_and_have_a_time_limit() -> None:
    async with mounted(config(calc=stdio())) as addition:
        slow = found(addition, "calc__slow")
        waiting = [asyncio.create_task(slow.call({"seconds": 30}, environment())) for _ in range(5)]
        assert (await found(addition, "calc__add").call({"a": 1, "b": 2}, environment())).content == 3
        assert not any(task.done() for task in waiting), "a call waited for those before it"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        with pytest.raises(ToolError, match=r"no answer to slow within 0\.3 s"):
            await slow.call({"seconds": 30}, environment(timeout=0.3))
        assert (await found(addition, "calc__add").call({"a": 1, "b": 1}, environment())).content == 2


async def test_a_dead_server_is_connected_once_more() -> None:
    async with mounted(config(calc=stdio())) as addition:
        whoami = found(addition, "calc__whoami")
        first = (await whoami.call({}, environment())).content["pid"]
        os.kill(first, signal.SIGKILL)
        assert gone_within(first, 5)
        second = (await whoami.call({}, environment())).content["pid"]
        assert second != first
        with pytest.raises(ToolError, match=r"MCP server 'calc': the server is gone"):
            await found(addition, "calc__die").call({}, environment())
        assert (await whoami.call({}, environment())).content["pid"] not in (first, second)


async def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cret-value")
    monkeypatch.setenv("UNRELATED_KEY", "not passed on")
    servers = config(calc=stdio(env={"TOKEN": "x-${A_TOKEN}-${OTHER:-y}"}))
    async with mounted(servers) as addition:
        assert (await found(addition, "calc__whoami").call({}, environment())).content["token"] == "x-s3cret-value-y"
    assert "s3cret-value" not in servers.model_dump_json()
    with pytest.raises(UserError, match=r"MCP server 'calc': .*it wrote: no licence for \[redacted\]") as caught:
        async with mounted(config(calc=stdio("exit", env={"TOKEN": "${A_TOKEN}"}))):
            pass
    assert "s3cret-value" not in str(caught.value)


async def test_a_server_that_does_not_start_is_named() -> None:
    with pytest.raises(UserError, match=r"MCP server 'late': not ready within 0\.5 s"):
        async with mounted(config(fine=stdio(), late=stdio("hang", start_timeout=0.5))):
            pass
    with pytest.raises(UserError, match=r"MCP server 'none': the command 'no-such-command' was not found"):
        async with mounted(config(none={"command": "no-such-command"})):
            pass
    with pytest.raises(UserError, match=r"MCP server 'web': could not be started"):
        async with mounted(config(web={"url": "http://127.0.0.1:9/mcp"})):
            pass


async def test_processes_end_with_the_mount() -> None:
    async with mounted(config(calc=stdio(forked=False))) as addition:
        pid = (await found(addition, "calc__whoami").call({}, environment())).content["pid"]
        child = (await found(addition, "calc__child").call({}, environment())).content
        assert alive(pid)
        assert alive(child)
    assert not alive(pid)
    assert gone_within(child, 2)


def test_processes_end_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_mcp import *
async def main():
    async with mounted(config(calc=stdio(forked=False))) as addition:
        server = (await found(addition, "calc__whoami").call({{}}, environment())).content["pid"]
        child = (await found(addition, "calc__child").call({{}}, environment())).content
        print(server, child, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    ours = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root)
    assert ours.stdout is not None
    server, child = map(int, ours.stdout.readline().split())
    assert alive(server)
    assert alive(child)
    ours.kill()
    ours.wait()
    ours.stdout.close()
    assert gone_within(server, 5)
    assert gone_within(child, 5)


async def test_tools_of_an_http_server(http_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cret-value")
    headers = {"Authorization": "Bearer ${A_TOKEN}"}
    server = {"url": f"http://127.0.0.1:{http_port}/mcp", "headers": headers, "tools": ["add", "slow"]}
    async with mounted(config(calc=server)) as addition:
        assert [tool.name for tool in addition.tools] == ["calc__add", "calc__slow"]
        add = found(addition, "calc__add")
        assert (await add.call({"a": 2, "b": 3}, environment())).content == 5
        with pytest.raises(ToolError, match="no answer"):
            await found(addition, "calc__slow").call({"seconds": 30}, environment(timeout=0.3))


async def test_an_http_server_that_restarts(port: int) -> None:
    process = serve(port)
    try:
        async with mounted(config(calc={"url": f"http://127.0.0.1:{port}/mcp"})) as addition:
            add = found(addition, "calc__add")
            assert (await add.call({"a": 2, "b": 3}, environment())).content == 5
            process.kill()
            process.wait()
            with pytest.raises(ToolError, match=r"MCP server 'calc': the server is gone"):
                await add.call({"a": 2, "b": 3}, environment())
            process = serve(port)
            assert (await add.call({"a": 2, "b": 4}, environment())).content == 6
    finally:
        process.kill()
        process.wait()


async def test_an_unknown_tool_in_the_configuration_is_named() -> None:
    with pytest.raises(UserError, match=r"mcp\.json: mcpServers\.calc\.tools: .*no tool 'ad'; did you mean add\?"):
        async with mounted(config(calc=stdio(tools=["ad"]))):
            pass


def test_names_that_every_endpoint_takes() -> None:
    assert wire_name("notes__read-all") == "notes__read-all"
    assert wire_name("a b") != wire_name("a_b")
    assert wire_name("a b") != wire_name("a.b")
    assert len(wire_name("x" * 100)) == 64


def test_the_file_is_read_as_json_and_as_yaml(tmp_path: Path) -> None:
    servers = {"calc": {"command": "calc", "args": ["-x"]}, "off": {"command": "off", "disabled": True}}
    as_json = tmp_path / "mcp.json"
    as_json.write_text(json.dumps({"mcpServers": servers}))
    as_yaml = tmp_path / "mcp.yaml"
    as_yaml.write_text("mcpServers:\n  calc:\n    command: calc\n    args: [-x]\n")
    for path in (as_json, as_yaml):
        loaded = load_mcp_config(path)
        assert list(loaded.servers) == ["calc"]
        assert loaded.servers["calc"].args == ("-x",)
        assert [toolset.name for toolset in loaded.toolsets()] == ["calc"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"mcp\.json:1: not valid JSON"),
        ("[]", r"mcp\.json: mcpServers: a mapping"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', r"mcpServers\.a b: a server's name"),
        ('{"mcpServers": {"a": {"comand": "x"}}}', r"mcpServers\.a\.comand"),
        (
            '{"mcpServers": {"a": {"command": "x", "env": {"GITHUB_TOKEN": "abcdefgh123"}}}}',
            r"mcpServers\.a\.env\.GITHUB_TOKEN: secrets are not kept in files: .* write \$\{NAME\} here",
        ),
        ('{"mcpServers": {"a": {}}}', r"mcpServers\.a: either command or url"),
        ('{"mcpServers": {"a": {"url": "ftp://x"}}}', r"mcpServers\.a\.url"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}', r"mcpServers\.a\.type"),
        (
            '{"mcpServers": {"a": {"type": "http", "command": "x"}}}',
            r"mcpServers\.a: type 'http' does not go with command",
        ),
    ],
)
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_mcp_config(path)
    assert "\n" not in str(caught.value)


def test_a_missing_variable_is_named() -> None:
    servers = config(web={"url": "http://x/mcp", "headers": {"Authorization": "Bearer ${NO_SUCH}"}})
    with pytest.raises(UserError, match=r"mcp\.json: mcpServers\.web\.headers\.Authorization: .*NO_SUCH is not set"):
        interpolated(servers, "web", {})
    server, secrets = interpolated(servers, "web", {"NO_SUCH": "12345"})
    assert server.headers["Authorization"] == "Bearer 12345"
    assert secrets == ["12345"]
