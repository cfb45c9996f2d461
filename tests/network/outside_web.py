"""What lies outside of a sandbox: servers of this machine that stand for the world's, and sockets that nobody inside may reach."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.network.egress_cases import ALLOWED_ADDRESS, NAMES, NEVER, SECRET_ADDRESS, Case
from tests.support.local_web import LocalNames, LocalServer, local_server, served


@dataclass(slots=True)
class OutsideWeb:
    """Both servers, and what else is there."""

    names: LocalNames
    allowed: LocalServer
    secret: LocalServer
    variables: Mapping[str, str]
    """The environment by which commands find them."""
    datagrams: socket.socket
    hanging: int
    """The port of a server at the allowed address that accepts, and says nothing."""
    hanging_connected: asyncio.Event = field(default_factory=asyncio.Event)
    hanging_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, case: Case, output: str) -> None:
        """What must be true after a case."""
        for text in case.said:
            assert text in output, output
        assert NEVER not in output, output
        assert self.secret.connections == 0, output
        assert (self.allowed.connections > 0) == case.reaches, output
        try:
            arrived = self.datagrams.recv(100)
        except BlockingIOError:
            arrived = b""
        assert not arrived, output


@asynccontextmanager
async def outside_web(folder: Path) -> AsyncIterator[OutsideWeb]:
    async with AsyncExitStack() as stack:
        allowed = await stack.enter_async_context(local_server("allowed", ALLOWED_ADDRESS))
        secret = await stack.enter_async_context(local_server("secret", SECRET_ADDRESS))
        where = f"http://{SECRET_ADDRESS}:{secret.port}/"
        answer = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
        redirect = await stack.enter_async_context(local_server("redirect", ALLOWED_ADDRESS, answer=answer))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind((SECRET_ADDRESS, 0))
        datagrams.setblocking(False)
        abstract = f"manyhands-{secrets.token_hex(8)}"
        stack.enter_context(_unix_sockets(f"\0{abstract}", str(folder / "socket")))
        variables = {
            "ALLOWED": str(allowed.port),
            "SECRET": str(secret.port),
            "REDIRECT": str(redirect.port),
            "UDP": str(datagrams.getsockname()[1]),
            "ABSTRACT": abstract,
            "SOCKET": str(folder / "socket"),
        }
        web = OutsideWeb(LocalNames(NAMES), allowed, secret, variables, datagrams, hanging=0)

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            web.hanging_connected.set()
            await reader.read()
            web.hanging_ended.set()

        web.hanging = await stack.enter_async_context(served(hang, ALLOWED_ADDRESS))
        yield web


def _unix_sockets(*addresses: str) -> ExitStack:
    """Listening sockets at these addresses."""
    with ExitStack() as stack:
        for address in addresses:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        return stack.pop_all()
