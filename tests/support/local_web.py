"""Servers on this machine that stand for hosts of the world, with a table of names instead of a name server.

What reaches each server is kept, byte by byte, so that a test can say what has come out of a sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class LocalServer:
    """A server that answers each request with its own name, unless it is given something else to say."""

    name: str
    address: str
    port: int = 0
    answer: bytes | None = None
    """The whole answer to a request; None: 200 with the name of the server and the request's first line."""
    received: bytearray = field(default_factory=bytearray)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.received += head
            if self.answer is None:
                body = f"{self.name}: {head.splitlines()[0].decode()}\n".encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            else:
                writer.write(self.answer)
            await writer.drain()
            while data := await reader.read(65536):
                self.received += data
        with suppress(OSError):
            writer.close()


class LocalNames:
    """A table of names. A name with several lists gives the first one at its first look-up, then the next, and the last one for ever."""

    def __init__(self, table: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._table = table
        self._asked: dict[str, count[int]] = {}
        self.asked: list[str] = []

    async def look_up(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name not in self._table:
            raise OSError("no such name")
        answers = self._table[name]
        number = next(self._asked.setdefault(name, count()))
        return answers[min(number, len(answers) - 1)]


@asynccontextmanager
async def local_server(
    name: str, address: str = "127.0.0.1", *, answer: bytes | None = None
) -> AsyncIterator[LocalServer]:
    """A server on a free port."""
    server = LocalServer(name, address, answer=answer)
    async with served(server.serve, address) as port:
        server.port = port
        yield server


@asynccontextmanager
async def served(handler: Handler, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a server with that handler."""
    tasks: set[asyncio.Task[object]] = set()

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(tracked, address, 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
