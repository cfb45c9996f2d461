"""The proxy by itself: what it passes on, and what it bears."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.network.counts import OTHERS, HostCounts, in_words
from manyhands.network.proxy import EgressProxy
from manyhands.network.rules import NetworkRules
from manyhands.network.serving import ProxyLimits
from tests.support.local_web import LocalNames, LocalServer, local_server, served

NAMES = {"web.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]}
RULES = NetworkRules.read(["web.example", "other.example", "127.0.0.1"])
QUICK = ProxyLimits(connections=4, header_seconds=0.4, keep_alive_seconds=0.4, connect_seconds=1, idle_seconds=0.5)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


@asynccontextmanager
async def proxy(
    limits: ProxyLimits | None = None, counts: HostCounts | None = None, credentials: tuple[str, str] | None = None
) -> AsyncIterator[Connect]:
    """What connects to a proxy."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    names = LocalNames(NAMES)
    serving = EgressProxy(RULES, counts=counts, limits=limits, look_up=names.look_up, credentials=credentials)
    await serving.listen(listener)
    try:
        yield lambda: asyncio.open_connection("127.0.0.1", port)
    finally:
        await serving.close()


async def asked(connect: Connect, request: bytes, *, end: bool = True) -> bytes:
    """All that is answered to some bytes. ``end``: whether nothing follows them."""
    reader, writer = await connect()
    try:
        writer.write(request)
        if end:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def get(server: LocalServer, path: str = "/", host: str = "web.example", *more: str) -> bytes:
    lines = (f"GET http://{host}:{server.port}{path} HTTP/1.1", f"Host: {host}:{server.port}", *more, "", "")
    return "\r\n".join(lines).encode()


async def test_headers_about_a_connection_stay_there() -> None:
    named = (
        "Connection: x-mine, keep-alive",
        "X-Mine: 1",
        "Keep-Alive: 1",
        "TE: trailers",
        "Upgrade: h2c",
        "X-Kept: 2",
    )
    secret = ("Proxy-Authorization: Basic c2VjcmV0", "Proxy-Connection: keep-alive", "Expect: 100-continue")
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: x-own\r\nX-Own: 1\r\nX-Kept: 3\r\nKeep-Alive: 1\r\nContent-Length: 2\r\n\r\nhi"
    )
    async with local_server("web", answer=answer) as server, proxy() as connect:
        got = await asked(connect, get(server, "/a?b", "web.example", *named, *secret))
    assert bytes(server.received).lower() == (
        f"get /a?b http/1.1\r\nhost: web.example:{server.port}\r\nx-kept: 2\r\nconnection: close\r\n\r\n".encode()
    )
    assert got == b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200 OK\r\nX-Kept: 3\r\nContent-Length: 2\r\n\r\nhi"


def proof(text: str) -> str:
    return f"Proxy-Authorization: Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("lines", "served"),
    [
        ([], False),
        ([proof("user:wrong")], False),
        ([proof("user:wörd"), proof("user:word")], False),
        (["Proxy-Authorization: user:word"], False),
        (["Proxy-Authorization: \xff"], False),
        ([proof("user:word")], True),
    ],
)
async def test_only_who_knows_the_password_is_served(lines: list[str], served: bool) -> None:
    async with local_server("web") as server, proxy(credentials=("user", "word")) as connect:
        tunnel = f"CONNECT web.example:{server.port} HTTP/1.1\r\nHost: web.example:{server.port}\r\n"
        tunnel += "".join(f"{line}\r\n" for line in lines) + "\r\n"
        for request in (get(server, "/", "web.example", *lines), tunnel.encode("latin-1")):
            got = await asked(connect, request + (get(server) if served else b""))
            assert got.startswith(b"HTTP/1.1 200 " if served else b"HTTP/1.1 407 "), got
            assert served or b'Proxy-Authenticate: Basic realm="manyhands"' in got
        assert bool(server.connections) == served
        assert b"uthorization" not in server.received


async def test_no_host_asks_for_the_proxys_password() -> None:
    answer = b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
    async with local_server("web", answer=answer) as server, proxy() as connect:
        got = await asked(connect, get(server))
    assert got.startswith(b"HTTP/1.1 502 the host answers as if it were a proxy")


