"""A command in a world, with its streams, and the marks that stand in what it writes.

A mark is ``\\0TOKEN words\\0``. The token is a random word that commands are not told; whoever finds it out and writes marks of his own
spoils the output of his own sandbox, which is bounded like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.remote.driver import Driver, ExecStream

_MAX_MARK = 1 << 16
OPENING_SECONDS = 60.0
"""Seconds that an engine may take to start a command, or to end one."""


class Marked:
    """Takes a stream apart: ``sink`` gets what is between marks, ``mark`` the words of each mark."""

    def __init__(self, token: str, sink: Callable[[bytes], object], mark: Callable[[list[str]], object]) -> None:
        self._start = f"\0{token} ".encode()
        self._rest = b""
        self._mark = mark
        self.sink = sink

    def feed(self, data: bytes) -> None:
        rest = self._rest + data
        while (at := rest.find(self._start)) >= 0:
            end = rest.find(b"\0", at + len(self._start), at + _MAX_MARK)
            if end < 0 and len(rest) - at < _MAX_MARK:
                self._take(rest[:at])
                self._rest = rest[at:]
                return
            self._take(rest[:at])
            if end < 0:  # too long for one of ours
                rest = rest[at + len(self._start) :]
                continue
            words = rest[at + len(self._start) : end].decode(errors="surrogateescape").split(" ")
            rest = rest[end + 1 :]
            self._rest = b""
            self._mark(words)
        kept = self._unfinished(rest) if rest else 0
        self._take(rest[: len(rest) - kept])
        self._rest = rest[len(rest) - kept :]

    def _take(self, data: bytes) -> None:
        if data:
            self.sink(data)

    def _unfinished(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a mark."""
        at = data.find(b"\0", max(0, len(data) - len(self._start) + 1))
        while at >= 0:
            if self._start.startswith(data[at:]):
                return len(data) - at
            at = data.find(b"\0", at + 1)
        return 0


def is_number(words: Sequence[str]) -> bool:
    """Whether there is one word, which is a number as ``int`` reads it. Commands may have written it."""
    return len(words) == 1 and words[0].isascii() and words[0].isdecimal()


class Stream:
    """A command that runs in a world. Made by ``open_stream``."""

    def __init__(self) -> None:
        self._stream: ExecStream | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        """Once it has ended; None if that is not known."""

    async def open(
        self,
        driver: Driver,
        world: str,
        command: Sequence[str],
        *,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        directory: str | None = None,
    ) -> None:
        """Raises ItemError."""
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                self._stream = await driver.execute(
                    world,
                    command,
                    environment=environment or {},
                    user=user,
                    directory=directory,
                    output=output,
                    errors=errors,
                )
        except TimeoutError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: a command did not start in time") from error
        self._waiting = asyncio.ensure_future(self._wait(self._stream))

    async def write(self, data: bytes) -> bool:
        """Whether all of it could be written."""
        if self._stream is None or self.ended.is_set():
            return False
        try:
            await self._stream.write(data)
        except (ConnectionError, OSError):
            return False
        return True

    async def close_input(self) -> None:
        if self._stream is not None:
            with suppress(ConnectionError, OSError):
                await self._stream.close_input()

    async def close(self) -> None:
        """Give up the connection. Idempotent."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait([self._waiting])
        if self._stream is not None:
            with suppress(ConnectionError, OSError, TimeoutError, ItemError):
                async with asyncio.timeout(OPENING_SECONDS):
                    await self._stream.close()
        self._end()

    async def until(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, or the end; whether the event came. Whoever sets it calls ``stir``. Makes no task, and no timer where an
        earlier one is still to go off, as this is done for each command."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not event.is_set() and not self.ended.is_set() and (left := deadline - loop.time()) > 0:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            if self._timer is None or self._timer.when() > deadline:
                self._stop_timer()
                self._timer = loop.call_later(left, self._on_time)
            await waiter
        return event.is_set()

    def stir(self) -> None:
        """Have those look who wait for something."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_time(self) -> None:
        self._timer = None
        self.stir()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._stop_timer()
        self.ended.set()
        self.stir()

    async def _wait(self, stream: ExecStream) -> None:
        try:
            self.exit_code = await stream.wait()
        except (ConnectionError, OSError, ItemError):
            self.exit_code = None
        finally:
            self._end()
