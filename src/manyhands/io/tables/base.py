"""What tables of every format share: rows, records, columns, opening files, and the wording of what is wrong with them."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, Self, cast

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import closest

Values = list[Json]


Kind = Literal["string", "integer", "number", "boolean", "json"]
"""What the values of a column are; ``json``: anything, shown as JSON text."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What a job records about its table."""

    path: str
    format: str
    headers: tuple[str, ...]
    """The columns in order."""
    encoding: str | None = None
    """Of a table that is text."""
    delimiter: str | None = None
    """Of a CSV table, unless it is a single column whose rows are not split."""
    arrow_schema: str | None = None
    """Of a Parquet table: its schema in Arrow's IPC format as base64 text."""
    header_row: int | None = None
    """The number of the header's line or row, where the person gave one."""
    sheet: str | None = None
    """Of a spreadsheet: the name of the sheet."""
    decimal_comma: bool = False
    """Whether the numbers of a CSV table have decimal commas."""
    times: tuple[str, ...] | None = None
    """Of a spreadsheet: what each column holds throughout, where that is ``date``, ``datetime`` or ``time``; else empty text."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "headers": list(self.headers)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        times = value.get("times")
        return cls(**{**value, "headers": tuple(value["headers"]), "times": None if times is None else tuple(times)})


Unit = Literal["line", "row", "task"]
"""What the numbers of a table count: lines of its file, or its rows; or the task folders of a dataset."""

MAX_LENGTH = 128 << 20
"""Maximum length of a line, and of a cell, in characters."""

MAX_VALUE = 64 << 20
"""Maximum length of a line or element of a dataset, in bytes or characters."""

GZIP_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a damaged ``.gz`` file raises."""

OTHER_HEADER = "say with --header_row where the header is"
"""What to do where a row was taken for the header that is none."""

_SHOWN_NAME = 80
_SHOWN_COLUMNS = 50
_SHOWN_NAMELESS = 5


class RawRow(NamedTuple):
    """A row as its table has it."""

    line: int
    """Where it begins, from 1."""
    cells: Sequence[Json]
    problem: str | None = None
    """Why it can't be used; ``cells`` are then those that could be read, possibly fewer or more than there are columns."""


class Table(Protocol):
    """A table whose columns are known. ``path`` is as it was given."""

    @property
    def path(self) -> Path: ...

    @property
    def info(self) -> TableInfo: ...

    @property
    def unit(self) -> Unit: ...

    @property
    def notices(self) -> Sequence[str]:
        """What was decided by looking at the table, a line each."""
        ...

    def rows(self) -> Iterator[RawRow]:
        """All rows in order, streamed, from the beginning each time; rows without any content are left out.

        Raises UserError, naming the file and the location, if the rest of the file can't be read.
        """
        ...


class Record(NamedTuple):
    """One value of a dataset: a row as an object, or whatever else stands there."""

    number: int
    """Of its line or row, from 1."""
    value: Json
    problem: str | None = None
    """Why there is no value."""


@dataclass(frozen=True, slots=True)
class Records:
    """A dataset that was found and can be opened."""

    unit: Unit
    """What its numbers count."""
    read: Callable[[], Iterator[Record]]
    """Its records, from the beginning each time. A value that can't be read is a record with a problem, and reading goes on behind it;
    only what makes the rest of a file unreadable raises UserError."""


class MissingColumn(UserError):
    """A table lacks a column that is needed."""

    def __init__(self, message: str, columns: Sequence[str]) -> None:
        """``columns``: those that it has."""
        super().__init__(message)
        self.columns = columns


def unreadable(path: Path, why: object) -> UserError:
    """The error for a file that can't be read at all."""
    return UserError(f"failed to read csv input {path.absolute()}: {why}")


def missing_extra(path: Path, what: str, extra: str = "datasets") -> UserError:
    """The error for a format that needs libraries which are not installed. ``what``: what would be read."""
    return UserError(f"{path}: reading {what} needs more libraries: pip install 'manyhands[{extra}]'")


