"""Cells and grades of what runs show: bounded for any value, and silent about what is not as it should be; and items of several runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import ItemRow, PlannedItem
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.engine.journal.store import Store
from manyhands.runs.shown import pairs
from manyhands.runs.shown.blocks import Fold, Section, Table, block_json
from manyhands.runs.shown.cells import AFTER, pager, position_in, size_cell, value_cell
from manyhands.runs.shown.grades import grade_blocks, graded_blocks
from manyhands.runs.shown.pairs import Measure, Seen, side_by_side
from tests.support.shown_blocks import damage, facts, parts, rows, text_in

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


# --- Items of several runs


def run_of(folder: Path, numbers: Iterable[int]) -> Path:
    """A run of completed items, whose keys are these numbers."""
    folder.mkdir()
    with closing(Store(folder, SystemClock(), print)) as store:
        store.set_meta(run_id=folder.name)
        ended = Outcome(ItemState.COMPLETED, {})
        store.plan((PlannedItem(f"k{number}", {"n": number}, ended) for number in numbers), 1)
    return folder


def compared(base: Path, *others: Path, after: int = -1, limit: int = 100) -> list[Section]:
    """Runs side by side, as pages show them, by the number in their items."""

    def seen(row: ItemRow) -> Seen:
        return Seen(row.key, figures={"n": row.payload["n"]})

    with ExitStack() as stack:
        reader, *rest = (stack.enter_context(closing(JournalBrowser(folder))) for folder in (base, *others))
        return list(side_by_side(reader, rest, {"after": str(after)}, [Measure("n", "n")], seen, limit=limit))


def test_common_items_are_found_however_late_they_come(tmp_path: Path) -> None:
    base = run_of(tmp_path / "base", range(450))
    (section,) = compared(base, run_of(tmp_path / "late", range(310, 450)))
    assert facts(section)["Shown"].text == "items 1 to 400, of which both have 90"
    onward = facts(section)["Next"].link
    assert onward is not None
    (last,) = compared(base, tmp_path / "late", after=int(onward.query["after"]))
    assert facts(last)["Shown"].text == "items 401 to 450, of which both have 50"
    assert "Next" not in facts(last)
    with pytest.raises(KeyError):
        compared(base, run_of(tmp_path / "another", range(1000, 1010)))


def test_where_looking_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MAX_LOOKED_AT", 200)
    (section,) = compared(run_of(tmp_path / "base", range(450)), run_of(tmp_path / "late", [440]))
    assert facts(section)["Shown"].text == "items 1 to 200, of which both have 0"
    assert "Next" in facts(section)
    assert "None of these items is in both runs." in text_in(section)


def test_runs_that_are_not_compared_are_named(tmp_path: Path) -> None:
    names = ["base", *(f"other-{number}" for number in range(5))]
    *sections, last = compared(*(run_of(tmp_path / name, range(5)) for name in names))
    assert [section.title for section in sections] == [f"base and other-{number}" for number in range(3)]
    assert last.title == "Left out"
    assert text_in(last).count("other-") == 2
    assert "other-3, other-4" in text_in(last)


def test_damaged_items_are_left_out_of_a_comparison_and_counted(tmp_path: Path) -> None:
    base, other = run_of(tmp_path / "base", range(5)), run_of(tmp_path / "other", range(5))
    damage(base, 1)
    damage(other, 2, "payload")
    (section,) = compared(base, other)
    assert facts(section)["Shown"].text == "items 1 to 5, of which both have 5"
    assert "2 items left out: damaged in one of the runs." in text_in(section)
    assert [row["pairs"].text for table in parts(section, Table) for row in rows(table)] == ["3"]
