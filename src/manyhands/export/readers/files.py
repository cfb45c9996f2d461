"""The files that an import is read from, and their rows: JSON Lines, JSON, tables, folders of such, and datasets that were saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.export.files import SUMMARY
from manyhands.io.tables.base import GZIP_DAMAGE, MAX_VALUE, at, open_bytes
from manyhands.io.tables.formats import open_records, suffix_of
from manyhands.io.tables.json import holds_json_lines

_LINES = (".jsonl", ".ndjson", ".parquet")
"""Endings of files that hold rows, and nothing else."""
_SAVED = ("state.json", "dataset_dict.json")
"""What a folder has that ``save_to_disk`` of Hugging Face's ``datasets`` wrote."""
_NO_ROWS = ("dataset_info.json", SUMMARY)
"""Files beside rows that describe them."""


class FoundRow(NamedTuple):
    """A row of a file."""

    place: str
    """``FILE, line 7``"""
    value: Json
    problem: str | None = None
    """Why there is no value."""


def data_files(path: Path) -> Iterator[Path]:
    """The files of rows that a path stands for, in order of their names: itself, if it is a file or a saved dataset. In a folder those
    whose names end as files of rows do; if it has none, its JSON files. Raises UserError if there is none."""
    if not path.is_dir() or any((path / name).is_file() for name in _SAVED):
        yield path
        return
    for fits in (lambda each: suffix_of(each) in _LINES, _is_json):
        if found := files_in(path, fits):
            yield from found
            return
    raise UserError(f"{path}: the folder has no files with rows (.jsonl, .parquet or .json)")


def files_in(folder: Path, fits: Callable[[Path], bool]) -> list[Path]:
    """The files in a folder, and in folders in it, that fit and are not hidden, in order of their paths."""
    found = (each for each in folder.rglob("*") if fits(each) and each.is_file())
    return sorted(each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts))


def _is_json(path: Path) -> bool:
    return suffix_of(path) == ".json" and path.name not in _NO_ROWS


def rows_of(path: Path) -> Iterator[FoundRow]:
    """The rows of a file, streamed; a JSON file that holds one object has one row. Raises UserError for what can't be read."""
    if not path.exists():
        raise UserError(f"no such file or folder: {path}")
    if path.is_file() and suffix_of(path) == ".json" and (whole := _one_object(path)) is not None:
        yield FoundRow(str(path), whole)
        return
    records = open_records(path)
    for record in records.read():
        yield FoundRow(at(path, record.number, "", records.unit).removesuffix(": "), record.value, record.problem)


def _one_object(path: Path) -> Json:
    """The object that a file holds as a whole, on several lines; None for a list, for JSON Lines, and for an object with the rows in
    ``data``."""
    with suppress(OSError, ValueError, RecursionError, *GZIP_DAMAGE), open_bytes(path) as stream:
        if holds_json_lines(path):
            return None
        head = stream.read(1 << 12)
        if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            return None
        rest = stream.read(MAX_VALUE + 1)
        if len(head) + len(rest) > MAX_VALUE:
            return None
        value = loads_outside((head + rest).removeprefix(b"\xef\xbb\xbf"))
        return None if isinstance(value.get("data"), list) else value
    return None
