"""What a model, a tool or a schema says holds up nobody: conversations end, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, ToolError
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import Retries
from manyhands.processes.killable import killable
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.testing.agent_doubles import FakeTool, hold
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from manyhands.tools.mcp.tools import McpTool, _validator
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.standard import standard_registry
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers.printed_result import result_in
from manyhands.workloads.csv_jobs.workers.reports import Corrections, ReportInbox

LONGEST_LAG = 2.0
"""Seconds for which the event loop may be held up; what was mended held it for 38 and more."""
SLOW_PATTERN = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
SLOW = {"x": "a" * 50 + "b"}


@asynccontextmanager
async def beating() -> AsyncIterator[SimpleNamespace]:
    """Another item's work: something that wants the loop fifty times a second."""
    beats = SimpleNamespace(longest=0.0, count=0)

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.02)
            beats.longest = max(beats.longest, time.perf_counter() - began - 0.02)
            beats.count += 1

    task = asyncio.create_task(beat())
    try:
        async with asyncio.timeout(60):
            yield beats
    finally:
        task.cancel()
    assert beats.longest < LONGEST_LAG


def call(name: str, arguments: str, call_id: str = "c1") -> list[dict[str, Any]]:
    return [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]


ANSWERS: dict[str, Any] = {
    "a reasoning tag that is never closed": chat_response("<think>" * 63_000),
    "a scratchpad that is never closed": chat_response("<REASONING_SCRATCHPAD>" * 20_000),
    "reasoning in 50,000 parts": chat_response("ok", reasoning_details=[{"text": f"{n:06d}"} for n in range(50_000)]),
    "arguments nested deeply": chat_response(None, tool_calls=call("search", '{"q":' * 100_000)),
    "arguments nested 950 deep": chat_response(None, tool_calls=call("search", '{"q":' * 950 + "1" + "}" * 950)),
    "an integer of a million digits": chat_response(None, tool_calls=call("search", f'{{"q": {"9" * 1_000_000}}}')),
    "half a million backslashes": chat_response(None, tool_calls=call("search", '{"q": "' + "\\" * 500_001)),
    "a name of a million letters": chat_response(None, tool_calls=call("ab" * 500_000, "{}")),
    "half a million line breaks": chat_response("\n" * 500_000),
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_a_conversation_goes_on_after_any_answer(what: str) -> None:
    def reply(request: Any) -> Any:
        return ANSWERS[what] if len(server.requests) == 1 else chat_response("Done.")

    async with ScriptedServer(reply) as server, beating():
        model = OpenAIChatModel(server.base_url, retries=Retries(delay=0.001))
        try:
            result = await hold(model, [FakeTool("search")], max_turns=6)  # type: ignore[arg-type]
        finally:
            await model.close()
    assert result.messages[0] == {"role": "user", "content": "Do it."}


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 3_000_000,
        b'{"choices":' * 500_000,
        b'{"error":' * 900 + b'"x"' + b"}" * 900,
        b'{"choices": ' + b"9" * 3_000_000 + b"}",
    ],
)
async def test_a_body_that_can_not_be_read_fails_its_item_alone(body: bytes) -> None:
    from manyhands.testing.scripted_server import ScriptedResponse

    async with ScriptedServer([ScriptedResponse(body)]) as server, beating():
        model = OpenAIChatModel(server.base_url, retries=Retries(delay=0.001))
        try:
            with pytest.raises(ItemError):
                await hold(model)  # type: ignore[arg-type]
        finally:
            await model.close()


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[tuple[ToolEnvironment, Path]]:
    sandbox = await LocalBackend().create(SandboxRequest(folder=folder, run_id="test"))

    async def same() -> Sandbox:
        return sandbox

    try:
        yield ToolEnvironment(same, SystemClock(), timeout=60.0), folder / "workspace"
    finally:
        await sandbox.close()


