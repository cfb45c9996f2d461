"""Datasets: the prompts of a run, read as a stream.

A dataset of a million rows is never held in memory: rows come one at a time, and what has to be remembered about all of
them (how often a prompt was seen, which ids are taken) lives in a private temporary database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.digests import content_key, digest
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message
from manyhands.io.digest_table import DigestTable
from manyhands.io.tables.base import Record, Unit
from manyhands.io.tables.formats import open_records
from manyhands.workloads.trajectories.dataset.chat_rows import CHAT_FIELDS, BadChat, Chat, kind_of, read_chat
from manyhands.workloads.trajectories.dataset.source_fields import SourceFields, SourceFieldsBuilder

PLAIN_FIELDS = frozenset(("prompt", "image", "docker_image", "cwd", "id"))
"""Fields with a meaning in runs of earlier versions."""
KNOWN_FIELDS = PLAIN_FIELDS | frozenset(CHAT_FIELDS)
"""Fields with a meaning here. All others are carried to the output as ``metadata.source``."""

Prompt = str | list[dict[str, Any]]
"""Text, or chat-completions content parts (objects with a "type")."""

CountOccurrence = Callable[[bytes], int]
"""Given the 16-byte digest of a row, says how often it was given that digest before."""


@dataclass(frozen=True, slots=True)
class Row:
    """One usable row. ``line`` counts from 1 (lines or rows, see ``DatasetScan.unit``); ``prompt`` is as written, or what the last
    user message says; ``source`` holds the fields that this program does not know. ``system``: the row's own system prompt;
    ``messages``: the conversation up to where the model goes on, the prompt included, where there is more than that."""

    line: int
    prompt: Prompt
    image: str | None = None
    cwd: str | None = None
    id: str | None = None
    source: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that can't be used, and why. ``str()`` gives ``line 7: no "prompt" field``."""

    line: int
    reason: str
    unit: Unit = "line"

    def __str__(self) -> str:
        return f"{self.unit} {self.line}: {self.reason}"


class DatasetItem(NamedTuple):
    """One item to be: ``prompt_index`` counts usable rows from 0, ``sample`` the repeats of a row from 0; ``key`` is
    its identity."""

    prompt_index: int
    row: Row
    sample: int
    key: str


@dataclass(frozen=True, slots=True)
class DatasetScan:
    """What one pass over a dataset found.

    ``bad_rows`` holds the first bad rows, ``bad_count`` is the number of all; ``images`` counts rows that ask for a
    container image, ``first_image_line`` is where the first is; ``own_systems`` and ``own_messages`` count rows that
    bring a system prompt, or messages; ``fingerprint`` (32 hexadecimal digits) is the same
    for the same usable rows in the same order, however the file is written.
    """

    rows: int
    bad_rows: tuple[BadRow, ...]
    bad_count: int
    images: int
    first_image_line: int | None
    source_fields: SourceFields
    fingerprint: str
    unit: Unit
    own_systems: int = 0
    own_messages: int = 0


def read_rows(path: Path | str, max_samples: int | None = None, *, with_chat: bool = True) -> Iterator[Row | BadRow]:
    """All rows of a dataset in order, good and bad, up to the ``max_samples``-th good one. ``with_chat``: whether ``system`` and
    ``messages`` have a meaning; they are fields like any other without.

    Formats: ``.jsonl`` (and any other name), ``.json``, ``.csv``, each also with ``.gz``; ``.parquet`` and folders
    written by Hugging Face ``save_to_disk``, which need the extra ``datasets``. A second row with an id is a bad one.

    Raises UserError, naming the path, at once if the file can't be opened, and while iterating if the rest of it
    can't be read.
    """
    records = open_records(Path(path), "prompt")
    return _rows(records.read(), records.unit, max_samples, with_chat=with_chat)


