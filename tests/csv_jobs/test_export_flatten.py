"""Results spread into columns, and how the columns of an export are named."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from manyhands.workloads.csv_jobs.rows.export import MAX_LEAVES, Columns, Leaf, leaves_of
from tests.support.table_runs import export_table, reported

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "at": {"type": "array", "items": {"type": "number"}}},
}
TREE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}}}


def names(schema: dict[str, Any]) -> dict[str, str | None]:
    return {".".join(leaf.path): leaf.kind for leaf in leaves_of(schema)}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        ({"type": "object"}, {}),
        ({"properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}}}, {"b": "integer", "a": "boolean"}),
        (
            {"properties": {"where": PLACE, "n": {"type": "number"}}},
            {"where.city": "string", "where.at": "json", "n": "number"},
        ),
        (
            {"properties": {"x": {"type": ["null", "string"]}, "y": {"type": ["string", "integer"]}}},
            {"x": "string", "y": "json"},
        ),
        ({"properties": {"x": True, "y": {}, "z": {"enum": [1]}}}, {"x": None, "y": None, "z": None}),
        ({"properties": {"x": {"type": "object"}}}, {"x": "json"}),
        (
            {"properties": {"p": {"$ref": "#/$defs/place"}}, "$defs": {"place": PLACE}},
            {"p.city": "string", "p.at": "json"},
        ),
        ({"$ref": "#/$defs/place", "$defs": {"place": PLACE}}, {"city": "string", "at": "json"}),
        ({"properties": {"p": {"$ref": "#/$defs/a~1b%20c"}}, "$defs": {"a/b c": {"type": "string"}}}, {"p": "string"}),
        (
            {"properties": {"p": {"$ref": "#/$defs/list/1"}}, "$defs": {"list": [{}, PLACE]}},
            {"p.city": "string", "p.at": "json"},
        ),
        ({"properties": {"p": {"$ref": "https://example.com/other.json"}}}, {"p": None}),
        ({"properties": {"p": {"$ref": "#/$defs/none"}}}, {"p": None}),
        ({"properties": {"p": {"anyOf": [PLACE, {"type": "null"}]}}}, {"p.city": "string", "p.at": "json"}),
        ({"properties": {"p": {"anyOf": [PLACE, {"type": "string"}]}}}, {"p": None}),
        (
            {"allOf": [{"properties": {"a": {"type": "string"}}}, PLACE]},
            {"a": "string", "city": "string", "at": "json"},
        ),
        (
            {"properties": {"t": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": TREE}},
            {"t.value": "integer", "t.next": None},
        ),
        (
            {"properties": {"self": {"$ref": "#"}, "n": {"type": "integer"}}},
            {"self": None, "n": "integer"},
        ),
        ({"properties": {"a.b": {"type": "string"}, "": {"type": "string"}}}, {"a.b": "string", "": "string"}),
    ],
)
def test_the_leaves_of_a_schema(schema: dict[str, Any], expected: dict[str, str | None]) -> None:
    assert names(schema) == expected


def test_a_schema_that_spreads_without_end_is_refused_at_once() -> None:
    steps = {
        f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}, "y": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(30)
    }
    with pytest.raises(UserError, match=f"more than {MAX_LEAVES} columns"):
        leaves_of({"$ref": "#/$defs/d0", "$defs": steps})


def test_a_schema_that_refers_to_everything_everywhere_is_no_trap() -> None:
    everything = [{"$ref": f"#/$defs/d{n}"} for n in range(40)]
    steps: dict[str, Any] = {
        f"d{n}": {"allOf": everything, "properties": {f"p{n}": {"type": "string"}}} for n in range(40)
    }
    assert len(leaves_of({"allOf": everything, "$defs": steps})) == 40


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=3),
        lambda s: (
            st.lists(s) | st.dictionaries(st.sampled_from(["properties", "$ref", "allOf", "anyOf", "type", "a"]), s)
        ),
    )
)
@example([{"type": [[]]}])
@example([{"type": [{}]}])
def test_any_value_in_place_of_a_schema_is_no_trap(value: Any) -> None:
    assert all(
        leaf.path
        for leaf in leaves_of(
            {"properties": value, "$ref": "#/properties"} if isinstance(value, dict) else {"allOf": value}
        )
    )


def test_values_are_found_where_the_schema_says() -> None:
    assert Leaf(("a", "b"), None).of({"a": {"b": 0}}) == 0
    without: list[Any] = [{}, {"a": None}, {"a": 3}, {"a": {}}, None]
    assert [Leaf(("a", "b"), None).of(result) for result in without] == [None] * 5


def flat(
    folder: Path, results: list[dict[str, Any]], schema: dict[str, Any] | None, header: str = "a"
) -> list[list[str]]:
    """The flattened columns of an export, names first."""
    (folder / "in.csv").write_text(f"{header}\n" + "x\n" * len(results), encoding="utf-8")
    export_table(
        folder / "in.csv",
        folder / "run",
        folder / "out.csv",
        lambda index: reported(results[index]),
        schema,
        flatten=True,
    )
    text = (folder / "out.csv").read_text(encoding="utf-8")
    return [line[header.count(",") + 11 :] for line in csv.reader(io.StringIO(text, newline=""))]


def test_columns_of_the_schema_are_behind_ours(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "integer"}, "where": PLACE, "ok": {"type": "boolean"}}}
    results: list[dict[str, Any]] = [
        {"ok": True, "score": 5, "where": {"city": "a,b", "at": [1, 2.5]}, "more": 1},
        {"ok": None, "where": {"city": ""}},
    ]
    assert flat(tmp_path, results, schema) == [
        ["result.score", "result.where.city", "result.where.at", "result.ok"],
        ["5", "a,b", "[1,2.5]", "true"],
        ["", "", "", ""],
    ]


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}])
def test_without_named_properties_the_results_keys_are_the_columns(
    tmp_path: Path, schema: dict[str, Any] | None
) -> None:
    results: list[dict[str, Any]] = [{"b": 1}, {}, {"a": {"deep": True}, "b": "x"}]
    assert flat(tmp_path, results, schema) == [["result.b", "result.a"], ["1", ""], ["", ""], ["x", '{"deep":true}']]


def test_too_many_different_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than 4096 different keys"):
        flat(tmp_path, [{str(number): 1 for number in range(5000)}], None)


def test_properties_that_would_share_a_name_get_numbers(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"properties": {"a.b": {}, "a": {"properties": {"b": {}}}, "a.b_2": {}}}
    results = [{"a.b": 1, "a": {"b": 2}, "a.b_2": 3}]
    assert flat(tmp_path, results, schema) == [["result.a.b", "result.a.b_2", "result.a.b_2_2"], ["1", "2", "3"]]


@pytest.mark.parametrize(
    ("headers", "spread", "prefix"),
    [
        (["a", "Job_id", "result"], ["x"], ""),
        (["completed_at"], [], "stage2_"),
        (["result.x"], ["x"], "stage2_"),
        (["result.x"], ["y"], ""),
        (["status", "stage2_result.x"], ["x"], "stage3_"),
        (["status", "stage2_result.x"], [], "stage2_"),
        (["stage2_status"], [], ""),
        (["status", "stage2_status", "stage4_status"], [], "stage3_"),
    ],
)
def test_all_our_columns_get_the_first_prefix_that_collides_with_nothing(
    headers: list[str], spread: list[str], prefix: str
) -> None:
    columns = Columns.of(headers, [Leaf((name,), None) for name in spread])
    assert columns.names == (
        *headers,
        *(prefix + name for name in OUR_COLUMNS),
        *(f"{prefix}result.{name}" for name in spread),
    )


@given(
    st.lists(
        st.sampled_from([*OUR_COLUMNS, *(f"stage{n}_{name}" for n in range(1, 5) for name in OUR_COLUMNS), "a"]),
        unique=True,
    )
)
def test_no_two_columns_ever_share_a_name(headers: list[str]) -> None:
    columns = Columns.of(headers, [Leaf(("a",), None)])
    assert len(set(columns.names)) == len(columns.names) == len(headers) + 11
    assert columns.headers == tuple(headers)


def test_jsonl_keeps_the_values(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n", encoding="utf-8")
    export_table(
        tmp_path / "in.csv",
        tmp_path / "run",
        tmp_path / "out.jsonl",
        lambda index: reported({"p": {"city": "x", "at": [1]}}),
        {"properties": {"p": PLACE}},
        format="jsonl",
        flatten=True,
    )
    line = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert (line["result.p.city"], line["result.p.at"], line["result_json"]["p"]["at"]) == ("x", [1], [1])
