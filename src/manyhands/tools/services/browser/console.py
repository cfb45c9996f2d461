"""What pages write to their consoles: the last of it, cut as it comes, and no more than a bound from one call to the next.

Chromium and Playwright hold whole messages, of any size, so a page that writes more than that is to be closed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from manyhands.core.text import cut

if TYPE_CHECKING:
    from playwright.async_api import ConsoleMessage, Error

_MAX_TEXT = 1_000
_MAX_SOURCE = 500
_MAX_MESSAGES = 100
_MAX_WRITTEN = 4 << 20
_EACH = 200
"""What a message counts besides its characters."""


class Console:
    """The console of one tab."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, str]] = deque(maxlen=_MAX_MESSAGES)
        self._errors: deque[dict[str, str]] = deque(maxlen=_MAX_MESSAGES)
        self._total_messages = self._total_errors = 0
        self._written = 0
        self.loading = False
        """Whether another page was asked for, with which it begins anew."""
        self.closing = False
        """Whether the tab is being closed."""

    def begin(self) -> None:
        """A call begins, which gets a bound of its own."""
        self._written = 0

    @property
    def flooded(self) -> bool:
        """Whether there was more than a page may write."""
        return self._written > _MAX_WRITTEN

    def message(self, message: ConsoleMessage) -> None:
        """Take a message."""
        text, location = message.text, message.location
        source = cut(f"{location.get('url', '')}:{location.get('lineNumber', 0)}", _MAX_SOURCE)
        self._messages.append({"type": message.type, "text": cut(text, _MAX_TEXT), "source": source})
        self._total_messages += 1
        self._written += len(text) + _EACH

    def error(self, error: Error, url: str) -> None:
        """Take an uncaught error, of the page at this address."""
        text = str(error)
        self._errors.append({"message": cut(text, _MAX_TEXT), "source": cut(url, _MAX_SOURCE)})
        self._total_errors += 1
        self._written += len(text) + _EACH

    def navigated(self) -> None:
        """An address was reached: of another page, or of the same one."""
        if self.loading:
            self.loading = False
            self.clear()

    def clear(self) -> None:
        self._messages.clear()
        self._errors.clear()
        self._total_messages = self._total_errors = 0

    def to_json(self) -> dict[str, Any]:
        """What the model gets."""
        return {
            "console_messages": list(self._messages),
            "js_errors": list(self._errors),
            "total_messages": self._total_messages,
            "total_errors": self._total_errors,
        }