def scan(
    path: Path | str,
    *,
    max_samples: int | None = None,
    bad_limit: int = 100,
    on_bad: Callable[[BadRow], None] | None = None,
    with_chat: bool = True,
) -> DatasetScan:
    """Read a dataset once through. ``on_bad`` is called for every bad row, also for those beyond ``bad_limit``; ``with_chat`` as in
    ``read_rows``.

    Raises UserError, naming the path, if the dataset can't be read or has no usable row.
    """
    tally = _Tally(bad_limit)
    unit = open_records(Path(path), "prompt").unit
    for row in read_rows(path, max_samples, with_chat=with_chat):
        tally.add(row)
        if on_bad is not None and isinstance(row, BadRow):
            on_bad(row)
    if not tally.rows:
        raise UserError(f"the dataset has no usable row: {path}{tally.first_problem()}")
    return tally.result(unit)


def iterate_items(
    path: Path | str,
    samples: int = 1,
    max_samples: int | None = None,
    count_occurrence: CountOccurrence | None = None,
    *,
    with_chat: bool = True,
) -> Iterator[DatasetItem]:
    """The items of a dataset in order: each usable row ``samples`` times. Bad rows are left out (``scan`` reports
    them).

    ``count_occurrence`` counts equal rows; without one a private table on disk does. Raises as ``read_rows`` does.
    """
    return _items(read_rows(path, max_samples, with_chat=with_chat), samples, count_occurrence)


def row_digest(row: Row) -> bytes:
    """16 bytes that identify what a row asks for: its prompt (without surrounding white space), image and cwd, and its own system
    prompt and messages if it has any."""
    prompt = row.prompt.strip() if isinstance(row.prompt, str) else row.prompt
    content: dict[str, Any] = {"prompt": prompt, "image": row.image, "cwd": row.cwd}
    if row.system is not None:
        content["system"] = row.system
    if row.messages:
        content["messages"] = list(row.messages)
    return bytes.fromhex(content_key(content))


def item_key(row: Row, occurrence: int, sample: int = 0, samples: int = 1) -> str:
    """The identity of an item: ``id:<id>`` or the hash of the row's content, then ``#k``.

    ``occurrence`` is the number of equal rows before this one (0 for rows with an id), so that the k-th copy of a row
    is sample k: ``k = occurrence * samples + sample``.
    """
    base = f"id:{row.id}" if row.id is not None else row_digest(row).hex()
    return f"{base}#{occurrence * samples + sample}"


def prompt_digest(prompt: Json) -> bytes:
    """16 bytes that identify a prompt alone, without surrounding white space."""
    return digest("prompt", prompt.strip() if isinstance(prompt, str) else prompt)


def _items(rows: Iterable[Row | BadRow], samples: int, count: CountOccurrence | None) -> Iterator[DatasetItem]:
    with ExitStack() as stack:
        if count is None:
            count = stack.enter_context(DigestTable()).count
        prompt_index = 0
        for row in rows:
            if isinstance(row, BadRow):
                continue
            base, occurrence = _base_and_occurrence(row, count)
            for sample in range(samples):
                yield DatasetItem(prompt_index, row, sample, f"{base}#{occurrence * samples + sample}")
            prompt_index += 1


def _base_and_occurrence(row: Row, count: CountOccurrence) -> tuple[str, int]:
    if row.id is not None:
        return f"id:{row.id}", 0
    identity = row_digest(row)
    return identity.hex(), count(identity)


def _rows(records: Iterator[Record], unit: Unit, max_samples: int | None, *, with_chat: bool) -> Iterator[Row | BadRow]:
    good = 0
    with ExitStack() as stack:
        ids: DigestTable | None = None
        while max_samples is None or good < max_samples:
            record = next(records, None)
            if record is None:
                return
            row = _row(record, unit, with_chat)
            if isinstance(row, Row) and row.id is not None:
                ids = ids or stack.enter_context(DigestTable())
                row = _unique(row, ids, unit)
            good += isinstance(row, Row)
            yield row


def _unique(row: Row, ids: DigestTable, unit: Unit) -> Row | BadRow:
    first = ids.first(digest("id", row.id), row.line)
    if first == row.line:
        return row
    return BadRow(row.line, f"the id {row.id!r} is taken by {unit} {first} already", unit)


class _Invalid(Exception):
    """Why a value is not a row."""


def _row(record: Record, unit: Unit, with_chat: bool) -> Row | BadRow:
    if record.problem is not None:
        return BadRow(record.number, record.problem, unit)
    try:
        return _parse(record.number, record.value, with_chat)
    except (_Invalid, BadChat) as error:
        return BadRow(record.number, str(error), unit)