@pytest.mark.parametrize("alike", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_large_patch_of_a_large_file(tmp_path: Path, alike: bool) -> None:
    lines = ["same" if alike else f"line {number}" for number in range(400_000)]
    hunks = "".join(f"@@ {lines[at]}\n-{lines[at + 1]}\n+x{at}\n" for at in range(0, 400_000, 400))
    hunks = hunks[: hunks.rindex("@@", 0, 40_000)]
    tool = standard_registry(plugins=False).get("patch")
    async with bench(tmp_path) as (environment, workspace), beating():
        (workspace / "f").write_text("\n".join(lines))
        patch = f"*** Begin Patch\n*** Update File: f\n{hunks}*** End Patch"
        result = await tool.call({"mode": "patch", "patch": patch}, environment)
        assert not result.failed
        changed = (workspace / "f").read_text().split("\n")
    assert len(changed) == len(lines)
    assert changed.count("x0") == 1
    assert sum(line.startswith("x") for line in changed) == hunks.count("@@")


async def test_a_piece_of_like_lines_in_a_file_of_like_lines(tmp_path: Path) -> None:
    tool = standard_registry(plugins=False).get("patch")
    async with bench(tmp_path) as (environment, workspace), beating():
        (workspace / "f").write_text("a\n" * 400_000)
        for old in ("a\n" * 10_000 + "b", " a\n" * 10_000, "a" * 40_000):
            with pytest.raises(ToolError):
                await tool.call({"path": "f", "old_string": old, "new_string": "c"}, environment)


async def test_a_file_of_too_many_lines_is_refused(tmp_path: Path) -> None:
    tool = standard_registry(plugins=False).get("patch")
    async with bench(tmp_path) as (environment, workspace), beating():
        (workspace / "f").write_text("\n" * 5_000_000)
        with pytest.raises(ToolError, match="lines"):
            await tool.call({"path": "f", "old_string": "a", "new_string": "c"}, environment)


@pytest.mark.slow
async def test_a_schema_s_pattern_ends_at_its_limit() -> None:
    schema = OutputSchema.of(SLOW_PATTERN)
    async with beating() as beats:
        began = time.monotonic()
        assert "could not be checked" in (await schema.check(SLOW))[0]
        assert "no result could be found" in (await result_in(json.dumps(SLOW), schema)).violations[0]  # type: ignore[union-attr]
        assert time.monotonic() - began < 40
        assert beats.count > 50
        assert await schema.check({"x": "aaa"}) == ()
        assert await schema.check({"x": "b"}) != ()


async def test_items_that_can_not_be_sorted_for_uniqueness_end_at_the_limit() -> None:
    schema = OutputSchema.of({"type": "object", "properties": {"x": {"uniqueItems": True}}})
    async with beating():
        assert "could not be checked" in (await schema.check({"x": [{"n": n} for n in range(60_000)]}))[0]


async def test_a_report_is_taken_once_though_its_check_takes_long() -> None:
    schema = OutputSchema.of(SLOW_PATTERN)
    inbox = ReportInbox("job")
    report = inbox.open("job", "item", schema, Corrections(3))
    async with beating():
        slow = asyncio.create_task(inbox.deliver("job", "item", SLOW, stop=False, secret=report.secret))
        first, second = (
            asyncio.create_task(inbox.deliver("job", "item", {"x": "a"}, stop=False, secret=report.secret))
            for _ in range(2)
        )
        assert (await report.arrived()).result == {"x": "a"}
        report.settled(True)
        taken = [(await each).accepted for each in (first, second)]
        assert sorted(taken) == [False, True]
        assert not (await slow).accepted
    report.close("over")


async def test_a_pattern_of_an_mcp_server_ends_at_its_limit() -> None:
    async def called(name: str, arguments: dict[str, Any], seconds: float) -> Any:
        raise AssertionError("wrong arguments reach no server")

    server: Any = SimpleNamespace(name="s", call=called)
    tool = McpTool("s__t", "", SLOW_PATTERN, server, "t", _validator(SLOW_PATTERN))
    environment: Any = SimpleNamespace(timeout=5.0, max_output=1000)
    async with beating():
        with pytest.raises(ToolError, match="could not be checked"):
            await tool.call(dict(SLOW), environment)


async def test_a_call_that_takes_too_much_memory_ends_alone() -> None:
    async with beating():
        with pytest.raises(TimeoutError):
            await killable(bytes, 1 << 36, seconds=5.0)
        assert await killable(len, [1, 2], seconds=5.0) == 2


async def test_helpers_have_neither_the_keys_nor_the_folder_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import os

    from manyhands.processes import killable as module

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-readers")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    (tmp_path / "orjson.py").write_text("raise SystemExit(3)")
    helper = module._Helper()
    try:
        import pickle

        good, environ = helper.call(pickle.dumps((os.getcwd, (), 5.0)), 5.0)
        assert (good, environ) == (True, "/")
        assert "sk-of-readers" not in Path(f"/proc/{helper._process.pid}/environ").read_text()
    finally:
        helper.kill()
