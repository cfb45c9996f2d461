"""Writing a job's table with the results of its rows: at any time, also while the job runs, and completely or not at all.

The columns are the table's, the job's own, and one for each leaf property of the results if they are flattened; the rows are what the
journal holds of each item, as values in the order of the columns.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from gzip import GzipFile
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import unquote

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import RunReader
from manyhands.engine.journal.lock import LOCK, is_owned
from manyhands.engine.journal.reader import JOURNAL
from manyhands.io.files import bytes_written_aside
from manyhands.io.tables.base import Kind, TableInfo, Values, known_columns, shown
from manyhands.io.tables.csv import given_delimiter, write_csv
from manyhands.io.tables.formats import CSV, PARQUET, XLSX, format_named, formats, suffix_of
from manyhands.io.tables.parquet_writer import (
    ParquetColumn,
    castable,
    column_of_kind,
    need_parquet,
    restorer,
    storage_of,
    survey,
    write_parquet,
)
from manyhands.io.tables.xlsx import write_xlsx
from manyhands.processes.strays import make_way
from manyhands.workloads.csv_jobs.rows.columns import JOB, OUR_COLUMNS, RESULTS, SPREAD, TABLE, prefixes
from manyhands.workloads.csv_jobs.rows.stage_states import STAGES

_OWN_FILES = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LOCK)
_MAX_KEYS = 4096


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How a table is written."""

    format: str = CSV.name
    """A name in ``io.tables.formats``."""
    flatten: bool = False
    """Add a column for each property of the results."""
    excel_safe: bool = False
    """Spreadsheet programs read a CSV file as UTF-8 and take no cell for a formula; such a file does not read back unchanged."""
    columns: Sequence[str] | None = None
    """Those that are written, by name or origin (``Columns.chosen_from``); None: the table's, the job's, and with ``flatten`` the
    results'."""
    delimiter: str | None = None
    """Of a CSV file; None for the table's."""


def write_export(
    reader: RunReader,
    headers: Sequence[str],
    schema: Mapping[str, Any] | None,
    table: TableInfo,
    target: Path,
    options: ExportOptions,
    *,
    stages: Callable[[bool], Sequence[Leaf]] | None = None,
    beside: Sequence[Leaf] = (),
) -> int:
    """Write all rows in order, each with its cells and its result (``Columns`` names the columns); returns their number. ``stages``: the
    columns of a job with stages, given whether results are flattened; ``beside``: columns besides those of results, first.

    What is written is of one moment, and takes the place of ``target`` only when it is whole. Folders are made.
    A CSV file has the table's delimiter and decimal commas; one whose name ends in ``.tsv`` has tabs. One that ends in ``.gz`` is
    compressed: as a table of that name is read.

    Raises UserError for a target that must not be replaced, for an unknown format and where a library is missing,
    StorageError if it can't be written.
    """
    writable = [name for name, format in formats().items() if format.writable]
    if options.format not in writable:
        raise UserError(f"unknown export format {options.format!r}: choose {', '.join(writable)}")
    path = _usable(target, reader, table)
    with reader.snapshot():
        flatten = options.flatten if options.columns is None else _names_results(options.columns, headers)
        if stages is not None:
            columns = Columns.of(headers, [*beside, *stages(flatten or options.columns is not None)])
        else:
            columns = Columns.of(headers, [*beside, *(_leaves(reader, schema) if flatten else ())])
        if options.columns is not None:
            open_ended = stages is None and not leaves_of(schema or {})
            columns = columns.chosen_from(options.columns, open=open_ended)
        with bytes_written_aside(path) as handle, _packed(handle, path, options) as stream:
            return _write(stream, path, reader, columns, table, options)


def _write(
    handle: BinaryIO, path: Path, reader: RunReader, columns: Columns, table: TableInfo, options: ExportOptions
) -> int:
    format = format_named(options.format)
    if format is PARQUET:
        return _write_parquet(handle, reader, columns, table)
    rows, names = columns.pick_rows(read_rows(reader, columns, rfc3339)), columns.pick(columns.names)
    if format is CSV:
        delimiter = _delimiter(path, table, options)
        comma = table.decimal_comma and delimiter != ","
        return write_csv(handle, names, rows, delimiter=delimiter, decimal_comma=comma, excel_safe=options.excel_safe)
    if format is XLSX:
        times = [*(table.times or [""] * len(columns.headers)), *[""] * len((*columns.ours, *columns.spread))]
        return write_xlsx(handle, names, rows, times=columns.pick(times))
    assert format.write is not None
    return format.write(handle, names, rows)


def _delimiter(path: Path, table: TableInfo, options: ExportOptions) -> str:
    if options.delimiter is not None:
        return given_delimiter(options.delimiter)
    if suffix_of(path) == ".tsv":
        return "\t"
    as_named = suffix_of(Path(table.path)) == ".tsv"  # the tabs of such a table are its name's
    return "," if table.delimiter is None or as_named else table.delimiter


