"""What the owner and its worker processes say to each other, over a socket pair.

Messages are pickled, which is safe here: the two ends are one program, and the socket has no name that anyone else could open. Those
that every item needs say themselves of which plain values they consist, because pickling objects within objects costs several times as
much (measured).
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from manyhands.core.errors import StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO, Reserve
from manyhands.engine.attempt import AttemptResult, Claim, Ended
from manyhands.engine.contract import CallReport, Item
from manyhands.engine.journal.records import StepRow

_LENGTH = struct.Struct("!I")
_Reduced = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Begin:
    """Owner to worker, first: what is executed and how."""

    workload: str
    """Its class, as ``module:attribute``."""
    spec: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)
    folder: str
    seed: int
    item_timeout: float | None


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to owner: items may come."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Worker to owner: it can't begin, for a reason that a person must mend."""

    message: str


@dataclass(frozen=True, slots=True)
class Execute:
    """Owner to worker: execute an item; answered by Done."""

    ticket: int
    claim: Claim

    def __reduce__(self) -> _Reduced:
        claim, item = self.claim, self.claim.item
        values = (item.number, item.key, item.payload, claim.attempt, claim.recorded, claim.alone)
        return _execute, (self.ticket, *values)


def _execute(
    ticket: int, number: int, key: str, payload: Any, attempt: int, recorded: tuple[Any, ...], alone: bool
) -> Execute:
    return Execute(ticket, Claim(Item(number, key, payload), attempt, recorded, alone))


@dataclass(frozen=True, slots=True)
class Done:
    """Worker to owner: how it came out; or, in ``error``, why no item is to blame."""

    ticket: int
    result: AttemptResult | None
    error: UserError | StorageError | None = None

    def __reduce__(self) -> _Reduced:
        if not isinstance(self.result, Ended):
            return Done, (self.ticket, self.result, self.error)
        outcome = self.result.outcome
        cause = None if outcome.cause is None else str(outcome.cause)
        why = (outcome.reason, cause, outcome.message)
        return _ended, (self.ticket, str(outcome.state), outcome.record, outcome.line, *why)


def _ended(
    ticket: int,
    state: str,
    record: dict[str, Any],
    line: tuple[str, str] | None,
    reason: str | None,
    cause: str | None,
    message: str | None,
) -> Done:
    found = None if cause is None else Cause(cause)
    return Done(ticket, Ended(Outcome(ItemState(state), record, line, reason, found, message)))


@dataclass(frozen=True, slots=True)
class Record:
    """Worker to owner: a step to be made durable; answered by Granted."""

    request: int
    row: StepRow

    def __reduce__(self) -> _Reduced:
        row = self.row
        address = (row.item, row.attempt, row.scope, row.seq, row.kind)
        usage = None if row.usage is ZERO else row.usage
        values = (row.digest, row.request, row.output, usage, row.started_at, row.finished_at)
        return _record, (self.request, address, *values)


def _record(request: int, address: tuple[int, int, str, int, str], *values: Any) -> Record:
    identity, sent, output, usage, started_at, finished_at = values
    return Record(request, StepRow(*address, identity, sent, output, usage or ZERO, started_at, finished_at))


@dataclass(frozen=True, slots=True)
class Acquire:
    """Worker to owner: a call wants to be made; answered by Granted."""

    request: int
    key: str
    reserve: Reserve


@dataclass(frozen=True, slots=True)
class Forget:
    """Worker to owner: the answer to an Acquire is not waited for any more."""

    request: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Owner to worker: the answer to a Record or an Acquire. ``error`` is raised where the request was made."""

    request: int
    permit: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Release:
    permit: int
    report: CallReport


@dataclass(frozen=True, slots=True)
class Stop:
    """Owner to worker: begin no further step."""


class Channel(asyncio.Protocol):
    """One end of the socket pair. What is sent within one turn of the loop goes out together: each time that the other end is woken costs
    more than the message."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._incoming = bytearray()
        self._frames: deque[bytes] = deque()
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        end.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(cls, sock=end)
        return channel

    def send(self, message: object) -> None:
        """Queue a message. To a peer that is gone, it is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += (_LENGTH.pack(len(data)), data)

    async def receive(self) -> Any:
        """The next message; None when the peer is gone."""
        while not self._frames:
            if self._gone:
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return pickle.loads(self._frames.popleft())

    def close(self) -> None:
        """Close this end, once what was sent has gone out."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        incoming, start = self._incoming, 0
        incoming += data
        while len(incoming) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(incoming, start)[0]
            if len(incoming) < end:
                break
            self._frames.append(bytes(incoming[start + _LENGTH.size : end]))
            start = end
        del incoming[:start]
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
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
