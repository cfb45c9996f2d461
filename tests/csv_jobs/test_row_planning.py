"""Rows as items, and their ids."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from contextlib import closing
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
from manyhands.workloads.csv_jobs.prepared import prepare
from manyhands.workloads.csv_jobs.rows.planning import ItemIds, JobRow, plan_rows, source_id_of
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload

BAD = b'id,text\na,1\nb,\xff\n\na,"x\ny"\n"b"b,2\n"c"c,1\n,4\n'
UNDECODED = "the byte 0xFF is not utf-8 text; if the file has another encoding, name it with --encoding"
BROKEN = "broken quoting: ',' expected after '\"'"


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
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
        f"{path}, line 3: {UNDECODED}",
        f"{path}, line 7: {BROKEN}",
        f"{path}, line 8: {BROKEN}",
        "(on_bad_row=skip leaves such rows out)",
    ]


def test_bad_rows_are_skipped(tmp_path: Path) -> None:
    assert planned(write(tmp_path, BAD), "id", "skip") == [
        PlannedItem("a", {"row_index": 0, "line": 2, "source_id": "a", "row": ["a", "1"]}),
        PlannedItem(
            "b",
            {"row_index": 1, "line": 3, "source_id": "b", "row": ["b", None], "problem": UNDECODED},
            skipped(f"line 3: {UNDECODED}"),
        ),
        PlannedItem("a-2", {"row_index": 2, "line": 5, "source_id": "a", "row": ["a", "x\ny"]}),
        PlannedItem(
            "row-4",
            {"row_index": 3, "line": 7, "source_id": None, "row": [None, None], "problem": BROKEN},
            skipped(f"line 7: {BROKEN}"),
        ),
        PlannedItem(
            "row-5",
            {"row_index": 4, "line": 8, "source_id": None, "row": [None, None], "problem": BROKEN},
            skipped(f"line 8: {BROKEN}"),
        ),
        PlannedItem("row-6", {"row_index": 5, "line": 9, "source_id": None, "row": ["", "4"]}),
    ]


@pytest.mark.parametrize(("count", "more"), [(20, []), (21, ["… and 1 more"]), (500, ["… and 480 more"])])
def test_only_the_first_bad_rows_are_named(tmp_path: Path, count: int, more: list[str]) -> None:
    path = write(tmp_path, "a,b\n" + '"1"1,2\n' * count)
    lines = error(path).splitlines()
    assert [line.split(": ")[0] for line in lines[:20]] == [f"{path}, line {number}" for number in range(2, 22)]
    assert lines[20:] == [*more, "(on_bad_row=skip leaves such rows out)"]


def test_what_ends_the_table_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, ("a,b\n" + "1,2\n" * 50_000).encode("utf-16") + b"\x00")
    hint = "if the file has another encoding, name it with --encoding"
    assert error(path) == f"{path}, line 50002: holds bytes that are not utf-16 text; {hint}"


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


SOURCE_IDS = st.sampled_from(
    ["a", "a-2", "a-3", "a-2-2", "row-1", "row-2", "row-2-2", " a", "a" * 63, "a" * 64, "b" * 200]
)


def ids_of(source_ids: list[str | None], *, from_column: bool = True) -> list[str]:
    with closing(ItemIds(from_column=from_column)) as ids:
        return [ids.next(source_id, index) for index, source_id in enumerate(source_ids)]


def by_definition(source_ids: list[str | None]) -> list[str]:
    given: list[str] = []
    for index, source_id in enumerate(source_ids):
        base = f"row-{index + 1}" if source_id is None else source_id
        suffixes = (f"{base}-{number}" for number in range(2, len(source_ids) + 2))
        given.append(base if base not in given else next(candidate for candidate in suffixes if candidate not in given))
    return given


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "x"),
        (" x\n", " x\n"),
        ("", None),
        (" \t\r\n\u00a0", None),
        (None, None),
        (0, "0"),
        (True, "true"),
        (1.5, "1.5"),
        (10**40, str(10**40)),
        ([1, "ä"], '[1,"ä"]'),
        ({}, "{}"),
    ],
)
def test_the_id_that_a_cell_holds(value: Any, expected: str | None) -> None:
    assert source_id_of(value) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["foo", "foo", "foo"], ["foo", "foo-2", "foo-3"]),
        ([None, None], ["row-1", "row-2"]),
        (["row-3", "x", None], ["row-3", "x", "row-3-2"]),
        (["foo", "foo", "foo-2", "foo"], ["foo", "foo-2", "foo-2-2", "foo-3"]),
        (["foo-2", "foo", "foo", "foo-2"], ["foo-2", "foo", "foo-3", "foo-2-2"]),
        (["a", "A", "a "], ["a", "A", "a "]),
        (["\ud800", "\udfff"], ["\ufffd", "\ufffd-2"]),
    ],
)
def test_ids_that_are_taken_get_a_number(given: list[str | None], expected: list[str]) -> None:
    assert ids_of(given) == expected


@given(st.lists(st.none() | SOURCE_IDS, max_size=25))
def test_ids_are_what_the_definition_says(source_ids: list[str | None]) -> None:
    found = ids_of(source_ids)
    assert found == by_definition(source_ids)
    assert len(set(found)) == len(found)


def test_numbers_alone_need_no_table() -> None:
    assert ids_of([None] * 3, from_column=False) == ["row-1", "row-2", "row-3"]


def test_equal_ids_cost_no_more_the_more_there_are() -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        assert ids_of(["same"] * count)[-1] == f"same-{count}"
        return time.process_time() - began

    assert seconds(40_000) < 40 * seconds(4_000)  # a hundred times, if each looked at all before it


def test_memory_does_not_grow_with_the_ids() -> None:
    tracemalloc.start()
    with closing(ItemIds(from_column=True)) as ids:
        for index in range(40_000):
            ids.next(f"id {index % 20_000}", index)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("later", ["b,a\n1,2\n", "a,b\n1,2,3\n"])
async def test_columns_that_changed_since_the_job_was_made_are_refused(tmp_path: Path, later: str) -> None:
    """As when it is killed while it is planned, and the table edited before it goes on."""
    path = write(tmp_path, "a,b\n1,2\n")
    given = {"csv_path": str(path), "instruction": "Report {a}", "model": "simulated", "toolsets": "none"}
    job = await prepare(JobSpec.make({**given, "sandbox": "local"}).resolved(), "0b5e7d34-94c1-4b58-9d0a-7f5f9f6f2c11")
    workload = CsvJobsWorkload(job.to_json(), tmp_path / "run")
    assert len(list(workload.plan())) == 1
    write(tmp_path, later)
    with pytest.raises(UserError, match=r"t\.csv: its columns changed since the job was made"):
        list(workload.plan())
