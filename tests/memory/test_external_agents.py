"""Agents that are not ours: programs, servers, classes and people, as they are and as they break."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.memory.agents.connections import TIME_HEADER, HttpConnection, ProgramConnection
from manyhands.workloads.memory.agents.python_class import ClassConnection, class_of
from tests.support.commands import PROGRAM, alive, environment
from tests.support.memory_benchmarks import write_configuration

MESSAGE: dict[str, Any] = {
    "type": "message",
    "number": 1,
    "text": "Hello",
    "expected_reply": None,
    "session": "s",
    "now": 1_700_000_000.0,
}

PROGRAM_TEXT = """
import json, os, sys, time
for line in sys.stdin:
    said = json.loads(line)
    text = said.get("text")
    if text == "die":
        print("my last words", file=sys.stderr)
        sys.exit(3)
    if text == "hang":
        time.sleep(600)
    if text == "garbage":
        print("this is not JSON", flush=True)
    elif text == "list":
        print("[1]", flush=True)
    elif text == "long":
        sys.stdout.write("x" * (17 << 20)); sys.stdout.flush()
    elif text == "error":
        print(json.dumps({"error": "I can't"}), flush=True)
    elif text == "surrogate":
        print('{"text": "a\\\\ud800b"}', flush=True)
    elif said["type"] == "message":
        print(json.dumps({"text": f"you said {text}", "cost_usd": 0.5, "pid": os.getpid(),
                          "time": os.environ["MANYHANDS_TIME"]}), flush=True)
    else:
        print("{}", flush=True)
