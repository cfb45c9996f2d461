"""Parquet tables and how their values become JSON."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tracemalloc
from base64 import b64decode
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from manyhands.core.errors import UserError
from manyhands.io.tables.base import RawRow
from manyhands.io.tables.formats import open_table
from manyhands.io.tables.parquet import json_values


def write(folder: Path, table: Any, **settings: Any) -> Path:
    path = folder / "t.parquet"
    parquet.write_table(table, path, **settings)
    return path


def error(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(open_table(path).rows())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_parquet_table(tmp_path: Path) -> None:
    written = pyarrow.table({"id": [1, 2], "text": ["a", None], "parts": [[{"x": b"\xff"}], []]})
    table = open_table(write(tmp_path, written))
    assert (table.info.format, table.info.headers, table.unit) == ("parquet", ("id", "text", "parts"), "row")
    assert list(table.rows()) == [RawRow(1, (1, "a", [{"x": "/w=="}])), RawRow(2, (2, None, []))]
    assert table.info.arrow_schema is not None
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(table.info.arrow_schema)))
    assert schema.equals(written.schema)


NANOSECOND = 1_600_000_000_000_000_001


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pyarrow.bool_(), [True, None], [True, None]),
        (pyarrow.uint64(), [2**64 - 1, None], [2**64 - 1, None]),
        (pyarrow.float64(), [0.5, float("nan"), float("inf"), float("-inf")], [0.5, "NaN", "Infinity", "-Infinity"]),
        (pyarrow.null(), [None], [None]),
        (pyarrow.large_string(), ["ä", None], ["ä", None]),
        (pyarrow.binary(2), [b"\0\xff", None], ["AP8=", None]),
        (pyarrow.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01"), None], ["1.50", "-0.01", None]),
        (pyarrow.decimal256(60, 40), [Decimal("1e-40")], ["0." + "0" * 39 + "1"]),
        (pyarrow.date32(), [datetime.date(2024, 2, 29), None], ["2024-02-29", None]),
        (pyarrow.time64("us"), [datetime.time(1, 2, 3, 4)], ["01:02:03.000004"]),
        (pyarrow.time32("s"), [datetime.time(1, 2, 3)], ["01:02:03"]),
        (pyarrow.timestamp("ns"), [NANOSECOND, None], ["2020-09-13T12:26:40.000000001", None]),
        (pyarrow.timestamp("us"), [datetime.datetime(2024, 1, 1, 12)], ["2024-01-01T12:00:00.000000"]),
        (pyarrow.timestamp("s"), [datetime.datetime(2024, 1, 1, 12)], ["2024-01-01T12:00:00"]),
        (pyarrow.timestamp("ms", "UTC"), [1], ["1970-01-01T00:00:00.001+00:00"]),
        (pyarrow.timestamp("s", "Europe/Berlin"), [0], ["1970-01-01T00:00:00+00:00"]),
        (pyarrow.duration("ms"), [1500, -1, 0, 60_000, None], ["PT1.5S", "-PT0.001S", "PT0S", "PT60S", None]),
        (pyarrow.duration("s"), [90], ["PT90S"]),
        (pyarrow.list_(pyarrow.timestamp("ns")), [[NANOSECOND, None], None, []], [["2020-09-13T12:26:40.000000001", None], None, []]),
        (pyarrow.list_(pyarrow.int8(), 2), [[1, 2], None, [3, None]], [[1, 2], None, [3, None]]),
        (
            pyarrow.map_(pyarrow.string(), pyarrow.binary()),
            [[("k", b"x"), ("l", None)], None, []],
            [[{"key": "k", "value": "eA=="}, {"key": "l", "value": None}], None, []],
        ),
        (
            pyarrow.struct([("a", pyarrow.date32())]),
            [{"a": datetime.date(2024, 1, 2)}, None, {"a": None}],
            [{"a": "2024-01-02"}, None, {"a": None}],
        ),
        (pyarrow.struct([]), [{}, None], [{}, None]),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["a", None, "a"], ["a", None, "a"]),
    ],
)  # fmt: skip
def test_values_become_json(kind: Any, values: list[Any], expected: list[Any]) -> None:
    array = pyarrow.array(values, kind)
    assert json_values(array) == expected
    # A part of an array shares its memory with the whole, at an offset.
    assert json_values(array.slice(1)) == expected[1:]
    assert json_values(pyarrow.array([None, *values], kind).slice(1)) == expected


NESTED = st.lists(
    st.none() | st.lists(st.none() | st.fixed_dictionaries({"a": st.none() | st.lists(st.none() | st.integers(0, 9))}))
)


@given(NESTED, st.integers(0, 3), st.integers(0, 5))
def test_nested_values_keep_their_shape(values: list[Any], start: int, length: int) -> None:
    kind = pyarrow.list_(pyarrow.struct([("a", pyarrow.list_(pyarrow.int64()))]))
    assert json_values(pyarrow.array(values, kind).slice(start, length)) == values[start : start + length]


def test_all_columns_of_a_file_with_several_groups_and_types(tmp_path: Path) -> None:
    count = 5_000
    table = pyarrow.table(
        {
            "n": range(count),
            "day": pyarrow.array(range(count), pyarrow.date32()),
            "word": pyarrow.array([f"w{n % 7}" for n in range(count)]).dictionary_encode(),
        }
    )
    rows = list(open_table(write(tmp_path, table, row_group_size=700)).rows())
    assert [row.line for row in rows] == list(range(1, count + 1))
    assert rows[4_999] == RawRow(5_000, (4_999, "1983-09-09", "w1"))


def test_files_that_are_no_parquet_table(tmp_path: Path) -> None:
    path = write(tmp_path, pyarrow.table({"a": [1]}))
    whole = path.read_bytes()
    for content in (b"", b"a,b\n", whole[:-4]):
        path.write_bytes(content)
        assert error(path).startswith(f"{path}: not a readable Parquet file: ")
    path.write_bytes(whole[:4] + bytes(30) + whole[34:])
    assert str(path) in error(path)


def test_columns_that_can_not_be_used(tmp_path: Path) -> None:
    column = pyarrow.array([1])
    path = write(tmp_path, pyarrow.Table.from_arrays([column, column], ["a", "a"]))
    assert error(path) == f"{path}: csv header a is duplicated (columns 1 and 2); rename one of them"
    table = open_table(write(tmp_path, pyarrow.table({"a": column, " ": column})))
    assert (table.info.headers, [row.cells for row in table.rows()]) == (("a", "column_2"), [(1, 1)])
    path = write(tmp_path, pyarrow.table({}))
    assert "csv input must include a header row" in error(path)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    text = pyarrow.array([b"\xff"]).view(pyarrow.string())
    assert str(tmp_path) in error(write(tmp_path, pyarrow.table({"a": text})))


def test_a_large_row_group_is_streamed(tmp_path: Path) -> None:
    count = 400_000
    table = pyarrow.table({"id": range(count), "text": [f"text {n}" * 5 for n in range(count)]})
    path = write(tmp_path, table, row_group_size=count)
    del table
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    held = max(pyarrow.total_allocated_bytes() - before for row in open_table(path).rows() if row.line % 10_000 == 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
    assert held < 8_000_000


def test_few_large_rows_are_held_at_once(tmp_path: Path) -> None:
    value = "".join(f"{n:x} " for n in range(500_000))
    table = pyarrow.table({"text": [f"{n} {value}" for n in range(40)]})
    # A page of a file is always read whole: here, a row is a page.
    path = write(tmp_path, table, use_dictionary=False, write_batch_size=1)
    del table
    before, held = pyarrow.total_allocated_bytes(), []
    for row in open_table(path).rows():
        assert len(row.cells[0]) > len(value)
        held.append(pyarrow.total_allocated_bytes() - before)
    assert len(held) == 40
    assert max(held) < 20 * len(value)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
sys.modules["pyarrow"] = None  # as if it was not installed
from manyhands.io.tables.formats import open_table
try:
    open_table(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""
    path = write(tmp_path, pyarrow.table({"a": [1]}))
    command = [sys.executable, "-c", program, str(path)]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)}
    ).stdout
    expected = f"UserError {path}: reading a .parquet table needs more libraries: pip install 'manyhands[datasets]'\n"
    assert output == expected
