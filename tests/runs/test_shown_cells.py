"""Cells and grades of what runs show: bounded for any value, and silent about what is not as it should be."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from manyhands.runs.shown.blocks import Fold, Table, block_json
from manyhands.runs.shown.cells import AFTER, pager, position_in, size_cell, value_cell
from manyhands.runs.shown.grades import grade_blocks, graded_blocks

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_cells_are_bounded_and_json(value: Any) -> None:
    cell = value_cell(value)
    assert len(cell.text) <= 80
    assert len(cell.about) <= 1000
    json.dumps(block_json(cell), allow_nan=False)


def test_large_values_are_looked_at_only_in_part() -> None:
    deep: Any = "x" * 10_000_000
    for _ in range(10_000):
        deep = [deep] * 30
    assert value_cell(deep).text == '[[["…","…","…","…","…","…","…","…","…","…","…","…","…","…","…","…","…","…","…",…'
    assert value_cell(" " * 1_000_000 + "x").text == "…"
    assert value_cell("a\n b").text == "a b"
    assert (value_cell(True).value, value_cell(2).value, value_cell(float("nan")).value) == (None, 2.0, None)


@given(st.text())
def test_whatever_is_no_position_is_the_beginning(text: str) -> None:
    assert position_in({AFTER: text}) >= -1


def test_positions_are_read() -> None:
    assert position_in({AFTER: "99"}) == 99
    assert [position_in({AFTER: text}) for text in ("", "-1", "x", "²", "٣", "9" * 30)] == [-1] * 6


def test_a_pager_keeps_what_else_is_asked_for() -> None:
    facts = {fact.label: fact.cell for fact in pager("table", {"state": "failed", AFTER: "5"}, "rows", 105).facts}
    assert facts["Next"].link is not None
    assert facts["Next"].link.query == {"state": "failed", AFTER: "105"}
    assert facts["Back"].link is not None
    assert facts["Back"].link.query == {"state": "failed"}
    assert [fact.label for fact in pager("table", {}, "rows", None).facts] == ["Shown"]


def test_sizes_are_read_by_people() -> None:
    assert [size_cell(size).text for size in (0, 1023, 1024, 5 << 20, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]


def test_members_of_composites_are_within_them() -> None:
    member = {
        "name": "in",
        "type": "regex",
        "score": 0.0,
        "weight": 1.0,
        "verdict": "fail",
        "hits": [],
        "misses": ["x"],
    }
    whole = {**member, "name": "out", "misses": [], "scores": [member], "reasoning": "R."}
    fold = next(each for each in grade_blocks(0.0, "fail", [whole]) if isinstance(each, Fold))
    (inner,) = [each for each in fold.blocks if isinstance(each, Fold)]
    assert (fold.title, inner.title) == ("out", "in")
    assert [each.title for each in inner.blocks if isinstance(each, Table)] == ["", "Misses and hits"]


def test_graders_that_broke_or_were_left_out_say_so() -> None:
    scores: list[dict[str, Any]] = [
        {"name": "a", "type": "t", "score": None, "verdict": "error", "hits": [], "misses": [], "error": "no answer"},
        {
            "name": "b",
            "type": "t",
            "score": None,
            "verdict": "left_out",
            "hits": [],
            "misses": [],
            "left_out": "no file",
        },
    ]
    folds = [each for each in grade_blocks(None, "error", scores) if isinstance(each, Fold)]
    assert [(each.title, each.is_open) for each in folds] == [("a", True), ("b", False)]
    assert [block_json(each.blocks[0])["text"] for each in folds] == [
        "The grader itself failed: no answer",
        "Left out, as there is nothing to compare with: no file",
    ]


def test_an_item_that_was_not_graded_has_no_grade() -> None:
    assert list(graded_blocks(None)) == list(graded_blocks({"grade": None})) == list(graded_blocks({})) == []
