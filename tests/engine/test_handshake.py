"""Whoever connects to an owner shows that it knows the run's secret before anything else of it is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.engine.executors import wire
from manyhands.engine.executors.handshake import (
    MAX_STRANGERS,
    NAME_BYTES,
    SECRET_BYTES,
    SILENCE_SECONDS,
    Gate,
    Refused,
    reach,
)
from manyhands.processes.event_loop import run_on_loop
from tests.support.certificates import make_certificates, tls_variables

HOST = "127.0.0.1"
MAGIC = b"manyhands wire 1"
SECRET, NAME = b"s" * SECRET_BYTES, b"n" * NAME_BYTES
LONG = 20.0
"""Seconds in which a thing happens on any machine that happens at once."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Open:
    """A gate that is open, and who was admitted by it. Made by ``gate``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.admitted: list[tuple[bytes, wire.Channel]] = []
        self.changed = asyncio.Event()

    async def stranger(self) -> Streams:
        return await asyncio.open_connection(HOST, self.port)

    async def worker(self, name: bytes = NAME, secret: bytes = SECRET) -> wire.Channel:
        return await reach(HOST, self.port, secret, name)

    async def owner(self, count: int = 1) -> wire.Channel:
        """The owner's end of the last connection, when there are so many."""
        async with asyncio.timeout(LONG):
            while len(self.admitted) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.admitted[-1][1]


@contextlib.asynccontextmanager
async def gate(seconds: float = LONG) -> AsyncIterator[Open]:
    made: list[Open] = []

    def admit(name: bytes, channel: wire.Channel, address: str) -> None:
        assert address == HOST
        made[0].admitted.append((name, channel))
        made[0].changed.set()

    door = Gate(SECRET, admit, seconds=seconds)
    made.append(Open(await door.open(HOST)))
    try:
        yield made[0]
    finally:
        await door.close()
        for _, channel in made[0].admitted:
            channel.close()


async def said_until_closed(reader: asyncio.StreamReader) -> bytes:
    """What still comes before the other end closes. Raises TimeoutError if it does not."""
    async with asyncio.timeout(LONG):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


async def test_both_ends_hear_each_other_once_they_know_each_other() -> None:
    async with gate() as door:
        worker = await door.worker()
        owner = await door.owner()
        assert [name for name, _ in door.admitted] == [NAME]
        owner.send(wire.Stop())
        assert await worker.receive() == wire.Stop()
        worker.send(wire.Unusable("x" * 300_000))
        assert await owner.receive() == wire.Unusable("x" * 300_000)
        worker.close()
        assert await owner.receive() is None


async def test_a_worker_with_another_secret_finds_that_this_is_not_its_owner() -> None:
    async with gate() as door:
        with pytest.raises(Refused):
            await door.worker(secret=b"t" * SECRET_BYTES)
        assert door.admitted == []


async def test_who_does_not_know_the_secret_is_not_let_in() -> None:
    async with gate() as door:
        reader, writer = await door.stranger()
        writer.write(MAGIC + NAME + secrets.token_bytes(SECRET_BYTES))
        challenge, proof = await reader.readexactly(SECRET_BYTES), await reader.readexactly(SECRET_BYTES)
        writer.write(proof)  # which shows that somebody knows it, but the owner
        assert await said_until_closed(reader) == b""
        assert door.admitted == []
        assert challenge != proof


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize(
    "before", [b"", MAGIC, MAGIC + NAME + b"c" * SECRET_BYTES], ids=["first", "magic", "challenge"]
)
async def test_nothing_of_a_stranger_is_unpickled(tmp_path: Path, before: bytes) -> None:
    data = pickle.dumps(Bomb(tmp_path / "burst"))
    frame = len(data).to_bytes(4, "big") + data
    async with gate() as door:
        reader, writer = await door.stranger()
        writer.write(before + frame * 20)
        await said_until_closed(reader)
        assert door.admitted == []
    assert not (tmp_path / "burst").exists()
    with contextlib.suppress(Exception):
        pickle.loads(data)
    assert (tmp_path / "burst").exists()


@given(st.binary(min_size=1, max_size=400))
def test_whatever_a_stranger_says_it_is_not_let_in(said: bytes) -> None:
    async def try_it() -> None:
        async with gate() as door:
            reader, writer = await door.stranger()
            writer.write(said)
            writer.write_eof()
            await said_until_closed(reader)
            assert door.admitted == []

    asyncio.run(try_it())


async def test_silence_is_not_waited_for_long() -> None:
    async with gate(seconds=0.1) as door:
        silent, hesitant = await door.stranger(), await door.stranger()
        hesitant[1].write(MAGIC + NAME)
        assert [await said_until_closed(reader) for reader, _ in (silent, hesitant)] == [b"", b""]


async def test_a_crowd_of_strangers_keeps_nobody_out() -> None:
    async with gate() as door:
        crowd = [await door.stranger() for _ in range(MAX_STRANGERS)]
        for _, writer in crowd:  # the owner answers, so it has seen them all
            writer.write(MAGIC + NAME + b"c" * SECRET_BYTES)
        async with asyncio.timeout(LONG):
            for reader, _ in crowd:
                await reader.readexactly(2 * SECRET_BYTES)
        await door.worker()
        await door.owner()
        assert await said_until_closed(crowd[0][0]) == b""
        crowd[-1][1].write(b"no proof".ljust(SECRET_BYTES))
        assert await said_until_closed(crowd[-1][0]) == b""
        for _, writer in crowd:
            writer.close()


