"""Requests that an endpoint refuses one after the other, as with a model that does not exist: found out before every item has failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from manyhands.core.likeness import shape
from manyhands.core.terminal import one_line

MOST = 20
"""Identical refusals without an answer in between, after which the run stops."""
LONGEST = 4000
"""Characters of a failure that are looked through."""
MOST_SENTENCES = 100
"""Different refusals of one model that are counted and told."""


class Refusals:
    """Counts refusals by what was asked (a model at an endpoint) and by what was said, until an answer comes.

    Refusals are identical if they say the same but for numbers and ids. ``notice`` is told of each that is new, as long as there has
    been no answer.
    """

    def __init__(self) -> None:
        self.notice: Callable[[str], None] = lambda text: None
        self._streaks: dict[str, Counter[str]] = {}
        self._answered: set[str] = set()
        self._told: set[str] = set()
        self.reason: str | None = None
        """Why nothing comes of going on; None if something may."""

    def refused(self, asked: str, said: str, *, by_content: bool = False) -> None:
        """A call was refused. ``by_content``: perhaps for what it asked, which is so if another call was answered before."""
        if by_content and asked in self._answered:
            return
        same = shape(said)
        streak = self._streaks.setdefault(asked, Counter())
        if same not in streak and len(streak) >= MOST_SENTENCES:
            return
        streak[same] += 1
        if asked not in self._answered and same not in self._told and len(self._told) < MOST_SENTENCES:
            self._told.add(same)
            self.notice(said)
        if streak[same] >= MOST and self.reason is None:
            self.reason = (
                f"{said} ({MOST} refusals of that kind and no answer in between, so that all others would be refused, too; "
                "what was refused stays pending)"
            )

    def answered(self, asked: str) -> None:
        """A call was answered."""
        self._answered.add(asked)
        self._streaks.pop(asked, None)

    def explains(self, message: str) -> bool:
        """Whether an item's failure is one of the refusals that no answer has followed."""
        if not self._streaks:
            return False
        same = shape(one_line(message, LONGEST))
        return any(sentence in same for streak in self._streaks.values() for sentence in streak)
