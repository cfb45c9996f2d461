"""What an import format is: which files it is read from, and how a row of them becomes a conversation."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import suggestion
from manyhands.engine.contract import import_attribute
from manyhands.export.conversations import Conversation
from manyhands.export.readers.chat import prompt_key
from manyhands.export.readers.fields import BadRow, Field
from manyhands.export.readers.files import FoundRow, data_files, rows_of
from manyhands.io.plugins import load_plugin, plugins

READERS_GROUP = "manyhands.import_formats"
"""The entry point group of import formats: the name, and the subclass of ``Reader``."""
READERS: Mapping[str, str] = {
    "messages": "manyhands.export.readers.messages:MessagesReader",
    "sharegpt": "manyhands.export.readers.sharegpt:ShareGptReader",
    "atif": "manyhands.export.readers.atif:AtifReader",
    "jsonl": "manyhands.export.readers.records:RecordReader",
}
"""The import formats of this package, by name."""
IDS = ("id", "key", "trajectory_id")
"""Fields that hold a row's id, where nobody says which does; the first that is given counts."""
MAX_ID = 2000
"""Characters of an id."""


@dataclass(slots=True)
class Imported:
    """A row that was read: a conversation, or why it is none."""

    place: str
    """``FILE, line 7``"""
    conversation: Conversation | None
    problem: str | None = None


class Reader(ABC):
    """One import format. Made once for an import."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One sentence of help."""

    def __init__(self, id_field: str | None = None) -> None:
        """``id_field``: the field of a row that holds its id; None: the first of ``IDS`` that it has."""
        self.id_field = id_field

    def files(self, path: Path) -> Iterator[Path]:
        """The files that a path stands for, in order. Raises UserError if there is none."""
        return data_files(path)

    def conversation(self, row: Field, path: Path) -> Conversation:
        """The conversation of a row, with its id as ``key`` (empty if it has none). Raises BadRow."""
        raise NotImplementedError

    def read(self, path: Path) -> Iterator[Imported]:
        """All rows of a file or folder in order, streamed. Raises UserError for what can't be read (any further)."""
        for file in self.files(path):
            for row in rows_of(file):
                yield self._imported(row, file)

    def _imported(self, row: FoundRow, file: Path) -> Imported:
        if row.problem is not None:
            return Imported(row.place, None, row.problem)
        try:
            found = self.conversation(Field(row.value), file)
        except BadRow as error:
            return Imported(row.place, None, str(error))
        found.prompt_key = found.prompt_key or prompt_key(found.turns)
        return Imported(row.place, found)

    def row_id(self, *holders: Field) -> tuple[str, str]:
        """The id that a row has, and the name of its field; both empty if it has none. ``holders``: the row, and objects in it that
        describe it further. Raises BadRow if the field is missing that was said to hold it."""
        for name in IDS if self.id_field is None else (self.id_field,):
            for field in (holder.get(name) for holder in holders):
                if self.id_field is not None and field.given:
                    return id_text(field), name
                if _is_id(field.value):
                    return id_text(field), name
        if self.id_field is not None:
            raise holders[0].get(self.id_field).error("is missing, and was to hold the id (--id_field)")
        return "", ""


def _is_id(value: Json) -> bool:
    return (isinstance(value, str) and 0 < len(value.strip()) <= MAX_ID) or (
        isinstance(value, int) and not isinstance(value, bool)
    )


def id_text(field: Field) -> str:
    """An id as text. Raises BadRow for what is none."""
    value = field.value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise field.error("must be an id: text or a whole number")
    text = str(value)
    if not text.strip():
        raise field.error("must be an id, and is empty")
    if len(text) > MAX_ID:
        raise field.error(f"is longer than {MAX_ID:,} characters")
    return text


def other_fields(row: Field, *taken: str) -> dict[str, Json]:
    """The fields of a row that have no meaning of their own here, but for those that are null."""
    return {name: value for name, value in row.members().items() if name not in taken and value is not None}


def load_reader(name: str) -> type[Reader]:
    """An import format by name. Raises UserError if there is none, or one of an installed package that can't be used."""
    if name in READERS:
        found: type[Reader] = import_attribute(READERS[name])
        return found
    entry = plugins(READERS_GROUP).get(name)
    if entry is None:
        known = readers()
        raise UserError(f"--from: there is no format {name!r}{suggestion(name, known)}; known: {', '.join(known)}")
    found = load_plugin(entry, "import format")
    if not (isinstance(found, type) and issubclass(found, Reader)):
        raise UserError(
            f"the import format plug-in {name!r} ({entry.value}) is no subclass of {Reader.__module__}.Reader"
        )
    return found


def readers() -> list[str]:
    """The names of all import formats there are."""
    return [*READERS, *sorted(plugins(READERS_GROUP).keys() - READERS.keys())]
