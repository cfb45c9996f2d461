"""A job's runner, the process that executes it: starting it, and both ends of its control socket.

A runner is started on its own, so that it outlives whoever started it. On its socket, one line of JSON is a message. A client sends one
request and gets one answer, but for ``watch``, whose answers come as the job proceeds until ``{"ended": true}``; a connection that ends
without it means that the runner is gone. The socket lies in a folder that only its owner may enter; the job's folder says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from manyhands.core.errors import ManyhandsError, RunError, StorageError, UserError
from manyhands.io.files import written_aside
from manyhands.processes.interpreters import PYTHONPATH, own_module_path, python_command
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE

RUNNER = "runner.json"
_PREFIX, _SOCKET = "manyhands-", "control"
MAX_MESSAGE_BYTES = 256 << 20
"""Maximum bytes of a message."""
ANSWER_SECONDS = 60.0
QUICK_SECONDS = 0.5
Message = dict[str, Any]


# --- Starting a runner


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


# --- The socket


class ControlServer:
    """The runner's end. Made and closed in the runner's loop."""

    def __init__(self, folder: Path, answer: Callable[[Message], Awaitable[Message]]) -> None:
        """``answer``: what to reply to a request (``watch`` is answered here)."""
        self._file = folder / RUNNER
        self._answer = answer
        self._folder_of_server: Path | None = None
        self._server: asyncio.Server | None = None
        self._watchers: set[asyncio.StreamWriter] = set()
        self._withdrawn = False
        self._last: Message | None = None

    async def open(self) -> None:
        """Raises StorageError if no socket can be made."""
        remove_leftovers(self._file.parent)
        try:
            self._folder_of_server = Path(tempfile.mkdtemp(prefix=_PREFIX))
            address = self._folder_of_server / _SOCKET
            self._server = await asyncio.start_unix_server(self._serve, str(address), limit=MAX_MESSAGE_BYTES)
        except OSError as error:
            raise StorageError(f"can't make a socket for the job: {error.strerror or error}") from error
        with written_aside(self._file) as handle:
            handle.write(
                json.dumps({"process": os.getpid(), "socket": str(address), "folder": _identity(self._file.parent)})
                + "\n"
            )

    def publish(self, message: Message) -> None:
        """Tell everyone who watches, if it is news."""
        if message != self._last:
            self._last = message
            for writer in self._watchers:
                _send(writer, message)

    def withdraw(self) -> None:
        """Take no more requests, and say no longer where to find the socket. Only for who owns the job."""
        self._withdrawn = True
        if self._folder_of_server is not None:
            self._file.unlink(missing_ok=True)

    async def close(self, *, ended: bool) -> None:
        """``ended``: the job needs no watching any more."""
        if self._server is None or self._folder_of_server is None:
            return
        self._server.close()
        for writer in list(self._watchers):
            if ended:
                _send(writer, {"ended": True})
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), 1.0)
            writer.close()
        self._server, folder = None, self._folder_of_server
        shutil.rmtree(folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = json.loads(await reader.readline() or b"null")
            if not isinstance(message, dict):
                return
            if message.get("op") == "watch":
                await self._watched(reader, writer)
                return
            # What comes after the last look at requests must not be answered as if it were still carried out.
            _send(writer, {"error": "the job's runner has ended"} if self._withdrawn else await self._answer(message))
            await writer.drain()
        except (ValueError, OSError, asyncio.LimitOverrunError):
            return  # a client that made a mistake, or disconnected
        finally:
            writer.close()

    async def _watched(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._watchers.add(writer)
        try:
            _send(writer, self._last or {})
            while await reader.read(1 << 10):
                pass
        finally:
            self._watchers.discard(writer)


async def request(folder: Path, message: Message, seconds: float = ANSWER_SECONDS) -> Message | None:
    """Ask a job's runner; None if there is none, or it does not answer in time."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connected(folder)
            try:
                _send(writer, message)
                answer = json.loads(await reader.readline() or b"null")
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError):
        return None
    return answer if isinstance(answer, dict) else None


async def watch(folder: Path) -> AsyncIterator[Message]:
    """What a job's runner publishes, until it ends or is gone. Nothing comes if there is none."""
    try:
        reader, writer = await _connected(folder)
    except (OSError, ValueError):
        return
    try:
        _send(writer, {"op": "watch"})
        while line := await reader.readline():
            yield json.loads(line)
    except (OSError, ValueError):
        return
    finally:
        writer.close()


def ask(folder: Path, message: Message) -> Message | None:
    """As ``request``, without a loop, for an answer that comes at once or not at all."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(QUICK_SECONDS)
            end.connect(_address(folder))
            end.sendall(json.dumps(message).encode() + b"\n")
            with end.makefile("rb") as stream:
                answer = json.loads(stream.readline() or b"null")
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def remove_leftovers(folder: Path) -> None:
    """Remove the socket of a runner that was killed. Only for who owns the job."""
    with suppress(OSError, ValueError):
        address = Path(_address(folder))
        if address.name == _SOCKET and address.parent.name.startswith(_PREFIX) and address.is_socket():
            address.unlink()
            address.parent.rmdir()
    with suppress(OSError):
        (folder / RUNNER).unlink(missing_ok=True)


async def _connected(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(_address(folder), limit=MAX_MESSAGE_BYTES)


def _address(folder: Path) -> str:
    """Raises OSError or ValueError if there is none. The address in a copied folder is that of the original's runner."""
    if not (folder / RUNNER).is_file():
        raise ValueError("there is no such file")
    with (folder / RUNNER).open("rb") as file:
        runner = json.loads(file.read(MAX_MESSAGE_BYTES))
    if not isinstance(runner, dict) or not isinstance(runner.get("socket"), str):
        raise ValueError("no socket is named")
    if runner.get("folder", _identity(folder)) != _identity(folder):
        raise ValueError("this is a copy of the folder that the runner has")
    return str(runner["socket"])


def _identity(folder: Path) -> list[int]:
    """What distinguishes a folder from its copies, also when it has been moved (on its file system)."""
    status = folder.stat()
    return [status.st_dev, status.st_ino]


def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
