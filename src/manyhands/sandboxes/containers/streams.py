"""A command in a container, with its three streams.

aiodocker's own stream goes through a queue and a task for each piece, which takes most of the processor time of a short command, and closes
both directions at once. Here bytes go straight to whoever reads them, and the input can end alone. A command that could not be started is
told from one that wrote something: engines write the reason into the command's own output.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from aiodocker.exceptions import DockerError
from aiodocker.execs import Exec
from aiodocker.stream import Stream
from aiohttp.client_proto import ResponseHandler

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.containers.client import EngineClient

_HEADER = 8
_POLL, _MAX_POLL = 0.004, 0.1
_CODE_SECONDS = 5.0
"""How long an engine may take to know the exit code after the output has ended."""
_REFUSALS = (b"OCI runtime", b"unable to find user", b"Error: ", b"cannot exec", b"runc", b"crun")
"""How an engine's words on a command that it could not start begin."""
_NOT_STARTED = (126, 127)
_MAX_HELD = 1 << 20
"""Bytes that a command may write before it is known to have begun; then it waits."""
_USER = re.compile(r"unable to find (?:user|group) ([^:\s]+)|no matching entries in (?:passwd|group) file")
_CWD = re.compile(r'chdir to cwd \("?([^")]*)"?\)|chdir to `?([^`:\s]+)`?: No such file')
_PROGRAM = re.compile(r'exec: "([^"]+)"|executable file `?([^`\s]+)`? not found')


def not_startable(kind: str, said: str) -> ItemError:
    """The error for an engine's words on a command, or on a container, that it could not start."""
    text = " ".join(said.split())[:500]
    if found := _USER.search(text):
        return ItemError(Cause.INVALID_INPUT, f"the image has no user {found[1] or 'of that name'} ({text})")
    if found := _CWD.search(text):
        return ItemError(Cause.INVALID_INPUT, f"there is no folder {found[1] or found[2]} in the container")
    if found := _PROGRAM.search(text):
        return ItemError(Cause.INVALID_INPUT, f"the image has no {found[1] or found[2]}")
    return ItemError(Cause.SANDBOX_LOST, f"{kind}: can't start a command: {text}")


def response_of(stream: Stream) -> aiohttp.ClientResponse | None:
    """The response whose connection a stream uses; None before it is connected. aiodocker has no public name for it."""
    return stream._resp


def mark_closed(stream: Stream) -> None:
    """Have aiodocker not warn of a stream whose other end closed first."""
    stream._closed = True


class _Frames:
    """Takes an engine's stream apart: a byte that tells output from errors, three empty ones, four with the length of what follows (Docker
    Engine API, "Attach to a container"). aiohttp hands the bytes on, as to its parser of a WebSocket."""

    def __init__(self, take: Callable[[int, bytes], None], end: Callable[[], None]) -> None:
        self._take = take
        self.feed_eof = end
        self._rest = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        rest, at = self._rest + data if self._rest else data, 0
        while (begin := at + _HEADER) <= len(rest):
            end = begin + int.from_bytes(rest[begin - 4 : begin], "big")
            if end > len(rest):
                break
            self._take(rest[at], rest[begin:end])
            at = end
        self._rest = rest[at:]
        return False, b""


class ContainerExec:
    """A started command. Made by ``started``. ``response``: the one whose connection has become its streams."""

    def __init__(
        self,
        client: EngineClient,
        exec: Exec,
        response: aiohttp.ClientResponse,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> None:
        self._client = client
        self._exec = exec
        self._response = response
        self._sinks = {1: output, 2: errors}
        self._held: list[tuple[int, bytes]] | None = []
        self._held_bytes = 0
        self._said, self._ended = asyncio.Event(), asyncio.Event()
        self._input_open = True
        connection = response.connection
        self._protocol: ResponseHandler | None = None if connection is None else connection.protocol
        if self._protocol is None:
            self._end()
        else:
            self._protocol.set_parser(_Frames(self._hand_on, self._end), None)

    async def confirm(self) -> None:
        """Wait until the command has begun, and only then hand its output on. Raises ItemError if it could not be started."""
        pause = _POLL
        while not self._said.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._said.wait()
                break
            if await self._runs():
                break
            pause = min(2 * pause, _MAX_POLL)
        await self._check_refusal()
        held, self._held = self._held or [], None
        for number, data in held:
            self._hand_on(number, data)
        if self._held_bytes > _MAX_HELD and (transport := self._transport()) is not None:
            transport.resume_reading()

    async def write(self, data: bytes) -> None:
        protocol = self._protocol
        transport = None if protocol is None else protocol.transport
        if protocol is None or transport is None or transport.is_closing() or not self._input_open:
            raise ConnectionError("the command's input is closed")
        try:
            transport.write(data)
            if protocol._paused:  # aiohttp has no public names for these
                await protocol._drain_helper()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise ConnectionError(str(error)) from error

    async def close_input(self) -> None:
        transport = self._transport()
        self._input_open = False
        if transport is not None and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()

    async def wait(self) -> int | None:
        await self._ended.wait()
        deadline = asyncio.get_running_loop().time() + _CODE_SECONDS
        pause = _POLL
        while asyncio.get_running_loop().time() < deadline:
            try:
                said = await self._inspected()
            except ItemError:
                return None
            if not said.get("Running") and isinstance(code := said.get("ExitCode"), int):
                return code
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_POLL)
        return None

    async def close(self) -> None:
        with suppress(OSError, RuntimeError):
            await self.close_input()
        self._response.close()
        self._end()

    def _transport(self) -> asyncio.Transport | None:
        return None if self._protocol is None else self._protocol.transport

    def _end(self) -> None:
        self._said.set()
        self._ended.set()

    def _hand_on(self, number: int, data: bytes) -> None:
        if self._held is None:
            if data and number in self._sinks:
                self._sinks[number](data)
            return
        self._held.append((number, data))
        self._said.set()
        before, self._held_bytes = self._held_bytes, self._held_bytes + len(data)
        if before <= _MAX_HELD < self._held_bytes and (transport := self._transport()) is not None:
            transport.pause_reading()

    async def _runs(self) -> bool:
        """Whether it has begun: a process id at Docker, which says "running" too early; Podman answers after the start."""
        said = await self._inspected()
        return bool(said.get("Pid")) or (not said.get("Running") and said.get("ExitCode") is not None)

    async def _check_refusal(self) -> None:
        said = b"".join(data for _, data in self._held or ())
        if not said.startswith(_REFUSALS):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CODE_SECONDS):
                code = await self.wait()
                if code in _NOT_STARTED:
                    raise not_startable(
                        self._client.kind, b"".join(data for _, data in self._held or ()).decode(errors="replace")
                    )

    async def _inspected(self) -> Mapping[str, Any]:
        async with self._client.calls("ask for a command"):
            return await self._exec.inspect()


async def started(
    client: EngineClient, exec: Exec, output: Callable[[bytes], None], errors: Callable[[bytes], None]
) -> ContainerExec:
    """Start a command that the engine knows. Raises ItemError."""
    async with client.calls("start a command"):
        try:
            response = await client.upgraded(f"exec/{exec.id}/start", {"Detach": False, "Tty": False})
        except DockerError as error:
            raise not_startable(client.kind, error.message) from error
    command = ContainerExec(client, exec, response, output, errors)
    try:
        await command.confirm()
    except BaseException:
        await command.close()
        raise
    return command