def _parse(number: int, value: Json, with_chat: bool) -> Row:
    if not isinstance(value, dict):
        raise _Invalid(f"not an object but {kind_of(value)}")
    chat = read_chat(value) if with_chat else Chat()
    prompt, messages = _beginning(value, chat)
    known = KNOWN_FIELDS if with_chat else PLAIN_FIELDS
    return Row(
        line=number,
        prompt=prompt,
        image=_optional_text(value, "image") or _optional_text(value, "docker_image"),
        cwd=_optional_text(value, "cwd"),
        id=_id(value.get("id")),
        source={name: part for name, part in value.items() if name not in known},
        system=chat.system,
        messages=messages,
    )


def _beginning(value: dict[str, Any], chat: Chat) -> tuple[Prompt, tuple[Message, ...]]:
    """The prompt, and the messages with it where there is more than the prompt."""
    if not chat.messages:
        if "prompt" not in value:
            raise _Invalid('no "prompt" field')
        return _prompt(value["prompt"]), ()
    written = value.get("prompt")  # a table has an empty field where the messages say it
    opening = chat.opening(None if written in (None, "", []) else _prompt(written))
    prompt = next(message["content"] for message in reversed(opening) if message["role"] == "user")
    return prompt, () if len(opening) == 1 else opening


def _prompt(value: Json) -> Prompt:
    if isinstance(value, str):
        if not value.strip():
            raise _Invalid('"prompt" is empty')
        return value
    if isinstance(value, list):
        return _parts(value)
    raise _Invalid(f'"prompt" is {kind_of(value)}, expected text or a list of content parts')


def _parts(value: list[Json]) -> list[dict[str, Any]]:
    if not value:
        raise _Invalid('"prompt" is an empty list')
    for place, part in enumerate(value, 1):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str) or not part["type"]:
            raise _Invalid(f'part {place} of "prompt" is not an object with a "type"')
    # Tables fill the fields of other kinds of parts with nulls, which servers refuse.
    return [{name: content for name, content in part.items() if content is not None} for part in value]


def _optional_text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    if not text:
        return None
    if not isinstance(text, str):
        raise _Invalid(f'"{name}" is {kind_of(text)}, expected text')
    return _usable(name, text.strip()) or None


def _id(value: Json) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _Invalid(f'"id" is {kind_of(value)}, expected text or a whole number')
    text = _usable("id", str(value).strip())
    if not text:
        raise _Invalid('"id" is empty')
    return text


def _usable(name: str, text: str) -> str:
    """Text that goes to other programs and into keys: no NUL, and nothing that UTF-8 can't hold."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)):
        raise _Invalid(f'"{name}" holds characters that are not text')
    return text


class _Tally:
    """Gathers a DatasetScan."""

    def __init__(self, bad_limit: int) -> None:
        self.rows = 0
        self._bad_limit = bad_limit
        self._bad: list[BadRow] = []
        self._bad_count = 0
        self._images = 0
        self._first_image: int | None = None
        self._own_systems = 0
        self._own_messages = 0
        self._fields = SourceFieldsBuilder()
        self._hash = hashlib.blake2b(digest_size=16, person=b"dataset")

    def add(self, row: Row | BadRow) -> None:
        if isinstance(row, BadRow):
            self._bad_count += 1
            if len(self._bad) < self._bad_limit:
                self._bad.append(row)
            return
        self.rows += 1
        if row.image is not None:
            self._images += 1
            self._first_image = self._first_image or row.line
        self._own_systems += row.system is not None
        self._own_messages += bool(row.messages)
        self._fields.add(row.source)
        self._hash.update(row_digest(row))
        self._hash.update(digest("row", [row.id, row.source]))

    def first_problem(self) -> str:
        return f" ({self._bad[0]})" if self._bad else ""

    def result(self, unit: Unit) -> DatasetScan:
        return DatasetScan(
            rows=self.rows,
            bad_rows=tuple(self._bad),
            bad_count=self._bad_count,
            images=self._images,
            first_image_line=self._first_image,
            source_fields=self._fields.build(),
            fingerprint=self._hash.hexdigest(),
            unit=unit,
            own_systems=self._own_systems,
            own_messages=self._own_messages,
        )
