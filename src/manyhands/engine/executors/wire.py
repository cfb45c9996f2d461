"""What the owner and its worker processes say to each other: over a socket pair, or from another machine over an authenticated connection.

Messages are pickled, which is safe here: the two ends are one program. A socket pair has no name that anyone else could open, and nothing
of a connection is unpickled before both of its ends have shown that they know the run's secret (``handshake``). Each message goes as a
number and the plain values that it is made of again at the other end: pickling objects, within objects or not, costs several times as
much (measured).
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, cast

from manyhands.core.errors import StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome, OutputLine
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.attempt import AttemptResult, Claim, Ended
from manyhands.engine.contract import NOTHING, CallReport, Item, OneOf, OwnLimit
from manyhands.engine.journal.records import StepRow

_LENGTH = struct.Struct("!I")
READ_BYTES = 256 * 1024
"""Bytes that are read at once, into memory that is there already: more for messages that are larger."""
MESSAGES_A_TURN = 64
"""Messages that are received in one turn of the loop. What follows from the first of a thousand is on its way before the last is looked
at, so that neither end waits while the other one is at work."""
_Maker = Callable[..., Any]
_Plain = tuple[_Maker, tuple[Any, ...]]
"""What makes a message, and of what."""
_values_of_report = attrgetter(*(each.name for each in fields(CallReport) if each.name != "usage"))
_values_of_reserve = attrgetter(*(each.name for each in fields(Reserve)))
_values_of_usage = attrgetter(*(each.name for each in fields(Usage)))


class Message:
    """What one end says to the other."""

    __slots__: tuple[str, ...] = ()

    def plain(self) -> _Plain:
        """What makes this message again, and of which values."""
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


@dataclass(slots=True)
class Begin(Message):
    """Owner to worker, first: what is executed and how."""

    workload: str
    """Its class, as ``module:attribute``."""
    spec: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)
    folder: str
    seed: int
    item_timeout: float | None


@dataclass(slots=True)
class Furnish(Message):
    """Owner to a worker on another machine, before Begin: what it needs besides; answered by Missing."""

    run_id: str
    parts: tuple[str, ...]
    """The last names of the run folder's path, which the node's folder ends with, too."""
    manifest: dict[str, tuple[int, bytes, bool]]
    """The files of the node's folder, by their paths in it: size in bytes, digest, and whether they can be executed."""
    modules: dict[str, str]
    """Where files of the person's own that are loaded by their paths are in the node's folder."""
    environ: dict[str, str] = field(repr=False)
    """Variables of the owner's environment."""
    results: tuple[str, ...] = ()
    """The folders whose files are brought back."""
    current: str = ""
    """The owner's current folder."""
    kept: tuple[str, ...] = ()
    """The files that the owner has in the folders of ``results``, and folders there of which it has all."""
    session: str = ""
    """The owner's, see ``claiming.claim``."""


@dataclass(slots=True)
class Missing(Message):
    """Worker to owner: the files that it does not have; each comes as Content."""

    paths: tuple[str, ...]
    attempts: tuple[str, ...]
    """The attempts whose workspaces are on its node (``3-1``: item 3, attempt 1)."""
    process: int
    """Its id on its node."""
    folder: str = ""
    """The node's."""


@dataclass(slots=True)
class Content(Message):
    """Part of a file of the run's folder: from the owner what is missing, from a worker what an item left."""

    path: str
    """In the run's folder."""
    data: bytes
    first: bool
    """The file begins here."""
    last: bool
    """It ends here."""
    modified: int = 0
    """When it was last changed, in nanoseconds by the clock of its machine."""
    executable: bool = False


@dataclass(slots=True)
class Over(Message):
    """Owner to a worker on another machine: an attempt goes on no more, and its node's folder need not keep anything of it."""

    attempt: str
    """``3-1``: item 3, attempt 1."""
    failed: bool | None
    """How its item ended; None if that goes on with another attempt."""


@dataclass(slots=True)
class Stays(Message):
    """Worker to owner: what its node keeps of an attempt whose item has ended."""

    attempt: str
    folder: str


@dataclass(slots=True)
class Notice(Message):
    """Worker to owner: what a person should know of its machine, in one line."""

    text: str


