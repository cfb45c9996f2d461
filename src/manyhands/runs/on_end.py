"""The command that is run when a session of a run has ended, to tell others how: ``--on_end``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.jsonio import dumps
from manyhands.core.redaction import KNOWN
from manyhands.core.text import one_line
from manyhands.processes.children import ExecResult, Process, run_process
from manyhands.runs.execution import RunResult
from manyhands.runs.progress import Notice

SECONDS = 60.0
"""Time limit of the command."""
MAX_OUTPUT = 16 << 10
"""Bytes of its output that are kept."""


async def run_on_end(command: str | None, result: RunResult, exit_code: int, notice: Notice) -> None:
    """Have the shell run a command, which gets how a session ended as JSON on standard input. Nothing comes of its failure but a notice;
    what it prints is shown as notices, too. Its environment is that of this process, without secrets."""
    if command is None:
        return

    def start(stdin: int, output: int) -> Process:
        return Process(
            ["/bin/sh", "-c", command], _harmless(os.environ), stdin=stdin, output=output, directory=os.getcwd()
        )

    said = dumps(KNOWN.json(report(result, exit_code))) + b"\n"
    try:
        ended = await run_process(start, timeout=SECONDS, input=said, max_output=MAX_OUTPUT)
    except (ItemError, OSError) as error:
        notice(f"--on_end: {error}")
        return
    for line in ended.output.decode("utf-8", "replace").splitlines():
        notice(f"--on_end: {line}")
    if (problem := _problem(ended)) is not None:
        notice(f"--on_end: {one_line(command)}: {problem}")


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


def _harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold no secret."""
    return {name: value for name, value in environ.items() if KNOWN.text(value) == value}


def _problem(ended: ExecResult) -> str | None:
    if ended.timed_out:
        return f"stopped, as it took longer than {SECONDS:g} s"
    return f"ended with exit code {ended.exit_code}" if ended.exit_code else None
