"""Where a sandbox's commands are started: a running world, and what all commands of the sandbox in it have in common."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from manyhands.processes.children import ExecResult
from manyhands.processes.output import Capture
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.sandboxes.remote import scripts
from manyhands.sandboxes.remote.driver import Driver, World
from manyhands.sandboxes.remote.streams import Marked, Stream, is_number

_BLOCK = 512
_LOWEST_TAG, _TAGS = 1 << 40, 1 << 50
LAST_WORDS = 2.0
"""Seconds to wait for the mark in one of a command's streams when it has come in the other."""


@dataclass(slots=True)
class Place:
    """A world that runs, from one start of it to its end."""

    driver: Driver
    world: World
    limits: SandboxLimits
    environment: Mapping[str, str]
    """Variables of all commands, beside those of the world."""
    hard: int = field(default_factory=lambda: _LOWEST_TAG + secrets.randbelow(_TAGS))
    """The tag of all that runs in it, see ``scripts``."""
    own: set[int] = field(default_factory=set)
    """Ids of processes that belong to the world, or to us: what is not among them was started by commands."""
    opening: int = 0
    """How many commands of ours are being started whose processes are not known yet."""
    opened: int = 0
    """How many were, in all."""
    _used: int = 0

    def open(self) -> None:
        """A command of ours is about to be started."""
        self.opening += 1
        self.opened += 1

    def note_open(self, pid: int | None) -> None:
        """It has been, and this is its process; None if it could not be."""
        self.opening -= 1
        if pid is not None:
            self.own.add(pid)

    def new_tag(self) -> int:
        """The soft tag of a further command."""
        self._used += 1
        return self.hard - self._used

    def command(self, script: str, *words: str) -> list[str]:
        """The command that runs one of our scripts, under the limits of the sandbox."""
        blocks = max(1, self.limits.file_size // _BLOCK)
        return ["/bin/sh", "-c", script, "sh", str(self.limits.cpu_seconds), str(blocks), str(self.hard), *words]


class OwnCommand:
    """A command with an engine's ``exec`` of its own: for what a service shell can't take, and for the background."""

    def __init__(self, place: Place, capture: Capture) -> None:
        self._place = place
        self._token = secrets.token_hex(16)
        self.capture = capture
        self.stream = Stream()
        self.tag = place.new_tag()
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        """The command itself has ended, or nothing can be known of it any more."""
        self._pid: int | None = None
        self._opening = False
        self._out = Marked(self._token, capture.feed, lambda words: self._note(words, 0))
        self._errors = Marked(self._token, lambda data: None, lambda words: self._note(words, 1))
        self._marks = [False, False]
        self._watching: asyncio.Task[None] | None = None

    async def start(
        self,
        command: Sequence[str],
        directory: str,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """Raises ItemError."""
        place = self._place
        place.open()
        self._opening = True
        try:
            await self.stream.open(
                place.driver,
                place.world.id,
                place.command(scripts.OWN, str(self.tag), directory, *command),
                output=self._out.feed,
                errors=self._errors.feed,
                environment={**place.environment, **(environment or {}), scripts.TOKEN_VARIABLE: self._token},
                user=user,
            )
        except BaseException:
            self._note_open(None)
            raise
        self._watching = asyncio.ensure_future(self._watch())

    async def wait(self, seconds: float) -> bool:
        """Whether it has ended, after ``seconds`` at most."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Give up its streams."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.stream.close()
        self._note_open(None)
        self._place.own.discard(self._pid or 0)
        self.ended.set()

    def _note_open(self, pid: int | None) -> None:
        if self._opening:
            self._opening = False
            self._place.note_open(pid)

    async def _watch(self) -> None:
        await self.stream.ended.wait()
        self._note_open(None)
        if self.exit_code is None:
            self.exit_code = self.stream.exit_code
        self.ended.set()

    def _note(self, words: list[str], which: int) -> None:
        if words[0] == "pid" and is_number(words[1:2]):
            self._pid = int(words[1][:9])
            self._note_open(self._pid)
        elif words[0] == "end" and is_number(words[1:2]):
            self._marks[which] = True
            if which == 1:
                self.exit_code = int(words[1][:9])
            if all(self._marks):
                self.ended.set()


def result_of(capture: Capture, exit_code: int | None, *, timed_out: bool, seconds: float) -> ExecResult:
    return ExecResult(
        None if timed_out else exit_code, capture.joined(), capture.omitted, timed_out=timed_out, seconds=seconds
    )
