"""What drivers do by commands in a world: scripts to their end, and archives by the world's own ``tar``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, Protocol

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.remote.driver import ExecStream

MISSING = 74
"""Exit code of a script: there is no such file or folder."""
_SECONDS = 60.0
_COPY_SECONDS = 600.0
_PART = 1 << 18
_MAX_SAID = 1 << 20
_GET = """\
[ -e "$1/$2" ] || [ -L "$1/$2" ] || exit 74
tar -c -f - -C "$1" "$2"
code=$?
[ "$code" -le 1 ] || exit "$code"
"""
_PUT = '[ -d "$1" ] || exit 74\ntar -x -p -f - -C "$1"\n'
_PLACES = """\
mkdir -p /workspace || exit 1
[ -z "$1" ] || cd -- "$1" || exit 74
[ "$(pwd)" != / ] || cd /workspace
pwd; echo "$HOME"
"""


class Executes(Protocol):
    """A driver, as far as it is needed here."""

    @property
    def kind(self) -> str: ...

    async def execute(
        self,
        world: str,
        command: Sequence[str],
        *,
        environment: dict[str, str],
        user: str | None,
        directory: str | None,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> ExecStream: ...


async def ran(
    driver: Executes,
    world: str,
    script: str,
    *arguments: str,
    input: BinaryIO | None = None,
    output: Callable[[bytes], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
    seconds: float = _SECONDS,
) -> tuple[int, bytes, bytes]:
    """Run a script for ``sh`` to its end: its exit code, output and errors. Raises ItemError(SANDBOX_LOST) if the connection breaks, or
    nothing comes or is taken for ``seconds``."""
    said, complaints, moved = bytearray(), bytearray(), asyncio.Event()

    def keep(data: bytes) -> None:
        moved.set()
        if output is not None:
            output(data)
        elif len(said) < _MAX_SAID:
            said.extend(data)

    stream = await driver.execute(
        world,
        ["/bin/sh", "-c", script, "sh", *arguments],
        environment={},
        user=None,
        directory="/",
        output=keep,
        errors=lambda data: complaints.extend(data[:_MAX_SAID]),
    )
    try:
        code = await ended(stream, input, moved, enough=enough, seconds=seconds)
    except TimeoutError:
        raise ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: no answer within {seconds:.0f} seconds") from None
    if code is None:
        raise ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: the connection broke")
    return code, bytes(said), bytes(complaints)


async def ended(
    stream: ExecStream, input: BinaryIO | None, moved: asyncio.Event, *, enough: Callable[[], bool], seconds: float
) -> int | None:
    """Hand its input to a command, wait for its end, and close the stream. Returns its exit code; 0 if it is left because nothing more of
    it is wanted (``enough``), None if the connection broke. ``moved``: what is set whenever the command wrote something. Raises
    TimeoutError if for ``seconds`` it neither writes nor takes anything."""
    feeding = asyncio.ensure_future(_feed(stream, input, moved))
    ending = asyncio.ensure_future(stream.wait())
    try:
        while not ending.done() and not enough():
            moved.clear()
            moving = asyncio.ensure_future(moved.wait())
            done, _ = await asyncio.wait([ending, moving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            moving.cancel()
            if not done:
                raise TimeoutError
        return ending.result() if ending.done() else 0
    finally:
        feeding.cancel()
        ending.cancel()
        await to_the_end(stream.close())


async def put_archive(driver: Executes, world: str, archive: BinaryIO, path: str) -> None:
    """Unpack a tar archive. Raises FileNotFoundError if there is no such folder."""
    code, _, errors = await ran(driver, world, _PUT, path, input=archive, seconds=_COPY_SECONDS)
    _check(driver, path, code, errors)


async def get_archive(driver: Executes, world: str, path: str, archive: BinaryIO, max_bytes: int) -> None:
    """Write a tar archive. Raises FileNotFoundError, and ValueError for more than ``max_bytes`` bytes."""
    folder, _, name = path.rstrip("/").rpartition("/")
    size = 0

    def keep(data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size <= max_bytes:
            archive.write(data)

    code, _, errors = await ran(
        driver,
        world,
        _GET,
        folder or "/",
        name or ".",
        output=keep,
        enough=lambda: size > max_bytes,
        seconds=_COPY_SECONDS,
    )
    if size > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes} bytes")
    _check(driver, path, code, errors)


async def places(driver: Executes, world: str, directory: str | None) -> tuple[str, str]:
    """Make ``/workspace``; where commands start, and their home. Raises ItemError: INVALID_INPUT if there is no such directory."""
    code, said, errors = await ran(driver, world, _PLACES, directory or "")
    if code == MISSING:
        raise ItemError(Cause.INVALID_INPUT, f"cwd {directory!r} is no folder in the image")
    _check(driver, "/workspace", code, errors)
    start, _, home = said.decode(errors="surrogateescape").strip().partition("\n")
    return start or "/workspace", home


def _check(driver: Executes, path: str, code: int, errors: bytes) -> None:
    if code == MISSING:
        raise FileNotFoundError(f"there is no {path}")
    if code:
        said = errors[-300:].decode(errors="replace").strip()
        raise ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: {path}: {said or f'exit code {code}'}")


async def _feed(stream: ExecStream, input: BinaryIO | None, moved: asyncio.Event) -> None:
    with suppress(ConnectionError):  # how it ended says why
        while input is not None and (part := await asyncio.to_thread(input.read, _PART)):
            await stream.write(part)
            moved.set()
    await stream.close_input()
