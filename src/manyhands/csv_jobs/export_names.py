"""What names of files say of the format that results are written in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.csv_jobs.rows import TableFormat

SUFFIXES: Mapping[TableFormat, str] = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet"}
NAMES: Mapping[str, str] = {"csv": "CSV", "jsonl": "JSON Lines", "parquet": "Parquet"}
"""What formats are called in messages."""
_NAMED: Mapping[str, TableFormat] = {**{end: name for name, end in SUFFIXES.items()}, ".tsv": "csv", ".ndjson": "jsonl"}
_OTHER_FORMATS = frozenset(
    (
        *(".json", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm", ".md", ".pdf"),
        *(".xlsx", ".xls", ".ods", ".db", ".sqlite", ".arrow", ".feather", ".orc", ".avro"),
        *(".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z"),
    )
)
"""Endings that promise what is not written."""


def format_in_name(path: Path) -> TableFormat | None:
    """The format that a file's name stands for, if it says one; text also with ``.gz`` behind."""
    return _NAMED.get(_ending(path))


def format_of(path: Path) -> TableFormat:
    """What a file of this name holds where nobody says; CSV unless its name says otherwise."""
    return format_in_name(path) or "csv"


def check_name(path: Path, format: TableFormat | None = None) -> None:
    """Raises UserError for a name that promises another format than those that are written, unless the person named one (``format``),
    and for one that says that Parquet is packed."""
    ending = _ending(path)
    if format is None and ending in _OTHER_FORMATS:
        known = ", ".join(_NAMED)
        raise UserError(
            f"{path}: results are not written as {ending}; let it end in one of {known}, or name the format"
        )
    if (format or format_of(path)) == "parquet" and path.suffix.lower() == ".gz":
        raise UserError(f"{path}: Parquet is compressed in itself; leave out .gz")


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix
