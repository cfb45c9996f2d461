"""Tables that pandas writes are read, and those that are written here are read by pandas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas
import pytest

from manyhands.io.tables.formats import open_table
from tests.support.table_runs import export_table, reported

TEXTS = ["one", "two, three", 'q"uo\nte', "=1+1", ""]
FRAME = pandas.DataFrame(
    {"text": TEXTS, "n": [1, 2, 3, 4, 5], "f": [1.5, float("nan"), -0.25, 1e20, 3.0], "day": datetime(2024, 5, 6)},
    index=["r1", "r2", "r3", "r4", "r5"],
)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "index.csv": FRAME.to_csv,
    "plain.csv": lambda path: FRAME.to_csv(path, index=False),
    "decimals.csv": lambda path: FRAME.to_csv(path, sep=";", decimal=","),
    "tabs.tsv": lambda path: FRAME.to_csv(path, sep="\t"),
    "marked.csv": lambda path: FRAME.to_csv(path, sep=";", encoding="utf-8-sig"),
    "wide.csv": lambda path: FRAME.to_csv(path, encoding="utf-16"),
    "packed.csv.gz": FRAME.to_csv,
    "lines.jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True, date_format="iso"),
    "sheet.xlsx": FRAME.to_excel,
    "plain.xlsx": lambda path: FRAME.to_excel(path, index=False),
    "index.parquet": FRAME.to_parquet,
    "plain.parquet": lambda path: FRAME.reset_index(drop=True).to_parquet(path),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "out.csv": pandas.read_csv,
    "out.tsv": lambda path: pandas.read_csv(path, sep="\t"),
    "out.jsonl": lambda path: pandas.read_json(path, lines=True),
    "out.xlsx": pandas.read_excel,
    "out.parquet": pandas.read_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_pandas_writes_is_read(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    table = open_table(tmp_path / name)
    columns = dict(zip(table.info.headers, zip(*(row.cells for row in table.rows()), strict=True), strict=True))
    with_index = not name.startswith("plain") and not name.endswith(".jsonl")
    assert set(columns) - {"column_1", "__index_level_0__"} == {"text", "n", "f", "day"}
    assert (len(columns) == 5) == with_index
    if with_index:
        assert columns.get("column_1", columns.get("__index_level_0__")) == ("r1", "r2", "r3", "r4", "r5")
    assert [text or "" for text in columns["text"]] == TEXTS
    assert [int(number) for number in columns["n"]] == [1, 2, 3, 4, 5]
    decimals = [str(number).replace(",", ".") for number in columns["f"]]
    assert [float(number) for number in decimals if number not in ("", "None", "NaN")] == [1.5, -0.25, 1e20, 3.0]
    assert {str(day)[:10] for day in columns["day"]} == {"2024-05-06"}
    assert table.info.decimal_comma == (name == "decimals.csv")


@pytest.mark.parametrize("name", READERS)
def test_what_is_written_is_read_by_pandas(tmp_path: Path, name: str) -> None:
    FRAME.to_excel(tmp_path / "in.xlsx")
    suffix = name.rpartition(".")[2]
    export_table(
        tmp_path / "in.xlsx",
        tmp_path / "run",
        tmp_path / name,
        lambda index: reported({"score": index + 0.5}),
        format={"tsv": "csv"}.get(suffix, suffix),
        flatten=True,
    )
    found = READERS[name](tmp_path / name)
    assert list(found["text"].fillna("").astype(str)) == TEXTS
    assert list(found["column_1"]) == ["r1", "r2", "r3", "r4", "r5"]
    assert list(found["result.score"]) == [0.5, 1.5, 2.5, 3.5, 4.5]
    if name == "out.xlsx":
        assert str(found["day"].dtype).startswith("datetime64")


def test_semicolons_and_decimal_commas_are_read_back_by_pandas(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "in.csv", sep=";", decimal=",")
    score = {"score": 0.5}
    export_table(
        tmp_path / "in.csv", tmp_path / "run", tmp_path / "out.csv", lambda index: reported(score), flatten=True
    )
    found = pandas.read_csv(tmp_path / "out.csv", sep=";", decimal=",")
    assert list(found["result.score"]) == [0.5] * 5
    assert found["f"][0] == 1.5
