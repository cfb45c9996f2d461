"""What the benchmark itself says to an agent: one data file, ours or another of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.io.json_files import read_json
from manyhands.workloads.memory.conversation.definitions import Json

_QUESTION, _ANSWER = "<Question>", "<AnswerValue>"
_TEXTS = ("intro_message", "filler_preamble", "filler_line_format")


@dataclass(frozen=True, slots=True)
class Wording:
    """``filler_line_format``: holds ``<Question>`` and after it ``<AnswerValue>``; ``reset_messages``: by the dataset's name."""

    intro_message: str
    filler_preamble: str
    filler_line_format: str
    reset_messages: Mapping[str, str]

    def filler_line(self, question: str, answer: str) -> str:
        """The line of filler for one fact, with its newline."""
        before, rest = self.filler_line_format.split(_QUESTION, 1)
        between, after = rest.split(_ANSWER, 1)
        return f"{before}{question}{between}{answer}{after}"


@cache
def default_wording() -> Wording:
    """The package's own."""
    source = files("manyhands.workloads.memory.conversation").joinpath("wording.json")
    return wording_of(loads(source.read_bytes()), "the package's wording.json")


def read_wording(path: Path) -> Wording:
    """A wording from a file. Raises UserError that names the file and what is wrong with it."""
    return wording_of(read_json(path), str(path))


def wording_of(content: Json, place: str) -> Wording:
    """A wording from the object that a wording's file holds; other fields of it are passed over.

    In ``filler_line_format`` a backslash followed by ``n`` stands for a newline, as in the file of the published wording.
    """
    if not isinstance(content, dict):
        raise UserError(f"{place}: not a JSON object")
    texts = {name: _text(content.get(name), f"{place}: {name}") for name in _TEXTS}
    line = texts["filler_line_format"] = texts["filler_line_format"].replace("\\n", "\n")
    if line.count(_QUESTION) != 1 or _ANSWER not in line.partition(_QUESTION)[2]:
        raise UserError(f"{place}: filler_line_format: must hold {_QUESTION} and after it {_ANSWER}")
    resets = content.get("reset_messages")
    if not isinstance(resets, dict):
        raise UserError(f"{place}: reset_messages: not an object")
    messages = {name: _text(text, f"{place}: reset_messages.{name}") for name, text in resets.items()}
    return Wording(**texts, reset_messages=messages)


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{place}: not a text")
    return value
