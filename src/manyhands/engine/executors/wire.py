"""What the owner and its worker processes say to each other, over a socket pair.

Messages are pickled, which is safe here: the two ends are one program, and the socket has no name that anyone else could open.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.errors import StorageError, UserError
from manyhands.core.usage import Reserve
from manyhands.engine.context import CallReport
from manyhands.engine.performance import Claim, Performed, StepRow

_LENGTH = struct.Struct("!I")
BUFFER = 1 << 20
"""Bytes read ahead."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Owner to worker, first: what is performed and how."""

    workload: str
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
class Perform:
    ticket: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class Done:
    """Worker to owner: how it came out; or, in ``error``, why no item is to blame."""

    ticket: int
    performed: Performed | None
    error: UserError | StorageError | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Worker to owner: a step to be made durable; answered by Granted."""

    request: int
    row: StepRow


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


class Channel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end, limit=BUFFER))

    def send(self, message: object) -> None:
        """Queue a message. To a peer that is gone, it is dropped."""
        if not self._writer.is_closing():
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Any:
        """The next message; None when the peer is gone."""
        try:
            head = await self._reader.readexactly(_LENGTH.size)
            return pickle.loads(await self._reader.readexactly(_LENGTH.unpack(head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        self._writer.close()