def at(path: Path, number: int, problem: str, unit: Unit = "line") -> str:
    """``FILE, line 7: PROBLEM``."""
    return f"{path}, {unit} {number}: {problem}"


def shown(name: str) -> str:
    """A column's name for an error of one line: as it is where that is clear, quoted otherwise."""
    clear = name.isprintable() and name == name.strip() and "," not in name
    text = name if clear and name else repr(name)
    return text if len(text) <= _SHOWN_NAME else f"{text[:_SHOWN_NAME]}…"


def check_file(path: Path) -> None:
    """Raises UserError unless the path is a regular file that can be opened."""
    if str(path) == "-":
        raise unreadable(path, "standard input can't be read here; give a file")
    if "\0" in str(path):
        raise unreadable(path, "no file has such a name")
    with reading(path):
        if path.is_dir():
            raise unreadable(path, "it is a directory")
        if path.exists() and not path.is_file():
            raise unreadable(path, "not a regular file")
        with path.open("rb"):
            return


def check_regular_file(path: Path) -> None:
    """Raises UserError unless the path is a regular file of a dataset that can be opened and has something in it."""
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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what opening and reading a file raises into a UserError."""
    try:
        yield
    except (OSError, *GZIP_DAMAGE) as error:
        raise unreadable(path, getattr(error, "strerror", None) or first_line(error)) from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line of bounded length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def open_bytes(path: Path) -> BinaryIO:
    """A file's content, unpacked where the name ends in ``.gz``."""
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def column_names(where: str, headers: Sequence[str], way_on: str | None = None) -> tuple[str, ...]:
    """The names of columns. One that is blank is called by its number, as ``column_3``, with ``_2``, ``_3`` … behind it where another
    column has that name.

    Raises UserError for a name that comes twice. ``where``: the file, and the line if it has any; ``way_on``: what else to do about it.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(headers, 1):
        if name.strip() and name in positions:
            problem = f"csv header {shown(name)} is duplicated (columns {positions[name]} and {position})"
            raise UserError(f"{where}: {problem}; rename one of them{'' if way_on is None else f', or {way_on}'}")
        positions[name] = position
    return tuple(
        name if name.strip() else numbered_name(position, positions) for position, name in enumerate(headers, 1)
    )


def numbered_name(position: int, taken: Container[str]) -> str:
    """The name of the column at a position, from 1, that has none of its own."""
    name = f"column_{position}"
    candidates = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def nameless_notice(where: str, headers: Sequence[str], names: Sequence[str]) -> list[str]:
    """What to say of columns without names."""
    given = [name for header, name in zip(headers, names, strict=True) if not header.strip()]
    if not given:
        return []
    more = f" and {len(given) - _SHOWN_NAMELESS} more" if len(given) > _SHOWN_NAMELESS else ""
    what = "a column without a name is" if len(given) == 1 else "columns without names are"
    return [f"{where}: {what} called {', '.join(given[:_SHOWN_NAMELESS])}{more}"]


def titles_notice(titles: Sequence[str]) -> str:
    """What to say, behind the header's place, of rows above it."""
    first = repr(" ".join(titles[0].split())[:_SHOWN_NAME])
    above = "the row above it" if len(titles) == 1 else f"the {len(titles)} rows above it"
    are = "is left out as a title" if len(titles) == 1 else "are left out as titles"
    return f"the header is here; {above} ({first}{' …' * (len(titles) > 1)}) {are}; --header_row sets another line"


def known_columns(name: str, headers: Sequence[str]) -> str:
    """What to say behind a name that no column has: the nearest one, and all of them."""
    near = _nearest(name, headers)
    meant = f" (did you mean {shown(near)}?)" if near else ""
    more = f" and {len(headers) - _SHOWN_COLUMNS} more" if len(headers) > _SHOWN_COLUMNS else ""
    return f"{meant}; the columns are: {', '.join(map(shown, headers[:_SHOWN_COLUMNS]))}{more}"


def _nearest(name: str, headers: Sequence[str]) -> str | None:
    wanted = name.strip().casefold()
    same = next((header for header in headers if header.strip().casefold() == wanted), None)
    return same or next(iter(closest(name, headers)), None)
