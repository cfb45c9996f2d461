"""Commands, background processes and Python code in real sandboxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.core.clock import SystemClock
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.terminal import process

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


async def test_output_and_exit_code(bench: Bench) -> None:
    assert await bench.call("terminal", command="echo out; echo err >&2") == {
        "output": "out\nerr\n",
        "exit_code": 0,
        "error": None,
    }
    failing = await bench.result("terminal", command="exit 3")
    assert failing == ToolResult({"output": "", "exit_code": 3, "error": None}, failed=False)


async def test_the_shell_persists(bench: Bench) -> None:
    await bench.call("terminal", command="mkdir -p sub && cd sub && export NAME=value && f() { echo from f; }")
    result = await bench.call("terminal", command='basename "$PWD"; echo "$NAME"; f')
    assert result["output"] == "sub\nvalue\nfrom f\n"


async def test_workdir_is_for_one_command(bench: Bench) -> None:
    await bench.call("terminal", command="mkdir 'it''s here'")
    inside = await bench.call("terminal", command='cat <<END\n$(basename "$PWD")\nEND\nexit 4', workdir="its here")
    assert (inside["output"], inside["exit_code"]) == ("its here\n", 4)
    assert (await bench.call("terminal", command='basename "$PWD"'))["output"] == "workspace\n"
    missing = await bench.call("terminal", command="echo never", workdir="/no/such")
    assert missing["exit_code"] != 0
    assert "never" not in missing["output"]


async def test_a_command_that_takes_too_long(bench: Bench) -> None:
    start = time.monotonic()
    result = await bench.result("terminal", command="echo begun; sleep 60", timeout=1.5)
    assert time.monotonic() - start < 30
    assert result.failed
    assert result.content["output"].startswith("begun")
    assert result.content["exit_code"] == 124
    assert "time limit of 1.5 s" in result.content["error"]
    assert (await bench.call("terminal", command="echo alive"))["output"] == "alive\n"


async def test_much_output_keeps_head_and_tail(bench: Bench) -> None:
    result = await bench.call("terminal", command="seq 1 100000")
    assert result["output"].startswith("1\n2\n3\n")
    assert result["output"].endswith("99999\n100000\n")
    assert "left out" in result["output"]
    assert len(result["output"]) <= 5000


async def test_escape_sequences_and_odd_bytes_are_cleaned(bench: Bench) -> None:
    result = await bench.call("terminal", command=r"printf '\033[31mred\033[0m \377\000 end'")
    assert result["output"] == "red \ufffd\ufffd end"


async def test_wrong_arguments_are_explained(bench: Bench) -> None:
    assert "there is no argument 'cmd'" in await bench.error("terminal", cmd="ls")
    assert "NUL" in await bench.error("terminal", command="echo \0")
    assert "argument 'timeout' was -1, expected: number, more than 0" in await bench.error(
        "terminal", command="ls", timeout=-1
    )


async def test_a_background_process_from_start_to_end(bench: Bench) -> None:
    command = "echo ready; while read line; do echo got $line; done; echo over; exit 7"
    started = await bench.call("terminal", command=command, background=True)
    session = started["session_id"]
    output = await until(bench, session, "ready")
    await bench.call("process", action="write", session_id=session, data="one\n")
    await bench.call("process", action="submit", session_id=session, data="two")
    output = await until(bench, session, "got two")
    assert "ready" not in output, "a poll gives what is new only"
    listed = (await bench.call("process", action="list"))["processes"]
    assert [(each["session_id"], each["status"]) for each in listed] == [(session, "running")]
    await bench.call("process", action="close", session_id=session)
    ended = await bench.call("process", action="wait", session_id=session, timeout=10)
    assert (ended["status"], ended["exit_code"]) == ("exited", 7)
    log = await bench.call("process", action="log", session_id=session)
    assert log["output"].split("\n") == ["ready", "got one", "got two", "over"]
    part = await bench.call("process", action="log", session_id=session, offset=1, limit=2)
    assert part["output"] == "got one\ngot two"
    assert "has ended with exit code 7" in await bench.error("process", action="write", session_id=session, data="x")


async def test_a_background_process_is_killed(bench: Bench) -> None:
    session = (await bench.call("terminal", command="sleep 60", background=True))["session_id"]
    waited = await bench.call("process", action="wait", session_id=session, timeout=0.2)
    assert waited["status"] == "running"
    await bench.call("process", action="kill", session_id=session)
    ended = await bench.call("process", action="wait", session_id=session, timeout=5)
    assert ended["status"] == "exited"
    assert ended["exit_code"] != 0


async def test_unknown_processes_are_explained(bench: Bench) -> None:
    assert "no background process was started" in await bench.error("process", action="poll", session_id="p9")
    await bench.call("terminal", command="sleep 5", background=True)
    assert "did you mean p1?" in await bench.error("process", action="poll", session_id="p11")
    assert "'session_id' is missing" in await bench.error("process", action="poll")
    assert "'data' is missing" in await bench.error("process", action="write", session_id="p1")


def test_what_was_polled_is_restored_on_replay() -> None:
    environment = ToolEnvironment(sandbox=None, clock=SystemClock())  # type: ignore[arg-type]
    result = ToolResult({"session_id": "p1", "output": "x", "read_to": 17})
    process.restore({"action": "poll", "session_id": "p1"}, result, environment)
    assert list(environment.state.values()) == [{"p1": 17}]


async def test_python_code(bench: Bench) -> None:
    code = "import os, sys\nprint(6 * 7)\nopen('made.txt', 'w').write('x')\nprint('e', file=sys.stderr)\nsys.exit(5)"
    result = await bench.call("execute_code", code=code)
    assert result == {"output": "42\ne\n", "exit_code": 5, "error": None}
    assert (bench.workspace / "made.txt").read_text() == "x"


async def test_python_tracebacks_show_the_code(bench: Bench) -> None:
    result = await bench.call("execute_code", code="def f(x):\n    return 1 / x  # here\nf(0)\n")
    assert result["exit_code"] == 1
    assert 'File "<code>", line 2, in f\n    return 1 / x  # here' in result["output"]
    assert "<string>" not in result["output"]
    syntax = await bench.call("execute_code", code="x = = 1")
    assert "SyntaxError" in syntax["output"]
    assert "<string>" not in syntax["output"]


async def test_python_code_is_a_main_module_of_its_own(bench: Bench) -> None:
    code = (
        "import pickle, sys\n"
        "class Thing: pass\n"
        "print(__name__, type(pickle.loads(pickle.dumps(Thing()))).__name__, repr(sys.stdin.read()), sys.argv)\n"
        "print('h\u00e9llo \u2713')"
    )
    result = await bench.call("execute_code", code=code)
    assert result["output"] == "__main__ Thing '' ['<code>']\nh\u00e9llo \u2713\n"


async def test_python_code_has_a_time_limit(bench: Bench) -> None:
    result = await bench.result("execute_code", code="print('on', flush=True)\nimport time; time.sleep(60)", timeout=2)
    assert result.failed
    assert result.content["output"] == "on\n"
    assert "time limit" in result.content["error"]


async def test_a_sandbox_without_python_is_explained(
    tmp_path: Path, open_bench: Callable[..., AbstractAsyncContextManager[Bench]]
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    async with open_bench("local", tmp_path / "box", {"PATH": str(empty)}) as bench:
        assert "no python3" in await bench.error("execute_code", code="print(1)")


async def until(bench: Bench, session: str, text: str) -> str:
    output = ""
    for _ in range(100):
        output += str((await bench.call("process", action="poll", session_id=session))["output"])
        if text in output:
            return output
        await asyncio.sleep(0.05)
    raise AssertionError(f"{text!r} never came: {output!r}")
