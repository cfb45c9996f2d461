"""The command that is run when a session of a run has ended, to tell others how: ``--on_end``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.jsonio import dumps
from manyhands.core.redaction import KNOWN
from manyhands.core.text import one_line
from manyhands.processes.children import ExecResult, Guard, Process, run_process, to_the_end
from manyhands.processes.strays import SANDBOX_VARIABLE
from manyhands.runs.execution import RunResult
from manyhands.runs.progress import Notice

SECONDS = 60.0
"""Time limit of the command."""
MAX_OUTPUT = 16 << 10
"""Bytes of its output that are kept."""


async def run_on_end(command: str | None, result: RunResult, exit_code: int, notice: Notice) -> None:
    """Have the shell run a command, which gets how a session ended as JSON on standard input. Nothing comes of its failure but a notice;
    what it prints is shown as notices, too. Its environment is that of this process, without secrets; it ends if this process is
    killed."""
    if command is None:
        return
    said = dumps(KNOWN.json(report(result, exit_code))) + b"\n"
    try:
        ended = await _run(command, said)
    except (ItemError, OSError) as error:
        notice(f"--on_end: {error}")
        return
    for line in ended.output.decode("utf-8", "replace").splitlines():
        notice(f"--on_end: {line}")
    if (problem := _problem(ended)) is not None:
        notice(f"--on_end: {one_line(command)}: {problem}")


async def _run(command: str, input: bytes) -> ExecResult:
    mark = secrets.token_hex(16)
    environment = {**harmless(os.environ), SANDBOX_VARIABLE: mark}

    def start(stdin: int, output: int) -> Process:
        return Process(["/bin/sh", "-c", command], environment, stdin=stdin, output=output, directory=os.getcwd())

    guard = Guard(f"{SANDBOX_VARIABLE}={mark}")
    try:
        return await run_process(start, timeout=SECONDS, input=input, max_output=MAX_OUTPUT)
    finally:
        await to_the_end(guard.dismiss())


def report(result: RunResult, exit_code: int) -> dict[str, Any]:
    """What the command gets: the run's summary, as ``summary.json`` has it, and how the session ended."""
    return {
        **result.summary,
        "run": result.folder.name,
        "folder": str(result.folder.absolute()),
        "exit_code": int(exit_code),
        "stopped": result.stopped,
        "error": None if result.error is None else str(result.error),
    }


def harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold no secret."""
    return {name: value for name, value in environ.items() if KNOWN.text(value) == value}


def _problem(ended: ExecResult) -> str | None:
    if ended.timed_out:
        return f"stopped, as it took longer than {SECONDS:g} s"
    return f"ended with exit code {ended.exit_code}" if ended.exit_code else None
