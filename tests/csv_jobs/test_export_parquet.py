"""Exports as Parquet: types kept, types found, and types of the results."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from manyhands.core.outcomes import Outcome
from tests.support.table_runs import export_table, reported

NONE: dict[str, Any] = {}


def unended(index: int) -> Outcome | None:
    return None


def export(folder: Path, source: Path, results: list[dict[str, Any]] | None = None, **options: Any) -> pa.Table:
    """The export of a job over a table whose first rows have these results."""
    target = folder / "out.parquet"
    ending = (lambda index: reported(results[index]) if index < len(results) else None) if results else unended
    export_table(source, folder / "job", target, ending, options.pop("schema", None), format="parquet", **options)
    return parquet.read_table(target)


def jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


INSTANT = 1_770_330_555_123_456_789
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "half": (pa.float16(), [1.5, -0.25]),
    "single": (pa.float32(), [0.1, float("inf")]),
    "double": (pa.float64(), [5e-324, float("-inf")]),
    "text": (pa.string(), ["", "é\0\n,"]),
    "large_text": (pa.large_string(), ["x", "\U0001f600"]),
    "bytes": (pa.binary(), [b"", b"\xff\x00"]),
    "large_bytes": (pa.large_binary(), [b"a", b"\xff"]),
    "fixed": (pa.binary(3), [b"abc", b"\0\xff\0"]),
    "decimal": (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal("-9999999999999999999999999999.0000000001")]),
    "wide_decimal": (pa.decimal256(60, 0), [Decimal(10) ** 59, Decimal(-1)]),
    "date": (pa.date32(), [-719_162, 2_932_896]),  # 0001-01-01 and 9999-12-31
    "leap": (pa.date32(), [11_016, -25_509]),  # 2000-02-29 and 1900-02-28
    "clock_ms": (pa.time32("ms"), [0, 86_399_999]),
    "clock_ns": (pa.time64("ns"), [1, 86_399_999_999_999]),
    "at_ms": (pa.timestamp("ms"), [-1, 253_402_300_799_999]),
    "at_us": (pa.timestamp("us", "UTC"), [-1, 1]),
    "at_ns": (pa.timestamp("ns"), [INSTANT, -INSTANT]),
    "at_zone": (pa.timestamp("ns", "America/New_York"), [INSTANT, 0]),
    "span": (pa.duration("ns"), [-1, INSTANT]),
    "span_s": (pa.duration("s"), [-86_400, 1]),
    "choice": (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    "list": (pa.list_(pa.timestamp("us")), [[1, None], []]),
    "large_list": (pa.large_list(pa.binary()), [[b"\0"], [None]]),
    "fixed_list": (pa.list_(pa.int16(), 2), [[1, 2], [None, 3]]),
    "struct": (
        pa.struct([("a", pa.date32()), ("b", pa.list_(pa.decimal128(5, 2)))]),
        [{"a": 1, "b": [Decimal("1.50")]}, {"a": None, "b": None}],
    ),
    "map": (pa.map_(pa.string(), pa.duration("us")), [[("k", 5), ("k", None)], []]),
    "uuid": (pa.uuid(), [b"a" * 16, b"\xff" * 16]),
    "json": (pa.json_(), ['{"a":1}', "null"]),
    "uuids": (pa.list_(pa.binary(16)), [[b"a" * 16, None], []]),
    "choices": (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "a"], [None]]),
    "null": (pa.null(), [None, None]),
    "deep": (
        pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.list_(pa.float32())))])),
        [[{"m": [(1, [float("-inf")])]}], [{"m": None}, None]],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_a_parquet_table_keeps_its_type_and_its_exact_values(tmp_path: Path, name: str) -> None:
    kind, values = COLUMNS[name]
    table = pa.table({name: pa.array([*values, None], kind), "number": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "in.parquet")
    table = parquet.read_table(tmp_path / "in.parquet")  # Parquet itself changes a few types
    found = export(tmp_path, tmp_path / "in.parquet")
    assert found.schema.field(name).type == table.schema.field(name).type
    assert found.select([name, "number"]).equals(table)


def test_a_dictionary_inside_a_struct_keeps_its_type_and_its_values(tmp_path: Path) -> None:
    """Compared by values: Arrow's own dictionaries differ in entries that nothing refers to."""
    kind = pa.struct([("c", pa.dictionary(pa.int8(), pa.string()))])
    values = [{"c": "x"}, {"c": None}, None]
    parquet.write_table(pa.table({"s": pa.array(values, kind)}), tmp_path / "in.parquet")
    found = export(tmp_path, tmp_path / "in.parquet")
    assert found.schema.field("s").type == kind
    assert found["s"].to_pylist() == values


def test_extension_types_inside_lists_are_kept(tmp_path: Path) -> None:
    column = pa.array([[b"a" * 16, None], None], pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid()))
    parquet.write_table(pa.table({"ids": column}), tmp_path / "in.parquet")
    found = export(tmp_path, tmp_path / "in.parquet")
    assert found.select(["ids"]).equals(parquet.read_table(tmp_path / "in.parquet"))


def test_not_a_number_stays_so(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [float("nan"), 1.0, None]}), tmp_path / "in.parquet")
    found = export(tmp_path, tmp_path / "in.parquet")["x"].to_pylist()
    assert found[0] != found[0]
    assert found[1:] == [1.0, None]


