"""Any table survives import, export and import again, in every format; stages chain for ever."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.core.jsonio import dumps, without_surrogates
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.io.tables.formats import open_table
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from tests.support.table_runs import export_table, reported

NASTY = [
    '"',
    '""',
    ",",
    "\n",
    "\r",
    "\r\n",
    "\0",
    "\ufeff",
    "=1+1",
    "-5",
    "@x",
    "\t",
    ";",
    "|",
    "'",
    " ",
    "\u2028",
    "\x85",
    "\x1c",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CELL = st.one_of(TEXT, st.lists(st.sampled_from(NASTY), max_size=6).map("".join))
HEADER = st.one_of(CELL, st.sampled_from(["stage2_job_id", "stage3_status", "result.x", *OUR_COLUMNS])).filter(
    str.strip
)
RESULTS = st.dictionaries(CELL, st.one_of(CELL, st.integers(), st.none()), max_size=3)


SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
JSON_CELL = st.recursive(
    st.one_of(SCALAR, CELL, st.text(st.characters(), max_size=5)),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(CELL, parts, max_size=3),
    max_leaves=5,
)


@st.composite
def tables(
    draw: st.DrawFn, cells: st.SearchStrategy[Any] = CELL, usable: Callable[[list[Any]], bool] = any
) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows; by default no row is empty throughout, as those of a CSV file are left out."""
    headers = draw(st.lists(HEADER, min_size=1, max_size=5, unique=True))
    row = st.lists(cells, min_size=len(headers), max_size=len(headers)).filter(usable)
    return headers, draw(st.lists(row, max_size=6))


def endings(results: list[dict[str, Any]]) -> Any:
    """How rows end: those with a result reported it, the next fails, the others are never performed."""

    def ending(index: int) -> Outcome | None:
        if index < len(results):
            return reported(results[index])
        return Outcome(ItemState.FAILED, message='broke, "badly"\n=1') if index == len(results) else None

    return ending


def read(path: Path, width: int) -> tuple[list[str], list[list[Any]]]:
    """The first columns of a table as the reader sees them. Every row must be usable."""
    table = open_table(path)
    rows = list(table.rows())
    assert [row.problem for row in rows] == [None] * len(rows)
    return list(table.info.headers[:width]), [list(row.cells[:width]) for row in rows]


@given(table=tables(), results=st.lists(RESULTS, max_size=3), flatten=st.booleans())
@example(table=(["\ufeffa", "b"], [["\ufeff", "\r"]]), results=[], flatten=False)
@example(table=(["job_id"], [["x" * 300_000 + '"\n']]), results=[], flatten=False)
def test_any_csv_table_comes_back_unchanged(
    table: tuple[list[str], list[list[str]]], results: list[dict[str, Any]], flatten: bool
) -> None:
    headers, rows = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "in.csv").open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle, quoting=csv.QUOTE_ALL).writerows([headers, *rows])
        assert read(folder / "in.csv", len(headers)) == table
        for stage in range(2):
            source, target = (
                folder / f"stage{stage}.csv" if stage else folder / "in.csv",
                folder / f"stage{stage + 1}.csv",
            )
            count = export_table(source, folder / f"job{stage}", target, endings(results), flatten=flatten)
            assert count == len(rows)
            assert read(target, len(headers)) == (headers, rows)


@given(table=tables(JSON_CELL, usable=lambda row: True), results=st.lists(RESULTS, max_size=3))
def test_any_jsonl_table_comes_back_unchanged(
    table: tuple[list[str], list[list[Any]]], results: list[dict[str, Any]]
) -> None:
    headers, rows = table
    rows = rows or [[None] * len(headers)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [dumps(dict(zip(headers, row, strict=True))) + b"\n" for row in rows]
        (folder / "in.jsonl").write_bytes(b"".join(lines))
        for format in ("jsonl", "csv", "parquet"):
            target = folder / f"out.{format}"
            count = export_table(folder / "in.jsonl", folder / format, target, endings(results), format=format)
            assert count == len(rows)
        assert read(folder / "out.jsonl", len(headers)) == (headers, rows)
        assert len(read(folder / "out.parquet", len(headers))[1]) == len(rows)
        for texts, row in zip(read(folder / "out.csv", len(headers))[1], rows, strict=True):
            for text, value in zip(texts, row, strict=True):
                assert_shown(text, value)


def assert_shown(text: str, value: Any) -> None:
    """The text is what CSV shows of a JSON value."""
    if isinstance(value, str):
        assert text == without_surrogates(value)
    else:
        assert (text == "") if value is None else (json.loads(text) == value)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "tsv", "csv.gz"])
def test_five_stages_chain(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "stage0.csv"
    source.write_text('topic,note\nants,"a ""b"", c"\nbees,=1+1\n', encoding="utf-8")
    kind = suffix if suffix in ("jsonl", "parquet") else "csv"
    for stage in range(1, 6):
        target = tmp_path / f"stage{stage}.{suffix}"
        ending = endings([{"stage": stage, "said": f"at {stage}"}])
        assert export_table(source, tmp_path / f"job{stage}", target, ending, format=kind, flatten=True) == 2
        source = target
    headers, rows = read(source, 1000)
    prefixes = ["", "stage2_", "stage3_", "stage4_", "stage5_"]
    per_stage = [*OUR_COLUMNS, "result.stage", "result.said"]
    assert headers == ["topic", "note", *(prefix + name for prefix in prefixes for name in per_stage)]
    first = dict(zip(headers, rows[0], strict=True))
    assert (first["topic"], first["note"]) == ("ants", 'a "b", c')
    for stage, prefix in enumerate(prefixes, start=1):
        assert str(first[f"{prefix}result.stage"]) == str(stage)
        assert first[f"{prefix}result.said"] == f"at {stage}"
        assert first[f"{prefix}status"] == "completed"
        assert rows[1][headers.index(f"{prefix}status")] == "failed"


def test_columns_of_earlier_stages_do_not_change(tmp_path: Path) -> None:
    """A stage leaves all that it was given as it was, byte for byte."""
    source = tmp_path / "stage0.csv"
    source.write_text("a\n1\n2\n3\n", encoding="utf-8")
    before: list[list[str]] = []
    for stage in range(1, 6):
        target = tmp_path / f"stage{stage}.csv"
        export_table(source, tmp_path / f"job{stage}", target, endings([{"s": stage, "t": 'x,"y"'}]))
        lines = list(csv.reader(io.StringIO(target.read_text(encoding="utf-8"), newline="")))
        width = len(before[0]) if before else 0
        assert [line[:width] for line in lines] == before or not before
        source, before = target, lines
