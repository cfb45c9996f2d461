"""How an owner and its workers on other machines connect: who they are is shown before anything else is said.

The worker connects. Both then prove that they know the run's secret, which neither sends: each answers the other's random challenge with
an HMAC (RFC 2104, SHA-256) of both challenges and the worker's own name. What is said has fixed lengths, so that nothing is read that
somebody else could choose. A recorded conversation is of no use for another one.

The connection is encrypted where Ray's own are, with the certificates of the cluster (``RAY_USE_TLS``); without, whoever can change what
the network carries can also speak in the place of either.

A machine that vanishes says nothing any more. That is found within about ``SILENCE_SECONDS``, whatever the other program is doing.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress

from manyhands.core.errors import UserError
from manyhands.engine.executors import wire

SECRET_BYTES = 32
"""Bytes of a run's secret, and of each challenge."""
NAME_BYTES = 16
"""Bytes of a worker's name."""
SILENCE_SECONDS = 4
"""Seconds without a sign of life after which a connection is given up."""
CONNECT_SECONDS = 10.0
HANDSHAKE_SECONDS = 30.0
"""That both may take to show who they are; long, because a thousand workers may come at once while the owner is busy."""
MAX_STRANGERS = 1024
"""Connections that have not shown yet who they are, at most; with each further one the oldest is closed, so that those who show nothing
keep nobody out."""
ARRIVALS_A_TURN = 64
"""Connections that are accepted in one turn of the loop. (The loop's own servers accept one, and a busy owner has few turns a second.)"""
_FULL_SECONDS = 0.2
"""How long nobody is accepted where no further file can be opened."""
_LOOK_SECONDS = 0.5
_TCP_INFO = struct.Struct("8B24I")
"""``struct tcp_info`` of linux/tcp.h, as far as all kernels have it: its third and fourth members are how often something was sent again,
and how many questions whether the peer takes more were not answered; its 13th and 21st are segments that are not acknowledged, and
milliseconds since the last acknowledgement."""
_MAGIC = b"manyhands wire 1"
_OWNER, _WORKER = b"owner", b"worker"


class Refused(Exception):
    """The other end does not know the run's secret, or is no manyhands."""


