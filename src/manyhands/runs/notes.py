"""What a person is told while a run is opened and performed, kept for whoever asks afterwards."""

from __future__ import annotations

from collections.abc import Callable

MOST = 1000
"""Lines that are kept."""


class Notes:
    """Passes lines on to ``notice``, and keeps them."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._lines: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """What was told so far, each line once; no more than the first ``MOST``."""
        return tuple(self._lines)

    def __call__(self, text: str) -> None:
        """Tell a line."""
        self.keep(text)
        self._notice(text)

    def keep(self, text: str) -> None:
        """Keep a line that is told in another way."""
        if len(self._lines) < MOST and text not in self._lines:
            self._lines.append(text)
