"""``--sandbox apptainer``: worlds are instances of Apptainer on this machine, each over an overlay folder in its attempt's folder.

Not yet tried with the real program: the tests use a stand-in for it. ``manyhands sandbox check apptainer`` tries it out.

An image is brought once, as a file named after the digest of its reference, under a lock. Values of variables go to the program in its
environment, never in its command line.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import PipeReader, PipeWriter, Process, close_all, fresh_pipes, to_the_end
from manyhands.processes.strays import remove_tree
from manyhands.processes.system import boot
from manyhands.sandboxes.remote.driver import FOLDER, ExecStream, Listed, World, WorldSpec, has_labels
from manyhands.sandboxes.services.command_driver import CommandDriver
from manyhands.sandboxes.settings import SandboxSettings

_PROGRAMS = ("apptainer", "singularity")
_BUILD_SECONDS = 3600.0
_START_SECONDS = 180.0
_SECONDS = 60.0
_OWN = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "LANG", "DBUS_SESSION_BUS_ADDRESS")
_PREFIX = "APPTAINERENV_"
_MAX_SAID = 1 << 16


def apptainer_driver(name: str, options: SandboxSettings) -> ApptainerDriver:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "manyhands/apptainer"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyhands/apptainer"
    return ApptainerDriver(state, cache)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A world or a snapshot, as its file in the state's folder says."""

    id: str
    labels: dict[str, str]
    image: str
    """The file that it is made of."""
    folder: str
    environment: dict[str, str]
    network: bool
    limits: tuple[int, int, float | None]
    """Bytes of memory, processes, processors."""
    directory: str = "/workspace"


