"""Columns that are chosen: for prompts, and for the tables that jobs write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.tables.base import TableInfo
from manyhands.workloads.csv_jobs.prepared import PreparedJob
from manyhands.workloads.csv_jobs.rows.columns import (
    OUR_COLUMNS,
    column_list,
    earlier_columns,
    prompt_columns,
)
from manyhands.workloads.csv_jobs.rows.export import Columns, check_output_columns, leaves_of
from manyhands.workloads.csv_jobs.rows.prompts import Template
from manyhands.workloads.csv_jobs.spec import JobSpec
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.table_runs import export_table, reported

SCHEMA = {"properties": {"score": {"type": "integer"}, "place": {"properties": {"city": {"type": "string"}}}}}


@pytest.mark.parametrize(
    ("typed", "columns"),
    [
        ("a", ("a",)),
        (" a , b c,a", ("a", "b c")),
        ('"a, b",c', ("a, b", "c")),
        ("", None),
        (",", None),
        (["x", "y,z"], ("x", "y,z")),
        (None, None),
    ],
)
def test_columns_as_they_are_typed(typed: Any, columns: Any) -> None:
    assert column_list(typed) == columns


@pytest.mark.parametrize("typed", [3, [1], '"a', {"a": 1}])
def test_what_names_no_columns(typed: Any) -> None:
    with pytest.raises(ValueError, match="must be names of columns"):
        column_list(typed)


@given(st.lists(st.integers(1, 4), max_size=3, unique=True), st.booleans())
def test_columns_of_earlier_jobs_are_known_by_all_ten(stages: list[int], own_status: bool) -> None:
    added = [("" if stage == 1 else f"stage{stage}_") + name for stage in stages for name in OUR_COLUMNS]
    headers = ["a", *(["status"] if own_status and 1 not in stages else []), *added, "result.score"]
    assert earlier_columns(headers) == set(added)
    assert prompt_columns(None, headers) == tuple(name for name in headers if name not in added)


def job(headers: tuple[str, ...], instruction: str, chosen: tuple[str, ...] | None = None) -> PreparedJob:
    options = JobSpec(csv_path="t.csv", instruction=instruction, prompt_columns=chosen)
    table = TableInfo("/t.csv", "csv", headers)
    return PreparedJob(options, "j", table, "/out.csv", prompt_columns=prompt_columns(chosen, headers))


@pytest.mark.parametrize(
    ("instruction", "chosen", "shown"),
    [
        ("Do it.", None, ("a", "b", "all")),
        ("Do {a} {{b}}.", None, ("b", "all")),
        ("Do {a}{b}{all}.", None, ()),
        ("Do {a}.", ("b", "a"), ("b", "a")),
        ("Do {a}.", ("none",), ()),
        ("Do it.", ("all",), ("all",)),  # a column of that name is meant
    ],
)
def test_what_a_prompt_holds_besides_the_instruction(instruction: str, chosen: Any, shown: tuple[str, ...]) -> None:
    made = job(("a", "b", "all"), instruction, chosen)
    assert made.shown_columns(Template.parse(instruction, made.table.headers)) == shown
    again = PreparedJob.from_json(json.loads(json.dumps(made.to_json())), Path("data"))
    assert again.shown_columns(Template.parse(instruction, made.table.headers)) == shown


def test_a_job_of_an_earlier_version_keeps_its_prompts() -> None:
    made = job(("a", *OUR_COLUMNS), "Do {a}.")
    recorded = made.to_json()
    del recorded["prompt_columns"]
    for name in ("prompt_columns", "output_columns", "limit", "memory_concurrency"):
        del recorded["options"][name]
    old = PreparedJob.from_json(recorded, Path("data"))
    assert old.shown_columns(Template.parse("Do {a}.", old.table.headers)) == old.table.headers
    assert "prompt_columns" not in old.to_json()
    assert made.left_out_columns() == OUR_COLUMNS
    assert old.left_out_columns() == ()


def names(wanted: tuple[str, ...], headers: tuple[str, ...], schema: Any = None) -> list[str]:
    leaves = leaves_of(schema or {})
    chosen = Columns.of(headers, leaves).chosen_from(wanted, open=not leaves)
    return chosen.pick(chosen.names)


def test_columns_of_results_by_name_and_by_origin() -> None:
    assert names(("b", "item_id"), ("a", "b")) == ["b", "item_id"]
    assert names(("table", "results"), ("a", "b"), SCHEMA) == ["a", "b", "result.score", "result.place.city"]
    assert names(("result.score", "table"), ("a",), SCHEMA) == ["result.score", "a"]
    assert names(("job", "a"), ("a",)) == [*OUR_COLUMNS, "a"]
    assert names(("a", "table", "a"), ("a", "b")) == ["a", "b"]
    assert names(("results", "job"), ("results", "job")) == ["results", "job"]  # columns of such names are meant
    assert names(("stage2_status", "status"), ("status",)) == ["stage2_status", "status"]
    assert names(("result.any.where", "a"), ("a",)) == ["result.any.where", "a"]  # without a schema, nobody knows
    for wanted, schema in ((("nope",), None), (("result.nope",), SCHEMA), (("a", ""), None)):
        leaves = leaves_of(schema or {})
        with pytest.raises(UserError, match=r"--output_columns: .* is no column.*the columns are: a, "):
            check_output_columns(wanted, ("a",), leaves, open=not leaves)


@pytest.mark.parametrize("format", ["csv", "jsonl", "xlsx", "parquet"])
def test_the_columns_of_results_before_there_is_any(tmp_path: Path, format: str) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    target = tmp_path / f"out.{format}"
    export_table(tmp_path / "t.csv", tmp_path / "run", target, lambda index: None, format=format, columns=("results",))
    assert target.exists()


def test_what_columns_of_a_spreadsheet_hold_goes_with_them(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (("code", "when"), ("20240105", date(2024, 5, 6))):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    for columns in (("code", "when", "status"), ("when", "code", "result.day"), ("status", "code", "when")):
        export_table(
            tmp_path / "t.xlsx", tmp_path / f"run-{columns[0]}", tmp_path / "out.xlsx",
            lambda index: reported({"day": "2024-05-06"}), format="xlsx", columns=columns,
        )  # fmt: skip
        sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
        assert sheet is not None
        found = dict(zip(columns, [cell.value for cell in sheet[2]], strict=True))
        known = {"code": "20240105", "when": datetime(2024, 5, 6), "status": "completed", "result.day": "2024-05-06"}
        assert found == {name: known[name] for name in columns}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path) as made:
        assert made.spawn(FUNCTION, "--executor=local", "--quiet").code == 0
        yield made


def test_an_export_with_chosen_columns(folder: JobFolder) -> None:
    assert folder.jobs("export", "j", "--output_columns=table,results", "--path=clean.csv").code == 0
    assert folder.rows("clean.csv")[0] == {"name": "a", "text": "one", "result.length": "3", "result.text": "one"}
    assert folder.jobs("export", "j", "--output_columns=result.length,name", "--path=clean.parquet").code == 0
    table = pyarrow.parquet.read_table(folder.path / "clean.parquet")
    assert table.to_pydict() == {"result.length": [3, 3, 5], "name": ["a", "b", "c"]}
    wrong = folder.jobs("export", "j", "--output_columns=nope", "--path=wrong.csv")
    assert (wrong.code, "nope is no column" in wrong.err) == (2, True)
    assert not (folder.path / "wrong.csv").exists()
    # What a stage before has added is neither sent nor lost.
    again = ("--instruction=Say {text} again.", "--output_csv_path=second.csv", "--job_name=k", "--model=simulated")
    ended = folder.jobs("spawn", "out.csv", *again, "--toolsets=none", "--quiet")
    assert ended.code == 0, ended
    assert "columns of an earlier job are not in the prompts: job_id, item_id, " in ended.err
    assert list(folder.rows("second.csv")[0])[:3] == ["name", "text", "job_id"]
    prompt = json.loads(folder.jobs("show", "k", "1", "--json").out)["prompt"]
    assert '"name": "a"' in prompt
    assert "result_json" not in prompt
