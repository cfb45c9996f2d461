"""Starting a job's runner, the process that executes it.

A runner is started on its own, so that it outlives whoever started it. What is asked of it afterwards goes over its control socket
(``runs.steering.control``).
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from manyhands.core.errors import ManyhandsError, RunError, StorageError, UserError
from manyhands.processes.interpreters import PYTHONPATH, own_module_path, python_command
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE
from manyhands.runs.steering.control import MAX_MESSAGE_BYTES

LOG = "runner.log"
"""The file in the job's folder with its runner's log."""
READY = "MANYHANDS_READY"
"""The environment variable with the descriptor on which a runner reports that it has begun, or why not."""
START_SECONDS = 60.0
_NOT_INHERITED = (MARK, SANDBOX_VARIABLE, "MANYHANDS_WORKER", READY)
"""What would make the runner part of another run, or of a row's command that starts it."""
START_ERRORS: dict[str, type[ManyhandsError]] = {each.__name__: each for each in (RunError, UserError, StorageError)}
"""What keeps a runner from beginning, by the names that it reports."""


@dataclass(frozen=True, slots=True)
class RunnerStart:
    """What a runner gets over a pipe."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the recorded ones."""
    retry_failed: bool = False
    """Failed rows are executed again."""
    end: Any = None
    """How the job's last session had ended when the runner was started: if that has changed, another process ended the job meanwhile, and
    the runner does not begin."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RunnerStart:
        return cls(**json.loads(text or "{}"))


async def launch(folder: Path, start: RunnerStart, environ: Mapping[str, str]) -> None:
    """Start a job's runner and wait until it has begun.

    Raises what keeps it from beginning: RunError (another one executes the job), UserError, StorageError.
    """
    answer = await asyncio.to_thread(_launched, folder, start, environ)
    if (kind := answer.get("error")) is not None:
        raise START_ERRORS.get(kind, StorageError)(answer.get("message", "the runner did not start"))


def _launched(folder: Path, start: RunnerStart, environ: Mapping[str, str]) -> dict[str, Any]:
    reading, writing = os.pipe()
    try:
        with (folder / LOG).open("ab") as log:
            child = _started(folder, start, environ, writing, log)
    except OSError as error:
        os.close(reading)
        raise StorageError(f"{folder}: the job's runner can't be started ({error.strerror or error})") from error
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        answer = _answer(ready)
    with suppress(subprocess.TimeoutExpired):
        child.wait(START_SECONDS)  # it has forked the process that works, which nobody has to wait for
    return answer or {"error": "StorageError", "message": f"the job's runner did not start; {folder / LOG} may say why"}


def _started(
    folder: Path, start: RunnerStart, environ: Mapping[str, str], ready: int, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    command = python_command("manyhands.workloads.csv_jobs.service.runner", str(folder.absolute()))
    inherited = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=(ready,),
        env={**inherited, READY: str(ready), PYTHONPATH: own_module_path(inherited)},
        start_new_session=True,
    )
    if child.stdin is not None:
        try:
            child.stdin.write(start.to_text().encode())
            child.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once; its answer says why
    return child


def _answer(ready: IO[bytes]) -> dict[str, Any]:
    """The runner's first message; nothing if it ends, or if it takes too long."""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    if not poll.poll(START_SECONDS * 1000):
        return {}
    line = ready.readline(MAX_MESSAGE_BYTES)
    try:
        answer = json.loads(line or b"{}")
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
