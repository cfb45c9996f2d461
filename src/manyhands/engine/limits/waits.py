"""What a run waits for, told while it waits: why, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from manyhands.core.text import counted, shape

MIN_SECONDS = 5.0
"""Seconds from which on a wait is told."""
LINE_SECONDS = 15.0
"""Seconds between two lines about waits of one cause at least."""
MAX_CAUSES = 100
"""Causes that are remembered as told."""
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that keeps calls or items from going on.

    ``why``: one line; ``since`` and ``until``: seconds since 1970 UTC, ``until`` None where nobody can tell; ``waiting`` so many of
    ``what`` (``call``, ``item``). With ``since`` begins a spell without success, which may hold several pauses.
    """

    why: str
    since: float
    until: float | None
    waiting: int
    what: str = "call"

    def is_long(self, now: float) -> bool:
        """Whether it takes long enough to be told."""
        return max(now, self.until or 0.0) - self.since > MIN_SECONDS

    def text(self, now: float | None = None) -> str:
        """In one line; with ``now``, also how many seconds are left."""
        parts = ["waiting"]
        if self.until is not None:
            parts.append(f"until {_moment(self.until, self.since)}")
            if now is not None:
                parts.append(f"({max(0.0, self.until - now):.0f} s)")
        waits = "waits" if self.waiting == 1 else "wait"
        return f"{' '.join(parts)}: {self.why}; {counted(self.waiting, self.what)} {waits}"


def long_waits(waits: Iterable[Wait], now: float) -> tuple[Wait, ...]:
    """Those that are to be told, the longest first."""
    found = [wait for wait in waits if wait.is_long(now)]
    return tuple(sorted(found, key=lambda wait: wait.until or now, reverse=True))


class WaitLines:
    """Chooses when a wait is told in a line of its own: when its cause is new, or its end has moved; never more than one line of a cause
    in ``LINE_SECONDS``."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, float | None]] = {}

    def news(self, waits: Iterable[Wait], now: float) -> list[str]:
        """The lines to be said now."""
        return [wait.text(now) for wait in waits if self._is_news(wait, now)]

    def _is_news(self, wait: Wait, now: float) -> bool:
        cause = shape(wait.why)
        told = self._told.get(cause)
        if told is not None:
            said_at, until = told
            if now - said_at < LINE_SECONDS or (wait.until or 0.0) <= (until or 0.0) + 1.0:
                return False
        elif len(self._told) >= MAX_CAUSES:
            return False
        self._told[cause] = now, wait.until
        return True


@dataclass(slots=True)
class Trouble:
    """What is wrong with one endpoint: nothing as long as ``since`` is None. ``held_since`` and ``held_for``: of the latest hold of all its
    calls, and why it was made; ``again``: when calls that failed are made again (times of day)."""

    since: float | None = None
    why: str = ""
    held_since: float = 0.0
    held_for: str = ""
    again: list[float] = field(default_factory=list)

    def failed(self, now: float, why: str, again_in: float | None) -> None:
        """A call failed; who made it makes it again in so many seconds."""
        self.since = now if self.since is None else self.since
        self.why = why
        if again_in is not None:
            self.again = [moment for moment in self.again if moment > now]
            self.again.append(now + again_in)

    def held(self, now: float, why: str) -> None:
        """No call may be made for a while."""
        self.held_since, self.held_for = now if self.since is None else self.since, why

    def answered(self) -> None:
        """A call was answered."""
        self.since = None
        self.again.clear()

    def wait(self, now: float, held_for: float, waiting: int) -> Wait | None:
        """What it makes calls wait for. ``held_for``: seconds for which none may be made, and ``waiting``: how many wait for that."""
        if held_for > 0 and waiting:
            return Wait(self.held_for, self.held_since, now + held_for, waiting)
        ahead = [moment for moment in self.again if moment > now]
        if self.since is None or not ahead:
            return None
        return Wait(self.why, self.since, min(ahead), len(ahead))


def _moment(until: float, since: float) -> str:
    """A time of day as clocks here show it, with the day if that is far away."""
    form = "%H:%M:%S" if until - since < _DAY / 2 else "%Y-%m-%d %H:%M:%S"
    return datetime.fromtimestamp(until).strftime(form)
