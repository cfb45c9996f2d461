"""Dataset files of several formats, read as a stream of numbered JSON values.

Nothing here knows what a row means. A value that can't be read is a ``Record`` with a problem, and reading goes on
behind it; only what makes the rest of a file unreadable raises.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads, loads_outside
from manyhands.io.tables.json_array import MAX_VALUE, JsonArray, JsonArrayError

Unit = Literal["line", "row"]
"""What the numbers of a format count: lines of the file, or rows."""

_BOM = b"\xef\xbb\xbf"
_GZIP_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
_BATCH = 1000


class Record(NamedTuple):
    """One value of a dataset file. ``number`` counts from 1; ``problem`` says why there is no value."""

    number: int
    value: Json
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """A dataset file that was found and can be opened. ``read`` starts from the beginning each time."""

    unit: Unit
    read: Callable[[], Iterator[Record]]


def open_records(path: Path) -> Records:
    """The records of a dataset file or folder; the format follows from the name (see the module's readers).

    ``.json``, ``.csv`` and ``.parquet`` are read as such, a folder as a Hugging Face dataset, anything else as JSON
    Lines; all text formats also with ``.gz`` behind. Raises UserError, naming the path, if there is nothing to read.
    """
    if path.is_dir():
        return _huggingface(path)
    _check_file(path)
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _parquet(path)
    name = name.removesuffix(".gz")
    if name.endswith(".csv"):
        return Records("line", lambda: _guard(path, _csv_records(path)))
    if name.endswith(".json") and not _is_json_lines(path):
        return Records("row", lambda: _guard(path, _array_records(path)))
    return Records("line", lambda: _guard(path, _line_records(path)))


def _check_file(path: Path) -> None:
    if not path.exists():
        raise UserError(f"dataset file not found: {path}")
    if not path.is_file():
        raise UserError(f"the dataset is not a regular file: {path}")
    try:
        with path.open("rb") as stream:
            first = stream.read(1)
    except OSError as error:
        raise UserError(f"dataset file can't be read: {path}: {error.strerror or error}") from error
    if not first:
        raise UserError(f"the dataset file is empty: {path}")


def _guard(path: Path, records: Iterator[Record]) -> Iterator[Record]:
    try:
        yield from records
    except OSError as error:
        raise UserError(f"dataset file can't be read: {path}: {error.strerror or error}") from error


def _open(path: Path) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


# --- JSON Lines


def _line_records(path: Path) -> Iterator[Record]:
    for number, line, problem in _lines(path):
        if problem is not None:
            yield Record(number, None, problem)
        elif line.strip():
            yield parse_line(number, line)


def parse_line(number: int, line: bytes) -> Record:
    """One line of a JSON Lines file as a record."""
    try:
        return Record(number, loads_outside(line.decode()))
    except UnicodeDecodeError as error:
        return Record(number, None, f"invalid UTF-8 at byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return Record(number, None, f"invalid JSON at column {error.colno}: {error.msg}")
    except RecursionError:
        return Record(number, None, "invalid JSON: nested too deeply")
    except ValueError as error:
        return Record(number, None, f"invalid JSON: {error}")


def _lines(path: Path) -> Iterator[tuple[int, bytes, str | None]]:
    """Numbered lines without the file's byte order mark. A line that is too long comes with its problem instead; so
    does the point where compressed data is damaged."""
    number = 0
    with _open(path) as stream:
        try:
            while line := stream.readline(MAX_VALUE + 1):
                number += 1
                if len(line) > MAX_VALUE:
                    _skip_line(stream, line)
                    yield number, b"", f"longer than {MAX_VALUE >> 20} MiB"
                else:
                    yield number, line.removeprefix(_BOM) if number == 1 else line, None
        except _GZIP_DAMAGE as error:
            yield number + 1, b"", f"the compressed data is damaged from here on: {error}"


def _skip_line(stream: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = stream.readline(1 << 20)


# --- CSV


def _csv_records(path: Path) -> Iterator[Record]:
    # The limit is the csv module's own, for the whole process; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE))
    text = _CsvText(path)
    reader = csv.reader(text, strict=True)
    names = _csv_header(path, reader)
    while True:
        text.damaged = None
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Record(number, None, f"invalid CSV: {error}")
            continue
        if cells is None:
            return
        if text.damaged is not None:
            yield Record(number, None, text.damaged)
        elif len(cells) > len(names):
            yield Record(number, None, f"{len(cells)} cells, but the header has {len(names)}")
        elif cells:
            yield Record(number, dict(zip(names, cells, strict=False)))


class _CsvText:
    """The text lines of a CSV file. ``damaged``: what was wrong with one of the lines given since it was last
    cleared."""

    def __init__(self, path: Path) -> None:
        self._lines = _lines(path)
        self.damaged: str | None = None

    def __iter__(self) -> _CsvText:
        return self

    def __next__(self) -> str:
        _, line, problem = next(self._lines)
        if problem is not None:
            self.damaged = problem
            return "\n"
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.damaged = "invalid UTF-8"
            return line.decode(errors="replace")


def _csv_header(path: Path, reader: Any) -> list[str]:
    try:
        header = next((cells for cells in reader if cells), None)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: invalid CSV: {error}") from error
    if header is None:
        raise UserError(f"the dataset file is empty: {path}")
    names = [cell.strip() or f"column_{place}" for place, cell in enumerate(header, 1)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: the header names the column {twice!r} twice")
    if "prompt" not in names:
        raise UserError(f'{path}: the header has no "prompt" column')
    return names


# --- JSON


def _is_json_lines(path: Path) -> bool:
    """Whether a .json file holds JSON Lines: its first line is a whole object, and not one that wraps the rows."""
    with _open(path) as stream:
        try:
            line = stream.readline(1 << 20).removeprefix(_BOM).strip()
            value = loads(line) if line.startswith(b"{") else None
        except (ValueError, RecursionError, *_GZIP_DAMAGE):
            return False
    return isinstance(value, dict) and not isinstance(value.get("data"), list)


def _array_records(path: Path) -> Iterator[Record]:
    with _open(path) as stream:
        try:
            for number, (value, problem) in enumerate(JsonArray(stream), 1):
                yield Record(number, value, problem)
        except JsonArrayError as error:
            raise UserError(f"{path}: {error}") from error
        except _GZIP_DAMAGE as error:
            raise UserError(f"{path}: the compressed data is damaged: {error}") from error


# --- Parquet and Hugging Face


def _parquet(path: Path) -> Records:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise _missing_extra(path, "a .parquet file") from None

    def read() -> Iterator[Record]:
        try:
            with parquet.ParquetFile(path) as file:
                yield from _table_records(file.iter_batches(batch_size=_BATCH))
        except pyarrow.ArrowException as error:
            raise UserError(f"{path}: not a readable Parquet file: {_first_line(error)}") from error

    return Records("row", lambda: _guard(path, read()))


def _huggingface(path: Path) -> Records:
    if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        raise UserError(f"the dataset is a folder, but not a Hugging Face dataset written by save_to_disk: {path}")
    try:
        import datasets
    except ImportError:
        raise _missing_extra(path, "a Hugging Face dataset") from None
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable Hugging Face dataset: {_first_line(error)}") from error
    table = _choose_split(path, loaded) if isinstance(loaded, datasets.DatasetDict) else loaded
    return Records("row", lambda: _guard(path, _table_records(table.with_format("arrow").iter(batch_size=_BATCH))))


def _choose_split(path: Path, splits: Any) -> Any:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if "train" in splits:
        return splits["train"]
    names = ", ".join(sorted(splits))
    raise UserError(
        f'{path}: the dataset has several splits and none is called "train" ({names}); give the folder of one'
    )


def _missing_extra(path: Path, what: str) -> UserError:
    return UserError(f"{path}: reading {what} needs more libraries: pip install 'manyhands[datasets]'")


def _table_records(batches: Iterator[Any]) -> Iterator[Record]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield Record(number, {name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Json:
    """A value of an Arrow table as JSON: times as ISO 8601 text, bytes as base64, not-a-number as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else None
        case dict():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return b64encode(value).decode()
    return str(value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