"""


@asynccontextmanager
async def program(folder: Path, text: str = PROGRAM_TEXT, seconds: float = 20.0) -> AsyncIterator[ProgramConnection]:
    (folder / "agent.py").write_text(text)
    line = ProgramConnection(
        [sys.executable, "agent.py"],
        folder=folder,
        mark=f"test-{os.getpid()}-{time.monotonic_ns()}",
        seconds=seconds,
        errors=folder / "kept" / "stderr.txt",
        started_at=12.5,
    )
    await line.open()
    try:
        yield line
    finally:
        await line.close()


async def test_a_program_answers_and_ends_with_its_session(tmp_path: Path) -> None:
    async with program(tmp_path) as line:
        found = await line.send(MESSAGE)
        assert (found["text"], found["cost_usd"], found["time"]) == ("you said Hello", 0.5, "12.5")
        assert await line.send({"type": "forward_time", "now": 3.0}) == {}
        assert alive(found["pid"])
    assert not alive(found["pid"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("die", r"ended \(exit code 3\) without an answer; its last words: my last words"),
        ("garbage", "a line that is not JSON"),
        ("list", "no JSON object"),
        ("long", "can't be talked to"),
        ("error", "says: I can't"),
        ("hang", "no answer within"),
    ],
)
async def test_a_program_that_breaks(tmp_path: Path, text: str, says: str) -> None:
    async with program(tmp_path, seconds=0.5 if text == "hang" else 20.0) as line:
        with pytest.raises(ItemError, match=says) as caught:
            await line.send({**MESSAGE, "text": text})
    assert caught.value.cause is Cause.TARGET_ERROR  # so that the session goes on where it was
    assert len(caught.value.message) < 1000


async def test_a_program_that_will_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    stubborn = (
        "import os, signal, subprocess, sys, json\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "sys.stdin.readline()\n"
        "print(json.dumps({'text': '', 'pids': [os.getpid(), child.pid]}), flush=True)\n"
        "signal.pause()\n"
    )
    async with program(tmp_path, stubborn) as line:
        pids = (await line.send(MESSAGE))["pids"]
        assert all(map(alive, pids))
    for _ in range(200):
        if not any(map(alive, pids)):
            break
        await asyncio.sleep(0.05)
    assert not any(map(alive, pids))


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    line = ProgramConnection(
        ["/no/such/program"], folder=tmp_path, mark="m", seconds=1, errors=tmp_path / "e.txt", started_at=0.0
    )
    with pytest.raises(ItemError, match="can't be started"):
        await line.open()
    await line.close()


@pytest.mark.parametrize("text", ['"unclosed', "   "])
def test_words_that_are_no_command(text: str) -> None:
    with pytest.raises(UserError, match=r"^--agent_name: "):
        CommandTemplate.split(text, name="--agent_name")


# --- Servers


@asynccontextmanager
async def server(
    answer: Callable[[dict[str, Any], web.Request], Any], seconds: float = 10.0
) -> AsyncIterator[HttpConnection]:
    async def handle(request: web.Request) -> web.StreamResponse:
        found = answer(await request.json(), request)
        if isinstance(found, web.StreamResponse):
            return found
        return web.json_response(await found if asyncio.iscoroutine(found) else found)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/agent", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    line = HttpConnection(f"http://{host}:{port}/agent", seconds=seconds, key="agent-key")
    await line.open()
    try:
        yield line
    finally:
        await line.close()
        await runner.cleanup()


async def test_a_server_is_told_the_virtual_time() -> None:
    seen: list[Any] = []

    def answer(said: dict[str, Any], request: web.Request) -> Any:
        seen.append((said["text"], request.headers[TIME_HEADER], request.headers["Authorization"]))
        return {"text": "hello"}

    async with server(answer) as line:
        assert await line.send(MESSAGE) == {"text": "hello"}
    assert seen == [("Hello", "2023-11-14T22:13:20+00:00", "Bearer agent-key")]


async def test_what_a_server_does_not_know_it_may_answer_with_404() -> None:
    async with server(lambda said, request: web.Response(status=404)) as line:
        assert await line.send({"type": "load", "number": 7, "now": 0.0}) == {"number": 7}
        for kind in ("forward_time", "exchange"):
            assert await line.send({"type": kind, "number": 7, "now": 0.0}) == {}
        assert "answered 404" in (await line.send({"type": "reset", "number": 7, "now": 0.0}))["refused"]
        with pytest.raises(ItemError, match="404"):
            await line.send(MESSAGE)


@pytest.mark.parametrize(
    ("given", "cause", "says"),
    [
        (lambda: web.Response(status=429, text="slow down"), Cause.RATE_LIMIT, "429: slow down"),
        (lambda: web.Response(status=500, text="x" * 5000), Cause.TARGET_ERROR, "500"),
        (lambda: web.Response(text="no JSON"), Cause.TARGET_ERROR, "answered message with what is no JSON"),
        (lambda: web.json_response([1]), Cause.TARGET_ERROR, "no JSON object"),
        (lambda: {"error": "broken"}, Cause.TARGET_ERROR, "says: broken"),
        (lambda: {"text": "x" * (17 << 20)}, Cause.TARGET_ERROR, "larger than"),
        (lambda: web.Response(status=307, headers={"Location": "/elsewhere"}), Cause.TARGET_ERROR, "answered 307"),
        (lambda: asyncio.sleep(30), Cause.TARGET_ERROR, "in time"),
    ],
)
async def test_a_server_that_breaks(given: Callable[[], Any], cause: Cause, says: str) -> None:
    async with server(lambda said, request: given(), 1.0 if says == "in time" else 20.0) as line:
        with pytest.raises(ItemError, match=says) as caught:
            await line.send(MESSAGE)
    assert caught.value.cause is cause
    assert len(caught.value.message) < 1000


async def test_a_server_that_is_not_there() -> None:
    line = HttpConnection("http://127.0.0.1:9/", seconds=5)
    await line.open()
    with pytest.raises(ItemError, match="can't be talked to"):
        await line.send(MESSAGE)
    await line.close()


# --- Classes


class LikeTheOriginals:
    """The shape of the GoodAI LTM Benchmark's agents: what it is told it keeps in a file."""

    max_message_size = 4096

    def __init__(self, run_name: str = "") -> None:
        self.run_name = run_name
        self.save_path = Path()
        self.costs_usd = 0.0
        self.context: list[str] = []
        self.jumps: list[float] = []

    def reply(self, user_message: str, agent_response: str | None = None) -> str:
        self.costs_usd += 0.25
        self.context.append(user_message)
        if user_message == "raise":
            raise ValueError("not that")
        return agent_response or f"reply {len(self.context)}"

    def reset(self) -> None:
        self.context = []

    def save(self) -> None:
        (self.save_path / "context.json").write_text(json.dumps(self.context))

    def load(self) -> None:
        self.context = json.loads((self.save_path / "context.json").read_text())

    def forward_time(self, seconds: float) -> None:
        self.jumps.append(seconds)


def line_of(make: Callable[[], Any], folder: Path, seconds: float = 10.0) -> ClassConnection:
    return ClassConnection(make, folder=folder, seconds=seconds)


def keeping(folder: Path) -> Callable[[], LikeTheOriginals]:
    def make() -> LikeTheOriginals:
        agent = LikeTheOriginals("run")
        agent.save_path = folder
        return agent

    return make