@given(
    instants=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=5),
    days=st.lists(st.integers(-719_162, 2_932_896) | st.none(), min_size=5, max_size=5),
    spans=st.lists(st.integers(-(2**62), 2**62) | st.none(), min_size=5, max_size=5),
)
def test_any_time_is_kept_to_the_nanosecond(
    instants: list[int | None], days: list[int | None], spans: list[int | None]
) -> None:
    columns = {
        "at": pa.array(instants, pa.timestamp("ns", "UTC")),
        "day": pa.array(days[: len(instants)], pa.date32()),
        "span": pa.array(spans[: len(instants)], pa.duration("ns")),
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "in.parquet"
        parquet.write_table(pa.table(columns), path)
        assert export(Path(name), path).select(list(columns)).equals(parquet.read_table(path))


def test_our_columns_have_types(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("a\n1\n2\n", encoding="utf-8")
    found = export(tmp_path, source, [{"score": 1}])
    types = {field.name: str(field.type) for field in found.schema}
    expected = dict.fromkeys(["a", "job_id", "item_id", "source_id", "status", "last_error", "result_json"], "string")
    expected |= {"row_index": "int64", "attempt_count": "int64"}
    assert types == expected | dict.fromkeys(["reported_at", "completed_at"], "timestamp[ms, tz=UTC]")
    first, second = found.to_pylist()
    assert (first["a"], first["row_index"], first["result_json"]) == ("1", 0, '{"score":1}')
    assert first["reported_at"] == datetime(2026, 2, 5, 22, 29, 15, tzinfo=UTC)
    assert (second["status"], second["result_json"], second["completed_at"]) == ("pending", None, None)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None, -(2**63)], "int64", [1, None, -(2**63)]),
        ([1, 2**63], "string", ["1", str(2**63)]),
        ([1, 0.5], "double", [1.0, 0.5]),
        ([2**53 + 1, 0.5], "string", [str(2**53 + 1), "0.5"]),
        ([True, None], "bool", [True, None]),
        ([True, 1], "string", ["true", "1"]),
        (["a", ""], "string", ["a", ""]),
        (["a", 1], "string", ['"a"', "1"]),
        ([[1], {"b": "ü"}], "string", ["[1]", '{"b":"ü"}']),
        ([None, None], "string", [None, None]),
        (["\ud800x", "y"], "string", ["\ufffdx", "y"]),
    ],
)
def test_a_column_of_json_lines_has_the_type_that_its_values_share(
    tmp_path: Path, values: list[Any], kind: str, expected: list[Any]
) -> None:
    found = export(tmp_path, jsonl(tmp_path, [{"x": value, "y": 1} for value in values]))
    assert str(found.schema.field("x").type) == kind
    assert found["x"].to_pylist() == expected


@pytest.mark.parametrize(
    ("stated", "values", "kind", "expected"),
    [
        ({"type": "integer"}, [3, 4.0], "int64", [3, 4]),
        ({"type": "integer"}, [3, 2**70], "string", ["3", str(2**70)]),
        ({"type": "number"}, [3, 4], "double", [3.0, 4.0]),
        ({"type": ["number", "null"]}, [3, None], "double", [3.0, None]),
        ({"type": "boolean"}, [], "bool", []),
        ({"type": "array"}, [[1], []], "string", ["[1]", "[]"]),
        ({"type": ["string", "integer"]}, ["a", 1], "string", ['"a"', "1"]),
        ({"enum": ["low", "high"]}, ["low", "high"], "string", ["low", "high"]),
        ({}, [1, 2], "int64", [1, 2]),
    ],
)
def test_a_property_of_the_results_has_the_type_of_the_schema_if_its_values_fit(
    tmp_path: Path, stated: dict[str, Any], values: list[Any], kind: str, expected: list[Any]
) -> None:
    schema = {"type": "object", "properties": {"p": stated}}
    source = jsonl(tmp_path, [{"x": 1}] * 3)
    found = export(tmp_path, source, [{"p": value} for value in values], schema=schema, flatten=True)
    assert str(found.schema.field("result.p").type) == kind
    assert found["result.p"].to_pylist() == [*expected, *[None] * (3 - len(expected))]


def test_a_table_without_rows_gives_a_file_with_columns(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("a,b\n", encoding="utf-8")
    found = export(tmp_path, source)
    assert found.num_rows == 0
    assert found.column_names[:3] == ["a", "b", "job_id"]


def test_columns_chain_with_their_types(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([INSTANT], pa.timestamp("ns")), "tags": pa.array([["a"]], pa.list_(pa.string()))})
    parquet.write_table(table, tmp_path / "0.parquet")
    for stage in range(1, 6):
        source, target = tmp_path / f"{stage - 1}.parquet", tmp_path / f"{stage}.parquet"
        export_table(
            source, tmp_path / f"job{stage}", target, lambda index: reported({"n": 1}), format="parquet", flatten=True
        )
        before, after = parquet.read_table(source), parquet.read_table(target)
        assert after.select(before.column_names).equals(before)
    assert after.schema.field("stage5_result.n").type == pa.int64()
    assert after.schema.field("stage4_reported_at").type == pa.timestamp("ms", "UTC")
