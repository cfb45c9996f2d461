"""Parquet tables and datasets, and Hugging Face folders, read in batches through pyarrow (the extra ``datasets``).

What JSON has no type for becomes text from which the exact value can be read again: dates, times and timestamps in ISO 8601 (those with
a time zone in UTC, ``+00:00`` behind), durations as ISO 8601 seconds (``PT1.5S``), decimals with all their digits, bytes as base64,
floats that are no numbers as ``NaN``, ``Infinity`` and ``-Infinity``. Lists and structs keep their shape; a map is a list of objects
with ``key`` and ``value``. Dictionaries' values are written out; extension types count as what they are stored as.

In datasets, values are JSON by simpler rules: times and dates in ISO 8601, durations in seconds, decimals as text, bytes as base64, floats
that are no numbers as null.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from itertools import count, islice
from math import isfinite, isnan
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.text import cut, suggestion
from manyhands.io.tables.base import (
    RawRow,
    Record,
    TableInfo,
    Unit,
    column_names,
    first_line,
    missing_extra,
    nameless_notice,
    reading,
)

_MAX_CARD = 4 << 20
"""Bytes of a dataset's card."""
_DATA_FILES = frozenset((".parquet", ".jsonl", ".json", ".csv", ".tsv", ".arrow", ".gz", ".zst"))
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits behind the point of a second, by Arrow's unit."""


def json_values(array: Any) -> list[Json]:
    """The values of an Arrow array as JSON."""
    import pyarrow

    kind, types = array.type, pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return json_values(array.storage)
    if types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if types.is_map(kind):
        return _lists(array.cast(pyarrow.list_(pyarrow.struct([kind.key_field, kind.item_field]))))
    if types.is_nested(kind):
        return _structs(array) if types.is_struct(kind) else _lists(array)
    if types.is_temporal(kind):
        return _times(array)
    plain = _plain(kind)
    values: list[Json] = array.to_pylist()
    return values if plain is None else [None if value is None else plain(value) for value in values]


def _plain(kind: Any) -> Callable[[Any], Json] | None:
    """What makes JSON of a value of a simple type; None where it is JSON already."""
    from pyarrow import types

    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind):
        return None
    return _text


def _number(value: float) -> Json:
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else b64encode(value).decode()


def _lists(array: Any) -> list[Json]:
    """Lists of any kind. The values of all of them are turned into JSON at once, and then cut into lists again."""
    import pyarrow.compute

    values = iter(json_values(array.flatten()))  # without those of lists that are null
    lengths = pyarrow.compute.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(values, length)) for length in lengths]


def _structs(array: Any) -> list[Json]:
    names = [field.name for field in array.type]
    columns = [json_values(column) for column in array.flatten()]
    valid = array.is_valid().to_pylist()
    rows: Iterator[tuple[Json, ...]] = zip(*columns, strict=True) if columns else iter([()] * len(valid))
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _times(array: Any) -> list[Json]:
    """Dates, times of day, timestamps and durations. Arrow's own text is used, because Python's types hold no nanoseconds and few years."""
    import pyarrow

    kind, types = array.type, pyarrow.types
    if types.is_duration(kind):
        ticks = array.cast(pyarrow.int64()).to_pylist()
        return [None if count is None else _duration(count, DIGITS[kind.unit]) for count in ticks]
    suffix = ""
    if types.is_timestamp(kind):
        suffix = "" if kind.tz is None else "+00:00"
        array = array.cast(pyarrow.timestamp(kind.unit))  # in UTC
    texts = array.cast(pyarrow.string()).to_pylist()
    return [None if text is None else text.replace(" ", "T") + suffix for text in texts]


def _duration(count: int, digits: int) -> str:
    seconds, fraction = divmod(abs(count), 10**digits)
    point = f".{fraction:0{digits}}".rstrip("0") if fraction else ""
    return f"{'-' if count < 0 else ''}PT{seconds}{point}S"


_BATCH = 1000
"""Rows that are held at once, at most."""
_BATCH_BYTES = 16 << 20
_PARQUET_FILE = "a .parquet file"
_BUFFER = 1 << 20
"""Bytes of a column that are read at once, so that a large row group is never held whole."""


