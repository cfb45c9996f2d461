"""``--sandbox modal``: worlds are sandboxes of Modal, in the user's own account, by Modal's own client.

Not yet tried against the real service: the tests use a stand-in for the client's objects. ``manyhands sandbox check modal`` tries it out.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.redaction import describe
from manyhands.sandboxes.remote.driver import ExecStream, Listed, World, WorldSpec
from manyhands.sandboxes.services.command_driver import ServiceDriver
from manyhands.sandboxes.services.commands import ran
from manyhands.sandboxes.settings import SandboxSettings

_APP = "manyhands"
_WORLD = "MANYHANDS_WORLD"
_MAX_LIFE = 24 * 3600
_START_SECONDS = 900.0
_STAYS = ("/bin/sh", "-c", "while :; do sleep 3600; done")
_SNAPSHOT = "im-"
_TAG = 50
# Ends all that our commands started in the world $1: what carries its mark in its environment.
_STOP = f"""\
round=0
while [ "$round" -lt 20 ]; do
  round=$((round + 1)); left=
  for folder in /proc/[0-9]*; do
    [ "${{folder#/proc/}}" = $$ ] && continue
    seen=$(cat "$folder/environ" 2>/dev/null | tr '\\0' '\\n')
    case "$seen" in *"{_WORLD}=$1"*) kill -KILL "${{folder#/proc/}}" 2>/dev/null && left=yes ;; esac
  done
  [ -n "$left" ] || break
done
"""


def modal_driver(name: str, options: SandboxSettings) -> ModalDriver:
    """Raises ImportError without the extra."""
    import modal

    return ModalDriver(modal)


class ModalDriver(ServiceDriver):
    """Keeps worlds at Modal. They end by themselves when their time is over. ``sdk``: the module ``modal``."""

    name = "modal"

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._app: Any = None

    def unavailable(self) -> str | None:
        if self._sdk.config.config.get("token_id"):
            return None
        return "no token of Modal is set (MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run: modal setup)"

    async def identity(self) -> str:
        return f"modal:{(await self._found_app()).app_id}"

    async def unenforced(self) -> tuple[str, ...]:
        return ("processes", "disk", "files")

    async def create(self, spec: WorldSpec) -> World:
        self._refuse(spec, user=True)
        image = self._image(spec.image)
        life = max(60, min(_MAX_LIFE, math.ceil(spec.time_to_live)))
        more: dict[str, Any] = {} if spec.limits.cpus is None else {"cpu": (spec.limits.cpus, spec.limits.cpus)}
        memory = max(128, spec.limits.memory >> 20)
        sandbox = await self._asked(
            self._sdk.Sandbox.create.aio(
                *_STAYS,
                app=await self._found_app(),
                image=image,
                env=dict(spec.environment),
                tags=tags_of(spec.labels),
                timeout=life,
                memory=(min(memory, 512), memory),
                block_network=not spec.limits.network,
                **more,
            ),
            _START_SECONDS,
        )
        return await self._settled(str(sandbox.object_id), spec.directory)

    async def start(self, world: str) -> None:
        """A sandbox of Modal that has ended does not come back."""
        sandbox = await self._found(world)
        if await self._asked(sandbox.poll.aio()) is not None:
            raise ItemError(Cause.SANDBOX_LOST, f"modal: the sandbox {world} has ended")

    async def stop(self, world: str) -> None:
        try:
            await self.start(world)
        except ItemError:
            return
        await ran(self, world, _STOP, world)

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
            raise ItemError(Cause.INVALID_INPUT, "modal: commands run as the image's user")
        sandbox = await self._found(world)
        variables = {**environment, _WORLD: world}
        process = await self._asked(sandbox.exec.aio(*command, env=variables, workdir=directory, text=False))
        return _ModalStream(process, output, errors)

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        """Modal removes it when its time is over; it has no labels."""
        sandbox = await self._found(world)
        image = await self._asked(sandbox.snapshot_filesystem.aio(timeout=300, ttl=_MAX_LIFE), _START_SECONDS)
        return str(image.object_id)

    async def delete(self, world: str) -> None:
        try:
            sandbox = await self._found(world)
            await self._asked(sandbox.terminate.aio())
        except ItemError as error:
            if not isinstance(error.__cause__, self._sdk.exception.NotFoundError):
                raise

    async def delete_snapshot(self, snapshot: str) -> None:
        """Nothing is to be done: it has a time to live."""

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        app = await self._found_app()
        wanted = {name: value for name, value in labels.items() if value}
        found: list[Listed] = []
        with self._telling():
            async with asyncio.timeout(_START_SECONDS):
                sandboxes: AsyncIterator[Any] = self._sdk.Sandbox.list.aio(
                    app_id=app.app_id, tags=tags_of(wanted) or None
                )
                async for sandbox in sandboxes:
                    kept = labels_of(await sandbox.get_tags.aio())
                    if set(labels) <= set(kept):
                        found.append(Listed(str(sandbox.object_id), kept, running=True))
        return found

    async def close(self) -> None:
        self._app = None

    def _image(self, reference: str | None) -> Any:
        if reference is None:
            return self._sdk.Image.debian_slim()
        if reference.startswith(_SNAPSHOT):
            return self._sdk.Image.from_id(reference)
        return self._sdk.Image.from_registry(reference)

    async def _found_app(self) -> Any:
        if self._app is None:
            self._app = await self._asked(self._sdk.App.lookup.aio(_APP, create_if_missing=True))
        return self._app

    async def _found(self, world: str) -> Any:
        return await self._asked(self._sdk.Sandbox.from_id.aio(world))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Within this, errors of the client become ItemErrors."""
        known = self._sdk.exception
        try:
            yield
        except (known.InvalidError, known.ImageBuildError, known.RemoteError) as error:
            raise ItemError(Cause.INVALID_INPUT, f"modal: {describe(error)}") from error
        except (known.Error, TimeoutError, OSError) as error:
            raise ItemError(Cause.SANDBOX_LOST, f"modal: {describe(error)}") from error


