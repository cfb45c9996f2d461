"""What starts workers, on one machine or many, and what it says of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from manyhands.core.errors import ManyhandsError
from manyhands.engine.executors import wire


class FailedStart(ManyhandsError):
    """A worker did not get ready on a node; the message is for people, and names it."""

    def __init__(self, why: str, node: str = "", *, unusable: bool = False) -> None:
        """``node``: as of ``Launched``; empty if it isn't known. ``unusable``: a person has to change something there."""
        super().__init__(why)
        self.node = node
        self.unusable = unusable


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    how: str
    """For people: ``killed by SIGKILL``, or ``exit code 1``."""
    well: bool = False
    """It ended by itself, as it was to."""
    node_lost: bool = False
    """The machine that it was on is gone, so that none of its items is to blame."""
    others_too: bool = False
    """Something else than an item may well have ended it."""


class Launched(Protocol):
    """A worker that was started, as its launcher holds it."""

    channel: wire.Channel
    name: str
    """For people: ``process 4711``, or ``process 4711 on 10.0.0.7``."""
    node: str
    """The machine that it is on; empty for this one."""
    address: str
    """That of the node, for people; empty for this one."""
    attempts: frozenset[str]
    """The attempts whose workspaces were on its node when it began, as ``3-1``: item 3, attempt 1. Empty for this machine."""
    may_leave: str
    """What may stay on its node if it is killed, for people; empty for this machine."""

    def take(self, message: object) -> Awaitable[None] | None:
        """What it has to say that only its launcher understands; the result, if there is one, comes before what it says next. Raises
        StorageError for files that can't be written, as does the result."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    async def ended(self) -> Death:
        """Wait for its end, which its closed channel announced, and clear away what it left behind. Bounded."""
        ...


class Launcher(Protocol):
    """Starts workers."""

    places: bool
    """Whether it is somebody else who decides when and where a worker starts, so that the run begins with those that there are."""

    async def open(self, drain: Callable[[str], None]) -> None:
        """Get ready. ``drain`` is called with each node that is about to go, and takes no new work. Raises UserError, StorageError."""
        ...

    async def start(self, near: str) -> Launched:
        """Start a worker, on the node ``near`` if that is named and has room. Raises FailedStart if it can't begin on its node, OSError if
        that can't be done now (ConnectionError if it was lost on the way), StorageError or UserError if it never will be."""
        ...

    async def close(self) -> None:
        """End all that is left. Called when the workers are closed."""
        ...