async def test_a_class_as_the_benchmark_has_them(tmp_path: Path) -> None:
    line = line_of(keeping(tmp_path / "kept"), tmp_path / "kept")
    await line.open()
    assert await line.send(MESSAGE) == {"text": "reply 1", "cost_usd": 0.25}
    assert (await line.send({**MESSAGE, "number": 2, "expected_reply": "mine"}))["text"] == "mine"
    await line.send({"type": "forward_time", "now": 1_700_000_090.0})
    assert line._agent.jumps == [90.0]

    later = line_of(keeping(tmp_path / "kept"), tmp_path / "kept")
    await later.open()
    assert await later.send({"type": "load", "number": 2, "now": 0.0}) == {"number": 2}
    assert later._agent.context == ["Hello", "Hello"]
    await later.send({"type": "reset", "now": 0.0})
    assert later._agent.context == []
    await later.close()


async def test_what_a_class_raises_is_its_failure(tmp_path: Path) -> None:
    line = line_of(keeping(tmp_path), tmp_path)
    await line.open()
    with pytest.raises(ItemError, match="raised ValueError: not that") as caught:
        await line.send({**MESSAGE, "text": "raise"})
    assert caught.value.cause is Cause.TARGET_ERROR


class Coroutines:
    def __init__(self) -> None:
        self.observed: list[tuple[str, str]] = []
        self.closed = False

    async def reply(self, user_message: str, agent_response: str | None = None) -> Any:
        if user_message == "slow":
            await asyncio.sleep(30)
        return 5 if user_message == "number" else "done"

    async def observe(self, message: str, reply: str) -> None:
        self.observed.append((message, reply))

    async def close(self) -> None:
        self.closed = True


async def test_methods_may_be_coroutines(tmp_path: Path) -> None:
    line = line_of(Coroutines, tmp_path, 0.5)
    await line.open()
    assert (await line.send(MESSAGE))["text"] == "done"
    assert await line.send({"type": "load", "number": 4, "now": 0.0}) == {"number": 0}
    await line.send({"type": "exchange", "number": 1, "text": "a", "reply": "b", "now": 0.0})
    assert line._agent.observed == [("a", "b")]
    with pytest.raises(ItemError, match="no text but int"):
        await line.send({**MESSAGE, "text": "number"})
    with pytest.raises(ItemError, match=r"took longer than 0\.5 seconds"):
        await line.send({**MESSAGE, "text": "slow"})
    await line.close()
    assert line._agent.closed


class Amnesiac:
    def reply(self, text: str) -> str:
        return text


async def test_a_class_with_only_a_reply(tmp_path: Path) -> None:
    line = line_of(Amnesiac, tmp_path)
    await line.open()
    assert (await line.send(MESSAGE))["text"] == "Hello"
    with pytest.raises(ItemError, match="neither save and load nor observe"):
        await line.send({"type": "exchange", "number": 1, "text": "a", "reply": "b", "now": 0.0})


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module_here:X", "can't be loaded"),
        ("no_such_file.py:X", "there is no file"),
        ("broken.py:X", "can't be imported"),
        ("raising.py:X", "can't be imported"),
        ("empty.py:X", "has no class X"),
    ],
)
def test_classes_that_can_not_be_used(tmp_path: Path, target: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "raising.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserError, match=rf"^--agent_name: .*{says}"):
        class_of(target)


# --- People


def test_a_person_answers_at_the_terminal(tmp_path: Path) -> None:
    write_configuration(tmp_path, [{"name": "colours", "args": {"colour_changes": 1}}], span=100)
    words = [
        "memory",
        "run",
        "-c",
        "small.yml",
        "-a",
        "human",
        "-i",
        f"--data_dir={tmp_path}/data",
        "--tokenizer=estimate",
    ]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *words], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(), close_fds=True
    ) as process:
        os.close(theirs)
        seen = answered = 0
        text = ""
        try:
            while True:
                try:
                    part = os.read(ours, 4096).decode(errors="replace")
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                text += part
                seen = text.count("(your reply, then an empty line)")
                if seen > answered:
                    answered = seen
                    os.write(ours, b"I don't know,\nreally.\n\n")
        finally:
            os.close(ours)
    assert process.returncode == 0, text
    assert answered == 2
    log = next((tmp_path / "data").glob("tests/*/results/HumanChatSession/master_log.jsonl")).read_text()
    assert "I don't know,\\nreally." in log
