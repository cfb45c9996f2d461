"""Rounds in which processes of sandboxes are killed, while their run lives on.

A command that was killed tells so to its model, so that the conversation may go on otherwise than in an undisturbed run. What must hold
all the same: every item is completed, no call whose answer was recorded is made again, items whose sandboxes were let alone come out
as ever, and nothing is left running.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import PurePath
from typing import Literal

from tests.crash.rounds import LINGER_SECONDS, TRAJECTORIES, Calm, Found, Round, Site, Work, descendants, entries
from tests.support.commands import Command

Kind = Literal["outer", "init", "entering", "shell", "command", "guard"]
"""bubblewrap's outer process; number 1 inside; what brings a command in and waits for it; the persistent shell; what it runs; what ends a
local sandbox's processes with their owner."""
BUBBLEWRAP: tuple[Kind, ...] = ("outer", "init", "entering", "shell", "command")
LOCAL: tuple[Kind, ...] = ("guard", "shell", "command")
_ENTRANCES = ("nsenter", "setpriv")


class SandboxRound(Round):
    """Kills processes of one kind. ``work.sandbox`` says which sandbox."""

    def __init__(self, site: Site, work: Work, kind: Kind, executor: str, instants: random.Random) -> None:
        super().__init__(site, work, f"{work.sandbox}-{kind}", executor, instants)
        self._kind = kind
        self._seen: set[Found] = set()

    def _strike(self, command: Command, kills: int) -> bool:
        while self.report.kills < kills and self._after_requests(command, 10):
            self._kill_one(command)
        return False

    def _kill_one(self, command: Command) -> None:
        found: list[Found] = []

        def look() -> bool:
            below = descendants(command.process.pid)
            self._seen.update(process for process in below if process.inside or is_of(process, "outer"))
            found[:] = [process for process in below if is_of(process, self._kind)]
            return bool(found)

        if not command.wait_until(look, pause=0.001):
            return
        self._note_finished()
        victim = self._instants.choice(found)
        if victim.alive:
            victim.kill()
            self.report.kills += 1

    def _check_requests(self, calm: Calm) -> None:
        """A killed sandbox costs no call again: what is not recorded of it are its commands."""
        report = self.report
        asked = Counter(asked.digest for asked in self._site.server.asked(self._start))
        report.requests = asked.total()
        report.extra = report.requests - len(asked)
        again = {digest: count for digest, count in asked.items() if count > 1}
        report.expect(report.extra <= report.allowed, f"{report.extra} calls were made again, of {len(again)} requests")

    def _check_outputs(self, calm: Calm) -> None:
        report = self.report
        self._check_whole(self._folder / TRAJECTORIES)
        found = entries(self._folder / TRAJECTORIES)
        report.expect(len(found) == len(calm.entries), f"{len(found)} trajectories, not {len(calm.entries)}")
        differing = sum((Counter(found) - Counter(calm.entries)).values())
        report.expect(differing <= report.kills, f"{differing} trajectories differ after {report.kills} kills")
        report.expect(not any((self._folder / "workspaces").glob("*")), "workspaces are left over")
        end = time.monotonic() + LINGER_SECONDS
        while (left := [process for process in self._seen if process.alive]) and time.monotonic() < end:
            time.sleep(0.02)
        report.violations += [f"outlived its sandbox: {process}" for process in left]


def is_of(process: Found, kind: Kind) -> bool:
    """Whether a process below a run is of this kind."""
    name = PurePath(process.words[0]).name
    is_shell = process.words[:4] == ("bash", "--noprofile", "--norc", "-s")
    if kind == "guard":
        return any("read -r word && exit 0" in word for word in process.words)
    if kind == "outer":
        return name == "bwrap" and not process.inside
    if kind == "init":
        return process.inside == 1
    if kind == "entering":
        return name in _ENTRANCES and not process.inside
    if kind == "shell":
        return is_shell
    parent = Found.of(process.parent, 0)
    return (
        parent is not None and parent.words[:4] == ("bash", "--noprofile", "--norc", "-s") and parent.pid != os.getpid()
    )
