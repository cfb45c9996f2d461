"""Commands and Python code in the sandbox: a persistent shell, background processes, programs in a process of their own."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.core.text import decode, suggestion
from manyhands.processes.children import ExecResult
from manyhands.sandboxes.protocol import BackgroundProcess
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool

TIMED_OUT = 124
"""The exit code that stands for a command stopped at its time limit, as coreutils' ``timeout`` has it."""
_OFFSETS = "process_read_to"
_ROOM = 1000
"""Characters kept free for what surrounds a command's output in its result."""

Seconds = Annotated[float | None, "Time limit in seconds; the default is also the most allowed.", Field(gt=0)]


def seconds_allowed(environment: ToolEnvironment, timeout: float | None) -> float:
    """The requested time limit, within the environment's."""
    return environment.timeout if timeout is None else min(timeout, environment.timeout)


def output_limit(environment: ToolEnvironment) -> int:
    """How much output fits into a result beside its other parts."""
    return max(200, environment.max_output - _ROOM)


def without_nul(name: str, value: str) -> str:
    """The value, if it can be passed to a program.

    Raises ToolError if it holds a NUL character.
    """
    if "\x00" in value:
        raise ToolError(f"argument {name!r} holds a NUL character, which can't be passed on; leave it out")
    return value


def command_result(result: ExecResult, limit: float, max_output: int, advice: str) -> ToolResult:
    """``{"output", "exit_code", "error"}``: ``error`` is null unless the command was stopped at its time limit.

    ``limit`` and ``max_output`` are what the command was run with.
    """
    output = decode(result.output)
    if result.omitted:  # the gap is in the middle of what was requested
        head, tail = result.output[: max_output // 2], result.output[max_output // 2 :]
        output = f"{decode(head)}\n[… {result.omitted} bytes left out …]\n{decode(tail)}"
    content: dict[str, Any] = {"output": output, "exit_code": result.exit_code, "error": None}
    if result.timed_out:
        content |= {"exit_code": TIMED_OUT, "error": f"stopped at the time limit of {limit:g} s; {advice}"}
    return ToolResult(content, failed=result.timed_out)


@tool(changes_world=True)
async def terminal(
    environment: ToolEnvironment,
    command: Annotated[str, "The command line, for a POSIX shell (bash where there is one).", Field(min_length=1)],
    background: Annotated[
        bool, "Start it and return at once with a session_id for the process tool: servers, watchers, long jobs."
    ] = False,
    timeout: Seconds = None,
    workdir: Annotated[str | None, "Directory for this command alone; it then runs in a subshell."] = None,
) -> ToolResult:
    """Run a command in the sandbox's shell and return its output (stdout and stderr together) and exit code.

    The shell persists: the current directory, exported variables and functions stay for the next call. Nobody can type
    answers, so pass flags such as -y, and avoid pagers and editors. To read, change or search files, the file tools are
    the better choice. A command that outlives its time limit is killed; start long ones with background=true.
    """
    without_nul("command", command)
    sandbox = await environment.sandbox()
    if background:
        process = await sandbox.spawn(command, cwd=workdir)
        return ToolResult(
            {"output": "started in the background", "session_id": process.id, "exit_code": None, "error": None}
        )
    if workdir is not None:
        command = f"(cd -- {shlex.quote(without_nul('workdir', workdir))} && eval {shlex.quote(command)})"
    limit = seconds_allowed(environment, timeout)
    max_output = output_limit(environment)
    result = await sandbox.shell(command, timeout=limit, max_output=max_output)
    return command_result(result, limit, max_output, "for long work use background=true")


def _restore_offsets(arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
    if isinstance(result.content, dict) and "read_to" in result.content:
        environment.state.setdefault(_OFFSETS, {})[result.content["session_id"]] = result.content["read_to"]


@tool(changes_world=True, restore=_restore_offsets)
async def process(
    environment: ToolEnvironment,
    action: Annotated[
        Literal["list", "poll", "log", "wait", "kill", "write", "submit", "close"],
        "list: all processes; poll: state and output since the last poll or wait; log: all output, by lines; "
        "wait: until it ends or the time limit; kill: end it; write: send data to its input; "
        "submit: the same with a newline; close: end its input.",
    ],
    session_id: Annotated[
        str | None, "Which process, as terminal(background=true) named it; all actions but list."
    ] = None,
    data: Annotated[str | None, "Text for write and submit."] = None,
    timeout: Annotated[float | None, "Seconds for wait.", Field(gt=0)] = None,
    offset: Annotated[int, "First line for log, counted from 0.", Field(ge=0)] = 0,
    limit: Annotated[int, "Lines for log at most; without an offset the last ones.", Field(ge=1, le=5000)] = 200,
) -> dict[str, Any]:
    """Watch and steer processes started with terminal(background=true)."""
    sandbox = await environment.sandbox()
    processes = sandbox.background()
    if action == "list":
        return {"processes": [_state(each) for each in processes.values()]}
    found = processes.get(session_id or "")
    if found is None:
        raise ToolError(_no_such_process(session_id, list(processes)))
    if action == "log":
        return _log(found, offset, limit, environment)
    if action == "wait":
        await found.wait(seconds_allowed(environment, timeout))
    elif action == "kill":
        await found.kill()
    elif action != "poll":
        await _feed(found, action, data)
        return _state(found)
    return _news(found, environment)


async def _feed(found: BackgroundProcess, action: str, data: str | None) -> None:
    if found.exit_code is not None:
        raise ToolError(f"process {found.id} has ended with exit code {found.exit_code}; it takes no input")
    if action == "close":
        await found.close_input()
    elif data is None:
        raise ToolError(f"argument 'data' is missing: action {action!r} needs the text to send")
    else:
        await found.write(data.encode() + (b"\n" if action == "submit" else b""))


def _state(found: BackgroundProcess) -> dict[str, Any]:
    status = "running" if found.exit_code is None else "exited"
    return {"session_id": found.id, "command": found.command, "status": status, "exit_code": found.exit_code}


def _news(found: BackgroundProcess, environment: ToolEnvironment) -> dict[str, Any]:
    offsets = environment.state.setdefault(_OFFSETS, {})
    output, total = found.output(offsets.get(found.id, 0), output_limit(environment))
    offsets[found.id] = total
    return {**_state(found), "output": decode(output), "read_to": total}


def _log(found: BackgroundProcess, offset: int, limit: int, environment: ToolEnvironment) -> dict[str, Any]:
    output, _ = found.output(0, 10_000_000)
    lines = decode(output).splitlines()
    first = offset if offset else max(0, len(lines) - limit)
    shown = lines[first : first + limit]
    return {**_state(found), "total_lines": len(lines), "first_line": first, "output": "\n".join(shown)}


def _no_such_process(session_id: str | None, known: list[str]) -> str:
    if not known:
        return "no background process was started; start one with terminal(background=true)"
    if session_id is None:
        return f"argument 'session_id' is missing; processes: {', '.join(known)}"
    return f"no process is called {session_id!r}{suggestion(session_id, known)}; processes: {', '.join(known)}"


_NOT_FOUND = 127

_RUNNER = """
import sys
def _prepare():
    import io, linecache, os, traceback
    source = sys.stdin.buffer.read().decode("utf-8", "replace")
    sys.stdin = open(os.devnull)
    sys.argv = ["<code>"]
    linecache.cache["<code>"] = (len(source), None, source.splitlines(True), "<code>")
    def show(kind, error, trace):
        while trace and trace.tb_frame.f_code.co_filename == "<string>":
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)
    sys.excepthook = show
    return source
_code = _prepare()
del _prepare
exec(compile(_code, "<code>", "exec"))
"""
"""Runs what comes on standard input as the main module, with source lines in tracebacks."""


@tool(changes_world=True)
async def execute_code(
    environment: ToolEnvironment,
    code: Annotated[str, "A Python 3 program. Print what you want to see.", Field(min_length=1)],
    timeout: Seconds = None,
) -> ToolResult:
    """Run a Python program in the sandbox, in a fresh process that starts where the shell starts.

    Returns what it printed (stdout and stderr together) and its exit code. Nothing but files stays for the next call.
    """
    sandbox = await environment.sandbox()
    limit = seconds_allowed(environment, timeout)
    command = ["/usr/bin/env", "python3", "-u", "-c", _RUNNER]
    max_output = output_limit(environment)
    result = await sandbox.run(command, timeout=limit, input=code.encode(), max_output=max_output)
    if result.exit_code == _NOT_FOUND and b"python3" in result.output:
        raise ToolError("there is no python3 in this sandbox; use the terminal tool with what is installed")
    return command_result(result, limit, max_output, "do less at once, or run it with terminal(background=true)")
