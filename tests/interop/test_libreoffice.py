"""Tables that LibreOffice writes are read, and those that are written here are read by LibreOffice. Needs ``soffice``, so that only
``make interop-test`` runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import openpyxl
import pytest

from manyhands.io.tables.formats import open_table
from tests.support.table_runs import export_table, reported

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("soffice") is None, reason="needs LibreOffice (soffice), to be installed by hand"),
]
COMMAS, SEMICOLONS = (f"csv:Text - txt - csv (StarCalc):{separator},34,76,1" for separator in (44, 59))
"""With the filter's options: separator, quote, UTF-8, first line; see LibreOffice's help on filter options of CSV. Without them it writes
and reads the encoding of the system that it takes this one for."""
TEXTS = ["one", "two; three", 'q"uo\nte', "Größe", "-1+2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    book = openpyxl.Workbook()
    for row in (["Report"], [], ["id", "text", "n"], *([number, text, 1.5] for number, text in enumerate(TEXTS))):
        book.active.append(row)
    book.active["D3"], book.active["D4"] = "twice", "=C4*2"
    book.save(tmp_path / "made.xlsx")
    return tmp_path


def converted(path: Path, target: str) -> Path:
    """The file as LibreOffice saves it in another format, in a folder of its own."""
    folder = path.parent / "converted"
    profile = f"-env:UserInstallation=file://{path.parent}/profile"
    command = ["soffice", profile, "--headless", "--infilter=CSV:44,34,76,1"][: 4 if path.suffix == ".csv" else 3]
    command += ["--convert-to", target, "--outdir", str(folder), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    return folder / f"{path.stem}.{target.partition(':')[0]}"


@pytest.mark.parametrize(
    ("target", "encoding"), [("csv", "cp1252"), (COMMAS, None), (SEMICOLONS, None), ("xlsx", None)]
)
def test_what_libreoffice_writes_is_read(folder: Path, target: str, encoding: str | None) -> None:
    table = open_table(converted(folder / "made.xlsx", target), encoding=encoding)
    rows = [row.cells for row in table.rows()]
    assert table.info.headers == ("id", "text", "n", "twice")
    assert [row[1] for row in rows] == TEXTS
    assert [str(cell).removesuffix(".0") for cell in rows[0]] == ["0", "one", "1.5", "3"]


@pytest.mark.parametrize("name", ["out.csv", "out.xlsx"])
def test_libreoffice_reads_what_is_written(folder: Path, name: str) -> None:
    export_table(
        folder / "made.xlsx",
        folder / "run",
        folder / name,
        lambda index: reported({"text": "=1+1", "score": 0.5}),
        format=name.rpartition(".")[2],
        flatten=True,
        excel_safe=True,
    )
    table = open_table(converted(folder / name, "xlsx" if name == "out.csv" else COMMAS))
    rows = [dict(zip(table.info.headers, row.cells, strict=True)) for row in table.rows()]
    assert [row["text"].lstrip("'") for row in rows] == TEXTS
    assert {row["result.text"].lstrip("'") for row in rows} == {"=1+1"}
    assert {float(row["result.score"]) for row in rows} == {0.5}
