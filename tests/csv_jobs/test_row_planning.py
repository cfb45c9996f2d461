"""Rows as items."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item, PlannedItem
from manyhands.io.tables.formats import open_table
from manyhands.workloads.csv_jobs.rows.model import JobRow
from manyhands.workloads.csv_jobs.rows.planning import plan_rows

BAD = 'id,text\na,1\nb\n\na,"x\ny"\nb,2,3\n"c"c,1\n,4\n'


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def planned(path: Path, id_column: str | None = None, on_bad_row: Any = "fail") -> list[PlannedItem]:
    return list(plan_rows(open_table(path), id_column, on_bad_row))


def error(path: Path, id_column: str | None = None, on_bad_row: Any = "fail") -> str:
    with pytest.raises(UserError) as caught:
        planned(path, id_column, on_bad_row)
    return str(caught.value)


def skipped(message: str) -> Outcome:
    return Outcome(ItemState.DISCARDED, reason="bad_row", message=message)


def test_rows_become_items(tmp_path: Path) -> None:
    path = write(tmp_path, 'id,text\n\n"a\n",1\n,2\n" ",3\n')
    assert planned(path, "id") == [
        PlannedItem("a\n", {"row_index": 0, "line": 3, "source_id": "a\n", "row": ["a\n", "1"]}),
        PlannedItem("row-2", {"row_index": 1, "line": 5, "source_id": None, "row": ["", "2"]}),
        PlannedItem("row-3", {"row_index": 2, "line": 6, "source_id": None, "row": [" ", "3"]}),
    ]
    assert [item.key for item in planned(path)] == ["row-1", "row-2", "row-3"]
    row = JobRow.of(Item(1, "x", json.loads(json.dumps(planned(path)[0].payload))))
    assert row == JobRow(0, 3, None, ("a\n", "1"))


def test_a_header_alone_gives_no_items(tmp_path: Path) -> None:
    assert planned(write(tmp_path, "a,b\n")) == []


def test_a_missing_id_column_is_told_at_once(tmp_path: Path) -> None:
    table = open_table(write(tmp_path, "Id,text\na,1\n"))
    with pytest.raises(UserError) as caught:
        plan_rows(table, "id", "skip")
    expected = "id_column id was not found in csv headers (did you mean Id?); the columns are: Id, text"
    assert str(caught.value) == expected


def test_bad_rows_are_named_after_the_good_ones_before_them(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    items = plan_rows(open_table(path), "id", "fail")
    assert next(items).key == "a"
    with pytest.raises(UserError) as caught:
        next(items)
    assert str(caught.value).splitlines() == [
        f"{path}, line 3: row has 1 field but the header has 2",
        f"{path}, line 7: row has 3 fields but the header has 2",
        f"{path}, line 8: broken quoting: ',' expected after '\"'",
        "(on_bad_row=skip leaves such rows out)",
    ]


def test_bad_rows_are_skipped(tmp_path: Path) -> None:
    ragged, long = "row has 1 field but the header has 2", "row has 3 fields but the header has 2"
    broken = "broken quoting: ',' expected after '\"'"
    assert planned(write(tmp_path, BAD), "id", "skip") == [
        PlannedItem("a", {"row_index": 0, "line": 2, "source_id": "a", "row": ["a", "1"]}),
        PlannedItem(
            "b",
            {"row_index": 1, "line": 3, "source_id": "b", "row": ["b", None], "problem": ragged},
            skipped(f"line 3: {ragged}"),
        ),
        PlannedItem("a-2", {"row_index": 2, "line": 5, "source_id": "a", "row": ["a", "x\ny"]}),
        PlannedItem(
            "b-2",
            {"row_index": 3, "line": 7, "source_id": "b", "row": ["b", "2"], "problem": long},
            skipped(f"line 7: {long}"),
        ),
        PlannedItem(
            "row-5",
            {"row_index": 4, "line": 8, "source_id": None, "row": [None, None], "problem": broken},
            skipped(f"line 8: {broken}"),
        ),
        PlannedItem("row-6", {"row_index": 5, "line": 9, "source_id": None, "row": ["", "4"]}),
    ]


@pytest.mark.parametrize(("count", "more"), [(20, []), (21, ["… and 1 more"]), (500, ["… and 480 more"])])
def test_only_the_first_bad_rows_are_named(tmp_path: Path, count: int, more: list[str]) -> None:
    path = write(tmp_path, "a,b\n" + "1\n" * count)
    lines = error(path).splitlines()
    assert [line.split(": ")[0] for line in lines[:20]] == [f"{path}, line {number}" for number in range(2, 22)]
    assert lines[20:] == [*more, "(on_bad_row=skip leaves such rows out)"]


def test_what_ends_the_table_is_told_with_the_bad_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(("a,b\n1\n" + "1,2\n" * 50_000).encode("utf-16") + b"\x00")
    ragged = f"{path}, line 2: row has 1 field but the header has 2"
    hint = "if the file has another encoding, name it with --encoding"
    broken = f"{path}, line 50003: holds bytes that are not utf-16 text; {hint}"
    assert error(path) == f"{ragged}\n{broken}"
    assert error(path, on_bad_row="skip") == broken


def test_other_formats(tmp_path: Path) -> None:
    lines = write(tmp_path, '{"id": 7, "x": [1]}\n\n[1]\n{"id": 7}\n', "t.jsonl")
    assert planned(lines, "id", "skip") == [
        PlannedItem("7", {"row_index": 0, "line": 1, "source_id": "7", "row": [7, [1]]}),
        PlannedItem(
            "row-2",
            {"row_index": 1, "line": 3, "source_id": None, "row": [None, None], "problem": "not a JSON object"},
            skipped("line 3: not a JSON object"),
        ),
        PlannedItem("7-2", {"row_index": 2, "line": 4, "source_id": "7", "row": [7, None]}),
    ]
    assert error(lines).splitlines()[0] == f"{lines}, line 3: not a JSON object"
    parquet.write_table(pyarrow.table({"id": [True], "x": [b"\0"]}), tmp_path / "t.parquet")
    assert planned(tmp_path / "t.parquet", "id") == [
        PlannedItem("true", {"row_index": 0, "line": 1, "source_id": "true", "row": [True, "AA=="]})
    ]


@given(st.lists(st.sampled_from(["a", "a-2", "b", "", "row-2", " "]), max_size=12))
def test_keys_are_unique_and_the_same_each_time(ids: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "id,x\n" + "".join(f"{value},1\n" for value in ids))
        first, second = planned(path, "id"), planned(path, "id")
    assert first == second
    assert len({item.key for item in first}) == len(first) == len(ids)


def test_a_large_table_is_planned_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w") as stream:
        stream.write("id,text\n")
        stream.writelines(f"{n % 36_000},{'some text' * 9}\n" for n in range(40_000))
    tracemalloc.start()
    count = sum(1 for _ in plan_rows(open_table(path), "id", "fail"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 2_000_000
