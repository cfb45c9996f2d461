"""Parquet tables, read in batches through pyarrow (the extra ``datasets``); ``parquet_values`` says how values become JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.csv_jobs.parquet_values import json_values
from manyhands.csv_jobs.rows import TableInfo
from manyhands.csv_jobs.table_base import RawRow, Unit, check_headers, first_line, reading

_BATCH = 1000
"""Rows that are held at once, at most."""
_BATCH_BYTES = 16 << 20
_BUFFER = 1 << 20
"""Bytes of a column that are read at once, so that a large row group is never held whole."""


class ParquetTable:
    """A Parquet file whose schema has been read."""

    unit: Unit = "row"

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file can't be read, has no usable columns, or pyarrow is not installed."""
        self.path = path
        with self._opened() as file:
            schema = file.schema_arrow
        if not schema.names:
            raise UserError(f"{path}: csv input must include a header row: here, a column")
        check_headers(str(path), schema.names)
        serialised = b64encode(schema.serialize().to_pybytes()).decode()
        self.info = TableInfo(str(path.absolute()), "parquet", tuple(schema.names), arrow_schema=serialised)

    def rows(self) -> Iterator[RawRow]:
        numbers = count(1)
        with self._opened() as file:
            if tuple(file.schema_arrow.names) != self.info.headers:
                raise UserError(f"{self.path}: the columns changed since the table was opened")
            for batch in file.iter_batches(batch_size=_batch_rows(file.metadata)):
                columns = [json_values(column) for column in batch.columns]
                yield from (RawRow(next(numbers), cells) for cells in zip(*columns, strict=True))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UserError(
                f"{self.path}: reading a .parquet table needs more libraries: pip install 'manyhands[datasets]'"
            ) from None
        try:
            with reading(self.path), _file(parquet, self.path) as file:
                yield file
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise UserError(f"{self.path}: not a readable Parquet file: {first_line(error)}") from error


def _file(parquet: Any, path: Path) -> Any:
    return parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)


def _batch_rows(metadata: Any) -> int:
    """How many rows to hold at once: fewer where rows are large."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(_BATCH, _BATCH_BYTES * rows // max(size, 1)))