class Gate:
    """Where the owner waits for its workers. Each that has shown that it knows the secret is given to ``admit``, by its name."""

    def __init__(
        self, secret: bytes, admit: Callable[[bytes, wire.Channel, str], None], *, seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        """``admit`` gets a worker's name, its channel and the address that it comes from. ``seconds``: that it may take to show that it
        knows the secret."""
        self._secret = secret
        self._admit = admit
        self._seconds = seconds
        self._door: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Oldest first."""

    async def open(self, host: str, port: int = 0) -> int:
        """Listen; returns the port. Raises OSError, and UserError for certificates that can't be used."""
        loop = asyncio.get_running_loop()
        self._tls = tls_context(os.environ, server=True)
        family, *_, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        self._door = socket.create_server(address[:2], family=family, backlog=MAX_STRANGERS)
        self._door.setblocking(False)
        self._accept_from(self._door)
        return int(self._door.getsockname()[1])

    async def close(self) -> None:
        """Listen no more. What was admitted stays connected."""
        door, self._door = self._door, None
        if door is not None:
            asyncio.get_running_loop().remove_reader(door.fileno())
            door.close()
        for task in list(self._strangers):
            task.cancel()
        await asyncio.gather(*self._strangers, return_exceptions=True)

    def _accept_from(self, door: socket.socket) -> None:
        if door is self._door:
            asyncio.get_running_loop().add_reader(door.fileno(), self._accept, door)

    def _accept(self, door: socket.socket) -> None:
        for _ in range(ARRIVALS_A_TURN):
            try:
                end, _ = door.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):  # nobody else, or gone again
                return
            except OSError:  # no file can be opened for them just now, and the loop would ask for it without end
                loop = asyncio.get_running_loop()
                loop.remove_reader(door.fileno())
                loop.call_later(_FULL_SECONDS, self._accept_from, door)
                return
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._arrived(end))
            self._strangers[task] = None
            task.add_done_callback(lambda task: self._strangers.pop(task, None))

    async def _arrived(self, end: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop, writer = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(self._seconds):
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, end, ssl=self._tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                name = await self._known(reader, writer)
        except (TimeoutError, OSError, EOFError, Refused, asyncio.CancelledError):  # cancelled only to be closed
            end.close() if writer is None else writer.transport.abort()
            return
        self._admit(name, _channel_over(writer), str(writer.get_extra_info("peername")[0]))

    async def _known(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The name of the worker at the other end."""
        if await reader.readexactly(len(_MAGIC)) != _MAGIC:
            raise Refused
        name, theirs = await reader.readexactly(NAME_BYTES), await reader.readexactly(SECRET_BYTES)
        ours = secrets.token_bytes(SECRET_BYTES)
        writer.write(ours + _proof(self._secret, _OWNER, name, theirs, ours))
        if not hmac.compare_digest(
            await reader.readexactly(SECRET_BYTES), _proof(self._secret, _WORKER, name, theirs, ours)
        ):
            raise Refused
        return name


async def reach(host: str, port: int, secret: bytes, name: bytes) -> wire.Channel:
    """Connect to the owner, as the worker with this name. Raises OSError, Refused, and UserError for certificates that can't be used."""
    context = tls_context(os.environ, server=False)
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        try:
            ours = secrets.token_bytes(SECRET_BYTES)
            writer.write(_MAGIC + name + ours)
            theirs, proof = await reader.readexactly(SECRET_BYTES), await reader.readexactly(SECRET_BYTES)
            if not hmac.compare_digest(proof, _proof(secret, _OWNER, name, ours, theirs)):
                raise Refused
            writer.write(_proof(secret, _WORKER, name, ours, theirs))
        except EOFError:
            raise Refused from None
        return _channel_over(writer)


def _proof(secret: bytes, who: bytes, name: bytes, of_worker: bytes, of_owner: bytes) -> bytes:
    return hmac.digest(secret, _MAGIC + who + name + of_worker + of_owner, "sha256")


def _channel_over(writer: asyncio.StreamWriter) -> wire.Channel:
    """A channel in place of the streams. The other end sends nothing before it has heard from this one again, so that nothing is lost."""
    channel = wire.Channel(keeps=writer)
    writer.transport.set_protocol(channel)
    channel.connection_made(writer.transport)
    notice_silence(writer.transport)
    return channel


def notice_silence(transport: asyncio.WriteTransport) -> None:
    """Have a peer found that is gone without a word, whether or not something is being sent.

    One that is there but does not read, since it is stopped or waits for its disk, is not gone, so TCP_USER_TIMEOUT won't do: that gives
    up both.
    """
    end: socket.socket = transport.get_extra_info("socket")
    with suppress(OSError):  # the connection is closed already
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENCE_SECONDS - 1)):
        with suppress(OSError, AttributeError):  # not every system has all of them
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    _watch(transport, end)


def _watch(transport: asyncio.WriteTransport, end: socket.socket) -> None:
    """Look now and then, until the connection is closed."""
    if end.fileno() < 0:
        return
    if _is_silent(end):
        transport.abort()
    else:
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, _watch, transport, end)


def _is_silent(end: socket.socket) -> bool:
    """Whether nothing that was sent is acknowledged any more. Idle connections are seen to by the system's keepalive."""
    try:
        values = _TCP_INFO.unpack(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    except (OSError, AttributeError, struct.error):  # closed, or another system than Linux
        return False
    resent, asked, unacknowledged, since = values[2], values[3], values[12], values[20]
    return bool(since > SILENCE_SECONDS * 1000) and ((unacknowledged > 0 and resent > 1) or asked > 2)


def tls_context(environ: Mapping[str, str], *, server: bool) -> ssl.SSLContext | None:
    """What encrypts connections: the certificates that Ray uses, if it uses any (``RAY_USE_TLS=1``), which both ends must show. Raises
    UserError."""
    if environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    certificate, key, authority = (environ.get(name, "") for name in names)
    try:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH, cafile=authority or None
        )
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"RAY_USE_TLS is set, but the certificates can't be used: {error} ({', '.join(names)})"
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = False  # as Ray: nodes are known by their authority, and have changing addresses
    return context
