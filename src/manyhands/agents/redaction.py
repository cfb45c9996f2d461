"""Keeping secrets of the environment out of what is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from manyhands.core.jsonio import Json

REDACTED = "[redacted]"
_NAMES = re.compile(r"((API|ACCESS|SECRET|PRIVATE)_?KEY|SECRET|PASSWORD|TOKEN)S?$|^(API_?KEY|TOKEN)_", re.IGNORECASE)
_SHORTEST = 8
"""Characters below which a value is no secret, or too common to be taken out of texts."""


class Redactor:
    """Replaces secrets wherever they stand in texts and JSON values."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    @classmethod
    def of(cls, environ: Mapping[str, str], *more: str) -> Redactor:
        """For the secrets of an environment, which are known by their names (``…_API_KEY``, ``…_TOKEN``, …), and some more."""
        return cls([*(value for name, value in environ.items() if _NAMES.search(name)), *more])

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def data(self, data: bytes) -> bytes:
        """Bytes of a text, in whichever encoding."""
        if self._pattern is None:
            return data
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def json(self, value: Json) -> Json:
        """A JSON value with the secrets taken out of all its texts, also of keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(part) for part in value]
        if isinstance(value, dict):
            return {self.text(name): self.json(part) for name, part in value.items()}
        return value
