"""Building an image of a ``Dockerfile``, by the engine's own program: it packs the context and obeys its ignore file as people know it.

A build that is over its time limit ends with the program. Podman's service first finishes the instruction that it is at.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.redaction import KNOWN
from manyhands.core.text import printable
from manyhands.processes.children import Process, started_with_pipes

_MAX_LOG_BYTES = 50_000_000
_LAST_LINES = 5
_LAST_OUTPUT = 2.0


class _Log:
    """What a build prints: in a file up to a bound, and the last words."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MAX_LOG_BYTES
        self._last: deque[bytes] = deque(maxlen=16)

    def feed(self, data: bytes) -> None:
        self._last.append(data)
        kept = data[: self._left]
        self._left -= len(kept)
        self._file.write(kept)

    def last_words(self) -> str:
        lines = b"".join(self._last).decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return printable(KNOWN.text(" | ".join(said[-_LAST_LINES:])))[-600:] or "it said nothing"


async def build_image(kind: str, address: str, folder: Path, *, tag: str, timeout: float, log: Path) -> None:
    """Build the ``Dockerfile`` in ``folder`` as ``tag``; the program and all that it started are killed after ``timeout`` seconds. Raises
    UserError if it does not build, with its last words."""
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file():
        raise UserError(f"{folder}: there is no Dockerfile")
    program = shutil.which(kind)
    if program is None:
        raise UserError(f"{dockerfile}: building it needs the program {kind}, which is not installed")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        said = _Log(file)
        code = await _run(_command(program, kind, address, folder, tag), _environment(), said, timeout)
    if code is None:
        raise UserError(f"{dockerfile}: not built within {timeout:g} seconds (log: {log}): {said.last_words()}")
    if code != 0:
        raise UserError(f"{dockerfile}: does not build (log: {log}): {said.last_words()}")


def _command(program: str, kind: str, address: str, folder: Path, tag: str) -> list[str]:
    engine = [program, "--host", address] if kind == "docker" else [program, "--remote", "--url", address]
    # Of an instruction that fails, Docker keeps the container unless told otherwise.
    return [*engine, "build", "--force-rm", "--tag", tag, "--file", str(folder / "Dockerfile"), str(folder)]


def _environment() -> Mapping[str, str]:
    """The person's own, as the program reads their configuration, without what would lead it to another engine."""
    other = {"DOCKER_CONTEXT", "CONTAINER_CONNECTION"}
    return {name: value for name, value in os.environ.items() if name not in other}


async def _run(command: Sequence[str], environment: Mapping[str, str], log: _Log, timeout: float) -> int | None:
    """The exit code; None if it was killed at its time limit."""

    def start(input_end: int, output_end: int) -> Process:
        return Process(command, environment, stdin=input_end, output=output_end)

    process, reader, writer = started_with_pipes(start, log.feed)
    writer.close()
    try:
        code = await process.wait_for(timeout)
        if code is None:
            await process.stop()
        await reader.finish(_LAST_OUTPUT)
        return code
    finally:
        process.kill_group()
        reader.close()
