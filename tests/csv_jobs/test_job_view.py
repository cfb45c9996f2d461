"""What jobs show: the table with what was reported, broken rules, stages, logs, pages, and how two jobs differ."""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.engine.journal.database import queries
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import pack
from manyhands.runs.shown.blocks import Fold, Link, Text, Value
from manyhands.runs.summaries import summarizer_of
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.shown_blocks import browsed, damage, item_parts, notes_of, page_parts, rows_of, texts, viewed
from tests.support.shown_blocks import facts as facts_of
from tests.support.shown_blocks import parts as of_kind

SCHEMA = {
    "type": "object",
    "properties": {"length": {"type": "integer", "maximum": 9}, "text": {"type": "string"}, "more": {"type": "array"}},
    "required": ["length", "text"],
}
STAGES = """\
- name: first
  instruction: Say {text}.
- name: second
  instruction: "Say {first}."
  when: name != "a"
"""
STAGED = """
def work(row, assignment):
    if row["name"] == "c" and assignment.stage.name == "second":
        raise ValueError("broken")
    return {assignment.stage.name: assignment.instruction}
"""
COMMAND = """\
import json, os, sys
row = json.loads(os.environ["MANYHANDS_ROW"])
print("looking at", row["name"], file=sys.stderr)
if row["name"] == "b":
    sys.exit(3)
print(json.dumps({"length": "none" if row["name"] == "c" else 3, "text": row["text"]}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "stages.yaml").write_text(STAGES)
    (tmp_path / "staged.py").write_text(STAGED)
    (tmp_path / "command.py").write_text(COMMAND)
    with JobFolder(tmp_path) as made:
        yield made


def spawn(folder: JobFolder, *options: str) -> None:
    ended = folder.spawn("--executor=local", "--quiet", *options)
    assert ended.code in (0, 1), ended


def test_the_table_has_cells_and_reported_values_and_broken_rules(folder: JobFolder) -> None:
    folder.write_rows(["one", "fail", "a text that is too long"])
    spawn(folder, FUNCTION, "--output_schema=s.json")
    with viewed(folder.folder()) as view:
        table = rows_of(page_parts(view, "table"))
        rows = list(view.reader.items())
        cells = view.cells(rows, summarizer_of(view.reader).items(rows))
        assert [column.label for column in view.run_columns()] == ["name", "text", "length", "text", "more"]
        assert [column.about for column in view.run_columns()][2:] == ["reported"] * 3
    assert [each["Row"].text for each in table] == ["row-1", "row-2", "row-3"]
    assert table[0]["Row"].link == Link(item=1)
    assert [(each["State"].text, each["State"].tone) for each in table] == [
        ("completed", "good"),
        ("failed", "bad"),
        ("failed", "bad"),
    ]
    assert texts(cells[0]) == {
        "input.name": "a",
        "input.text": "one",
        "reported.length": "3",
        "reported.text": "one",
        "reported.more": "",
    }
    assert (cells[0]["reported.length"].tone, cells[0]["reported.length"].value) == ("good", 3.0)
    assert cells[1]["reported.length"].text == ""
    broken = cells[2]["reported.length"]
    assert (broken.text, broken.tone) == ("23", "bad")
    assert broken.about == "$.length: 23 is greater than the maximum of 9"
    assert cells[2]["reported.text"].tone == "muted"


def test_a_missing_property_is_where_it_is_missing(folder: JobFolder) -> None:
    (folder.path / "work.py").write_text('def work(row):\n    return {"text": 1, "it\'s": 2}\n')
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "it's": {"type": "string"}}}  # type: ignore[dict-item]
    (folder.path / "s.json").write_text(json.dumps(schema))
    spawn(folder, FUNCTION, "--output_schema=s.json")
    with viewed(folder.folder()) as view:
        cells = view.cells([next(view.reader.items())], [])[0]
        parts = item_parts(view, "row-1")
    assert (cells["reported.length"].text, cells["reported.length"].tone) == ("missing", "bad")
    assert (cells["reported.it's"].text, cells["reported.it's"].tone) == ("2", "bad")
    assert (cells["reported.text"].text, cells["reported.text"].tone) == ("1", "bad")
    assert sorted(each["Where"].text for each in rows_of(parts, "What does not fit")) == ["$", "$.text", "$['it\\'s']"]
    assert of_kind(parts, Value)[0].value == {"text": 1, "it's": 2}


def test_pages_follow_each_other_and_states_are_chosen(folder: JobFolder) -> None:
    folder.write_rows(["fail" if number % 5 == 4 else "x" for number in range(230)])
    spawn(folder, FUNCTION, "--max_attempts=1", "--max_workers=8")
    found, query = [], dict[str, str]()
    with viewed(folder.folder()) as view:
        while True:
            parts = page_parts(view, "table", **query)
            found.append([each["Row"].text for each in rows_of(parts)])
            following = facts_of(parts).get("Next")
            if following is None:
                break
            assert following.link is not None
            assert following.link.page == "table"
            query = dict(following.link.query)
        failed = page_parts(view, "table", state="failed", after="99")
        beyond = page_parts(view, "table", after="100000")
        wrong = page_parts(view, "table", state="nothing", after="-7")
    assert [len(each) for each in found] == [100, 100, 30]
    assert [key for page in found for key in page] == [f"row-{number}" for number in range(1, 231)]
    assert [each["Row"].text for each in rows_of(failed)] == [f"row-{number}" for number in range(105, 231, 5)]
    assert facts_of(failed)["failed"].link == Link(page="table", query={"state": "failed"})
    assert (rows_of(beyond), facts_of(beyond)["Shown"].text) == ([], "no rows")
    assert len(rows_of(wrong)) == 100


def test_failed_rows_behind_a_position_are_found_without_looking_at_all(folder: JobFolder) -> None:
    spawn(folder, FUNCTION)
    with closing(JournalReader(folder.folder())) as reader:
        sql = queries()["failed_items_after"]
        plan = reader._connection.execute(f"EXPLAIN QUERY PLAN {sql}", (0, "failed", None, 2)).fetchall()
    assert [step[-1] for step in plan] == ["SEARCH items USING INDEX items_failed (position>?)"]


def test_a_row_has_the_log_of_its_command(folder: JobFolder) -> None:
    command = f"--worker_command={sys.executable} {folder.path / 'command.py'}"
    spawn(folder, command, "--output_schema=s.json", "--max_corrections=1", "--max_attempts=1")
    with viewed(folder.folder()) as view:
        good, broken, unfit = (item_parts(view, f"row-{number}") for number in (1, 2, 3))
        labels = [dict(view.labels(row)) for row in view.reader.items()]
    assert of_kind(good, Value)[0].value == {"length": 3, "text": "one"}
    assert facts_of(good)["By"].text == "stdout"
    (log,) = [each for each in of_kind(broken, Fold) if each.title.startswith("Log")]
    assert (log.is_open, log.cells[0].text) == (True, "failed")
    assert "looking at b\n" in [each.text for each in of_kind([log], Text)]
    assert facts_of([log])["Exit code"].text == "3"
    assert [each["Cause"].text for each in rows_of(broken, "Attempts")] == ["worker_error"]
    logs = [each for each in of_kind(unfit, Fold) if each.title.startswith("Log")]
    assert [each.is_open for each in logs] == [False, True]
    assert rows_of(unfit, "What does not fit")[0]["Where"].text == "$.length"
    assert labels == [{}, {}, {}]


def test_stages_are_columns_and_say_how_they_stand(folder: JobFolder) -> None:
    spawn(folder, "--instruction=", "--stages=stages.yaml", "--worker_function=staged.py:work", "--max_attempts=1")
    with viewed(folder.folder()) as view:
        table = rows_of(page_parts(view, "table"))
        schema = page_parts(view, "schema")
        parts = item_parts(view, "row-3")
        labels = [dict(view.labels(row)) for row in view.reader.items()]
    assert [each["first"].text for each in table] == ["Say one.", "Say two.", "Say three."]
    second = [each["second"] for each in table]
    assert [(each.text, each.tone) for each in second] == [
        ("skipped", "muted"),
        ("Say Say two..", "good"),
        ("failed", "bad"),
    ]
    assert "broken" in second[2].about
    assert [tuple(each.text for each in row.values()) for row in rows_of(schema, "Rows in each stage")] == [
        ("first", "3", "0", "0", "0"),
        ("second", "1", "1", "1", "0"),
    ]
    assert facts_of(schema)["Only when"].text == 'name != "a"'
    assert [each["State"].text for each in rows_of(parts, "Stages")] == ["completed", "failed"]
    assert labels == [{}, {}, {"stage": "second"}]


def test_stages_are_shown_though_a_row_is_damaged(folder: JobFolder) -> None:
    spawn(folder, "--instruction=", "--stages=stages.yaml", "--worker_function=staged.py:work", "--max_attempts=1")
    damage(folder.folder(), 2)
    with browsed(folder.folder()) as view:
        parts = page_parts(view, "schema")
    assert [fold.title for fold in of_kind(parts, Fold)] == ["1. first", "2. second"]
    assert any("can't be told" in note for note in notes_of(parts))


def test_a_job_that_goes_on_is_shown(folder: JobFolder) -> None:
    folder.write_rows(["one", "until go", "three"])
    job = folder.begin(*folder.spawn_words(FUNCTION, "--executor=local", "--max_workers=1"))
    while not folder.begun("b"):
        time.sleep(0.02)
    with viewed(folder.folder()) as view:
        table = rows_of(page_parts(view, "table"))
        running = rows_of(page_parts(view, "table", state="running"))
        head = list(view.head())
        parts = item_parts(view, "row-2")
        page_parts(view, "schema")
    (folder.path / "go").touch()
    job.wait()
    assert [(each["State"].text, each["State"].tone) for each in table] == [
        ("completed", "good"),
        ("running", "active"),
        ("pending", "muted"),
    ]
    assert [each["Row"].text for each in running] == ["row-2"]
    assert (facts_of(head)["State"].text, facts_of(head)["State"].tone) == ("running", "active")
    assert facts_of(head)["Results"].text == "not written yet"
    assert any("jobs export" in note for note in notes_of(head))
    assert facts_of(parts)["text"].text == "until go"


def test_results_without_a_schema_are_shown_as_a_whole(folder: JobFolder) -> None:
    spawn(folder, FUNCTION)
    with viewed(folder.folder()) as view:
        table = rows_of(page_parts(view, "table"))
        notes = notes_of(page_parts(view, "schema"))
        with pytest.raises(KeyError):
            view.page("nothing", {})
    assert table[0]["result"].text == '{"length":3,"text":"one"}'
    assert notes == ["There is none: any JSON object will do as a result."]


def test_wide_tables_and_long_cells_are_cut_and_there_in_full(folder: JobFolder) -> None:
    long = "word " * 200
    with (folder.path / "rows.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["name", "text", *(f"c{n}" for n in range(20))], ["a", long, *["x"] * 20]])
    spawn(folder, FUNCTION)
    with viewed(folder.folder()) as view:
        parts = page_parts(view, "table")
        item = item_parts(view, "row-1")
    (row,) = rows_of(parts)
    assert len(row) == 2 + 12 + 1
    assert len(row["text"].text) == 80
    assert len(row["text"].about) > 900
    assert len(facts_of(item)) >= 22
    assert [each.text for each in of_kind(item, Text)] == [long]


def test_damaged_rows_are_the_only_ones_of_a_table_that_are(folder: JobFolder) -> None:
    folder.write_rows(["one", "two", "three", "four"])
    spawn(folder, FUNCTION, "--output_schema=s.json")
    run = folder.folder()
    damage(run, 2, "record")
    damage(run, 3, "payload")
    with closing(sqlite3.connect(run / JOURNAL)) as journal, journal:
        journal.execute("UPDATE items SET record = ? WHERE number = 4", (pack(7),))
    with browsed(run) as view:
        found = rows_of(page_parts(view, "table"))
    assert [(each["Row"].text, each["State"].text) for each in found] == [
        ("row-1", "completed"),
        ("row-2", "damaged"),
        ("row-3", "damaged"),
        ("row-4", "damaged"),
    ]
    assert all(each["State"].tone == "bad" and each["State"].about for each in found[1:])
    assert [each["Row"].link for each in found] == [Link(item=number) for number in (1, 2, 3, 4)]


def test_two_jobs_over_one_table_differ_where_they_report_something_else(folder: JobFolder) -> None:
    spawn(folder, FUNCTION, "--output_schema=s.json")
    (folder.path / "work.py").write_text(
        'def work(row):\n    return {"length": 4 if row["name"] == "c" else 3, "text": row["text"]}\n'
    )
    spawn(folder, FUNCTION, "--output_schema=s.json", "--job_name=k", "--output_csv_path=k.csv")
    with viewed(folder.folder()) as view, closing(JournalReader(folder.folder("k"))) as other:
        parts = list(view.compared([other], {}))
        run_id, ours = other.meta("run_id"), view.reader.meta("run_id")
        later = list(view.compared([other], {"after": "1000"}))
    assert facts_of(parts)["Shown"].text == "items 1 to 3, of which both have 3"
    assert facts_of(later)["Shown"].text == "no items"
    back = facts_of(later)["Back"].link
    assert back == Link(page="compare", query={"runs": f"{ours},{run_id}"})
    (line,) = rows_of(parts, "What differs")
    assert texts(line) == {"Row": "row-3", "Value": "length", "j": "5", "k": "4"}
    assert line["Row"].link == Link(item=3, versus=3, versus_run=run_id)


def test_jobs_over_other_tables_are_not_compared(folder: JobFolder) -> None:
    spawn(folder, FUNCTION)
    with (folder.path / "rows.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["name", "text", "new"], ["a", "one", ""]])
    spawn(folder, FUNCTION, "--job_name=k", "--output_csv_path=k.csv")
    with viewed(folder.folder()) as view, closing(JournalReader(folder.folder("k"))) as other:
        (section,) = view.compared([other], {})
        with closing(JournalReader(folder.folder())) as same:
            titles = [each.title for each in view.compared([other, same], {})]
    assert section.title == "Left out"
    assert notes_of(section) == ["Jobs over tables with other columns can't be compared with this one: k"]
    assert titles == ["j and j", "Left out"]
