"""The plan that keeps metadata.source one Arrow type."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import json as arrow_json

from manyhands.workloads.trajectories.dataset.source_fields import EARLY, SourceFields, SourceFieldsBuilder

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("abc")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
sources = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), values), min_size=1, max_size=6)


def plan(*rows: dict[str, Any], limit: int = 200) -> SourceFields:
    builder = SourceFieldsBuilder(limit)
    for row in rows:
        builder.add(row)
    return builder.build()


def test_every_field_is_present_in_order_of_first_appearance() -> None:
    fields = plan({"b": 1}, {"a": "x"}, {"b": 2, "c": True})
    assert fields.fields == (("b", True), ("a", True), ("c", True))
    assert list(fields.arrange({"a": "y"}).items()) == [("b", None), ("a", "y"), ("c", None)]


def test_a_field_that_shows_its_type_late_is_json_text() -> None:
    """A reader would have settled on null by then."""
    early: list[dict[str, Any]] = [{}] * (EARLY - 1)
    late: list[dict[str, Any]] = [{}] * EARLY
    assert plan(*early, {"a": "x"}).fields == (("a", True),)
    assert plan(*late, {"a": "x"}).fields == (("a", False),)
    assert plan(*late, {"a": "x"}).arrange({})["a"] == "null"
    assert plan({"a": [1]}, {}).fields == (("a", True),)
    assert plan({}, {"a": [1]}).fields == (("a", False),)
    assert plan({"a": "2024-01-01"}, {}).fields == (("a", False),)
    assert plan({"a": None}, {"a": None}).fields == (("a", False),)


@pytest.mark.parametrize(
    ("first", "second", "written"),
    [
        ("text", 5, ['"text"', "5"]),
        (True, 1, ["true", "1"]),
        ({"x": 1}, {"y": 1}, ['{"x": 1}', '{"y": 1}']),
        ([1], ["é"], ["[1]", '["é"]']),
        (2**70, 2**70, [str(2**70)] * 2),
        ({}, {}, ["{}", "{}"]),
        (2**60, 0.5, [str(2**60), "0.5"]),
        ([], [1], ["[]", "[1]"]),
        ([[]], [[]], ["[[]]", "[[]]"]),
        ([None], ["x"], ["[null]", '["x"]']),
        ({"x": None}, {"x": 1}, ['{"x": null}', '{"x": 1}']),
        ("2024-01-01", "soon", ['"2024-01-01"', '"soon"']),
    ],
)
def test_what_has_no_one_type_is_written_as_json_text(first: Any, second: Any, written: list[str]) -> None:
    fields = plan({"a": first}, {"a": second})
    assert fields.fields == (("a", False),)
    assert [fields.arrange({"a": first})["a"], fields.arrange({"a": second})["a"]] == written


@pytest.mark.parametrize(
    ("first", "second"),
    [("", "x"), ([1, 2], [3]), ({"x": 1}, {"x": 2}), (5, 2**60), ([["a"]], [["b"]]), ("2024-01-01", "2025-02-03")],
)
def test_what_arrow_can_hold_in_one_column_stays_as_it_is(first: Any, second: Any) -> None:
    fields = plan({"a": first}, {"a": second})
    assert fields.fields == (("a", True),)
    assert fields.arrange({"a": second}) == {"a": second}


def test_whole_numbers_among_decimals_become_decimals() -> None:
    fields = plan({"score": 1}, {"score": 0.5})
    assert json.dumps(fields.arrange({"score": 1})) == '{"score": 1.0}'


def test_fields_beyond_the_limit_are_gathered_and_not_lost() -> None:
    fields = plan({"a": 1, "b": 2}, {"c": 3}, limit=1)
    assert fields.arrange({"a": 1, "c": 3}) == {"a": 1, "other_fields": '{"c": 3}'}
    assert fields.arrange({"a": 1}) == {"a": 1, "other_fields": "{}"}


def test_a_field_that_was_not_planned_for_is_not_lost() -> None:
    assert plan({"a": 1}).arrange({"new": [1]}) == {"a": None, "other_fields": '{"new": [1]}'}


def test_a_field_of_our_own_name_does_not_collide() -> None:
    fields = plan({"other_fields": 7})
    assert fields.arrange({"other_fields": 7}) == {"other_fields": '{"other_fields": 7}'}


def test_the_plan_survives_json() -> None:
    fields = plan({"a": 1, "b": "x", "c": 1}, {"b": 2, "c": 0.5}, {"d": 1}, limit=3)
    assert SourceFields.from_json(json.loads(json.dumps(fields.to_json()))) == fields


@given(sources)
def test_arrow_reads_all_rows_with_one_type_a_field(rows: list[dict[str, Any]]) -> None:
    fields = plan(*rows)
    if not fields.fields:
        return
    arranged = [fields.arrange(row) for row in rows]
    for order in (arranged, arranged[::-1]):
        table = arrow_json.read_json(io.BytesIO("\n".join(json.dumps(row) for row in order).encode()))
        types = {column.name: str(column.type) for column in table.schema}
        for row in order:
            for column in arrow_json.read_json(io.BytesIO(json.dumps(row).encode())).schema:
                assert str(column.type) in ("null", types[column.name])
