"""How far a run is while it is executed, and notices for a person meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.core.outcomes import ItemState
from manyhands.core.usage import Usage
from manyhands.engine.limits.waits import Wait

Notice = Callable[[str], None]
"""Gets a line that a person should see."""
MAX_NOTES = 1000
"""Lines that are kept."""


class Notes:
    """Passes lines on to ``notice``, and keeps them."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._lines: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """Notices so far, each line once; no more than the first ``MAX_NOTES``."""
        return tuple(self._lines)

    def __call__(self, text: str) -> None:
        """Tell a line."""
        self.keep(text)
        self._notice(text)

    def keep(self, text: str) -> None:
        """Keep a line that is shown in another way."""
        if len(self._lines) < MAX_NOTES and text not in self._lines:
            self._lines.append(text)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    counts: dict[tuple[str, str], int]
    """Items by (state, reason or cause)."""
    usage: Usage
    in_flight: int
    seconds: float
    """Of the present session."""
    finished_before: int
    """Items that had ended when the session began, for an honest rate."""
    waits: tuple[Wait, ...] = ()
    """What keeps it from going on, of all that takes more than some seconds."""

    @property
    def items(self) -> int:
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        return sum(n for (state, _), n in self.counts.items() if ItemState(state).final)
