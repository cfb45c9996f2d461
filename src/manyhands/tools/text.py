"""Text on its way to a model: decoded, cleaned, and kept within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from manyhands.core.jsonio import without_surrogates
from manyhands.core.likeness import closest
from manyhands.core.redaction import KNOWN

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Terminal escape sequences: CSI, OSC and the two-character ones (ECMA-48, section 5.3 and 5.4)."""


def clean(text: str) -> str:
    """The text without what JSON stores and endpoints choke on: lone surrogates and NUL characters become U+FFFD."""
    text = without_surrogates(text)
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


def decode(data: bytes) -> str:
    """What a program printed, as text: bytes that are not UTF-8 become U+FFFD, terminal escape sequences and secrets go."""
    return KNOWN.text(_ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\x00", "\ufffd"))


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: head and tail, and between them a note of how many were left out. No half of a secret stays."""
    if len(text) <= limit:
        return text
    text = KNOWN.text(text)
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text) - limit} characters left out …]\n"
    room = limit - len(note) - 2
    if room <= 0:
        return text[: max(0, limit)]
    head = (room + 1) // 2
    tail = room - head
    note = f"\n[… {len(text) - head - tail} characters left out …]\n"
    return text[:head] + note + text[len(text) - tail :]


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like the given one, or None if none is much like it."""
    found = closest(name, names, cutoff=0.5)
    return found[0] if found else None


def suggestion(name: str, names: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing."""
    found = nearest(name, names)
    return f" (did you mean {found!r}?)" if found else ""
