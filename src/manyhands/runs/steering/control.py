"""Asking the process that executes a run, over a socket of its own: both ends of it.

One line of JSON is a message. A client sends one request and gets one answer, but for ``watch``, whose answers come as the run proceeds
until ``{"ended": true}``; a connection that ends without it means that the process is gone. The socket lies in a folder that only the
owner of the process may enter; the run's folder says where.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.core.errors import StorageError
from manyhands.io.files import written_aside

RUNNER = "runner.json"
_PREFIX, _SOCKET = "manyhands-", "control"
MAX_MESSAGE_BYTES = 256 << 20
"""Maximum bytes of a message."""
ANSWER_SECONDS = 60.0
QUICK_SECONDS = 0.5
Message = dict[str, Any]
ENDING = "the process that executes the run is ending"
"""The error in the answer to a request that comes too late."""


class ControlServer:
    """The end of the process that executes the run. Made and closed in its loop."""

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
            where = {"process": os.getpid(), "socket": str(address), "folder": _identity(self._file.parent)}
            with written_aside(self._file) as handle:
                handle.write(json.dumps(where) + "\n")
        except (OSError, StorageError) as error:
            await self.close(ended=False)
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"can't make a socket for the run: {error.strerror or error}") from error

    def publish(self, message: Message) -> None:
        """Tell everyone who watches, if it is news."""
        if message != self._last:
            self._last = message
            for writer in self._watchers:
                _send(writer, message)

    def withdraw(self) -> None:
        """Take no more requests, and say no longer where to find the socket. Only for who owns the run."""
        self._withdrawn = True
        if self._folder_of_server is not None:
            self._file.unlink(missing_ok=True)

    async def close(self, *, ended: bool) -> None:
        """``ended``: the run needs no watching any more."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._watchers):
            if ended:
                _send(writer, {"ended": True})
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), 1.0)
            writer.close()
        if self._folder_of_server is not None:
            shutil.rmtree(self._folder_of_server, ignore_errors=True)
        self._server = self._folder_of_server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = json.loads(await reader.readline() or b"null")
            if not isinstance(message, dict):
                return
            if message.get("op") == "watch":
                await self._watched(reader, writer)
                return
            # What comes after the last look at requests must not be answered as if it were still carried out.
            _send(writer, {"error": ENDING, "later": True} if self._withdrawn else await self._answer(message))
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
    """Ask the process that executes a run; None if there is none, or it does not answer in time."""
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
    """What the process that executes a run publishes, until it ends or is gone. Nothing comes if there is none."""
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
    """Remove the socket of a process that was killed. Only for who owns the run."""
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
    """Raises OSError or ValueError if there is none. The address in a copied folder is that of the original's."""
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
