"""What a run waits for, reported while it waits: why, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from manyhands.core.text import counted, shape

MIN_SECONDS = 5.0
"""Seconds from which on a wait is reported."""
LINE_SECONDS = 15.0
"""Seconds between two lines about waits of one cause at least."""
MAX_CAUSES = 100
"""Causes that are remembered as reported."""
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that keeps calls or items from going on. Times are seconds since 1970 UTC."""

    why: str
    """One line."""
    since: float
    """The beginning of a spell without success, which may hold several pauses."""
    until: float | None
    """None where nobody knows."""
    waiting: int
    """How many wait."""
    what: str = "call"
    """What waits: ``call`` or ``item``."""

    def is_long(self, now: float) -> bool:
        """Whether it takes long enough to be reported."""
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
    """Those that are to be reported, the longest first."""
    found = [wait for wait in waits if wait.is_long(now)]
    return tuple(sorted(found, key=lambda wait: wait.until or now, reverse=True))


class WaitLines:
    """Chooses when a wait is reported in a line of its own: when its cause is new, or its end has moved; never more than one line of a
    cause in ``LINE_SECONDS``."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[float, float | None]] = {}

    def news(self, waits: Iterable[Wait], now: float) -> list[str]:
        """The lines to be said now."""
        return [wait.text(now) for wait in waits if self._is_news(wait, now)]

    def _is_news(self, wait: Wait, now: float) -> bool:
        cause = shape(wait.why)
        before = self._reported.get(cause)
        if before is not None:
            said_at, until = before
            if now - said_at < LINE_SECONDS or (wait.until or 0.0) <= (until or 0.0) + 1.0:
                return False
        elif len(self._reported) >= MAX_CAUSES:
            return False
        self._reported[cause] = now, wait.until
        return True


@dataclass(slots=True)
class Trouble:
    """What is wrong with one endpoint. Times are seconds since 1970 UTC."""

    since: float | None = None
    """None as long as nothing is wrong."""
    why: str = ""
    held_since: float = 0.0
    """When the latest hold of all its calls began."""
    held_for: str = ""
    """Why it was made."""
    again: list[float] = field(default_factory=list)
    """When calls that failed are made again."""

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
