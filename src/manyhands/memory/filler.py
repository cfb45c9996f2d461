"""Filler: questions with their answers that an agent has to list, so that tokens pass between the messages of tests.

The generator that draws the entries is seeded with 0, so equal sessions get equal filler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from manyhands.memory.model import Json
from manyhands.memory.wording import Wording

ReplyFormat = Literal["json", "published"]
"""How the expected reply lists the answers: as JSON, or as Python writes a list, which published sessions contain."""

_MARGIN = 16
"""Tokens by which the list of answers may differ, where it was closed, from what was counted before."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One entry of a filler source."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Filler:
    """A filler message with the reply that lists its answers."""

    message: str
    expected_reply: str


class FillerWriter(Protocol):
    """Where a scheduler gets filler from."""

    def write(self, limit: int) -> Filler:
        """A message which, with its reply, takes about ``limit`` tokens."""
        ...

    @property
    def state(self) -> Json:
        """The generator's state, in the shape of ``random.Random.getstate`` after a passage through JSON."""
        ...

    def restore(self, state: Json) -> None:
        """Set the generator's state. Raises ValueError if it is none."""
        ...


class FactFiller:
    """Filler from facts. ``token_len``: tokens of a text; a token must have at least one byte."""

    def __init__(
        self,
        facts: Sequence[Fact],
        wording: Wording,
        token_len: Callable[[str], int],
        reply_format: ReplyFormat = "json",
    ) -> None:
        if not facts:
            raise ValueError("filler needs at least one fact")
        self._facts = facts
        self._wording = wording
        self._token_len = token_len
        self._list = repr if reply_format == "published" else _as_json
        self._random = Random(0)
        self._preamble_tokens = token_len(wording.filler_preamble)
        self._line_tokens: dict[int, int] = {}

    @property
    def state(self) -> Json:
        version, numbers, gauss = self._random.getstate()
        return [version, list(numbers), gauss]

    def restore(self, state: Json) -> None:
        self._random.setstate(random_state(state))

    def draw(self) -> tuple[int, str]:
        """The next fact, by its index, and its line."""
        index = self._random.choice(range(len(self._facts)))
        fact = self._facts[index]
        return index, self._wording.filler_line(fact.question, fact.answer)

    def write(self, limit: int) -> Filler:
        lines, answers = [self._wording.filler_preamble], list[str]()
        tokens, listed, listed_since = self._preamble_tokens, 0, 0
        while True:
            index, line = self.draw()
            lines.append(line)
            answers.append(self._facts[index].answer)
            tokens += self._count(index, line)
            listed_since += len(self._list(answers[-1:]).encode())
            if tokens + listed + listed_since + _MARGIN < limit:
                # A token has a byte at least, so the list can't be that long yet, and need not be counted.
                continue
            listed, listed_since = self._token_len(self._list(answers)), 0
            if tokens + listed >= limit:
                return Filler("".join(lines), self._list(answers))

    def _count(self, index: int, line: str) -> int:
        """Tokens of a fact's line, counted when it is drawn first."""
        if index not in self._line_tokens:
            self._line_tokens[index] = self._token_len(line)
        return self._line_tokens[index]


def random_state(state: Json) -> tuple[int, tuple[int, ...], float | None]:
    """A generator's state as ``random.Random.setstate`` takes it. Raises ValueError if it is none."""
    try:
        version, numbers, gauss = state
        found = int(version), tuple(int(number) for number in numbers), gauss
        Random().setstate(found)
    except (TypeError, ValueError):
        raise ValueError("not the state of a generator") from None
    return found


def _as_json(answers: Sequence[str]) -> str:
    return json.dumps(answers, ensure_ascii=False)
