"""The viewer beside a command that executes runs (``--view``): a process of its own, which ends with the command.

The run neither waits for it nor depends on it: whatever becomes of it, there is a note at most.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from manyhands.cli.console import err, notice, view_command
from manyhands.core.errors import ItemError
from manyhands.core.text import one_line
from manyhands.processes.children import Guard, Process, started_with_pipes, to_the_end
from manyhands.processes.interpreters import PYTHONPATH, own_module_path, python_command
from manyhands.processes.strays import SANDBOX_VARIABLE
from manyhands.runs.on_end import harmless

START_SECONDS = 30.0
"""Seconds that the viewer may take until it says where it is."""
_MAX_SAID = 16 << 10
"""Bytes of what it prints that are read."""
_LINK = re.compile(rb"http://\S+")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables that name a screen on which a browser can be opened."""


def viewer_beside(folders: Sequence[Path], *, wanted: bool) -> AbstractAsyncContextManager[None]:
    """Within it, the runs in these folders can be looked at in a browser, if that is wanted; its link is printed as soon as it is known."""
    return _viewer_beside(folders) if wanted else nullcontext()


@asynccontextmanager
async def _viewer_beside(folders: Sequence[Path]) -> AsyncIterator[None]:
    showing = asyncio.ensure_future(_show(folders))
    try:
        yield
    finally:
        showing.cancel()
        await to_the_end(_ended(showing))


async def _ended(showing: asyncio.Future[None]) -> None:
    await asyncio.wait([showing])


async def _show(folders: Sequence[Path]) -> None:
    """Have a viewer until this is cancelled, and say what becomes of it."""
    mark = secrets.token_hex(16)
    try:
        guard = Guard(f"{SANDBOX_VARIABLE}={mark}")
        try:
            await _show_guarded(folders, mark)
        finally:
            await to_the_end(guard.dismiss())
    except (ItemError, OSError) as error:
        notice(f"--view: the viewer can't be started: {one_line(str(error))}")


async def _show_guarded(folders: Sequence[Path], mark: str) -> None:
    viewer = _Viewer(folders, mark)
    try:
        if not await viewer.is_ready():
            notice(f"--view: the viewer did not start{viewer.last_words()}")
            return
        for line in viewer.notes:
            notice(f"--view: {line}")
        err().print_line(f"In a browser, while this command runs:  {viewer.link}")
        await viewer.wait()
        notice("--view: the viewer has ended; the run goes on")
    except asyncio.CancelledError:
        if viewer.link:
            commands = ", ".join(map(view_command, folders))
            notice(f"the viewer ends with this command; to look at it from now on:  {commands}")
        raise
    finally:
        await to_the_end(viewer.end())


class _Viewer:
    """``manyhands view`` for some folders, with ``mark`` in its environment. Must be made in an event loop. Raises ItemError if it can't be
    started."""

    def __init__(self, folders: Sequence[Path], mark: str) -> None:
        environment = {**harmless(os.environ), PYTHONPATH: own_module_path(os.environ), SANDBOX_VARIABLE: mark}
        opens = ["--open"] if any(map(os.environ.get, _DISPLAYS)) else []
        command = python_command("manyhands", "view", *opens, *(str(folder.absolute()) for folder in folders))

        def start(stdin: int, output: int) -> Process:
            return Process(command, environment, stdin=stdin, output=output)

        self._said = b""
        self._news = asyncio.Event()
        self._process, self._reader, self._writer = started_with_pipes(start, self._hear)

    def _hear(self, data: bytes) -> None:
        self._said = (self._said + data)[:_MAX_SAID]
        self._news.set()

    @property
    def link(self) -> str:
        """Its address, with what lets the first browser in; empty if it has not said that yet."""
        found = _LINK.search(self._said)
        return "" if found is None or b"\n" not in self._said[found.end() :] else found[0].decode("ascii", "replace")

    @property
    def notes(self) -> list[str]:
        """What it has said besides."""
        return [line.removeprefix("note: ") for line in self._lines() if line.startswith("note: ")]

    def last_words(self) -> str:
        """What it said last, to be put behind a sentence; empty if there is nothing."""
        lines = self._lines()
        return f": {one_line(lines[-1], 300)}" if lines else ""

    async def is_ready(self) -> bool:
        """Wait until it says where it is; False if it ends before, or takes too long."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not self.link and self._process.runs():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            self._news.clear()
            news = asyncio.ensure_future(self._news.wait())
            either: list[asyncio.Future[Any]] = [news, self._process.ended]
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        return bool(self.link)

    async def wait(self) -> None:
        """Wait until it ends."""
        await self._process.wait()

    async def end(self) -> None:
        """End it, and all that it has started."""
        await self._process.stop()
        self._reader.close()
        self._writer.close()

    def _lines(self) -> list[str]:
        return [line for line in self._said.decode("utf-8", "replace").splitlines() if line.strip()]
