"""``--sandbox daytona``: worlds are sandboxes of Daytona, in the user's own account, by Daytona's own client.

Not yet tried against the real service: the tests use a stand-in for the client's objects. ``manyhands sandbox check daytona`` tries it out.

Its sessions pass on text alone, and one stream. So a script in the sandbox passes a command's input and both its outputs on as lines of
base64: ``o…`` and ``e…`` are output and errors, ``x…`` is the exit code. It takes ``base64``, ``dd``, ``tr`` and ``mkfifo`` in the image.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.redaction import describe
from manyhands.sandboxes.remote.driver import FOLDER, RUN, ExecStream, Listed, World, WorldSpec
from manyhands.sandboxes.services.command_driver import CALL_SECONDS, ServiceDriver
from manyhands.sandboxes.settings import SandboxSettings

_IDLE_MINUTES = 60
_START_SECONDS = 900
_IMAGE = "python:3.12-slim"
_SNAPSHOT = "manyhands-snapshot-"
_PART = 1 << 14
_GB = 1 << 30
# Runs "$@" with its streams as lines; $1: a folder for pipes.
_WRAP = """\
pipes=$1; shift
mkdir -m 700 "$pipes" && mkfifo "$pipes/in" "$pipes/out" "$pipes/err" || exit 126
lines() {
  while :; do
    text=$(dd bs=2048 count=1 2>/dev/null | base64 | tr -d '\\n')
    [ -n "$text" ] || break
    printf '%s%s\\n' "$1" "$text"
  done
}
lines o <"$pipes/out" & out=$!
lines e <"$pipes/err" & err=$!
exec 3<&0
{ while IFS= read -r line && [ "$line" != . ]; do printf %s "$line" | base64 -d; done <&3 >"$pipes/in"; } & feeder=$!
( exec "$@" ) <"$pipes/in" >"$pipes/out" 2>"$pipes/err"
code=$?
wait "$out" "$err"
kill "$feeder" 2>/dev/null
rm -rf "$pipes"
printf 'x%s\\n' "$code"
"""


def daytona_driver(name: str, options: SandboxSettings) -> DaytonaDriver:
    """Raises ImportError without the extra."""
    import daytona

    return DaytonaDriver(daytona)


class DaytonaDriver(ServiceDriver):
    """Keeps worlds at Daytona. They stop and are deleted by themselves when their time is over. ``sdk``: the module ``daytona``."""

    name = "daytona"

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._client: Any = None

    def unavailable(self) -> str | None:
        try:
            self._connected()
        except ItemError as error:
            return f"{error.message} (DAYTONA_API_KEY)"
        return None

    async def identity(self) -> str:
        config = self._connected()
        return f"daytona:{getattr(config, '_api_url', '')}:{getattr(config, '_target', '')}"

    async def unenforced(self) -> tuple[str, ...]:
        return ("processes", "files")

    async def create(self, spec: WorldSpec) -> World:
        self._refuse(spec, user=False)
        minutes = max(1, math.ceil(spec.time_to_live / 60))
        common: dict[str, Any] = {
            "name": spec.name,
            "labels": dict(spec.labels),
            "env_vars": dict(spec.environment),
            "os_user": spec.user,
            "ttl_minutes": minutes,
            "auto_stop_interval": min(minutes, _IDLE_MINUTES),
            "auto_delete_interval": minutes,
            "network_block_all": not spec.limits.network,
        }
        sdk, limits = self._sdk, spec.limits
        if spec.image is not None and spec.image.startswith(_SNAPSHOT):
            params = sdk.CreateSandboxFromSnapshotParams(snapshot=spec.image, **common)
        else:
            resources = sdk.Resources(
                cpu=None if limits.cpus is None else max(1, math.ceil(limits.cpus)),
                memory=max(1, math.ceil(limits.memory / _GB)),
                disk=max(1, math.ceil(limits.disk / _GB)),
            )
            params = sdk.CreateSandboxFromImageParams(image=spec.image or _IMAGE, resources=resources, **common)
        sandbox = await self._asked(self._connected().create(params, timeout=_START_SECONDS), _START_SECONDS + 60)
        return await self._settled(str(sandbox.id), spec.directory)

    async def start(self, world: str) -> None:
        sandbox = await self._found(world)
        if _state(sandbox) != "started":
            await self._asked(sandbox.start(timeout=_START_SECONDS), _START_SECONDS + 60)

    async def stop(self, world: str) -> None:
        with self._unless_gone():
            sandbox = await self._found(world)
            if _state(sandbox) == "started":
                await self._asked(sandbox.stop(timeout=CALL_SECONDS))

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
        if user is not None:
            raise ItemError(Cause.INVALID_INPUT, "daytona: all commands run as the sandbox's user")
        sandbox = await self._found(world)
        session = f"manyhands-{secrets.token_hex(8)}"
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in environment.items())
        enter = "" if directory is None else f"cd -- {shlex.quote(directory)} || exit 126; "
        words = shlex.join(["/bin/sh", "-c", _WRAP, "sh", f"/tmp/{session}", *command])
        request = self._sdk.SessionExecuteRequest(
            command=f"{exports}{enter}{words}", run_async=True, suppress_input_echo=True
        )
        await self._asked(sandbox.process.create_session(session))
        begun = await self._asked(sandbox.process.execute_session_command(session, request))
        return _DaytonaStream(sandbox.process, session, str(begun.cmd_id), output, errors)

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        """Snapshots have no labels; their names say of which run and folder they are."""
        sandbox = await self._found(world)
        name = f"{_SNAPSHOT}{_short(labels.get(RUN, ''))}-{_short(labels.get(FOLDER, ''))}-{secrets.token_hex(6)}"
        await self._asked(sandbox.create_snapshot(name, timeout=_START_SECONDS), _START_SECONDS + 60)
        return name

    async def delete(self, world: str) -> None:
        with self._unless_gone():
            await self._asked((await self._found(world)).delete(timeout=CALL_SECONDS))

    async def delete_snapshot(self, snapshot: str) -> None:
        with self._unless_gone():
            found = await self._asked(self._connected().snapshot.get(snapshot))
            await self._asked(self._connected().snapshot.delete(found))

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        wanted = {name: value for name, value in labels.items() if value}
        query = self._sdk.ListSandboxesQuery(labels=wanted or None)
        found: list[Listed] = []
        with self._telling():
            async with asyncio.timeout(_START_SECONDS):
                async for sandbox in self._connected().list(query):
                    kept = dict(sandbox.labels or {})
                    if set(labels) <= set(kept) and all(kept[name] == value for name, value in wanted.items()):
                        found.append(Listed(str(sandbox.id), kept, running=_state(sandbox) == "started"))
        return found

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._asked(client.close())

    def _connected(self) -> Any:
        if self._client is None:
            with self._telling():
                self._client = self._sdk.AsyncDaytona()
        return self._client

    async def _found(self, world: str) -> Any:
        return await self._asked(self._connected().get(world))

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        try:
            yield
        except ItemError as error:
            if not isinstance(error.__cause__, self._sdk.DaytonaNotFoundError):
                raise

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Within this, errors of the client become ItemErrors."""
        sdk = self._sdk
        try:
            yield
        except (sdk.DaytonaBadRequestError, sdk.DaytonaValidationError) as error:
            raise ItemError(Cause.INVALID_INPUT, f"daytona: {describe(error)}") from error
        except (sdk.DaytonaError, TimeoutError, OSError) as error:
            raise ItemError(Cause.SANDBOX_LOST, f"daytona: {describe(error)}") from error


