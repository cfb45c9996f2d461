"""One connection of a program to the proxy: requests, one after the other, each passed on to its host, or a tunnel.

Nothing is passed on as it came: h11 reads each message, and writes a new one. So what the other side gets is one request, whatever a
program sent, and all that belongs to another connection is left out.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import h11

from manyhands.network.addresses import Address
from manyhands.network.connecting import BUFFER, Refused, Streams, Unreachable
from manyhands.network.requests import BadHost, BadRequest, Target, answered, passed_on, proof_in, read_target

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
_AT_ONCE = struct.pack("ii", 1, 0)
_BAD = 400
"""Who sends what can't be read is not listened to any more."""
_MAX_REASON = 200
_WHO_ARE_YOU = 407
_CHALLENGE = ("Proxy-Authenticate", 'Basic realm="manyhands"')
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Bounds on what one sandbox asks of its proxy."""

    connections: int = 128
    """At once; what comes beyond that is answered with 503."""
    header_bytes: int = 1 << 16
    header_seconds: float = 20.0
    """From the start of a connection until the first request's headers are there."""
    keep_alive_seconds: float = 60.0
    """The like for a further request on the same connection."""
    connect_seconds: float = 20.0
    idle_seconds: float = 300.0
    """Without a byte in either direction."""
    total_seconds: float = 4 * 3600.0
    """A connection's life."""


class Door(Protocol):
    """What decides on connections, and makes them."""

    async def connect(self, host: Address | str, port: int) -> Streams:
        """Raises Refused or Unreachable."""
        ...

    def refused(self, host: str) -> None:
        """Count a host that could not be read."""
        ...

    def admits(self, proof: bytes) -> bool:
        """Whether a request with this in ``Proxy-Authorization`` is served at all."""
        ...