@contextmanager
def _packed(handle: BinaryIO, path: Path, options: ExportOptions) -> Iterator[BinaryIO]:
    """The stream to write to: text is compressed if the name ends in ``.gz``."""
    if path.suffix.lower() != ".gz" or not format_named(options.format).text:
        yield handle
    else:
        with GzipFile(filename="", mode="wb", compresslevel=6, fileobj=handle, mtime=0) as packed:
            yield cast(BinaryIO, packed)


def _leaves(reader: RunReader, schema: Mapping[str, Any] | None) -> Sequence[Leaf]:
    """The properties to spread: those that the schema names, or else the keys of all results in the order in which they first appear."""
    if leaves := leaves_of(schema or {}):
        return leaves
    keys: dict[str, None] = {}
    for result in read_results(reader):
        keys.update(dict.fromkeys(result))
        if len(keys) > _MAX_KEYS:
            raise UserError(f"the results have more than {_MAX_KEYS} different keys: export without --flatten")
    return [Leaf((key,), None) for key in keys]


def _usable(target: Path, reader: RunReader, table: TableInfo) -> Path:
    """Where to write, symbolic links followed, its folder made. Raises UserError if what is there is not to be replaced."""
    path = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise UserError(f"{target}: not a regular file, so that an export can't take its place")
    if path == Path(os.path.realpath(table.path)):
        raise UserError(f"{target}: the job's own table; an export does not take its place")
    if path in {Path(os.path.realpath(reader.folder)) / name for name in _OWN_FILES}:
        raise UserError(f"{target}: the job's own journal; an export does not take its place")
    make_way(path)
    return path


# --- Parquet: the types of the columns
#
# The columns of a Parquet table keep its types, those of a CSV table are text. A column of a JSON Lines table, or of the results, is
# boolean, 64-bit integer, 64-bit float or text if all its values are that, and else text that holds JSON. Times are timestamps in UTC.


def _write_parquet(handle: BinaryIO, reader: RunReader, columns: Columns, table: TableInfo) -> int:
    """Write all rows; returns how many. Raises UserError if pyarrow is not installed."""
    need_parquet()
    described, rows = _describe(reader, columns, table), read_rows(reader, columns, int)
    return write_parquet(handle, columns.pick(described), columns.pick_rows(rows))


def _describe(reader: RunReader, columns: Columns, table: TableInfo) -> list[ParquetColumn]:
    """The columns in order; those of which nothing else is known as their values are, which takes a look at all rows."""
    width = len(columns.headers)
    settled = dict(enumerate(_ours(columns), start=width))
    if table.format == "csv":
        settled |= {index: column_of_kind("string", name) for index, name in enumerate(columns.headers)}
    elif table.arrow_schema is not None:
        settled |= _of_source(columns.headers, table.arrow_schema)
    stated: dict[int, Kind | None] = {index: None for index in range(width) if index not in settled}
    stated |= {index: leaf.kind for index, leaf in enumerate(columns.leaves, start=width + len(columns.ours))}
    kinds = survey(read_rows(reader, columns, int), stated)
    return [settled.get(index) or column_of_kind(kinds[index], name) for index, name in enumerate(columns.names)]


def _ours(columns: Columns) -> list[ParquetColumn]:
    import pyarrow

    kinds: dict[int, Kind] = {ROW_INDEX: "integer", ATTEMPTS: "integer", RESULT: "json"}
    described = [column_of_kind(kinds.get(index, "string"), name) for index, name in enumerate(columns.ours)]
    for index in (REPORTED, COMPLETED):
        described[index] = ParquetColumn(columns.ours[index], pyarrow.timestamp("s", "UTC"), None)
    return described


def _of_source(headers: Sequence[str], serialised: str) -> dict[int, ParquetColumn]:
    """The columns of a Parquet table by index, but for types whose values can't be made from JSON."""
    import pyarrow

    kinds = pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(serialised))).types
    columns = {}
    for index, (name, kind) in enumerate(zip(headers, kinds, strict=True)):
        if (restore := restorer(storage_of(kind))) is not None:
            columns[index] = ParquetColumn(name, castable(kind), restore)
    return columns


# --- Columns and rows

MAX_LEAVES = 4096
"""Columns that results are spread into, at most."""
_MAX_DEPTH = 32
_ROOT = "#"
"""The reference to the schema itself."""
_SCALARS: dict[str, Kind] = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One property of the results."""

    path: tuple[str, ...]
    """The properties on the way to it."""
    kind: Kind | None
    """Its type by the schema, if that states one."""
    column: str | None = None
    """The name of its column; None: ``SPREAD`` and the path."""
    recorded: bool = False
    """Whether it is a property of a row's record, beside its result."""

    def of(self, result: Json) -> Json:
        """Its value in a result; None where that does not have it."""
        for name in self.path:
            if not isinstance(result, dict):
                return None
            result = result.get(name)
        return result