class _ModalStream:
    """A command in a sandbox of Modal. Fulfils ``ExecStream``."""

    def __init__(self, process: Any, output: Callable[[bytes], None], errors: Callable[[bytes], None]) -> None:
        self._process = process
        pairs = ((process.stdout, output), (process.stderr, errors))
        self._reading = [asyncio.ensure_future(_read(stream, sink)) for stream, sink in pairs]

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain.aio()
        except Exception as error:
            raise ConnectionError(describe(error)) from error

    async def close_input(self) -> None:
        try:
            self._process.stdin.write_eof()
            await self._process.stdin.drain.aio()
        except Exception:  # noqa: BLE001 - the boundary to Modal's client; a command that has ended needs no end of its input
            pass

    async def wait(self) -> int | None:
        try:
            await asyncio.gather(*map(asyncio.shield, self._reading))
            code = await self._process.wait.aio()
        except Exception:  # noqa: BLE001 - the boundary to Modal's client: whatever it raises, the connection is broken
            return None
        return None if code is None else int(code)

    async def close(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.wait(self._reading)


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as tags of Modal's, which hold few characters of few kinds: each in numbered parts."""
    tags = {}
    for name, value in labels.items():
        text = base64.urlsafe_b64encode(b"." + value.encode("utf-8", "surrogateescape")).decode().rstrip("=")
        for number in range(0, len(text), _TAG):
            tags[f"{name}.{number // _TAG}"] = text[number : number + _TAG]
    return tags


def labels_of(tags: Mapping[str, str]) -> dict[str, str]:
    """The labels that are in tags; those of others are left out."""
    parts: dict[str, dict[int, str]] = {}
    for tag, text in tags.items():
        name, _, number = tag.rpartition(".")
        if name and number.isdecimal():
            parts.setdefault(name, {})[int(number)] = text
    labels = {}
    for name, texts in parts.items():
        text = "".join(texts[number] for number in sorted(texts))
        try:
            value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            continue
        if value.startswith(b"."):
            labels[name] = value[1:].decode("utf-8", "surrogateescape")
    return labels


async def _read(stream: Any, sink: Callable[[bytes], None]) -> None:
    async for data in stream:
        sink(data)
