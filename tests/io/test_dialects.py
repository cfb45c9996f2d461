"""How tables are laid out: separators, decimal commas and titles, as they are found by looking."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.tables.dialects import Dialect, find_dialect
from manyhands.io.tables.formats import open_table


def dialect(text: str, **given: Any) -> Dialect:
    return find_dialect(text.splitlines(keepends=True), **given)


def found(text: str) -> tuple[str, int]:
    """The delimiter, and the line of the header."""
    layout = dialect(text)
    return layout.delimiter, layout.header_line


# --- Separators and decimal commas


@pytest.mark.parametrize(
    ("delimiter", "decimal_comma", "text"),
    [
        (";", True, "a;b\n1,5;2,3\n"),
        (";", True, "price, net;price, gross\n1,5;2,3\n1,7;2,5\n"),
        (";", True, "a;b\n1.234,50;x\n"),
        ("\t", True, "a\tb\n1,5\tx\n"),
        (";", False, "a;b\n1.5;x, y\n"),
        (";", False, "a;b\nx;y\n"),
        (",", False, 'a,b\n"1,5","2,3"\n'),
        (",", False, "a,b\n1.5,2.3\n"),
        ("|", False, "a|b\n1|2\n"),
        ("\t", True, "id\tprice\n1\t2\n2\t1,5\n3\t\n"),
        ("\t", False, 'id\trefs\n1\t"1,2"\n2\tx\n3\ty\n'),
    ],
)
def test_separators_and_decimal_commas(delimiter: str, decimal_comma: bool, text: str) -> None:
    layout = dialect(text)
    assert (layout.delimiter, layout.decimal_comma) == (delimiter, decimal_comma)


def test_decimal_commas_are_said_where_the_delimiter_is_known(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("id\tprice\n1\t1,5\n")
    assert open_table(path).notices == (f"{path}: numbers are taken to have decimal commas (1,5 is 1.5)",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("| a | b |\n|---|:-:|\n| 1 | 2 |\n", 2),
        (" a | b \n---+---\n 1 | 2\n(1 row)\n", 2),
        ("\n+---+---+\n| a | b |\n+---+---+\n| 1 | 2 |\n", 2),
    ],
)
def test_a_table_laid_out_for_reading_is_refused(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=f"t.csv, line {line}: a line of dashes"):
        open_table(path)
    assert open_table(path, delimiter="|").info.headers


def test_dashes_in_cells_are_no_layout(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a|b\n---|x\n-1|+2\n")
    assert [row.cells for row in open_table(path).rows()] == [["---", "x"], ["-1", "+2"]]


@pytest.mark.parametrize("text", ["a;b\n1;2;3\n4;5\n6\n", "a;b\n1;2;3\n4;5;6\n", "a;b;c\n1;2\n3;4\n"])
def test_ragged_rows_are_split_all_the_same(text: str) -> None:
    assert found(text) == (";", 1)


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
def test_a_table_may_name_its_separator(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(f"{line}\r\na,b;c\r\n1;2\r\n".encode())
    table = open_table(path)
    assert (table.info.headers, table.info.delimiter) == (("a,b", "c"), ";")
    assert table.notices == (f"{path}: the cells are separated by semicolons, as its first line says",)
    assert [(row.line, row.cells) for row in table.rows()] == [(3, ["1", "2"])]
    assert open_table(path, delimiter=",").info.headers == ("a", "b;c")


@pytest.mark.parametrize("line", ["sep=\n", '"sep=\n"\n', "sep=\r\n"])
def test_the_end_of_a_line_is_no_separator(line: str) -> None:
    assert dialect(f"{line}a,b\n1,2\n").delimiter == ","


EXCEL = b'\xef\xbb\xbfid;Preis;Text\r\n1;1,5;"a\nb"\r\n2;-2,25;"say ""x"""\r\n'
PANDAS = b';text;f\nr1;one;1,5\nr2;"two; three";\n'
LIBREOFFICE = 'Größen 2024,,\n,,\nid,Größe,n\n1,"a, b",1.5\n2,,2\n'.encode()
MYSQL = b"id\tname\tnote\n1\tAnn\tNULL\n2\tBob\tx, y; z\n"


@pytest.mark.parametrize(
    ("content", "headers", "delimiter", "first", "last"),
    [
        (EXCEL, "id Preis Text", ";", ["1", "1,5", "a\nb"], ["2", "-2,25", 'say "x"']),
        (PANDAS, "column_1 text f", ";", ["r1", "one", "1,5"], ["r2", "two; three", ""]),
        (LIBREOFFICE, "id Größe n", ",", ["1", "a, b", "1.5"], ["2", "", "2"]),
        (MYSQL, "id name note", "\t", ["1", "Ann", "NULL"], ["2", "Bob", "x, y; z"]),
    ],
)
def test_tables_as_programs_write_them(
    tmp_path: Path, content: bytes, headers: str, delimiter: str, first: list[str], last: list[str]
) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    table = open_table(tmp_path / "t.csv")
    assert (table.info.headers, table.info.delimiter) == (tuple(headers.split()), delimiter)
    assert [row.cells for row in table.rows()] == [first, last]


NUMBER = st.decimals(-1000, 1000, places=2).map(lambda number: str(number).replace(".", ","))
WORD = st.text("abcdefgh ", min_size=1, max_size=8).filter(lambda word: word.strip() != "")


