"""What a workload sees while it performs an item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from manyhands.core.clock import Clock
from manyhands.core.jsonio import Json
from manyhands.core.usage import ZERO, Reserve, Usage


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work. ``number`` counts from 1 in order of planning; ``payload`` is the workload's own JSON."""

    number: int
    key: str
    payload: Json


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step's effect came to: its output (JSON) and what it cost."""

    output: Json
    usage: Usage = ZERO


class Limits(Protocol):
    """The limits that all performers of a run share: one adaptive limiter per key, and the run's budget.

    Every paid call happens between ``acquire`` and ``release``::

        permit = await limits.acquire(key, reserve)   # waits its turn; raises ItemError(OVER_BUDGET)
        try: ...
        finally: limits.release(permit, CallReport(...))
    """

    async def acquire(self, key: str, reserve: Reserve) -> int: ...

    def release(self, permit: int, report: CallReport) -> None: ...


@dataclass(frozen=True, slots=True)
class CallReport:
    """How a limited call went. ``usage`` settles the reserve; ``rate_limited`` (429, 529) cuts the concurrency of the key
    and holds all its calls for ``retry_after`` seconds (None: a growing pause of the limiter's own choosing);
    ``remaining`` and ``reset_after`` (seconds) are the server's ``x-ratelimit-*`` figures where it sends them. ``unknown``: the call was
    made, and what it used can't be told, or only ``usage`` of it; its whole reserve counts as used. ``remark``: a line for the person,
    who is told it once however many calls have it. Of a call that failed, ``said``: why, in one line; ``refused``: it would be refused
    again, whatever else is asked, or with ``by_content`` perhaps only because of what was asked; ``again_in``: seconds until it is made
    again."""

    usage: Usage = ZERO
    rate_limited: bool = False
    failed: bool = False
    retry_after: float | None = None
    remaining: int | None = None
    reset_after: float | None = None
    unknown: bool = False
    remark: str | None = None
    said: str | None = None
    refused: bool = False
    by_content: bool = False
    again_in: float | None = None


class Context(Protocol):
    """An item being performed. The only way to have an effect is ``step``."""

    @property
    def item(self) -> Item: ...

    @property
    def attempt(self) -> int:
        """Counts from 1. A new attempt starts from nothing; an interrupted one goes on where it was."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def workspace(self) -> Path:
        """A folder for this attempt alone. It is made by whoever first uses it, survives a crash, and is removed by the
        engine when the item has ended, unless the item failed, the run keeps workspaces, or a file ``keep`` is in it."""
        ...

    @property
    def replaying(self) -> bool:
        """Whether the next step of this scope is recorded, so that nothing will happen outside."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether this attempt had recorded steps when this performance of it began."""
        ...

    @property
    def place(self) -> str:
        """``scope/seq`` of this scope's next step, as text."""
        ...

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        """Do something once and for all.

        The step's place is this scope and its next number, taken before anything is awaited. If the journal holds the place
        with the same kind and request, the recorded output is returned and ``effect`` is not called; if it holds another
        request, Divergence is raised for the engine to handle (a workload lets it pass). Otherwise ``effect`` runs and its
        output is durable before it is returned. An exception from ``effect`` is not recorded and passes through.

        The request identifies the effect; as all earlier steps of the scope are known to match, it need only hold what
        is new since the previous step. The output returned may be shared: treat it as read-only.
        """
        ...

    def scope(self, name: str) -> Context:
        """A branch with places of its own, for code that runs concurrently with other code of the item. The name must be
        the same on replay, and unique in the item."""
        ...

    def random(self, purpose: str) -> Random:
        """A random source that depends on the run's seed, the item's key and the purpose, and on nothing else."""
        ...

    def seed(self, purpose: str) -> int:
        """The like as a number in 0 … 2**31 - 1."""
        ...

    def new_attempt_needed(self, reason: str) -> Exception:
        """An exception to raise when this attempt can't go on (its world is gone): the engine starts a fresh attempt at once
        and keeps the old one for audit."""
        ...
