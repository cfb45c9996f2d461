"""The items of an import: each conversation of its files, under an id of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.digests import content_key, digest
from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps, without_surrogates
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import KNOWN
from manyhands.engine.contract import Item, PlannedItem
from manyhands.export.conversations import Conversation
from manyhands.export.readers.reader import Imported, Reader, load_reader
from manyhands.export.readers.records import from_kept, kept_record
from manyhands.io.digest_table import DigestTable
from manyhands.workloads.imported.spec import ImportSpec

NAMED = 10
"""How many rows are named that are left out."""
_CONVERSATION, _PLACE = "conversation", "place"


@dataclass(slots=True)
class LeftOut:
    """Rows that are no conversations."""

    count: int = 0
    named: list[str] = field(default_factory=list)
    """The first few, each with its place and what is wrong with it."""

    def add(self, place: str, problem: str) -> None:
        """Count a row."""
        self.count += 1
        if len(self.named) < NAMED:
            self.named.append(KNOWN.text(f"{place}: {problem}"))

    def to_json(self) -> dict[str, Any]:
        """As it is recorded with the run."""
        return {"count": self.count, "named": list(self.named)}


@dataclass(slots=True)  # not frozen: see Outcome
class ImportedItem:
    """An item's payload."""

    conversation: Conversation
    place: str
    """Where it was read: ``FILE, line 7``."""

    @classmethod
    def of(cls, item: Item) -> ImportedItem:
        return cls(from_kept(item.payload[_CONVERSATION]), item.payload[_PLACE])

    def to_json(self) -> dict[str, Any]:
        """The payload."""
        return {_PLACE: self.place, _CONVERSATION: kept_record(self.conversation)}


def record_of(conversation: Conversation) -> dict[str, Any]:
    """What is recorded of the end of an item that nobody graded here."""
    return {"stop_reason": conversation.stop_reason}


def planned_items(options: ImportSpec, left_out: LeftOut) -> Iterator[PlannedItem]:
    """An item for each conversation in the files, in order, streamed. Where graders are to score them, they have not ended yet.
    ``left_out`` is filled in.

    Raises UserError naming file, line and field of the first row that is no conversation, unless such rows are to be left out; for what
    can't be read; and if there is no conversation at all.
    """
    reader = load_reader(options.from_)(options.id_field)
    found = 0
    with closing(_Keys()) as keys:
        for imported in _rows(reader, options.paths_to_read):
            if imported.conversation is None:
                if not options.skip_bad_rows:
                    raise UserError(
                        f"{imported.place}: {imported.problem}; nothing was imported (--skip_bad_rows leaves such rows out)"
                    )
                left_out.add(imported.place, imported.problem or "")
                continue
            found += 1
            yield _planned(imported.conversation, imported.place, keys, graded=options.grade_checks is not None)
    if not found:
        named = f" ({left_out.named[0]})" if left_out.named else ""
        raise UserError(f"{', '.join(options.input_files or ())}: there is no conversation{named}")


def _rows(reader: Reader, paths: Sequence[Path]) -> Iterator[Imported]:
    for path in paths:
        yield from reader.read(path)


def _planned(conversation: Conversation, place: str, keys: _Keys, *, graded: bool) -> PlannedItem:
    payload = ImportedItem(conversation, place).to_json()
    outcome = None if graded else Outcome(ItemState.COMPLETED, record_of(conversation))
    return PlannedItem(keys.key(conversation), payload, outcome, size=len(dumps(payload)))


class _Keys:
    """The keys of items: the row's own id, or else what identifies its content. A second row of that id or content gets a number."""

    def __init__(self) -> None:
        self._taken = DigestTable()

    def key(self, conversation: Conversation) -> str:
        """A key that no item has."""
        base = without_surrogates(conversation.key) or _identity(conversation)
        number = self._taken.count(digest("key", base)) + 1
        key = base
        while number > 1:
            key = f"{base}#{number}"
            if not self._taken.count(digest("key", key)):
                return key
            number += 1
        return key

    def close(self) -> None:
        self._taken.close()


def _identity(conversation: Conversation) -> str:
    """The identity of a conversation by what was said in it."""
    said = [[_said(turn.message) for turn in conversation.turns], [dict(tool) for tool in conversation.tools]]
    return content_key(said)


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if not name.startswith("_")}


def files_identity(options: ImportSpec) -> str:
    """What identifies the files of an import: their names, sizes and times of change. Raises UserError if there is none of such a name."""
    state = hashlib.blake2b(digest_size=16, person=b"import")
    for path in options.paths_to_read:
        if not path.exists():
            raise UserError(f"no such file or folder: {path}")
        about = path.stat()
        state.update(os.fsencode(path) + f"\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return state.hexdigest()
