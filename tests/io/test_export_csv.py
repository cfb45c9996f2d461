"""CSV as it is written: quotes, line ends, and what spreadsheet programs take for formulas."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.io.tables.csv import cell_text, harmless, write_csv


def written(names: list[str], *rows: list[Any], **options: Any) -> str:
    handle = io.BytesIO()
    assert write_csv(handle, names, rows, **options) == len(rows)
    return handle.getvalue().decode()


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("plain", "plain"),
        ("a,b", '"a,b"'),
        ('say "x"', '"say ""x"""'),
        ('"', '""""'),
        ("a\nb", '"a\nb"'),
        ("a\rb", '"a\rb"'),
        ("a\r\nb", '"a\r\nb"'),
        (" spaces ", " spaces "),
        ("semi;tab\tbar|", "semi;tab\tbar|"),
        ("'apostrophe'", "'apostrophe'"),
        ("nul\0", "nul\0"),
        ("\u2028\x85\x0b", "\u2028\x85\x0b"),
        ("\ufeff", "\ufeff"),
        ("=1+1", "=1+1"),
        ("\ud800", "\ufffd"),
        ("", ""),
        (None, ""),
        (True, "true"),
        (0, "0"),
        (-1.5, "-1.5"),
        (2**70, str(2**70)),
        ([1, "ü"], '"[1,""ü""]"'),
        ({"a": None}, '"{""a"":null}"'),
    ],
)
def test_quotes_only_where_they_are_needed(cell: Any, shown: str) -> None:
    assert written(["x", "y"], [cell, "z"], ["z", cell]) == f"x,y\n{shown},z\nz,{shown}\n"


def test_a_mark_at_the_beginning_of_the_file_is_kept_from_readers_by_quotes() -> None:
    assert written(["\ufeffa", "b"]) == '"\ufeffa",b\n'
    assert written(["\ufeffa,", "b"]) == '"\ufeffa,",b\n'
    assert written(["b", "\ufeffa"]) == "b,\ufeffa\n"


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_the_standard_reader_gives_back_what_was_written(rows: list[list[str]]) -> None:
    text = written(rows[0], *rows[1:])
    cleaned = [[cell.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for cell in row] for row in rows]
    assert list(csv.reader(io.StringIO(text, newline=""), strict=True)) == cleaned
    assert not text.startswith("\ufeff")


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\0=1",
        "＝1",
        "-",
        "+",
        "-a",
        "- 5",
        "-5 ",
        "-٣",
        "+1,000",
        "-1e",
    ],
)
def test_formulas_get_an_apostrophe(cell: str) -> None:
    assert harmless(cell) == f"'{cell}"


@pytest.mark.parametrize(
    "cell", ["", "a=1", "-5", "+3.2", "-.5", "+5.", "-1e-7", "+1E+10", "'=1", " =1", "5", "a-b", '"=1"']
)
def test_numbers_and_other_text_stay_as_they_are(cell: str) -> None:
    assert harmless(cell) == cell


def test_excel_safe_reaches_headers_and_every_cell() -> None:
    text = written(["=h", "n"], ["@x", -5], ["-5", "-x\ny"], [None, [-1]], excel_safe=True)
    assert text == "\ufeff'=h,n\n'@x,-5\n-5,\"'-x\ny\"\n,[-1]\n"


@given(st.text())
def test_no_harmless_cell_begins_as_a_formula(cell: str) -> None:
    shown = harmless(cell)
    assert shown.lstrip("'") == cell.lstrip("'")
    assert not re.match(r"[=+\-@\t\r]", shown) or float(shown) is not None


def test_cells_of_other_values_are_compact_json() -> None:
    assert cell_text({"a": [1, 2.5, None, "ü"]}) == '{"a":[1,2.5,null,"ü"]}'