async def test_several_requests_of_one_connection_go_to_their_own_hosts() -> None:
    async with local_server("one") as one, local_server("two") as two, proxy() as connect:
        requests = get(one, "/1") + get(two, "/2", "other.example") + get(one, "/3")
        got = await asked(connect, requests)
    assert [line for line in got.splitlines() if b":" in line and b"GET" in line] == [
        b"one: GET /1 HTTP/1.1",
        b"two: GET /2 HTTP/1.1",
        b"one: GET /3 HTTP/1.1",
    ]


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: 5, 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "X: a\r\n\x00: b",
        "X: a\rTransfer-Encoding: chunked",
        "Host: web.example\r\nX: 1",
        "X",
    ],
)
async def test_requests_that_two_could_read_differently(head: str) -> None:
    async with local_server("web") as server, proxy() as connect:
        inner = get(server, "/smuggled")
        start = f"POST http://web.example:{server.port}/ HTTP/1.1\r\nHost: web.example:{server.port}\r\n{head}\r\n\r\n"
        got = await asked(connect, start.encode() + b"0\r\n\r\n" + inner)
    assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), got
    assert server.connections == 0
    assert got.count(b"HTTP/1.1") == 1


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    b"GET ",
                    b"POST ",
                    b"CONNECT ",
                    b"http://web.example:PORT/",
                    b"web.example:PORT",
                    b" HTTP/1.1",
                    b" HTTP/1.0",
                    b"\r\n",
                ),
                *(
                    b"\n",
                    b"\r",
                    b"Host: web.example:PORT\r\n",
                    b"Content-Length: 3\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"\r\n\r\n",
                ),
                *(
                    b"0\r\n\r\n",
                    b"3\r\nabc\r\n",
                    b"abc",
                    b" ",
                    b"\t",
                    b"\0",
                    b"\xff",
                    b"GET http://evil.example/ HTTP/1.1\r\n",
                ),
            ]
        ),
        max_size=14,
    )
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
async def test_whatever_comes_is_answered_or_ended(parts: list[bytes]) -> None:
    limits = ProxyLimits(header_seconds=0.2, keep_alive_seconds=0.2, idle_seconds=0.2, connect_seconds=0.5)
    async with local_server("web") as server, proxy(limits) as connect:
        data = b"".join(parts).replace(b"PORT", str(server.port).encode())
        reader, writer = await connect()
        writer.write(data)
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert got == b"" or got.startswith((b"HTTP/1.1 ", b"GET ")) or b"abc" in got, got


async def test_bodies_are_streamed_in_both_directions() -> None:
    """The host answers each part of a request as it comes, so that nothing may wait for a whole."""
    parts: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (size := int(await reader.readline(), 16)) > 0:
            parts.append((await reader.readexactly(size + 2))[:-2])
            writer.write(b"%x\r\n%s\r\n" % (size, parts[-1]))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with served(echo) as port, proxy() as connect:
        reader, writer = await connect()
        head = f"POST http://web.example:{port}/ HTTP/1.1\r\nHost: web.example:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        answer = b""
        for part in (b"one", b"two" * 1000, b"three"):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            while not answer.endswith(part + b"\r\n"):
                answer += await asyncio.wait_for(reader.read(65536), 5)
        writer.write(b"0\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)).endswith(b"0\r\n\r\n")
        writer.close()
    assert b"".join(parts) == b"one" + b"two" * 1000 + b"three"


async def test_what_nobody_reads_is_not_fetched() -> None:
    size, sent = 60_000_000, 0

    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        nonlocal sent
        while sent < size:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000

    async with served(source) as port, proxy() as connect:
        reader, writer = await connect()
        writer.write(f"GET http://web.example:{port}/ HTTP/1.1\r\nHost: web.example:{port}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        assert sent < 40_000_000  # what the system's own buffers take
        got = 0
        while got < size:
            got += len(await asyncio.wait_for(reader.read(1 << 20), 10))
        writer.close()
    assert got == size


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n"),
        (
            b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        ),
    ],
)
async def test_answers_are_written_anew(answer: bytes, expected: bytes) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with served(say) as port, proxy() as connect:
        server = LocalServer("web", "127.0.0.1", port)
        assert await asked(connect, get(server)) == expected


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", b"502"),
        (b"nonsense\r\n\r\n", b"502"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, b"502"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"502"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", b"502"),
    ],
)
async def test_answers_that_are_none(answer: bytes, status: bytes) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with served(say) as port, proxy() as connect:
        got = await asked(connect, get(LocalServer("web", "127.0.0.1", port)))
    assert got.startswith(b"HTTP/1.1 " + status), got