class ParquetTable:
    """A Parquet file whose schema has been read."""

    unit: Unit = "row"

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file can't be read, has no usable columns, or pyarrow is not installed."""
        self.path = path
        with _opened_table(path) as file:
            schema = file.schema_arrow
        if not schema.names:
            raise UserError(f"{path}: csv input must include a header row: here, a column")
        names = column_names(str(path), schema.names)
        self.notices = nameless_notice(str(path), schema.names, names)
        serialised = b64encode(schema.serialize().to_pybytes()).decode()
        self.info = TableInfo(str(path.absolute()), "parquet", names, arrow_schema=serialised)

    def rows(self) -> Iterator[RawRow]:
        numbers = count(1)
        with _opened_table(self.path) as file:
            if column_names(str(self.path), file.schema_arrow.names) != self.info.headers:
                raise UserError(f"{self.path}: the columns changed since the table was opened")
            for batch in file.iter_batches(batch_size=_batch_rows(file.metadata)):
                columns = [json_values(column) for column in batch.columns]
                yield from (RawRow(next(numbers), cells) for cells in zip(*columns, strict=True))


@contextmanager
def _opened_table(path: Path) -> Iterator[Any]:
    with reading(path), opened(path, "a .parquet table") as file:
        yield file


@contextmanager
def opened(path: Path, what: str) -> Iterator[Any]:
    """A Parquet file. ``what``: what it is called where pyarrow is not installed. Raises UserError for a damaged one, also while it is
    read."""
    parquet = _parquet_module(path, what)
    import pyarrow

    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {first_line(error)}") from error


