"""A job whose table was edited: what is executed again, and what is never paid twice."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import KNOWN, protect
from manyhands.engine.contract import BEHIND_INPUT, ItemRow, PlannedItem
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.updating import Changes, TableUpdate
from tests.support.batches import ServerThread
from tests.support.job_folders import FUNCTION, JobFolder, reporting

Row = tuple[str | None, str]
"""The id, if any, and a cell."""
HEADERS = ("text",)
ROWS = st.lists(st.tuples(st.sampled_from([None, "x", "y"]), st.sampled_from("abc")), max_size=8)


def payload(index: int, row: Row) -> dict[str, object]:
    return JobRow(index, index + 2, row[0], (row[1],)).to_json()


def items(rows: Sequence[Row], removed: Sequence[Row] = ()) -> list[ItemRow]:
    """Items of a job, named by what they have been from the beginning."""
    found = []
    for number, row in enumerate([*rows, *removed], 1):
        position = number - 1 if number <= len(rows) else BEHIND_INPUT + number
        values: tuple[Any, ...] = (ItemState.COMPLETED, 1, 1, 0, None, None, None, {}, None, None, position)
        found.append(ItemRow(number, f"row-{number}", payload(number - 1, row), *values))
    return found


def planned(rows: Sequence[Row]) -> list[PlannedItem]:
    return [PlannedItem("", payload(index, row)) for index, row in enumerate(rows)]


def updated(old: list[ItemRow], new: Sequence[Row]) -> tuple[Changes, list[PlannedItem]]:
    with closing(TableUpdate.of(old, HEADERS, planned(new), HEADERS)) as update:
        return update.changes(), list(update.plan(planned(new), HEADERS))


@given(ROWS, ROWS, ROWS)
def test_what_is_unchanged_is_never_executed_again(old: list[Row], removed: list[Row], new: list[Row]) -> None:
    before = {item.key: (item.payload["source_id"], item.payload["row"][0]) for item in items(old, removed)}
    changes, plan = updated(items(old, removed), new)
    assert changes.new + changes.changed + changes.unchanged == len(new)
    assert [(item.payload["source_id"], item.payload["row"][0]) for item in plan] == new
    assert len({item.key for item in plan}) == len(plan)
    kept = [item for item in plan if item.afresh is None and item.key in before]
    assert all(before[item.key] == (item.payload["source_id"], item.payload["row"][0]) for item in kept)
    assert len(kept) == (Counter([*old, *removed]) & Counter(new)).total()
    assert changes.unchanged == (Counter(old) & Counter(new)).total()
    assert changes.changed == sum(item.afresh is not None for item in plan)
    live = {item.key for item in items(old)}
    assert changes.removed == len(live - {item.key for item in plan})


@given(ROWS, ROWS, st.lists(st.tuples(st.integers(0, 8), st.sampled_from("de")), max_size=3))
@example([(None, "b"), (None, "c")], [(None, "B"), (None, "C")], [(0, "d")])
def test_rows_that_are_back_change_nothing_for_others(
    old: list[Row], new: list[Row], back: list[tuple[int, str]]
) -> None:
    alone, _ = updated(items(old), new)
    together = list(new)
    for place, text in back:
        together.insert(place, (None, text))
    changes, _ = updated(items(old, [(None, text) for _, text in back]), together)
    assert changes == replace(alone, new=alone.new + len(back))


def test_long_tables_are_compared_page_by_page() -> None:
    old: list[Row] = [(None, str(number)) for number in range(2500)]
    new: list[Row] = [(None, f"{number}{'!' * (number % 100 == 7)}") for number in range(2500)]
    changes, plan = updated(items(old), new)
    assert changes == Changes(new=0, changed=25, removed=0, unchanged=2475)
    assert [item.key for item in plan] == [f"row-{number}" for number in range(1, 2501)]


def test_a_cell_with_a_secret_is_no_change() -> None:
    """The job has it without."""
    protect(["s3cret-value"])
    new: list[Row] = [(None, "with s3cret-value"), ("s3cret-value", "x")]
    old = [replace(item, payload=KNOWN.json(item.payload)) for item in items(new)]
    assert "s3cret" not in str(old)
    assert updated(old, new)[0] == Changes(new=0, changed=0, removed=0, unchanged=2)


def test_edits_without_ids_keep_their_rows() -> None:
    old: list[Row] = [(None, text) for text in "abcdef"]
    new: list[Row] = [(None, text) for text in "NabXdefT"]
    changes, plan = updated(items(old), new)
    assert changes == Changes(new=2, changed=1, removed=0, unchanged=5)
    assert [item.key for item in plan] == ["row-7", "row-1", "row-2", "row-3", "row-4", "row-5", "row-6", "row-8"]


def test_a_row_is_found_by_its_id_wherever_it_is() -> None:
    changes, plan = updated(items([("x", "a"), ("y", "b")]), [("y", "b"), ("z", "c"), ("x", "A")])
    assert changes == Changes(new=1, changed=1, removed=0, unchanged=1)
    assert [item.key for item in plan] == ["row-2", "z", "row-1"]


def test_a_table_that_changes_while_it_is_read_is_refused() -> None:
    with (
        closing(TableUpdate.of(items([(None, "a")]), HEADERS, planned([(None, "a")]), HEADERS)) as update,
        pytest.raises(Exception, match="was changed while it was read"),
    ):
        list(update.plan(planned([(None, "b")]), HEADERS))


# --- As a person does it


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path, ["one", "two", "three", "four"]) as made:
        assert made.spawn(FUNCTION, "--executor=local", "--quiet").code == 0
        yield made


def begun_anew(folder: JobFolder, *words: str) -> set[str]:
    """The names of the rows that a command executes."""
    for file in folder.path.glob("begun-*"):
        file.unlink()
    ended = folder.jobs("run", "j", "--quiet", *words)
    assert ended.code == 0, ended
    return {file.name.removeprefix("begun-") for file in folder.path.glob("begun-*")}


def write(folder: JobFolder, *lines: str) -> None:
    (folder.path / "rows.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_new_and_changed_rows_are_executed_in_the_same_job(folder: JobFolder) -> None:
    write(folder, "name,text", "n,new", "a,one", "b,TWO", "d,four", "e,five")
    counted = folder.jobs("run", "j", "--update", "--dry_run")
    assert "2 new, 1 changed, 1 removed, 2 unchanged" in counted.out
    assert begun_anew(folder) == set()
    assert begun_anew(folder, "--update") == {"n", "b", "e"}
    assert [row["item_id"] for row in folder.rows()] == ["row-5", "row-1", "row-2", "row-4", "row-6"]
    assert [result["text"] for result in folder.results()] == ["new", "one", "TWO", "four", "five"]
    assert begun_anew(folder, "--update") == set()
    assert folder.status()["state"] == "completed"
    shown = folder.jobs("show", "j", "row-2").out
    assert "attempt 1 given up" in shown
    assert '"text": "two"' in shown  # what it had come to before
    assert "of rows that the table no longer has: 1" in folder.jobs("status", "j").out
    write(folder, "name,text", "a,one", "c,three")
    assert begun_anew(folder, "--update") == set()  # the row that is back was completed
    assert [result["text"] for result in folder.results()] == ["one", "three"]


def test_another_column_changes_the_rows_that_have_something_in_it(folder: JobFolder) -> None:
    write(folder, "more,text,name", ",one,a", "x,two,b", ",three,c", ",four,d")
    assert begun_anew(folder, "--update") == {"b"}
    assert list(folder.rows()[0])[:3] == ["more", "text", "name"]


def test_a_table_that_can_not_be_used_changes_nothing(folder: JobFolder) -> None:
    before = folder.jobs("status", "j", "--json").out
    write(folder, "name,text", "x,new", 'b,"TWO" 3')
    refused = folder.jobs("run", "j", "--update")
    assert (refused.code, "line 3" in refused.err) == (2, True)
    write(folder, "name,words", "a,one")
    assert "{text} names no column" in folder.jobs("run", "j", "--update").err
    (folder.path / "rows.csv").unlink()
    assert "rows.csv" in folder.jobs("run", "j", "--update").err
    assert folder.jobs("status", "j", "--json").out == before


def test_a_job_that_runs_is_not_updated_but_redoes_rows(folder: JobFolder) -> None:
    write(folder, "name,text", "a,one", "b,two", "c,three", "d,four", "e,until go")
    assert folder.jobs("run", "j", "--update", "--detach").code == 0
    latest = time.monotonic() + 60
    while not folder.begun("e"):
        assert time.monotonic() < latest
        time.sleep(0.02)
    refused = folder.jobs("run", "j", "--update")
    assert (refused.code, "the job is running" in refused.err) == (2, True)
    (folder.path / "begun-b").unlink()
    assert "1 row reset; the job's runner has them" in folder.jobs("retry", "j", "--rows=2", "--detach").out
    (folder.path / "go").touch()
    assert folder.jobs("wait", "j").code == 0
    assert folder.begun("b")
    assert [row["attempt_count"] for row in folder.rows()] == ["1", "2", "1", "1", "1"]


def test_rows_that_were_completed_are_redone_where_they_are_named_by_number(folder: JobFolder) -> None:
    for file in folder.path.glob("begun-*"):
        file.unlink()
    assert "0 rows reset" in folder.jobs("retry", "j", "2").out
    ended = folder.jobs("retry", "j", "--rows=1,3-4", "--quiet")
    assert (ended.code, "3 rows reset" in ended.out) == (0, True)
    assert sorted(file.name for file in folder.path.glob("begun-*")) == ["begun-a", "begun-c", "begun-d"]
    assert [row["attempt_count"] for row in folder.rows()] == ["2", "1", "2", "2"]
    for words, said in (
        (["--rows=9"], "there is no row 9"),
        (["--rows=2-1"], "is no range"),
        (["--rows=x"], "not 'x'"),
    ):
        wrong = folder.jobs("retry", "j", *words)
        assert (wrong.code, said in wrong.err) == (2, True), wrong


def test_a_removed_row_stays_what_it_was_under_other_headers(folder: JobFolder) -> None:
    write(folder, "more,text,name", ",two,b", ",three,c", ",four,d")
    assert begun_anew(folder, "--update") == set()
    shown = json.loads(folder.jobs("show", "j", "row-1", "--json").out)
    assert shown["row"] == {"more": None, "text": "one", "name": "a"}
    write(folder, "more,text,name", ",one,a", ",two,b", ",three,c", ",four,d")
    back = folder.jobs("run", "j", "--update", "--dry_run").out
    assert "1 new, 0 changed, 0 removed, 3 unchanged" in back
    assert begun_anew(folder, "--update") == set()


def test_a_repaired_row_is_executed_and_no_bad_one_is_left(tmp_path: Path) -> None:
    with JobFolder(tmp_path) as folder:
        write(folder, "name,text", "a,one", '"b"b,two', "c,three")
        assert folder.spawn(FUNCTION, "--executor=local", "--on_bad_row=skip", "--id_column=name").code == 1
        write(folder, "name,text", "a,one", "b,two", "c,three")
        assert begun_anew(folder, "--update") == {"b"}
        assert (folder.status()["state"], folder.status()["skipped_items"]) == ("completed", 0)
        write(folder, "name,text", "a,one", '"b"b,two', "c,three")
        folder.jobs("run", "j", "--update", "--quiet")
        assert folder.status()["skipped_items"] == 1  # it is back, and still can't be used


def test_a_setting_that_is_rejected_keeps_the_table_as_it_was(folder: JobFolder) -> None:
    before = folder.jobs("status", "j", "--json").out
    write(folder, "name,text", "a,one", "n,new")
    for words, said in (
        ("--max_concurrency=x", "whole number"),
        ("--instruction=Another.", "--override=instruction"),
        ("--prompt_columns=nope", "nope"),
        ("--max_cost=1", "not with --worker_function"),
    ):
        wrong = folder.jobs("run", "j", "--update", words)
        assert (wrong.code, said in wrong.err) == (2, True), wrong
        assert folder.jobs("status", "j", "--json").out == before
    write(folder, "name,text,more", "a,one,", "n,new,x")
    assert begun_anew(folder, "--update", "--prompt_columns=more", "--override=prompt_columns") == {"n"}


def test_an_update_reads_the_sheet_of_the_job(tmp_path: Path) -> None:
    """Also where another sheet has become the first one."""
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "people"
    for row in (("name", "text"), ("a", "one"), ("b", "two")):
        book.active.append(row)
    with JobFolder(tmp_path) as folder:
        book.save(tmp_path / "rows.xlsx")
        spawned = folder.jobs("spawn", "rows.xlsx", *folder.spawn_words(FUNCTION, "--executor=local", "--quiet")[2:])
        assert spawned.code == 0, spawned
        book["people"].append(("c", "three"))
        book.create_sheet("first", 0).append(("something", "else"))
        book.save(tmp_path / "rows.xlsx")
        assert "1 new, 0 changed, 0 removed, 2 unchanged" in folder.jobs("run", "j", "--update", "--dry_run").out
        assert begun_anew(folder, "--update") == {"c"}


def test_a_number_is_that_of_the_row_in_the_table_as_it_is_now(folder: JobFolder) -> None:
    write(folder, "name,text", "n,new", "d,four", "a,one")
    assert begun_anew(folder, "--update") == {"n"}
    shown = [json.loads(folder.jobs("show", "j", number, "--json").out)["row"]["name"] for number in "123"]
    assert shown == ["n", "d", "a"]
    assert "no item '4'" in folder.jobs("show", "j", "4").err  # rows that the table no longer has go by their ids alone


def test_a_retry_names_rows_beyond_the_limit(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["one", "two", "three", "four"]) as folder:
        folder.spawn(FUNCTION, "--executor=local", "--quiet", "--limit=2")
        ended = folder.jobs("retry", "j", "--rows=2,4", "--quiet")
        assert "1 row reset" in ended.out
        assert "row 4 is beyond --limit=2, and not executed" in ended.err
        assert "rows 3, 4 are beyond --limit=2" in folder.jobs("retry", "j", "--rows=3-4").err


def test_a_retry_beyond_the_limit_alone_needs_no_runner(tmp_path: Path) -> None:
    with JobFolder(tmp_path, ["one", "fail", "three", "four"]) as folder:
        folder.spawn(FUNCTION, "--executor=local", "--quiet", "--max_attempts=1")
        (folder.path / "mended").touch()
        folder.jobs("run", "j", "--limit=2", "--retry_failed", "--quiet")
        beyond = folder.jobs("retry", "j", "--rows=4")
        assert "1 row reset\n" in beyond.out
        assert "row 4 is beyond --limit=2" in beyond.err


def test_a_retry_that_can_not_be_executed_resets_nothing(folder: JobFolder) -> None:
    with ServerThread(reporting()) as server:
        endpoint = (f"--base_url={server.base_url}", "--toolsets=none", "--header=X-Pass: s3cret-value")
        words = ("--instruction={text}", "--job_name=k", "--output_csv_path=k.csv", "--quiet")
        assert folder.jobs("spawn", "rows.csv", *words, *endpoint).code == 0
    refused = folder.jobs("retry", "k", "--rows=3")
    assert (refused.code, "X-Pass" in refused.err) == (2, True), refused
    assert folder.jobs("export", "k").code == 0
    assert [row["status"] for row in folder.rows("k.csv")] == ["completed"] * 4