def leaves_of(schema: Schema) -> tuple[Leaf, ...]:
    """The leaf properties that a JSON Schema names, in its order; none if it names no properties.

    Objects with named properties are spread, also behind a ``$ref`` into the same schema, a single ``allOf`` or a choice between
    that and null. What refers to itself stays whole where it comes round. Raises UserError if it spreads too far.
    """
    leaves: list[Leaf] = []
    for leaf in _Spreading(schema).leaves(schema, (), (_ROOT,)):
        leaves.append(leaf)
        if len(leaves) > MAX_LEAVES:
            raise UserError(f"the output schema spreads into more than {MAX_LEAVES} columns: export without --flatten")
    return tuple(leaf for leaf in leaves if leaf.path)


class _Spreading:
    """A walk over one schema. ``way``: the references that led to where it is, which must not be taken again."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def leaves(self, schema: Any, path: tuple[str, ...], way: tuple[str, ...]) -> Iterator[Leaf]:
        parts = list(self._parts(schema, way, set(way)))
        named = {name: (part, onward) for holder, onward in parts for name, part in _properties(holder).items()}
        if not named or len(path) >= _MAX_DEPTH:
            yield Leaf(path, _kind([part for part, _ in parts]))
            return
        for name, (part, onward) in named.items():
            yield from self.leaves(part, (*path, name), onward)

    def _parts(self, schema: Any, way: tuple[str, ...], taken: set[str]) -> Iterator[tuple[Schema, tuple[str, ...]]]:
        """All that has to hold of a value that fits a schema, each part with the references that led to it."""
        if not isinstance(schema, Mapping):
            return
        yield schema, way
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in taken:
            taken.add(reference)
            yield from self._parts(self._target(reference), (*way, reference), taken)
        for part in [*_list(schema.get("allOf")), *_only_choice(schema)]:
            yield from self._parts(part, way, taken)

    def _target(self, reference: str) -> Any:
        """What a reference within the schema (a JSON pointer, RFC 6901) leads to; None for any other."""
        if not reference.startswith("#"):
            return None
        value: Any = self._root
        for token in reference[1:].split("/")[1:]:
            name = _unescaped(token)
            if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _only_choice(schema: Schema) -> list[Any]:
    """What a value that is not null has to fit, where a choice leaves one such thing."""
    choices = [part for key in ("anyOf", "oneOf") for part in _list(schema.get(key))]
    left = [part for part in choices if not (isinstance(part, Mapping) and part.get("type") == "null")]
    return left if len(left) == 1 else []


def _properties(schema: Schema) -> Mapping[str, Any]:
    named = schema.get("properties")
    return named if isinstance(named, Mapping) else {}


def _kind(parts: list[Schema]) -> Kind | None:
    for part in parts:
        stated = part.get("type")
        types = [name for name in ([stated] if isinstance(stated, str) else _list(stated)) if name != "null"]
        if types:
            return _SCALARS.get(types[0], "json") if len(types) == 1 and isinstance(types[0], str) else "json"
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unescaped(token: str) -> str:
    return unquote(token).replace("~1", "/").replace("~0", "~")


ROW_INDEX, ATTEMPTS, RESULT = (OUR_COLUMNS.index(name) for name in ("row_index", "attempt_count", "result_json"))
REPORTED, COMPLETED = (OUR_COLUMNS.index(name) for name in ("reported_at", "completed_at"))
_SPREAD_NAME = re.compile(r"(stage\d+_)?" + re.escape(SPREAD))


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of all columns."""

    headers: tuple[str, ...]
    """Those of the table."""
    ours: tuple[str, ...]
    """Our ten."""
    leaves: tuple[Leaf, ...] = ()
    """The properties of the results that have a column each."""
    spread: tuple[str, ...] = ()
    """The names of those columns."""
    chosen: tuple[int, ...] | None = None
    """Those that are written, in this order, by their index; None: all."""

    @classmethod
    def of(cls, headers: Sequence[str], leaves: Sequence[Leaf] = ()) -> Columns:
        """Names all columns: where one of ours is among the headers, all of ours get the first prefix of ``stage2_``, ``stage3_`` … with
        which none is, so that what a job writes can be another job's table, however often."""
        own = tuple(without_surrogates(header) for header in headers)
        ours = (*OUR_COLUMNS, *_distinct(leaf.column or SPREAD + ".".join(leaf.path) for leaf in leaves))
        taken = set(own)
        prefix = next(prefix for prefix in prefixes() if taken.isdisjoint(prefix + name for name in ours))
        named = tuple(prefix + name for name in ours)
        return cls(own, named[: len(OUR_COLUMNS)], tuple(leaves), named[len(OUR_COLUMNS) :])

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.headers, *self.ours, *self.spread)

    def chosen_from(self, wanted: Sequence[str], *, open: bool) -> Columns:
        """With the columns that are wanted: by name, or by the word for all of one origin where no column is called so.

        ``open``: results may have properties that are not among the columns yet; where such a one is named it is added.
        Raises UserError for a name that no column has.
        """
        origins = {TABLE: self.headers, JOB: self.ours, RESULTS: self.spread}
        names = [name for word in wanted for name in ([word] if word in self.names else origins.get(word, [word]))]
        added = [name for name in names if name not in self.names]
        if added and open and all(map(_SPREAD_NAME.match, added)):
            paths = [tuple(_SPREAD_NAME.sub("", name, count=1).split(".")) for name in added]
            more = Columns.of(self.headers, (*self.leaves, *(Leaf(path, None) for path in dict.fromkeys(paths))))
            return more.chosen_from(wanted, open=False)
        if added:
            raise UserError(f"--output_columns: {shown(added[0])} is no column{known_columns(added[0], self.names)}")
        positions = {name: index for index, name in reversed([*enumerate(self.names)])}
        return replace(self, chosen=tuple(dict.fromkeys(positions[name] for name in names)))

    def pick(self, values: Sequence[_Value]) -> list[_Value]:
        """Of values for all columns, those that are written."""
        return list(values) if self.chosen is None else [values[index] for index in self.chosen]

    def pick_rows(self, rows: Iterable[Values]) -> Iterable[Values]:
        """The same of rows, one at a time."""
        return rows if self.chosen is None else map(self.pick, rows)

    def index(self, ours: int) -> int:
        """Where one of our columns is in a row."""
        return len(self.headers) + ours