class ApptainerDriver(CommandDriver):
    """Keeps worlds on this machine. ``state``: a folder with a file for each; ``cache``: one for images."""

    name = "apptainer"

    def __init__(self, state: Path, cache: Path) -> None:
        self._state = state
        self._cache = cache

    def unavailable(self) -> str | None:
        return None if self._program else "neither apptainer nor singularity is installed"

    async def identity(self) -> str:
        return f"apptainer:{os.uname().nodename}:{boot()}:{self._state}"

    async def unenforced(self) -> tuple[str, ...]:
        """Whether control groups can be used depends on how it is installed."""
        return ("memory", "processes", "cpus")

    async def create(self, spec: WorldSpec) -> World:
        self._refuse(spec, user=True)
        if spec.image is None:
            raise ItemError(Cause.INVALID_INPUT, "apptainer: an image must be named (--image)")
        source = await asyncio.to_thread(self._read, spec.image)
        image = source.image if source is not None else str(await self._built(spec.image))
        folder = Path(spec.labels.get(FOLDER) or self._state) / f"apptainer-{secrets.token_hex(8)}"
        limits = (spec.limits.memory, spec.limits.processes, spec.limits.cpus)
        kept = _Kept(
            f"mh-{secrets.token_hex(12)}",
            dict(spec.labels),
            image,
            str(folder),
            dict(spec.environment),
            spec.limits.network,
            limits,
        )
        try:
            await asyncio.to_thread(self._write, kept)
            if source is None:
                await asyncio.to_thread((folder / "overlay").mkdir, parents=True)
            else:
                await self._copied(Path(source.folder), folder)
            await self.start(kept.id)
        except BaseException:
            await to_the_end(self.delete(kept.id))
            raise
        return await self._settled(kept.id, spec.directory, alone=False)

    async def start(self, world: str) -> None:
        if world in await self._instances():
            return
        kept = await self._known(world)
        memory, processes, cpus = kept.limits
        words = ["instance", "start", "--containall", "--no-home", "--overlay", f"{kept.folder}/overlay"]
        if os.geteuid() == 0:
            words += ["--memory", str(memory), "--pids-limit", str(processes)]
            words += [] if cpus is None else ["--cpus", str(math.ceil(cpus * 100) / 100)]
        words += [] if kept.network else ["--net", "--network", "none"]
        await self._ran(*words, kept.image, world, seconds=_START_SECONDS, environment=kept.environment)

    async def stop(self, world: str) -> None:
        if world in await self._instances():
            await self._ran("instance", "stop", "--force", "--timeout", "5", world)

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
            raise ItemError(Cause.INVALID_INPUT, "apptainer: all commands run as the user who started the run")
        kept = await self._known(world)
        words = [self._program, "exec", "--pwd", directory or kept.directory, f"instance://{world}", *command]
        return _LocalStream(words, _environment({**kept.environment, **environment}), output, errors)

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        """A copy of the overlay, beside it."""
        kept = await self._known(world)
        name = f"snapshot-{secrets.token_hex(12)}"
        folder = Path(kept.folder).parent / f"apptainer-{name}"
        copy = _Kept(name, dict(labels), kept.image, str(folder), {}, False, kept.limits)
        try:
            await asyncio.to_thread(self._write, copy)
            await self._copied(Path(kept.folder), folder)
        except BaseException:
            await to_the_end(self.delete_snapshot(name))
            raise
        return name

    async def size(self, world: str) -> int | None:
        kept = await self._known(world)
        code, said = await self._called(["du", "-sk", "--", kept.folder])
        return int(said.split()[0]) << 10 if code == 0 and said[:1].isdigit() else None

    async def delete(self, world: str) -> None:
        kept = await asyncio.to_thread(self._read, world)
        if kept is not None:
            await self.stop(world)
            await asyncio.to_thread(self._remove, kept)

    async def delete_snapshot(self, snapshot: str) -> None:
        kept = await asyncio.to_thread(self._read, snapshot)
        if kept is not None:
            await asyncio.to_thread(self._remove, kept)

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        running = await self._instances()
        names = await asyncio.to_thread(lambda: sorted(path.stem for path in self._state.glob("*.json")))
        found = [await asyncio.to_thread(self._read, name) for name in names]
        return [
            Listed(each.id, each.labels, each.id in running, each.id.startswith("snapshot-"))
            for each in found
            if each is not None and has_labels(each.labels, labels)
        ]

    async def close(self) -> None:
        """There are no connections."""

    # Images

    async def _built(self, reference: str) -> Path:
        """The file of an image; it is brought if it is not there. Raises ItemError."""
        if reference.endswith(".sif") or reference.startswith("/"):
            if not Path(reference).exists():
                raise ItemError(Cause.INVALID_INPUT, f"apptainer: there is no image {reference}")
            return Path(reference)
        path = self._cache / f"{hashlib.sha256(reference.encode()).hexdigest()}.sif"
        await asyncio.to_thread(self._cache.mkdir, parents=True, exist_ok=True)
        with (self._cache / f"{path.stem}.lock").open("w") as lock:
            await _locked(lock)
            if not path.exists():
                aside = path.with_suffix(f".{secrets.token_hex(6)}.new")
                source = reference if "://" in reference else f"docker://{reference}"
                try:
                    await self._ran("build", str(aside), source, seconds=_BUILD_SECONDS)
                    aside.replace(path)
                finally:
                    aside.unlink(missing_ok=True)
        return path

    # Files

    def _read(self, name: str) -> _Kept | None:
        if not name.replace("-", "").isalnum():
            return None
        try:
            value: dict[str, Any] = json.loads((self._state / f"{name}.json").read_bytes())
            memory, processes, cpus = value["limits"]
            return _Kept(**{**value, "limits": (memory, processes, cpus)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, kept: _Kept) -> None:
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        fields = {name: getattr(kept, name) for name in _Kept.__dataclass_fields__}
        path = self._state / f"{kept.id}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(fields))

    def _remove(self, kept: _Kept) -> None:
        with suppress(FileNotFoundError):
            remove_tree(Path(kept.folder))
        (self._state / f"{kept.id}.json").unlink(missing_ok=True)

    async def _known(self, world: str) -> _Kept:
        kept = await asyncio.to_thread(self._read, world)
        if kept is None:
            raise ItemError(Cause.SANDBOX_LOST, f"apptainer: the world {world} is gone")
        return kept

    async def _copied(self, source: Path, target: Path) -> None:
        await asyncio.to_thread(target.mkdir, parents=True)
        code, said = await self._called(["cp", "-a", "--reflink=auto", "--", f"{source}/overlay", f"{target}/overlay"])
        if code:
            raise ItemError(Cause.SANDBOX_LOST, f"apptainer: can't copy a world: {said[-300:]}")

    # The program

    @property
    def _program(self) -> str:
        return next((path for name in _PROGRAMS if (path := shutil.which(name))), "")

    async def _instances(self) -> set[str]:
        said = await self._ran("instance", "list", "--json")
        try:
            return {str(each["instance"]) for each in json.loads(said or "{}").get("instances") or ()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ItemError(Cause.SANDBOX_LOST, f"apptainer: can't read its list of instances: {error}") from error

    async def _ran(self, *words: str, seconds: float = _SECONDS, environment: Mapping[str, str] | None = None) -> str:
        """Run the program; what it printed. Raises ItemError(SANDBOX_LOST)."""
        code, said = await self._called([self._program, *words], seconds, environment)
        if code:
            raise ItemError(Cause.SANDBOX_LOST, f"apptainer {' '.join(words[:2])}: {said[-300:].strip() or code}")
        return said

    async def _called(
        self, words: Sequence[str], seconds: float = _SECONDS, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        said, complaints = bytearray(), bytearray()
        stream = _LocalStream(words, _environment(environment or {}), said.extend, complaints.extend)
        try:
            await stream.close_input()
            async with asyncio.timeout(seconds):
                code = await stream.wait()
        except TimeoutError:
            raise ItemError(Cause.SANDBOX_LOST, f"{Path(words[0]).name}: not done within {seconds:.0f} s") from None
        finally:
            await to_the_end(stream.close())
        text = bytes(said if code == 0 else complaints or said)[-_MAX_SAID:]
        return code, text.decode(errors="replace")


class _LocalStream:
    """A process of this machine. Fulfils ``ExecStream``."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: Callable[[bytes], object],
        errors: Callable[[bytes], object],
    ) -> None:
        pipes = fresh_pipes(3)
        (input_end, feed_end), (out_end, output_end), (err_end, errors_end) = pipes
        try:
            self._process = Process(words, environment, stdin=input_end, output=output_end, errors=errors_end)
        except BaseException:
            close_all(feed_end, out_end, err_end)
            raise
        finally:
            close_all(input_end, output_end, errors_end)
        self._readers = PipeReader(out_end, output), PipeReader(err_end, errors)
        self._writer = PipeWriter(feed_end)

    async def write(self, data: bytes) -> None:
        if not await self._writer.write(data):
            raise ConnectionError("nobody reads the command's input any more")

    async def close_input(self) -> None:
        self._writer.close()

    async def wait(self) -> int | None:
        code = await self._process.wait()
        for reader in self._readers:
            await reader.finish(2.0)
        return code

    async def close(self) -> None:
        self._writer.close()
        self._process.kill_group()
        for reader in self._readers:
            reader.close()
        await self._process.wait_for(5.0)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What the program gets: little of ours, and what commands are to get."""
    own = {name: os.environ[name] for name in _OWN if name in os.environ}
    return {**own, **{f"{_PREFIX}{name}": value for name, value in variables.items()}}


async def _locked(file: Any) -> None:
    """Wait for a lock that another process may hold as long as it brings an image. Raises ItemError(SANDBOX_LOST)."""
    try:
        async with asyncio.timeout(_BUILD_SECONDS):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise ItemError(Cause.SANDBOX_LOST, "apptainer: another process does not end to bring an image") from None
