"""The egress proxy of one sandbox: HTTP and CONNECT on a listening socket, to hosts that the rules allow."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from manyhands.network.addresses import Address
from manyhands.network.connecting import BUFFER, LookUp, Refused, Streams, Unreachable, connect, look_up
from manyhands.network.counts import HostCounts
from manyhands.network.requests import basic
from manyhands.network.rules import NetworkRules
from manyhands.network.serving import ClientConnection, ProxyLimits, linger

_LOOK_UPS = 8
"""Names that are looked up for one sandbox at once."""
_BUSY = "too many connections at once"


class EgressProxy:
    """Serves any number of listening sockets, and logs nothing but counts by host.

    ``counts``: where hosts are counted; ``look_up``: what finds the addresses of names; ``credentials``: user and password, without which
    nobody is served (RFC 7617, in ``Proxy-Authorization``); None for sockets that only those can reach who may.
    """

    def __init__(
        self,
        rules: NetworkRules,
        *,
        counts: HostCounts | None = None,
        limits: ProxyLimits | None = None,
        look_up: LookUp = look_up,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.rules = rules
        self._proof = credentials and basic(*credentials)
        self.counts = counts if counts is not None else HostCounts()
        self._limits = limits or ProxyLimits()
        self._look_up = look_up
        self._looking = asyncio.Semaphore(_LOOK_UPS)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._turned_away: set[asyncio.Task[None]] = set()

    async def listen(self, listener: socket.socket) -> None:
        """Serve a listening socket, which now belongs to the proxy."""
        listener.setblocking(False)
        self._servers.append(await asyncio.start_server(self._accepted, sock=listener, limit=BUFFER))

    async def close(self) -> None:
        """Close all sockets and connections. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        running = [*self._connections, *self._turned_away]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def connect(self, host: Address | str, port: int) -> Streams:
        """A connection to a host that may be connected to. Raises Refused or Unreachable."""
        try:
            streams = await connect(host, port, self.rules, seconds=self._limits.connect_seconds, look_up=self._found)
        except Refused:
            self.counts.refused(str(host))
            raise
        except Unreachable:
            self.counts.allowed(str(host))
            raise
        self.counts.allowed(str(host))
        return streams

    async def _found(self, name: str) -> Sequence[str]:
        async with self._looking:  # each takes a thread for as long as a name server does not answer
            return await self._look_up(name)

    def refused(self, host: str) -> None:
        self.counts.refused(host)

    def admits(self, proof: bytes) -> bool:
        return self._proof is None or hmac.compare_digest(self._proof, proof)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) < self._limits.connections:
            serving = ClientConnection((reader, writer), self, self._limits).serve()
            self._run(self._connections, serving)
        elif len(self._turned_away) < self._limits.connections:
            self._run(self._turned_away, _turn_away(reader, writer))
        else:
            writer.transport.abort()

    @staticmethod
    def _run(tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _turn_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = f"{_BUSY}.\n".encode()
    head = f"HTTP/1.1 503 {_BUSY}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    try:
        with suppress(OSError):
            writer.write(head + body)
        await linger(reader, writer)
    finally:
        writer.close()
