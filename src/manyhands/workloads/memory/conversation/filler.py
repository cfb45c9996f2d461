"""What the benchmark itself says to an agent: its wording, and filler.

The wording is one data file, the package's or another of the same shape. Filler is questions with their answers that an agent has to
list, so that tokens pass between the messages of tests: the package's own, from a file in TriviaQA's format, or from a Hugging Face dataset
on this machine. The generator that draws them is seeded with 0, so equal conversations get equal filler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.io.json_files import read_json
from manyhands.io.tables.parquet import saved_dataset
from manyhands.workloads.memory.conversation.definitions import Json
from manyhands.workloads.memory.conversation.schedule import Filler

_QUESTION, _ANSWER = "<Question>", "<AnswerValue>"
_TEXTS = ("intro_message", "filler_preamble", "filler_line_format")


@dataclass(frozen=True, slots=True)
class Wording:
    """The messages of the benchmark itself."""

    intro_message: str
    filler_preamble: str
    filler_line_format: str
    """Holds ``<Question>`` and after it ``<AnswerValue>``."""
    reset_messages: Mapping[str, str]
    """What takes back what a test told the agent, by the dataset's name."""

    def filler_line(self, question: str, answer: str) -> str:
        """The line of filler for one fact, with its newline."""
        before, rest = self.filler_line_format.split(_QUESTION, 1)
        between, after = rest.split(_ANSWER, 1)
        return f"{before}{question}{between}{answer}{after}"


def default_wording(reset_messages: Mapping[str, str]) -> Wording:
    """The package's own. ``reset_messages``: those of the datasets, see ``registry.reset_messages``."""
    source = files("manyhands.workloads.memory.conversation").joinpath("wording.json")
    content = {**loads(source.read_bytes()), "reset_messages": reset_messages}
    return wording_of(content, "the package's wording.json")


def read_wording(path: Path) -> Wording:
    """A wording from a file. Raises UserError that names the file and what is wrong with it."""
    return wording_of(read_json(path), str(path))


def wording_of(content: Json, location: str) -> Wording:
    """A wording from the object that a wording's file holds; other fields of it are passed over.

    In ``filler_line_format`` a backslash followed by ``n`` stands for a newline, as in the file of the published wording.
    """
    if not isinstance(content, dict):
        raise UserError(f"{location}: not a JSON object")
    texts = {name: _text(content.get(name), f"{location}: {name}") for name in _TEXTS}
    line = texts["filler_line_format"] = texts["filler_line_format"].replace("\\n", "\n")
    if line.count(_QUESTION) != 1 or _ANSWER not in line.partition(_QUESTION)[2]:
        raise UserError(f"{location}: filler_line_format: must hold {_QUESTION} and after it {_ANSWER}")
    resets = content.get("reset_messages")
    if not isinstance(resets, dict):
        raise UserError(f"{location}: reset_messages: not an object")
    messages = {name: _text(text, f"{location}: reset_messages.{name}") for name, text in resets.items()}
    return Wording(**texts, reset_messages=messages)


def _text(value: Json, location: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{location}: not a text")
    return value


# --- Filler

_MARGIN = 16
"""Tokens by which the list of answers may differ, where it was closed, from what was counted before."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One entry of a filler source."""

    question: str
    answer: str


class FactFiller:
    """Filler from facts. ``token_len``: tokens of a text; a token must have at least one byte."""

    def __init__(
        self,
        facts: Sequence[Fact],
        wording: Wording,
        token_len: Callable[[str], int],
    ) -> None:
        if not facts:
            raise ValueError("filler needs at least one fact")
        self._facts = facts
        self._wording = wording
        self._token_len = token_len
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
            listed_since += len(self.listed(answers[-1:]).encode())
            if tokens + listed + listed_since + _MARGIN < limit:
                # A token has a byte at least, so the list can't be that long yet, and need not be counted.
                continue
            listed, listed_since = self._token_len(self.listed(answers)), 0
            if tokens + listed >= limit:
                return Filler("".join(lines), self.listed(answers))

    def listed(self, answers: Sequence[str]) -> str:
        """The expected reply."""
        return json.dumps(answers, ensure_ascii=False)

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


@cache
def builtin_facts() -> Sequence[Fact]:
    """The package's own: more than a thousand, each a line with question and answer, a tab between them."""
    text = files("manyhands.workloads.memory.conversation").joinpath("facts.txt").read_text(encoding="utf-8")
    return tuple(Fact(*line.split("\t")) for line in text.splitlines())


def read_facts(path: Path) -> Sequence[Fact]:
    """Facts from a file in TriviaQA's format, or from the folder of a Hugging Face dataset with columns ``question`` and ``answer``.

    The file holds ``{"Data": [entry, …]}``; an entry has ``Question``, and either ``AnswerValue`` or, as in TriviaQA itself, ``Answer``
    with a ``Value``. Raises UserError that names file and field.
    """
    if path.is_dir():
        return _from_dataset(path)
    content = read_json(path)
    entries = content.get("Data") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: Data: not a list; the file must have TriviaQA's format")
    return _facts(((entry, f"{path}: Data[{at}]") for at, entry in enumerate(entries)), path)


def _facts(entries: Iterable[tuple[Json, str]], path: Path) -> Sequence[Fact]:
    facts = tuple(_fact(entry, location) for entry, location in entries)
    if not facts:
        raise UserError(f"{path}: holds no questions")
    return facts


def _fact(entry: Json, location: str) -> Fact:
    if not isinstance(entry, Mapping):
        raise UserError(f"{location}: not an object")
    whole = entry.get("Answer")
    answer = whole.get("Value") if isinstance(whole, Mapping) else entry.get("AnswerValue")
    name = "Answer.Value" if isinstance(whole, Mapping) else "AnswerValue"
    return Fact(_text(entry.get("Question"), f"{location}.Question"), _text(answer, f"{location}.{name}"))


def _from_dataset(path: Path) -> Sequence[Fact]:
    loaded = saved_dataset(path)
    if isinstance(loaded, dict):
        raise UserError(f"{path}: has several splits ({', '.join(sorted(loaded))}); give the folder of one")
    return _facts(((_row(row), f"{path}: row {at + 1}") for at, row in enumerate(loaded)), path)


def _row(row: Mapping[str, Any]) -> dict[str, Json]:
    """A row of a dataset as an entry of the file's format."""
    answer = row.get("answer")
    value = answer.get("value") if isinstance(answer, Mapping) else answer
    return {"Question": row.get("question"), "AnswerValue": value}
