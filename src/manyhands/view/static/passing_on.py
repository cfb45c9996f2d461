"""What of a run is not passed on with a report: secrets, which are looked for as in exports, and where the run's folder was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from manyhands.core.text import one_line
from manyhands.export.secrets import SecretFound, find_secret, may_hold_secret, without_secrets

_TAG = re.compile(r"(<[^>]*>)")
_VALUE = re.compile(r'"[^"]*"')


@dataclass(frozen=True, slots=True)
class PassingOn:
    """What becomes of secrets."""

    redact: bool = False
    """They are replaced; else the first one ends the report."""
    keep_secrets: bool = False
    """They are not looked for."""

    def html(self, part: str, place: str) -> str:
        """A part of a page that may be passed on. ``place``: what it is a part of. Raises SecretFound."""
        if self.keep_secrets or not may_hold_secret(unescape(part).encode("utf-8", "replace")):
            return part
        if self.redact:
            # Nothing is replaced across tags and quotes: what is left must be HTML.
            found = _TAG.split(part)
            found[::2] = map(_redacted, found[::2])
            found[1::2] = (_VALUE.sub(lambda value: f'"{_redacted(value[0][1:-1])}"', tag) for tag in found[1::2])
            part = "".join(found)
        self._check(unescape(part), place)
        self._check(unescape(_TAG.sub("", part)), place)  # colours may divide one
        return part

    def text(self, text: str, place: str) -> str:
        """The like of a text. Raises SecretFound."""
        if self.keep_secrets:
            return text
        if self.redact:
            text = str(without_secrets(text))
        self._check(text, place)
        return text

    def _check(self, text: str, place: str) -> None:
        if (found := find_secret(text)) is not None:
            ways = "--keep_secrets passes them on"
            if not self.redact:
                ways = f"--redact replaces secrets, {ways}"
            where = one_line(str(without_secrets(place)))
            raise SecretFound(f"{where} holds what looks like {found[1]}; nothing was written. {ways}")


STOPPING = PassingOn()


def _redacted(html: str) -> str:
    plain = unescape(html)
    clean = str(without_secrets(plain))
    return html if clean == plain else escape(clean)


def without_folders(html: str, folders: Sequence[Path]) -> str:
    """HTML with the names of run folders in the place of their absolute paths, which tell how the machine is laid out and who uses it."""
    for folder in folders:
        for path in {folder.absolute(), folder.resolve()}:
            if str(path) in unescape(html):
                pattern = rf"(?<![\w.~-]){re.escape(escape(str(path)))}(?![\w.-])"
                html = re.sub(pattern, escape(path.name).replace("\\", r"\\"), html)
    return html