async def test_a_worker_that_comes_while_no_file_can_be_opened_is_let_in_later() -> None:
    bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with gate() as door:
        with socket.socket() as end:
            end.setblocking(False)
            used = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, bounds[1]))
            try:
                await asyncio.get_running_loop().sock_connect(end, (HOST, door.port))
                await asyncio.sleep(0.01)  # so that it is looked at
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
            reader, writer = await asyncio.open_connection(sock=end)
            writer.write(MAGIC + NAME + b"c" * SECRET_BYTES)
            async with asyncio.timeout(LONG):
                await reader.readexactly(2 * SECRET_BYTES)
            writer.close()


async def test_a_recorded_conversation_is_of_no_use_to_either_side() -> None:
    async with gate() as door, recorded(door.port) as (port, said):
        worker = await reach(HOST, port, SECRET, NAME)
        owner = await door.owner()
        worker.send(wire.Ready())
        assert await owner.receive() == wire.Ready()
        by_worker, by_owner = bytes(said[0]), bytes(said[1])
        assert len(by_worker) > len(MAGIC) + NAME_BYTES + 2 * SECRET_BYTES
        reader, writer = await door.stranger()
        writer.write(by_worker)
        answer = await said_until_closed(reader)
        assert answer[:SECRET_BYTES] != by_owner[:SECRET_BYTES]  # another challenge
        assert len(door.admitted) == 1

        async def replay(_: asyncio.StreamReader, to_worker: asyncio.StreamWriter) -> None:
            to_worker.write(by_owner)

        async with served(replay) as deaf:
            with pytest.raises(Refused):
                await reach(HOST, deaf, SECRET, NAME)


@contextlib.asynccontextmanager
async def served(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server whose connections are answered so."""
    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def recorded(target: int) -> AsyncIterator[tuple[int, tuple[bytearray, bytearray]]]:
    """A port that leads to another one, and what the two ends of its connections say."""
    said = bytearray(), bytearray()
    copying: list[asyncio.Task[None]] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(HOST, target)
        for source, sink, record in ((reader, there[1], said[0]), (there[0], writer, said[1])):
            copying.append(asyncio.create_task(_copy(source, sink, record)))

    async with served(pass_on) as port:
        yield port, said
        for task in copying:
            task.cancel()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray) -> None:
    while data := await source.read(65536):
        record += data
        sink.write(data)


async def test_a_worker_without_an_owner_hears_so() -> None:
    async with served(_closing) as port:
        with pytest.raises((Refused, OSError)):
            await reach(HOST, port, SECRET, NAME)
    with pytest.raises(OSError):
        await reach(HOST, port, SECRET, NAME)


async def _closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def test_it_holds_on_the_loop_that_runs_use() -> None:
    run_on_loop(test_both_ends_hear_each_other_once_they_know_each_other())


# --- TLS


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, with a certificate of a node from each: ``ours`` and ``theirs``."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "theirs"):
        make_certificates(folder, name)
    return folder


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, node: str, authority: str) -> None:
    """Have what connects from now on use a node's certificate, and check that of others."""
    for name, value in tls_variables(folder, node, authority).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("run", [asyncio.run, run_on_loop], ids=["asyncio", "uvloop"])
def test_connections_are_encrypted_where_those_of_ray_are(
    authorities: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], None]
) -> None:
    use(monkeypatch, authorities, "ours", "ours")

    async def talk() -> None:
        async with gate() as door, recorded(door.port) as (port, said):
            worker = await reach(HOST, port, SECRET, NAME)
            owner = await door.owner()
            worker.send(wire.Unusable("not to be read " * 30_000))
            assert await owner.receive() == wire.Unusable("not to be read " * 30_000)
            owner.send(wire.Stop())
            assert await worker.receive() == wire.Stop()
            assert len(said[0]) > 400_000
            assert b"not to be read" not in said[0]
            assert MAGIC not in said[0]
            worker.close()
            assert await owner.receive() is None

    run(talk())


@pytest.mark.parametrize(("node", "authority"), [("theirs", "ours"), ("ours", "theirs")])
async def test_certificates_of_others_are_refused_by_either_end(
    authorities: Path, monkeypatch: pytest.MonkeyPatch, node: str, authority: str
) -> None:
    use(monkeypatch, authorities, "ours", "ours")
    async with gate() as door:
        use(monkeypatch, authorities, node, authority)
        with pytest.raises((OSError, Refused)):
            await door.worker()
        assert door.admitted == []


async def test_nobody_is_let_in_without_encryption(authorities: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, authorities, "ours", "ours")
    async with gate() as door:
        monkeypatch.setenv("RAY_USE_TLS", "0")
        with pytest.raises((OSError, Refused)):
            await door.worker()
        assert door.admitted == []


async def test_certificates_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, tmp_path, "ours", "ours")
    with pytest.raises(UserError, match=r"^RAY_USE_TLS is set, but the certificates can't be used: .*RAY_TLS_CA_CERT"):
        async with gate():
            pass


@pytest.mark.slow
async def test_an_owner_that_does_not_read_for_a_while_is_not_taken_for_lost() -> None:
    async with gate() as door:
        worker = await door.worker()
        owner = await door.owner()
        owner.send(wire.Ready())
        assert await worker.receive() == wire.Ready()
        assert owner._transport is not None
        owner._transport.pause_reading()  # as while the process is stopped, or waits for its disk

        async def sent() -> None:
            for number in range(20):
                worker.send(wire.Content("a", bytes(1 << 20), number == 0, number == 19))
                await worker.drained()

        sending = asyncio.create_task(sent())
        await asyncio.sleep(SILENCE_SECONDS + 3)
        assert not sending.done()
        owner._transport.resume_reading()
        async with asyncio.timeout(LONG):
            assert [(await owner.receive()).last for _ in range(20)] == [False] * 19 + [True]
            await sending