@dataclass(slots=True)
class Farewell(Message):
    """Owner to a worker on another machine: end what is left, and close the connection. ``over``: nothing is left to do, so that the node's
    folder is not needed any more."""

    over: bool


@dataclass(slots=True)
class Ready(Message):
    """Worker to owner: items may come."""


@dataclass(slots=True)
class Unusable(Message):
    """Worker to owner: it can't begin, for a reason that a person must mend."""

    message: str


@dataclass(slots=True)  # not frozen: see Outcome
class Execute(Message):
    """Owner to worker: execute an item; answered by Done."""

    ticket: int
    claim: Claim

    def plain(self) -> _Plain:
        claim, item = self.claim, self.claim.item
        values = (item.number, item.key, item.payload, claim.attempt, claim.recorded, claim.alone, claim.facts)
        return _execute, (self.ticket, *values)


def _execute(
    ticket: int, number: int, key: str, payload: Any, attempt: int, recorded: tuple[Any, ...], alone: bool, facts: Any
) -> Execute:
    return Execute(ticket, Claim(Item(number, key, payload), attempt, recorded, alone, facts=facts))


@dataclass(slots=True)
class Done(Message):
    """Worker to owner: how an item's execution ended."""

    ticket: int
    result: AttemptResult | None
    error: UserError | StorageError | None = None
    """Why there is no result, if no item is to blame for that."""
    left: bool = False
    """Its node keeps something of the attempt. Always False on the owner's machine."""

    def plain(self) -> _Plain:
        if not isinstance(self.result, Ended):
            return Done, (self.ticket, self.result, self.error, self.left)
        outcome = self.result.outcome
        cause = None if outcome.cause is None else str(outcome.cause)
        why = (outcome.reason, cause, outcome.message)
        return _ended, (self.ticket, self.left, str(outcome.state), outcome.record, outcome.line, *why)


def _ended(
    ticket: int,
    left: bool,
    state: str,
    record: dict[str, Any],
    line: OutputLine | None,
    reason: str | None,
    cause: str | None,
    message: str | None,
) -> Done:
    found = None if cause is None else Cause(cause)
    return Done(ticket, Ended(Outcome(ItemState(state), record, line, reason, found, message)), left=left)


@dataclass(slots=True)
class Record(Message):
    """Worker to owner: a step to be made durable; answered by Granted."""

    request: int
    row: StepRow

    def plain(self) -> _Plain:
        row = self.row
        address = (row.item, row.attempt, row.scope, row.seq, row.kind)
        usage = _usage_values(row.usage)
        values = (row.digest, row.request, row.output, usage, row.started_at, row.finished_at, row.account)
        return _record, (self.request, address, *values)


def _record(request: int, address: tuple[int, int, str, int, str], *values: Any) -> Record:
    identity, sent, output, usage, *others = values
    return Record(request, StepRow(*address, identity, sent, output, _usage(usage), *others))


def _usage_values(usage: Usage) -> tuple[Any, ...] | None:
    return None if usage is ZERO else _values_of_usage(usage)


def _usage(values: tuple[Any, ...] | None) -> Usage:
    return ZERO if values is None else Usage(*values)


@dataclass(slots=True)
class Acquire(Message):
    """Worker to owner: a call wants to be made; answered by Granted."""

    request: int
    key: str | OneOf | OwnLimit
    reserve: Reserve

    def plain(self) -> _Plain:
        if isinstance(self.key, OwnLimit):
            return _acquire_own, (self.request, self.key.name)
        key = self.key if isinstance(self.key, str) else (self.key.keys, self.key.avoid, self.key.last)
        return _acquire, (self.request, key, _values_of_reserve(self.reserve))


def _acquire(request: int, key: str | tuple[Any, ...], reserve: tuple[Any, ...]) -> Acquire:
    return Acquire(request, key if isinstance(key, str) else OneOf(*key), Reserve(*reserve))


def _acquire_own(request: int, name: str) -> Acquire:
    return Acquire(request, OwnLimit(name), NOTHING)


@dataclass(slots=True)
class Forget(Message):
    """Worker to owner: the answer to an Acquire is not waited for any more."""

    request: int


