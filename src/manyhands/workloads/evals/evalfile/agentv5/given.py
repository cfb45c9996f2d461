"""A mapping of a person's file whose keys are taken one by one, however they are spelled; what is left is passed on as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.keys import snake
from manyhands.io.locations import Findings, Location


class Given:
    """The keys of a mapping that are not taken yet."""

    def __init__(self, value: Mapping[str, Json], location: Location, findings: Findings) -> None:
        """``findings``: for values of a wrong type."""
        self.location = location
        self._findings = findings
        self._words: dict[str, str] = {}
        self._left: dict[str, Json] = dict(value)
        for word in value:
            self._words.setdefault(snake(word), word)

    @property
    def left(self) -> dict[str, Json]:
        """What nobody has taken, as it is written."""
        return {word: value for word, value in self._left.items() if value is not None}

    def at(self, key: str, *further: str | int) -> Location:
        """The location of a key, as it is spelled there."""
        return self.location.at(self._words.get(key, key), *further)

    def has(self, key: str) -> bool:
        """Whether the key is there, taken or not, and not null."""
        return self.peek(key) is not None

    def peek(self, key: str) -> Any:
        """The value of a key, which stays where it is; None without one."""
        return self._left.get(self._words.get(key, key))

    def take(self, key: str) -> Any:
        """The value of a key; None without one."""
        return self._left.pop(self._words.get(key, key), None)

    def put(self, key: str, value: Json) -> None:
        """Let a key have another value."""
        self._left[self._words.get(key, key)] = value

    def mapping(self, key: str) -> dict[str, Json]:
        """The value of a key that must be a mapping; empty without one, or if it is another value, which is a problem."""
        value = self.take(key)
        if value is not None and not isinstance(value, Mapping):
            self._findings.problem(self.at(key), f"must be a mapping, not {shown(value)}")
        return dict(value) if isinstance(value, Mapping) else {}

    def within(self, key: str) -> Given:
        """The keys of a mapping within this one."""
        return Given(self.mapping(key), self.at(key), self._findings)

    def idle(self, instead: Mapping[str, str]) -> None:
        """Take keys that have no effect, which a note names. ``instead``: the keys, and what to do about it."""
        for key, way in instead.items():
            if self.take(key) is not None:
                self._findings.idle_key(self.at(key), way and f"; {way}")

    def refuse(self, instead: Mapping[str, str]) -> None:
        """Take keys without which a score would be another one; each is a problem."""
        for key, way in instead.items():
            if self.take(key) is not None:
                self._findings.problem(self.at(key), f"is not supported; {way}")

    def tell_left(self, what: str) -> None:
        """Say that the keys that are left have no effect."""
        for word in self.left:
            self._findings.notice(self.location.at(word).says(f"has no effect here: {what} has no such key"))