async def test_an_answer_that_was_cut_off_does_not_look_whole() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with served(cut) as port, proxy() as connect:
        reader, writer = await connect()
        writer.write(f"GET http://web.example:{port}/ HTTP/1.0\r\n\r\n".encode())
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_tunnels_end_by_halves() -> None:
    """Either side may end its direction, and the other one goes on."""

    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # until the program has ended its direction
        writer.write(b"got " + data)
        writer.write_eof()

    async def before_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"said")
        writer.write_eof()
        heard.append(await reader.read())

    heard: list[bytes] = []
    for handler in (after_the_end, before_the_end):
        async with served(handler) as port, proxy() as connect:
            reader, writer = await connect()
            writer.write(f"CONNECT web.example:{port} HTTP/1.1\r\nHost: web.example:{port}\r\n\r\nearly ".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            if handler is before_the_end:
                assert await reader.read() == b"said"
            writer.write(b"late")
            writer.write_eof()
            if handler is after_the_end:
                assert await asyncio.wait_for(reader.read(), 5) == b"got early late"
            writer.close()
            await asyncio.sleep(0.05)
    assert heard == [b"early late"]


async def test_who_says_nothing_or_little_is_ended() -> None:
    async with proxy(QUICK) as connect:
        for data in (b"", b"GET http://web.example/ HTTP/1.1\r\n"):
            assert (await asked(connect, data, end=False))[:12] in (b"HTTP/1.1 408", b"")
        reader, writer = await connect()
        writer.write(b"GET http://web.example/ HTTP/1.1\r\n")
        answer = asyncio.ensure_future(reader.read())
        for _ in range(40):  # some bytes now and then, as slow attackers do
            writer.write(b"X: 1\r\n")
            if (await asyncio.wait([answer], timeout=0.1))[0]:
                break
        assert answer.done()
        assert answer.exception() is not None or answer.result().startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize("kind", ["request", "tunnel"])
async def test_idle_connections_end(kind: str) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(10)
            await reader.read()
        except ConnectionError:
            pass
        ended.set()

    async with served(silent) as port, proxy(QUICK) as connect:
        server = LocalServer("web", "127.0.0.1", port)
        if kind == "request":
            assert (await asked(connect, get(server), end=False)).startswith(b"HTTP/1.1 504 ")
        else:
            data = f"CONNECT web.example:{port} HTTP/1.1\r\nHost: web.example:{port}\r\n\r\nfirst bytes".encode()
            with pytest.raises(ConnectionError):
                await asked(connect, data, end=False)
        await asyncio.wait_for(ended.wait(), 5)


async def test_too_many_connections_are_told() -> None:
    limits = ProxyLimits(connections=4, header_seconds=30)
    async with local_server("web") as server, proxy(limits) as connect:
        held = [await connect() for _ in range(4)]
        await asyncio.sleep(0.05)
        got = await asked(connect, get(server))
        assert got.startswith(b"HTTP/1.1 503 too many connections at once")
        more = [await connect() for _ in range(40)]
        for _, writer in (*held, *more):
            writer.close()
        await asyncio.sleep(0.2)
        assert (await asked(connect, get(server))).startswith(b"HTTP/1.1 200 OK")


async def test_a_proxy_that_is_closed_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with served(_hang) as port:
        async with proxy() as connect:
            writers = []
            for _ in range(3):
                reader, writer = await connect()
                writer.write(f"CONNECT web.example:{port} HTTP/1.1\r\nHost: web.example:{port}\r\n\r\n".encode())
                await reader.readuntil(b"\r\n\r\n")
                writers.append((reader, writer))
        for reader, writer in writers:
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(reader.read(), 5)
            writer.close()
    await asyncio.sleep(0.05)
    assert set(os.listdir("/proc/self/fd")) <= before


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_counts() -> None:
    counts = HostCounts()
    async with local_server("web") as server, proxy(counts=counts) as connect:
        for host in ("web.example", "evil.example", "web.example", "0x7f.1"):
            await asked(connect, get(server, "/", host))
    found = counts.to_json()
    assert found == {"0x7f.1": {"refused": 1}, "evil.example": {"refused": 1}, "web.example": {"allowed": 2}}
    assert in_words(found) == "0x7f.1 1 refused, evil.example 1 refused, web.example 2"
    for number in range(300):
        counts.refused(f"{number}.example")
    assert len(counts.to_json()) == 201
    assert counts.to_json()[OTHERS]["refused"] > 90


async def test_few_names_are_looked_up_at_once() -> None:
    now, most = 0, 0

    async def slow(name: str) -> list[str]:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.02)
        now -= 1
        return ["10.0.0.1"]

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = EgressProxy(NetworkRules.read(["*.example"]), look_up=slow)
    await serving.listen(listener)
    try:

        async def ask(number: int) -> bytes:
            request = f"CONNECT {number}.example:80 HTTP/1.1\r\nHost: {number}.example:80\r\n\r\n".encode()
            return await asked(lambda: asyncio.open_connection("127.0.0.1", port), request)

        answers = await asyncio.gather(*map(ask, range(40)))
    finally:
        await serving.close()
    assert all(answer.startswith(b"HTTP/1.1 403 ") for answer in answers)
    assert most == 8
