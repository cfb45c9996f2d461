"""Web servers of a test's own in a thread, and requests typed by hand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from manyhands.io.loopback import Address
from manyhands.view.answers import served

WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: str

    def header(self, name: str) -> str | None:
        """The only header of a name; None if there is none."""
        found = [value for given, value in self.headers if given == name]
        assert len(found) <= 1
        return found[0] if found else None


@contextmanager
def in_thread(application: web.Application, listening: socket.socket) -> Iterator[None]:
    """Serve it, by an event loop in a thread, until the block ends."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with served(application, listening):
            ready.set()
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(WAIT_SECONDS)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


@contextmanager
def server(make: Callable[[Address], web.Application], address: Address | None = None) -> Iterator[Address]:
    """The application that ``make`` gives for the address at which it is served: ``address`` with a port."""
    wanted = address or Address("127.0.0.1", 0)
    with wanted.bind() as listening:
        bound = Address(wanted.host, listening.getsockname()[1])
        with in_thread(make(bound), listening):
            yield bound


def spoken(address: Address, request: bytes) -> str:
    """All that the server says to some bytes until it closes the connection. Say ``Connection: close``."""
    with socket.create_connection((address.host, address.port), WAIT_SECONDS) as connection:
        said = b""
        try:
            connection.sendall(request)
            while part := connection.recv(1 << 16):
                said += part
        except (ConnectionResetError, BrokenPipeError):  # it did not read all that was sent
            pass
    return said.decode()


def ask(address: Address, target: str = "/", *headers: str, method: str = "GET", host: str | None = None) -> Answer:
    """One request. ``headers``: lines besides ``Host``, which is the server's own unless ``host`` is given."""
    named = f"{address.in_url}:{address.port}" if host is None else host
    lines = [f"{method} {target} HTTP/1.1", f"Host: {named}", *headers, "Connection: close", "", ""]
    return parsed(spoken(address, "\r\n".join(lines).encode("utf-8", "surrogateescape")))


def parsed(said: str) -> Answer:
    head, _, body = said.partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    pairs = tuple((name.lower(), value) for name, _, value in (each.partition(": ") for each in rest))
    return Answer(int(first.split()[1]), pairs, body)