@dataclass(slots=True)
class Granted(Message):
    """Owner to worker: the answer to a Record or an Acquire."""

    request: int
    permit: int = 0
    """Of an Acquire; 0 for a Record."""
    error: Exception | None = None
    """Raised where the request was made."""
    key: str | None = None
    """Of an Acquire of one of several keys: which."""


@dataclass(slots=True)
class Release(Message):
    """Worker to owner: a call has ended."""

    permit: int
    report: CallReport

    def plain(self) -> _Plain:
        return _release, (self.permit, _usage_values(self.report.usage), _values_of_report(self.report))


def _release(permit: int, usage: tuple[Any, ...] | None, others: tuple[Any, ...]) -> Release:
    return Release(permit, CallReport(_usage(usage), *others))


@dataclass(slots=True)
class Stop(Message):
    """Owner to worker: begin no further step."""


@dataclass(slots=True)
class Pause(Message):
    """Owner to worker: begin no further step (``active``), or begin steps again."""

    active: bool


@dataclass(slots=True)
class Cancel(Message):
    """Owner to worker: begin no further step of these items."""

    items: list[int]


@dataclass(slots=True)
class Abandon(Message):
    """Owner to worker: end what is executed of an item at once."""

    ticket: int


_MAKERS: tuple[_Maker, ...] = (
    Begin,
    Ready,
    Unusable,
    _execute,
    Done,
    _ended,
    _record,
    _acquire,
    _acquire_own,
    Forget,
    Granted,
    _release,
    Stop,
    Pause,
    Cancel,
    Abandon,
    Furnish,
    Missing,
    Content,
    Over,
    Stays,
    Farewell,
    Notice,
)
_NUMBERS = {maker: number for number, maker in enumerate(_MAKERS)}


def packed(message: Message) -> bytes:
    """A message as it goes out, with its length before it. Raises what pickling its values raises."""
    maker, values = message.plain()
    data = pickle.dumps((_NUMBERS[maker], values), protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def _unpacked(data: bytes) -> Any:
    number, values = pickle.loads(data)
    return _MAKERS[number](*values)


class Channel(asyncio.BufferedProtocol):
    """One end of the socket pair. What is sent within one turn of the loop goes out together: each time that the other end is woken costs
    more than the message."""

    def __init__(self, keeps: object = None) -> None:
        """``keeps``: what must live as long as this does."""
        self._loop = asyncio.get_running_loop()
        self._keeps = keeps
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._incoming = bytearray(READ_BYTES)
        self._filled = 0
        self._frames: deque[bytes] = deque()
        self._received = 0
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        end.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(cls, sock=end)
        return channel

    def send(self, message: Message) -> None:
        """Queue a message. To a peer that is gone, it is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        data = packed(message)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    async def receive(self) -> Any:
        """The next message; None when the peer is gone."""
        while not self._frames:
            if self._gone:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        self._received += 1
        if self._received % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)
        return _unpacked(self._frames.popleft())

    async def drained(self) -> None:
        """Wait until little of what was sent is still here, or the peer is gone: for who sends much."""
        self._flush()
        while self._full is not None and not self._gone:
            await asyncio.shield(self._full)

    async def unread(self, work: Awaitable[None]) -> None:
        """Do something meanwhile nothing more is read, so that no more comes than can be kept."""
        transport = self._transport
        if transport is None or transport.is_closing():
            await work
            return
        transport.pause_reading()
        try:
            await work
        finally:
            if not transport.is_closing():
                transport.resume_reading()

    def close(self) -> None:
        """Close this end, once what was sent has gone out."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where what is read next belongs: behind what is there of the message that has begun."""
        if self._filled == len(self._incoming):
            self._incoming = self._incoming + bytes(self._filled)
        elif not self._filled and len(self._incoming) > READ_BYTES:
            self._incoming = bytearray(READ_BYTES)
        return memoryview(self._incoming)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        incoming, filled, start = memoryview(self._incoming), self._filled + nbytes, 0
        while filled - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(incoming, start)[0]
            if filled < end:
                break
            self._frames.append(bytes(incoming[start + _LENGTH.size : end]))
            start = end
        if start:
            incoming[: filled - start] = incoming[start:filled]
        self._filled = filled - start
        self._wake()

    def pause_writing(self) -> None:
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        self.resume_writing()
        self._outgoing.clear()
        self._wake()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