class _DaytonaStream:
    """A command in a sandbox of Daytona. Fulfils ``ExecStream``."""

    def __init__(
        self,
        process: Any,
        session: str,
        command: str,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> None:
        self._process = process
        self._session = session
        self._command = command
        self._sinks = {"o": output, "e": errors}
        self._rest = ""
        self._code: int | None = None
        self._following = asyncio.ensure_future(
            process.get_session_command_logs_async(session, command, self._feed, lambda text: None)
        )

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PART):
            await self._send(base64.b64encode(data[start : start + _PART]).decode())

    async def close_input(self) -> None:
        with suppress(ConnectionError):
            await self._send(".")

    async def wait(self) -> int | None:
        await asyncio.wait([self._following])
        return self._code

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])
        if self._code is not None:
            try:
                async with asyncio.timeout(10):
                    await self._process.delete_session(self._session)
            except Exception:  # noqa: BLE001 - the boundary to Daytona's client; the session ends with its sandbox
                pass

    async def _send(self, line: str) -> None:
        try:
            await self._process.send_session_command_input(self._session, self._command, f"{line}\n")
        except Exception as error:
            raise ConnectionError(describe(error)) from error

    def _feed(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            kind, rest = line[:1], line[1:].strip()
            if kind in self._sinks:
                with suppress(ValueError):
                    self._sinks[kind](base64.b64decode(rest))
            elif kind == "x" and rest.isdecimal():
                self._code = int(rest)


def _state(sandbox: Any) -> str:
    return str(getattr(sandbox.state, "value", sandbox.state))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
