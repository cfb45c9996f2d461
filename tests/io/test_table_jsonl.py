"""JSON Lines tables, and the choice of a format by name."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.tables.base import RawRow, TableInfo
from manyhands.io.tables.formats import format_of_table, open_table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=8,
)
NAMES = st.text(max_size=6).filter(lambda name: name.strip() != "")


def write(folder: Path, content: str | bytes, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **settings: Any) -> list[RawRow]:
    return list(open_table(path, **settings).rows())


def error(path: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_are_the_keys_of_all_lines(tmp_path: Path) -> None:
    table = open_table(write(tmp_path, '{"b": 1}\r\n\n  \t\n{"a": [1, {"x": null}], "b": "\\u00e4"}\n{}'))
    assert table.info == TableInfo(str(tmp_path / "t.jsonl"), "jsonl", ("b", "a"), "utf-8")
    assert list(table.rows()) == [
        RawRow(1, [1, None]),
        RawRow(4, ["ä", [1, {"x": None}]]),
        RawRow(5, [None, None]),
    ]


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=6).filter(any), st.booleans())
def test_what_json_writes_is_read_back(rows: list[dict[str, Any]], ascii_only: bool) -> None:
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        table = open_table(write(Path(folder), text))
        found = list(table.rows())
    headers = list(dict.fromkeys(name for row in rows for name in row))
    assert list(table.info.headers) == headers
    assert [list(row.cells) for row in found] == [[row.get(name) for name in headers] for row in rows]
    assert [type(cell) for row in found for cell in row.cells] == [type(row.get(n)) for row in rows for n in headers]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nope", "invalid JSON at column 1: Expecting value"),
        ('{"a": 1,}', "invalid JSON at column 9: "),
        ("[1]", "not a JSON object"),
        ('"a"', "not a JSON object"),
        ('{"a": 1, "b": 2, "a": 3}', "invalid JSON: the key a comes twice in one object"),
        ('{"a": 1, "a" : 3}', "invalid JSON: the key a comes twice in one object"),
        ('{"a": "\\": ", "b": {"c": 1, "c": 2}}', "invalid JSON: the key c comes twice in one object"),
        ('{"a": 1, "\\u0061": 2}', "invalid JSON: the key a comes twice in one object"),
        ('{"a": NaN}', "invalid JSON: NaN is not JSON"),
        ('{"a": -Infinity}', "invalid JSON: -Infinity is not JSON"),
        ('{"a": 1e999}', "invalid JSON: the number 1e999 is too large"),
        ('{"a": -1E+400}', "invalid JSON: the number -1E+400 is too large"),
        (f'{{"a": {"9" * 400}.0}}', f"invalid JSON: the number {'9' * 80}… is too large"),
        (f'{{"a": {"9" * 5000}}}', "invalid JSON: Exceeds the limit"),
        (f'{{"a": {"[" * 100_000}}}', "invalid JSON"),
    ],
)
def test_lines_that_can_not_be_used(tmp_path: Path, line: str, problem: str) -> None:
    good, bad, other = read(write(tmp_path, f'{{"a": 1}}\n\n{line}\n{{"a": 2}}\n'))
    assert (good, other) == (RawRow(1, [1]), RawRow(4, [2]))
    assert (bad.line, list(bad.cells)) == (3, [])
    assert bad.problem is not None
    assert bad.problem.startswith(problem)


@pytest.mark.parametrize(
    "value",
    [
        10**18,
        10**19,
        -(10**40),
        1e300,
        1e-320,
        0.1234567890123456789,
        "1e999",
        'a": 1, "a": 2',
        {"a": 1},
        [{"a": 1}] * 2,
    ],
)
def test_unusual_values_stay_as_they_are(tmp_path: Path, value: Any) -> None:
    ((cell,),) = (row.cells for row in read(write(tmp_path, json.dumps({"a": value}))))
    assert (cell, type(cell)) == (value, type(value))


def test_bytes_that_do_not_decode_spoil_their_line_only(tmp_path: Path) -> None:
    rows = read(write(tmp_path, b'{"a": "\xe9"}\n{"a": "\xc3\xa9"}\n'))
    assert (
        rows[0].problem == "the byte 0xE9 is not utf-8 text; if the file has another encoding, name it with --encoding"
    )
    assert rows[1] == RawRow(2, ["é"])


def test_where_broken_utf_16_can_not_be_read_the_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a":\r1}\r\n{"a":\r2}\n'.encode("utf-16") + b"\x00\xdc{\x00")
    assert error(path).startswith(f"{path}, line 3: holds bytes that are not utf-16 text; ")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, '{"ä": "é\\r"}\r\n{"ä": 2}'.encode(encoding))
    assert read(path) == [RawRow(1, ["é\r"]), RawRow(2, [2])]
    assert read(path, encoding=encoding) == read(path)
    assert read(write(tmp_path, '{"a": "é"}'.encode("cp1252")), encoding="cp1252") == [RawRow(1, ["é"])]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", ": csv input must include a header row: here, a line that is a JSON object with a key"),
        ("{}\n", ": csv input must include a header row: here, a line that is a JSON object with a key"),
        (
            "x\n",
            ": csv input must include a header row: here, a line that is a JSON object with a key (line 1: invalid",
        ),
        ('{"a": 1}\n{"\\ud800": 1}\n', ", line 2: the key '\\ud800' can't be the name of a column"),
        (
            "".join(f'{{"{n}": 1}}\n' for n in range(20_000)),
            ", line 16385: the table has more than 16384 columns (different keys)",
        ),
    ],
)
def test_tables_that_can_not_be_used(tmp_path: Path, content: str, problem: str) -> None:
    path = write(tmp_path, content)
    assert error(path).startswith(f"{path}{problem}")


def test_a_table_that_changes_is_noticed(tmp_path: Path) -> None:
    table = open_table(write(tmp_path, '{"a": 1}\n'))
    path = write(tmp_path, '{"a": 1}\n{"b": 1}\n')
    with pytest.raises(UserError) as caught:
        list(table.rows())
    assert str(caught.value) == f"{path}, line 2: has a key that was not there when the table was opened"


def test_a_large_jsonl_table_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("w") as stream:
        stream.writelines(f'{{"id": {n}, "text": "{"a: b" * 25}"}}\n' for n in range(30_000))
    tracemalloc.start()
    count = sum(1 for _ in open_table(path).rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30_000
    assert peak < 2_000_000


# --- Formats by name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "csv"),
        ("a.CSV.GZ", "csv"),
        ("a.tsv", "csv"),
        ("a.txt", "csv"),
        ("a", "csv"),
        ("jsonl", "csv"),
        ("a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.JSONL.gz", "jsonl"),
        ("a.parquet", "parquet"),
    ],
)
def test_the_name_tells_the_format(name: str, expected: str) -> None:
    assert format_of_table(Path(name)).name == expected


@pytest.mark.parametrize(
    ("name", "hint"), [("a.json", "in a .jsonl file"), ("a.JSON.gz", ".jsonl"), ("a.ods", "as .xlsx or CSV")]
)
def test_names_of_what_is_no_table(tmp_path: Path, name: str, hint: str) -> None:
    path = write(tmp_path, '{"a": 1}', name)
    assert "is not a table that can be read here" in error(path)
    assert hint in error(path)


def test_a_format_given_counts_more_than_the_name(tmp_path: Path) -> None:
    assert read(write(tmp_path, '{"a": 1}', "a.json"), format="jsonl") == [RawRow(1, [1])]
    assert read(write(tmp_path, "a\n1\n", "a.jsonl"), format="csv") == [RawRow(2, ["1"])]
    assert read(write(tmp_path, gzip.compress(b'{"a": 1}'), "a.gz"), format="jsonl") == [RawRow(1, [1])]


def test_settings_that_do_not_go_with_the_format(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a": 1}')
    assert error(path, delimiter=",") == "a delimiter is for csv tables; this one is read as jsonl"
    assert error(path, format="parquet", encoding="utf-8").startswith("an encoding is for tables that are text; ")
