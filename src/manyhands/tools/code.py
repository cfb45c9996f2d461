"""Python code, run in the sandbox in a process of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool
from manyhands.tools.terminal import Seconds, command_result, room, seconds_allowed

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
    most = room(environment)
    result = await sandbox.run(command, timeout=limit, input=code.encode(), max_output=most)
    if result.exit_code == _NOT_FOUND and b"python3" in result.output:
        raise ToolError("there is no python3 in this sandbox; use the terminal tool with what is installed")
    return command_result(result, limit, most, "do less at once, or run it with terminal(background=true)")