def _parquet_module(path: Path, what: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise missing_extra(path, what) from None
    return parquet


def _batch_rows(metadata: Any) -> int:
    """How many rows to hold at once: fewer where rows are large."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(_BATCH, _BATCH_BYTES * rows // max(size, 1)))


# --- Datasets


def parquet_records(path: Path) -> Iterator[Record]:
    """The rows of a Parquet file."""
    with opened(path, _PARQUET_FILE) as file:
        yield from _records(file.iter_batches(batch_size=_batch_rows(file.metadata)))


def check_parquet(path: Path) -> None:
    """Raises UserError where pyarrow is not installed."""
    _parquet_module(path, _PARQUET_FILE)


def dataset_batches(path: Path, split: str | None = None) -> Callable[[], Iterator[Record]]:
    """What reads the rows of a Hugging Face dataset in a folder: one that ``save_to_disk`` wrote, or one as dataset repositories are laid
    out (data files, by split, with or without a card). Those of the named split, or without one of its only split, or of the one called
    "train"; ``CONFIGURATION/SPLIT`` where a repository has several configurations. Raises UserError if it is none, or has no such split."""
    if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        return _repository_rows(path, split)
    loaded = saved_dataset(path)
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split): loaded}
    table = _choose_split(path, splits, split)
    return lambda: _records(table.with_format("arrow").iter(batch_size=_BATCH))


def _repository_rows(path: Path, split: str | None) -> Callable[[], Iterator[Record]]:
    """The rows of a folder laid out as a dataset repository, streamed: nothing is copied into a cache."""
    if not any(each.suffix in _DATA_FILES for each in path.rglob("*")):
        raise UserError(
            f"the dataset is a folder, but not a Hugging Face dataset: neither written by save_to_disk nor one with data files: {path}"
        )
    try:
        import datasets
    except ImportError:
        raise missing_extra(path, "a Hugging Face dataset") from None
    configuration, _, name = (split or "").rpartition("/")
    with _read_by_datasets(path):
        _check_card(path)
        configurations = datasets.get_dataset_config_names(str(path))
        if configuration not in ("", *configurations) or (not configuration and len(configurations) > 1):
            raise UserError(
                f"{path}: the dataset has the configurations {', '.join(configurations)}; name one with --split=CONFIGURATION/SPLIT"
            )
        builder = datasets.load_dataset_builder(str(path), configuration or configurations[0])
        _check_files(path, builder.config.data_files or {})
        loaded = builder.as_streaming_dataset()
    table = _choose_split(path, loaded, name or None)
    if "Json(" in repr(table.features):  # Arrow would give the text of these
        return lambda: _guarded_rows(path, enumerate(table, 1))
    return lambda: _guarded_records(path, table)


def _check_card(path: Path) -> None:
    """Refuse a card that names data outside of its folder: the library would read any file, and ask any server. Raises UserError."""
    from datasets.config import REPOCARD_FILENAME, REPOYAML_FILENAME
    from huggingface_hub import DatasetCard
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    from manyhands.io.yaml_files import parse_source  # its library is large, and few datasets are folders

    card, beside = path / REPOCARD_FILENAME, path / REPOYAML_FILENAME
    described: list[Any] = []
    if card.is_file():
        front = REGEX_YAML_BLOCK.search(_card_text(card))
        # Ours refuses what aliases blow up, which the library would unfold for ever.
        described.append(parse_source(front[2] if front else "", str(card)).value)
        described.append(DatasetCard.load(card).data.to_dict())
    if beside.is_file():
        described.append(parse_source(_card_text(beside), str(beside)).value)
    for configurations in (each.get("configs") for each in described if isinstance(each, dict)):
        for each in configurations if isinstance(configurations, list) else ():
            for named in _texts([each.get("data_files"), each.get("data_dir")] if isinstance(each, dict) else []):
                if named.startswith(("/", "~")) or ".." in Path(named).parts or "::" in named or urlsplit(named).scheme:
                    raise UserError(
                        f"{path}: the card names data outside of the folder, which is not read: {cut(named, 200)!r}"
                    )


def _card_text(path: Path) -> str:
    if path.stat().st_size > _MAX_CARD:
        raise UserError(f"{path}: larger than {_MAX_CARD >> 20} MiB, which is too large for a card")
    return path.read_text(encoding="utf-8")


def _check_files(path: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Refuse files that are somewhere else, by way of links; those of the Hub's own cache are. Raises UserError."""
    folder = path.resolve()
    inside = [folder, folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else [folder]
    for each in (Path(name) for names in files.values() for name in names):
        if not any(each.resolve().is_relative_to(parent) for parent in inside):
            raise UserError(f"{path}: a link leads out of the folder, and is not read: {each.name}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _guarded_rows(path: Path, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Record]:
    with _read_by_datasets(path):
        for number, row in rows:
            yield Record(number, {name: _json(value) for name, value in row.items()})


def _guarded_records(path: Path, table: Any) -> Iterator[Record]:
    with _read_by_datasets(path):
        yield from _records(table.with_format("arrow").iter(batch_size=_BATCH))


@contextmanager
def _read_by_datasets(path: Path) -> Iterator[None]:
    """Whatever the library finds wrong with the files is said in one line."""
    from datasets.exceptions import DatasetsError
    from pyarrow import ArrowException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        yield
    except (DatasetsError, ArrowException, YAMLError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise UserError(f"{path}: not a readable Hugging Face dataset: {first_line(cause)}") from error


def saved_dataset(path: Path) -> Any:
    """What Hugging Face's ``save_to_disk`` wrote to a folder: a dataset, or a dict of its splits by name. Raises UserError."""
    try:
        import datasets
    except ImportError:
        raise missing_extra(path, "a Hugging Face dataset") from None
    try:
        return datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable Hugging Face dataset: {first_line(error)}") from error


def _choose_split(path: Path, splits: Mapping[str, Any], name: str | None) -> Any:
    names = ", ".join(sorted(splits))
    if name is not None:
        if name not in splits:
            known = "it has no splits" if names == "None" else f"its splits are: {names}"
            raise UserError(f"{path}: the dataset has no split called {name!r}{suggestion(name, splits)}; {known}")
        return splits[name]
    if len(splits) == 1:
        return next(iter(splits.values()))
    if "train" in splits:
        return splits["train"]
    raise UserError(
        f'{path}: the dataset has several splits and none is called "train" ({names}); name one with --split=NAME'
    )


def _records(batches: Iterator[Any]) -> Iterator[Record]:
    numbers = count(1)
    for batch in batches:
        for row in batch.to_pylist():
            yield Record(next(numbers), {name: _json(value) for name, value in row.items()})


def _json(value: Any) -> Json:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else None
        case dict():
            return {str(name): _json(part) for name, part in value.items()}
        case list() | tuple():
            return [_json(part) for part in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return b64encode(value).decode()
    return str(value)
