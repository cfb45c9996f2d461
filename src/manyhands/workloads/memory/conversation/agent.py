"""What an agent is to the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context

DEFAULT_MESSAGE_SIZE = 4096
"""Tokens of the longest message that an agent is sent where it says nothing else."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message for an agent. ``number``: counts the session's messages from 1; ``now``: virtual time in seconds since 1970 UTC;
    ``expected_reply``: what the agent may take for its own reply instead of making one (filler); None: it must really reply."""

    number: int
    text: str
    now: float
    expected_reply: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent replied, and what its model calls for it used."""

    text: str
    usage: Usage = ZERO


class MemoryAgent(Protocol):
    """One agent in one session. ``name``: names it and its settings, and its folder of results; ``max_message_size``: tokens of the
    longest message that it takes; ``simulated``: whether what it says is made up by this program.

    What it does outside, it does as steps of ``context``, so that a session that goes on after a crash gives it the same messages
    again without anything being done or paid twice: its state follows from the messages and the steps' outputs.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_message_size(self) -> int: ...

    @property
    def simulated(self) -> bool: ...

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        """Take a message and reply. Raises ItemError."""
        ...

    async def forward_time(self, context: Context, now: float) -> None:
        """The virtual time has jumped to ``now``."""
        ...

    async def reset(self, context: Context) -> None:
        """Forget everything."""
        ...

    async def close(self) -> None: ...