def check_output_columns(
    wanted: Sequence[str] | None, headers: Sequence[str], leaves: Sequence[Leaf], *, open: bool
) -> None:
    """Raises UserError for chosen columns that results will not have. ``open``: they may have other properties than these leaves."""
    if wanted is not None:
        Columns.of(headers, leaves).chosen_from(wanted, open=open)


def _names_results(wanted: Sequence[str], headers: Sequence[str]) -> bool:
    """Whether properties of the results are among the columns that are wanted."""
    return any(word not in headers and (word == RESULTS or _SPREAD_NAME.match(word)) for word in wanted)


def _distinct(names: Iterable[str]) -> list[str]:
    """The names; where two properties would share one (a dot may be part of a property's name), the later gets a number behind it."""
    given: dict[str, None] = {}
    for name in map(without_surrogates, names):
        given[next(candidate for candidate in _numbered(name) if candidate not in given)] = None
    return list(given)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


TimeOf = Callable[[int], Json]
"""How seconds since 1970 UTC are shown."""
SKIPPED = "skipped"


def read_rows(reader: RunReader, columns: Columns, time: TimeOf) -> Iterator[Values]:
    """The rows in order of the table, one at a time."""
    job_id, width, leaves = reader.meta("run_id"), len(columns.headers), columns.leaves
    index, words = columns.index(RESULT), _words(reader)
    for item in reader.results():
        row, report = item.payload, item.record or {}
        reported = report.get("reported_at")
        values = _cells(row, width)
        values += (
            job_id,
            item.key,
            row["row_index"],
            row["source_id"],
            words[item.state],
            item.performances,
            item.message,
            report.get("result", report.get(STAGES)),
            None if reported is None else time(int(reported)),
            None if item.finished_at is None else time(int(item.finished_at)),
        )
        if leaves:
            result = values[index]
            values += [leaf.of(report if leaf.recorded else result) for leaf in leaves]
        yield values


def read_results(reader: RunReader) -> Iterator[Json]:
    """The results in order of the table, one at a time."""
    for record in reader.completed_records():
        yield record.get("result")


@lru_cache(maxsize=4096)
def rfc3339(seconds: int) -> str:
    """A time as RFC 3339 has it, in UTC and whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _words(reader: RunReader) -> dict[str, str]:
    """The names of the states. Without a process that executes the job no row is running, whatever an owner that died left behind."""
    words = {state.value: state.value for state in ItemState} | {ItemState.DISCARDED.value: SKIPPED}
    return words if is_owned(reader.folder) else {**words, ItemState.RUNNING.value: ItemState.PENDING.value}


def _cells(row: Mapping[str, Any], width: int) -> Values:
    """The cells of the table, as many as it has columns: a row that was skipped may have others."""
    cells: Values = row["row"]
    return cells if len(cells) == width else [*cells[:width], *[None] * (width - len(cells))]
