"""The driver of fake worlds, and the start of their service."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.commands.cgroups import usable_hierarchies
from manyhands.sandboxes.project import hidden_below
from manyhands.sandboxes.remote.driver import ExecStream, Listed, World, WorldSpec

ADDRESS = "MANYHANDS_FAKE_WORLDS"
"""The environment variable that says where the service is."""
_TRIES = 5
_SECONDS = 60.0


@contextmanager
def fake_service() -> Iterator[str]:
    """A service of fake worlds in a process of its own; its address, which ``ADDRESS`` holds meanwhile."""
    command = [sys.executable, "-m", "manyhands.testing.fake_worlds.service"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    before = os.environ.get(ADDRESS)
    try:
        os.environ[ADDRESS] = address = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield address
    finally:
        os.environ.pop(ADDRESS)
        if before is not None:
            os.environ[ADDRESS] = before
        process.stdin.close()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class FakeDriver:
    """A ``Driver`` over the service whose address is in the environment variable ``ADDRESS``. ``ends_with_owner``: whether the
    service ends a world when the process that made or started it dies."""

    kind = "fake"

    def __init__(self, *, ends_with_owner: bool = True) -> None:
        self.ends_with_owner = ends_with_owner
        self._address = os.environ.get(ADDRESS, "")
        self._session: aiohttp.ClientSession | None = None
        self._owner = secrets.token_hex(8)
        self._hold: aiohttp.ClientWebSocketResponse | None = None
        self._holding = asyncio.Lock()
        self._process = os.getpid()

    def unavailable(self) -> str | None:
        return None if self._address else f"{ADDRESS} is not set"

    async def identity(self) -> str:
        return str((await self._json("GET", "/identity"))["identity"])

    async def unenforced(self) -> tuple[str, ...]:
        return ("cpus",) if usable_hierarchies() is not None else ("memory", "processes", "cpus")

    async def create(self, spec: WorldSpec) -> World:
        body = {
            "name": spec.name,
            "labels": dict(spec.labels),
            "image": spec.image,
            "environment": dict(spec.environment),
            "user": spec.user,
            "directory": spec.directory,
            "limits": asdict(spec.limits),
            "project": None if spec.project is None else str(spec.project),
            "hidden": [] if spec.project is None else hidden_below(spec.project, spec.hidden),
        }
        made = await self._json("POST", "/worlds", json=body, params=await self._as_owner())
        return World(made["id"], made["workspace"], made["directory"], made["home"])

    async def start(self, world: str) -> None:
        await self._json("POST", f"/worlds/{world}/start", params=await self._as_owner())

    async def stop(self, world: str) -> None:
        await self._json("POST", f"/worlds/{world}/stop")

    async def execute(
        self,
        world: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None,
        directory: str | None,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> ExecStream:
        order = {"command": list(command), "environment": dict(environment), "user": user, "directory": directory}
        socket = await self._websocket(f"/worlds/{world}/exec")
        try:
            await socket.send_str(json.dumps(order))
            answer = await asyncio.wait_for(socket.receive_json(), _SECONDS)
            _check(answer["status"], answer.get("text", ""))
        except (aiohttp.ClientError, TypeError, TimeoutError, ConnectionError) as error:
            await socket.close()
            raise _lost(error) from error
        except BaseException:
            await to_the_end(_closed(socket))
            raise
        return _Stream(socket, output, errors)

    async def put(self, world: str, archive: BinaryIO, path: str) -> None:
        data = await asyncio.to_thread(archive.read)
        await self._json("PUT", f"/worlds/{world}/archive", data=data, params={"path": path})

    async def get(self, world: str, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        async with await self._answer("GET", f"/worlds/{world}/archive", params={"path": path}) as answer:
            if answer.status == 404 and "no such file" in await answer.text():
                raise FileNotFoundError(path)
            _check(answer.status, await answer.text() if answer.status >= 400 else "")
            size = 0
            async for data in answer.content.iter_chunked(1 << 16):
                size += len(data)
                if size > max_bytes:
                    raise ValueError(f"more than {max_bytes:,} bytes")
                archive.write(data)

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        return str((await self._json("POST", f"/worlds/{world}/snapshot", json=dict(labels)))["id"])

    async def changes(self, snapshot: str, image: str | None, folder: Path, *, max_bytes: int) -> list[Path]:
        params = {"image": image or "base"}
        async with await self._answer("GET", f"/snapshots/{snapshot}/changes", params=params) as answer:
            _check(answer.status, await answer.text() if answer.status >= 400 else "")
            data = await answer.read()
        if len(data) > max_bytes:
            raise ValueError(f"more than {max_bytes:,} bytes")
        layer = folder / "layer.tar"
        layer.write_bytes(data)
        return [layer]

    async def size(self, world: str) -> int | None:
        return int((await self._json("GET", f"/worlds/{world}/size"))["size"])

    async def delete(self, world: str) -> None:
        await self._json("DELETE", f"/worlds/{world}")

    async def delete_snapshot(self, snapshot: str) -> None:
        await self._json("DELETE", f"/snapshots/{snapshot}")

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        found = await self._json("GET", "/worlds", params={"labels": json.dumps(dict(labels))})
        return [Listed(each["id"], each["labels"], each["running"], each["snapshot"]) for each in found]

    async def close(self) -> None:
        if self._hold is not None:
            await _closed(self._hold)
        if self._session is not None:
            await self._session.close()
        self._hold = self._session = None

    async def control(self, **faults: Any) -> None:
        """Order faults: ``latency`` (seconds), ``refuse`` and ``drop`` (how many requests), ``snapshot_seconds``, ``identity`` (as
        after a new start of the machine), ``break_streams``, ``kill`` (a world's id)."""
        await self._json("POST", "/control", json=faults)

    async def counts(self) -> dict[str, int]:
        """How often each kind of request came: ``POST snapshot``, ``POST /worlds``, ``GET exec``, ``DELETE snapshots`` …"""
        counts: dict[str, int] = await self._json("GET", "/counts")
        return counts

    async def _json(self, method: str, path: str, **arguments: Any) -> Any:
        async with await self._answer(method, path, **arguments) as answer:
            _check(answer.status, await answer.text() if answer.status >= 400 else "")
            return await answer.json()

    async def _answer(self, method: str, path: str, **arguments: Any) -> aiohttp.ClientResponse:
        """The answer to a request that is repeated while the service is busy; raises ItemError(SANDBOX_LOST) for none."""
        for attempt in range(_TRIES):
            try:
                answer = await self._client().request(method, self._address + path, **arguments)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _lost(error) from error
            if answer.status != 429:
                return answer
            answer.release()
            await asyncio.sleep(float(answer.headers.get("Retry-After", "0.1")) * 2**attempt)
        raise ItemError(Cause.SANDBOX_LOST, f"the service of fake worlds is busy: {path}")

    async def _websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        for attempt in range(_TRIES):
            try:
                return await self._client().ws_connect(self._address + path, max_msg_size=1 << 26)
            except aiohttp.WSServerHandshakeError as error:
                if error.status != 429:
                    raise ItemError(
                        Cause.SANDBOX_LOST, f"the service of fake worlds: {error.status} for {path}"
                    ) from error
                await asyncio.sleep(0.05 * 2**attempt)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _lost(error) from error
        raise ItemError(Cause.SANDBOX_LOST, f"the service of fake worlds is busy: {path}")

    async def _as_owner(self) -> dict[str, str]:
        """What says whose world it is, as long as this process lives."""
        if not self.ends_with_owner:
            return {}
        async with self._holding:
            if self._hold is None or self._hold.closed:
                self._hold = await self._websocket(f"/hold/{self._owner}")
                await self._hold.receive()
        return {"owner": self._owner}

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=_SECONDS)
            )
        return self._session


class _Stream:
    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> None:
        self._socket = socket
        self._sinks = {b"o": output, b"e": errors}
        self._code: int | None = None
        self._reading = asyncio.ensure_future(self._read())

    async def write(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, RuntimeError, OSError) as error:
            raise ConnectionError(str(error)) from error

    async def close_input(self) -> None:
        with suppress(aiohttp.ClientError, RuntimeError, OSError):
            await self._socket.send_str("close")

    async def wait(self) -> int | None:
        await asyncio.wait([self._reading])
        return self._code

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await _closed(self._socket)

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                self._sinks[message.data[:1]](message.data[1:])
            elif message.type is aiohttp.WSMsgType.TEXT:
                self._code = json.loads(message.data)["code"]


async def _closed(socket: aiohttp.ClientWebSocketResponse) -> None:
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        await asyncio.wait_for(socket.close(), 2)


def _check(status: int, text: str) -> None:
    if status == 422:
        raise ItemError(Cause.INVALID_INPUT, text)
    if status >= 400:
        raise ItemError(Cause.SANDBOX_LOST, f"the service of fake worlds: {text}")


def _lost(error: BaseException) -> ItemError:
    return ItemError(Cause.SANDBOX_LOST, f"the service of fake worlds does not answer: {error}")
