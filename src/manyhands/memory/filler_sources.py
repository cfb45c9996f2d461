"""Where filler's questions and answers come from: ours, a file in TriviaQA's format, or a Hugging Face dataset on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.memory.filler import Fact
from manyhands.memory.model import Json


@cache
def builtin_facts() -> Sequence[Fact]:
    """The package's own: more than a thousand, each a line with question and answer, a tab between them."""
    text = files("manyhands.memory").joinpath("facts.txt").read_text(encoding="utf-8")
    return tuple(Fact(*line.split("\t")) for line in text.splitlines())


def read_facts(path: Path) -> Sequence[Fact]:
    """Facts from a file in TriviaQA's format, or from the folder of a Hugging Face dataset with columns ``question`` and ``answer``.

    The file holds ``{"Data": [entry, …]}``; an entry has ``Question``, and either ``AnswerValue`` or, as in TriviaQA itself, ``Answer``
    with a ``Value``. Raises UserError that names file and field.
    """
    if path.is_dir():
        return _from_dataset(path)
    try:
        content = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    entries = content.get("Data") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: Data: not a list; the file must have TriviaQA's format")
    return _facts(((entry, f"{path}: Data[{at}]") for at, entry in enumerate(entries)), path)


def _facts(entries: Iterable[tuple[Json, str]], path: Path) -> Sequence[Fact]:
    facts = tuple(_fact(entry, place) for entry, place in entries)
    if not facts:
        raise UserError(f"{path}: holds no questions")
    return facts


def _fact(entry: Json, place: str) -> Fact:
    if not isinstance(entry, Mapping):
        raise UserError(f"{place}: not an object")
    whole = entry.get("Answer")
    answer = whole.get("Value") if isinstance(whole, Mapping) else entry.get("AnswerValue")
    name = "Answer.Value" if isinstance(whole, Mapping) else "AnswerValue"
    return Fact(_text(entry.get("Question"), f"{place}.Question"), _text(answer, f"{place}.{name}"))


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{place}: not a text")
    return value


def _from_dataset(path: Path) -> Sequence[Fact]:
    try:
        import datasets
    except ImportError:
        raise UserError(f"{path}: reading a Hugging Face dataset needs the library datasets") from None
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable Hugging Face dataset: {str(error).splitlines()[0]}") from None
    if isinstance(loaded, datasets.DatasetDict):
        raise UserError(f"{path}: has several splits ({', '.join(sorted(loaded))}); give the folder of one")
    return _facts(((_row(row), f"{path}: row {at + 1}") for at, row in enumerate(loaded)), path)


def _row(row: Mapping[str, Any]) -> dict[str, Json]:
    """A row of a dataset as an entry of the file's format."""
    answer = row.get("answer")
    value = answer.get("value") if isinstance(answer, Mapping) else answer
    return {"Question": row.get("question"), "AnswerValue": value}
