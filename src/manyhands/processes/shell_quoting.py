"""Where in a shell's line something stands: inside which quotation (POSIX.1-2017, XCU 2.2 and 2.6)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

PREFIX = "MANYHANDS_"
"""What stands before a placeholder's name in the environment."""


def quoted(text: str) -> str:
    """A text as one word of a POSIX shell, always in single quotes (POSIX.1-2017, XCU 2.2.2)."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


_WORD_BREAKS = " \t\n;&|()"


class Spot(Enum):
    """What surrounds a place. The value names it for people."""

    BARE = "unquoted text"
    DOUBLE = '"…"'
    SINGLE = "'…'"
    COMMENT = "a comment"
    BACKTICK = "`…`"
    PARAMETER = "${…}"
    HEREDOC = "a text that follows <<"

    @property
    def safe(self) -> bool:
        """Whether a quoted word put there, by way of ``around``, reaches the command as it is."""
        return self in (Spot.BARE, Spot.DOUBLE, Spot.SINGLE)

    def around(self, word: str) -> str:
        """A quoted word so that it keeps its meaning there: the surrounding quotation ends before it and goes on behind it."""
        quote = {Spot.DOUBLE: '"', Spot.SINGLE: "'"}.get(self, "")
        return quote + word + quote


def spots(line: str, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Spot]]:
    """What of a line matches the pattern, and where it stands. A match is looked for at every character."""
    walk = _Walk(line)
    while walk.place < len(line):
        found = pattern.match(line, walk.place)
        if found:
            yield found, walk.spot
            walk.place = found.end()
        else:
            walk.step()


class _Walk:
    """Goes through a line, and knows what it is in: a stack of what was opened and not yet closed."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._open: list[str] = []
        self._heredoc = False
        self.place = 0

    @property
    def spot(self) -> Spot:
        inner = self._open[-1] if self._open else ""
        found = _INSIDE.get(inner, Spot.BARE)
        if found is not Spot.COMMENT:
            found = next((_INSIDE[each] for each in self._open if each in _SPOILING), found)
        return Spot.HEREDOC if self._heredoc and found.safe else found

    def step(self) -> None:
        """Go on by one character, or by what belongs together."""
        inner = self._open[-1] if self._open else ""
        if inner == "'":
            self._close_at("'")
        elif inner == "#":
            self._close_at("\n")
        elif self._line[self.place] == "\\":
            self.place += 2
        elif inner == '"':
            self._quoted()
        else:
            self._bare(inner)

    def _quoted(self) -> None:
        if self._line[self.place] == '"':
            self._close_at('"')
        elif not self._substitution():
            self.place += 1

    def _bare(self, inner: str) -> None:
        character = self._line[self.place]
        if character == _ENDS.get(inner):
            self._close_at(character)
        elif self._substitution():
            return
        elif character in "'\"(" or (character == "#" and self._begins_word()):
            self._open.append(character)
            self.place += 1
        else:
            self._heredoc = self._heredoc or self._line.startswith("<<", self.place)
            self.place += 1

    def _substitution(self) -> bool:
        """Enter ``$(``, ``${`` or a backtick, or leave the latter."""
        if self._line[self.place] == "`":
            if "`" in self._open:
                while self._open.pop() != "`":
                    pass
            else:
                self._open.append("`")
            self.place += 1
            return True
        start = self._line[self.place : self.place + 2]
        if start in ("$(", "${"):
            self._open.append("(" if start == "$(" else "{")
            self.place += 2
            return True
        return False

    def _close_at(self, end: str) -> None:
        if self._line[self.place] == end:
            self._open.pop()
        self.place += 1

    def _begins_word(self) -> bool:
        return self.place == 0 or self._line[self.place - 1] in _WORD_BREAKS


_INSIDE = {"'": Spot.SINGLE, '"': Spot.DOUBLE, "#": Spot.COMMENT, "`": Spot.BACKTICK, "{": Spot.PARAMETER}
_ENDS = {"(": ")", "{": "}"}
_SPOILING = ("`", "{")
"""What makes a quotation within it hard to be sure of."""