@given(
    names=st.lists(WORD, min_size=2, max_size=5, unique=True),
    delimiter=st.sampled_from(";\t|"),
    rows=st.integers(1, 6),
    decimals=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    title=st.sampled_from([None, "A report, and more"]),
    data=st.data(),
)
def test_what_is_written_in_any_dialect_is_read_back(
    names: list[str], delimiter: str, rows: int, decimals: bool, quoting: Any, title: str | None, data: st.DataObject
) -> None:
    cell = NUMBER if decimals else WORD
    cells = [[data.draw(cell) for _ in names] for _ in range(rows)]
    text = io.StringIO(newline="")
    if title is not None:
        text.write(f"{title}\n\n")
    csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows([names, *cells])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_text(text.getvalue())
        table = open_table(path)
        assert (table.info.delimiter, table.info.headers) == (delimiter, tuple(names))
        assert table.info.decimal_comma == decimals
        assert [row.cells for row in table.rows()] == cells


# --- A single column


def test_a_single_column_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('prompt\nWrite a haiku, please\n"Quoted, ""so""\nand on"\n"a" b\na; b | c\td,\n"x" y, z\n')
    table = open_table(path)
    assert table.info.headers == ("prompt",)
    broken = "broken quoting: the end of the row expected after '\"'"
    assert [(row.line, *row.cells, row.problem) for row in table.rows()] == [
        (2, "Write a haiku, please", None),
        (3, 'Quoted, "so"\nand on', None),
        (5, broken),
        (6, "a; b | c\td,", None),
        (7, broken),
    ]
    said = "one column, so its rows are read whole; --delimiter=, splits them at commas"
    assert table.notices == (f"{path}, line 1: {said}",)
    split = open_table(path, delimiter=",")
    assert split.info.headers == ("prompt", "column_2")
    assert next(iter(split.rows())).cells == ["Write a haiku", " please"]
    again = open_table(path, delimiter=table.info.delimiter)  # as a job reads its table again
    assert list(again.rows()) == list(table.rows())


@given(st.lists(st.text("ab,;\t| \n\"'é", max_size=9), max_size=8), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
def test_one_column_as_the_csv_module_writes_it(values: list[str], quoting: Any) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows([["name"], *([value] for value in values)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_text(text.getvalue())
        table = open_table(path)
        assert (table.info.headers, table.notices) == (("name",), ())
        assert [row.cells for row in table.rows()] == [[value] for value in values if value]


# --- Titles


@pytest.mark.parametrize(
    ("line", "delimiter", "text"),
    [
        (3, ",", "Report\n\nid,text\na,b\n"),
        (3, ";", "Report 2024, by Ann\n\nid;text\na;b\n"),
        (2, ",", "Report\nid,n\na,1\nb,2\n"),
        (2, ",", "Report,,\nid,text,more\na,b,c\n"),
        (4, ",", "Report,,\nMade on,2024-01-01,\n,,\nid,text,n\na,b,1\n"),
        (4, ",", "Report\nby Ann\n\nyear,2023,2024\nn,1,2\n"),
        (5, ";", '"A title\nof two lines"\n\n\nid;text\na;b\n'),
        (3, ",", ",Report,\n,,\n,id,text\n,a,b\n"),
        (2, ",", "Report,\nname,n\nAlice,1\nBob,2\n"),
    ],
)
def test_titles_are_found(line: int, delimiter: str, text: str) -> None:
    assert found(text) == (delimiter, line)


@pytest.mark.parametrize(
    "text",
    [
        "id,text\na,b\n",
        "name,\nAlice,Berlin\nBob,Paris\n",
        "name\nSmith, John\nDoe, Jane\n",
        "text\na;b\nc;d\n",
        ",a\n0,x\n1,y\n",
        ",a,b\nfoo,x,y\nbar,z,3\n",
        ",a\nfoo,x\nbar,y\n",
        ",a,b\nfoo,x,y\n",
        "id,,\n1,2,3\n4,5,6\n",
        "id\n\n1\n\n2\n",
        "a,b\n1,2,3\n4\n",
        "notes,,,\n1,2,3,4\n",
        "a\n1,2\n3,4\n",
        "prompt\n\nhello, world\nfoo bar\nx, y, z\n",
        "prompt\n\nhello, world\nfoo, bar\nx, y\n",
        "prompt\n\nhello, world\n",
        "prompt\nsay a, b\n\nadd 1, 2\nto this, 3\n",
        "prompt\n\nx\ny,z\na,b\n",
    ],
)
def test_headers_are_no_titles(text: str) -> None:
    assert found(text) == (",", 1)


def test_titles_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Report 2024\nfor all\n\nid,n\na,1\nb,2\n")
    table = open_table(path)
    assert [(row.line, row.cells) for row in table.rows()] == [(5, ["a", "1"]), (6, ["b", "2"])]
    said = "the header is here; the 2 rows above it ('Report 2024' …) are left out as titles"
    assert table.notices == (f"{path}, line 4: {said}; --header_row sets another line",)
    assert open_table(path, header_row=4).notices == ()
    other = open_table(path, header_row=1)
    assert (other.info.headers, other.info.header_row) == (("Report 2024",), 1)
    with pytest.raises(UserError, match="must include a header row in or below line 9"):
        open_table(path, header_row=9)
