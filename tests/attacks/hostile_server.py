"""An HTTP server that answers with whatever bytes, at whatever pace, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

Answer = Callable[[], AsyncIterator[bytes]]
"""Makes the bytes of an answer, status line and all; the connection is closed at their end."""


class HostileServer:
    """Use as a context manager. ``requests``: what was asked, as it came."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[bytes] = []
        self.base_url = ""
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            async for data in self._answer():
                writer.write(data)
                await writer.drain()
        writer.close()


def head(status: str = "200 OK", **headers: str) -> bytes:
    """A status line and headers; underscores stand for hyphens."""
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def fixed(*parts: bytes) -> Answer:
    """These bytes, at once."""

    async def answer() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return answer


def whole(body: bytes, status: str = "200 OK", **headers: str) -> Answer:
    """A whole answer with this body."""
    return fixed(head(status, Content_Length=str(len(body)), **headers), body)


def endless(first: bytes, data: bytes, pause: float = 0.0) -> Answer:
    """``first``, then ``data`` again and again."""

    async def answer() -> AsyncIterator[bytes]:
        yield first
        while True:
            yield data
            await asyncio.sleep(pause)

    return answer


def bomb(size: int, wbits: int) -> bytes:
    """So many zeros, compressed: ``wbits`` as zlib has it. It is cut at the end, where nobody should come."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    block = bytes(16 << 20)
    first, again = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (size // len(block) - 1)


def completion(content: str = "yes", **more: object) -> bytes:
    """A readable answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], **more}).encode()