class _Peer:
    """One end of a connection that speaks HTTP."""

    def __init__(self, streams: Streams, role: type[h11.CLIENT | h11.SERVER], limits: ProxyLimits) -> None:
        self.reader, self.writer = streams
        self.http = h11.Connection(role, max_incomplete_event_size=limits.header_bytes)
        self._idle = limits.idle_seconds

    async def next_event(self, seconds: float | None = None) -> Any:
        """What comes next, each part of it within ``seconds``. Raises TimeoutError, ConnectionError, h11.RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(seconds or self._idle):
                data = await self.reader.read(BUFFER)
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            async with asyncio.timeout(self._idle):
                await self.writer.drain()


class ClientConnection:
    """A program's connection to the proxy."""

    def __init__(self, streams: Streams, door: Door, limits: ProxyLimits) -> None:
        self._client = _Peer(streams, h11.SERVER, limits)
        self._door = door
        self._limits = limits

    async def serve(self) -> None:
        """Until it ends, which it does in bounded time."""
        writer = self._client.writer
        try:
            await self._serve()
        except (OSError, TimeoutError, h11.ProtocolError):
            cut(writer)  # either end has gone; what was cut off is not to look like a whole answer
        except BaseException:
            cut(writer)
            raise
        else:
            writer.close()

    async def _serve(self) -> None:
        limits, seconds = self._limits, self._limits.header_seconds
        async with asyncio.timeout(limits.total_seconds):
            while await self._exchange(seconds):
                self._client.http.start_next_cycle()
                seconds = limits.keep_alive_seconds

    async def _exchange(self, seconds: float) -> bool:
        """One request and its answer; whether another request may follow."""
        client = self._client
        try:
            async with asyncio.timeout(seconds):
                request = await client.next_event(seconds)
        except h11.RemoteProtocolError as error:
            return await self._answer(error.error_status_hint, f"no request that can be read: {error}")
        except TimeoutError:
            return await self._answer(408, "no request came in time")
        if not isinstance(request, h11.Request):
            return False
        if not self._door.admits(proof_in(request)):
            return await self._answer(_WHO_ARE_YOU, "this proxy needs a password", _CHALLENGE)
        try:
            target = read_target(request)
            streams = await self._door.connect(target.host, target.port)
        except BadRequest as error:
            return await self._answer(_BAD, str(error))
        except BadHost as error:
            self._door.refused(error.host)
            return await self._answer(403, str(error))
        except Refused as error:
            return await self._answer(403, str(error))
        except Unreachable as error:
            return await self._answer(502, str(error))
        try:
            more = await (self._tunnel(streams) if target.tunnel else self._pass_on(request, target, streams))
        except BaseException:
            cut(streams[1])
            raise
        streams[1].close()
        return more

    async def _answer(self, status: int, sentence: str, *more: tuple[str, str]) -> bool:
        """An answer of the proxy's own. The sentence is also the status line's reason, which is all that many programs show of a tunnel
        that was refused."""
        client = self._client
        if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        reason = _UNPRINTABLE.sub(b"?", sentence.encode("ascii", "replace"))
        body = reason + b".\n"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *more]
        if status == _BAD or not self._request_is_over():
            headers.append(("Connection", "close"))
        await client.send(h11.Response(status_code=status, reason=reason[:_MAX_REASON], headers=headers))
        await client.send(h11.Data(data=body))
        await client.send(h11.EndOfMessage())
        return await self._goes_on()

    def _request_is_over(self) -> bool:
        """Whether all of the request is here already, as it is where it has no body."""
        http = self._client.http
        if http.their_state is h11.SEND_BODY:
            with suppress(h11.RemoteProtocolError):
                return isinstance(http.next_event(), h11.EndOfMessage)
        return http.their_state is h11.DONE

    async def _goes_on(self) -> bool:
        """Whether the connection can serve a further request. If not, the program gets the time to read its answer: to close a
        connection from which something is still to be read takes that answer away."""
        http = self._client.http
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            return True
        await linger(self._client.reader, self._client.writer)
        return False

    # Requests that are passed on

    async def _pass_on(self, request: h11.Request, target: Target, streams: Streams) -> bool:
        other = _Peer(streams, h11.CLIENT, self._limits)
        if self._client.http.they_are_waiting_for_100_continue:
            await self._client.send(h11.InformationalResponse(status_code=100, headers=[]))
        sending = asyncio.ensure_future(self._send(passed_on(request, target), other))
        returning = asyncio.ensure_future(self._return(other))
        try:
            await asyncio.wait([sending, returning], return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not returning.done():
                sending.result()
            await returning
            # An answer that came before the request had ended ends the connection: the rest of the request is not read.
            return await self._goes_on()
        finally:
            await _end(sending, returning)

    async def _send(self, request: h11.Request, other: _Peer) -> None:
        """Send a request."""
        client, open_ = self._client, await _heard(other, request)
        while open_ and isinstance(event := await client.next_event(), h11.Data):
            open_ = await _heard(other, h11.Data(data=event.data))
        if open_:
            await _heard(other, h11.EndOfMessage())

    async def _return(self, other: _Peer) -> None:
        """Return the answer."""
        client = self._client
        try:
            response = await other.next_event()
            while isinstance(response, h11.InformationalResponse):
                response = await other.next_event()
        except TimeoutError:
            await self._answer(504, "the host did not answer in time")
            return
        except (OSError, h11.RemoteProtocolError):
            response = None
        if not isinstance(response, h11.Response):
            await self._answer(502, "the host gave no answer that can be read")
            return
        # A program would take it as this proxy's word, and not use its password any more.
        if response.status_code == _WHO_ARE_YOU:
            await self._answer(502, "the host answers as if it were a proxy")
            return
        await client.send(answered(response))
        while isinstance(event := await other.next_event(), h11.Data):
            await client.send(h11.Data(data=event.data))
        await client.send(h11.EndOfMessage())

    # Tunnels

    async def _tunnel(self, streams: Streams) -> bool:
        """Bytes in both directions, each until its end."""
        client, (reader, writer) = self._client, streams
        await client.send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))
        early, _ = client.http.trailing_data
        writer.write(early)
        idle = self._limits.idle_seconds
        async with asyncio.timeout(idle) as limit:
            there = asyncio.ensure_future(_carry(client.reader, writer, limit, idle))
            back = asyncio.ensure_future(_carry(reader, client.writer, limit, idle))
            try:
                await asyncio.gather(there, back)
            finally:
                await _end(there, back)
        return False


async def _heard(other: _Peer, event: h11.Event) -> bool:
    """Send something; False if the other side no longer listens, which may have answered before it stopped."""
    try:
        await other.send(event)
    except ConnectionError:
        return False
    return True


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout, idle: float
) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(BUFFER):
        limit.reschedule(loop.time() + idle)
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _end(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def cut(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, so that the other side knows that this is not how it was meant to end (RST, not FIN)."""
    connection = writer.get_extra_info("socket")
    if connection is not None:  # uvloop has none any more where the other side was first
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say that nothing more is written, and let the other side end, for a second at most."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            await writer.drain()
            writer.write_eof()
            left = _LINGER_BYTES
            while left > 0 and (data := await reader.read(BUFFER)):
                left -= len(data)
