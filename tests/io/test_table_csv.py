"""CSV tables: dialects, encodings, delimiters, line numbers, everything that can be wrong with a file."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.tables.base import RawRow, TableInfo
from manyhands.io.tables.dialects import find_delimiter
from manyhands.io.tables.formats import open_table

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",;\t|\r\n\0 \ufeffä='), max_size=12)
NAME = TEXT.filter(lambda name: name.strip() != "" and not name.startswith("\ufeff"))

REPEATED = "rename one of them, or say with --header_row where the header is"


def write(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **settings: Any) -> list[RawRow]:
    return list(open_table(path, **settings).rows())


def cells(path: Path, **settings: Any) -> list[list[Any]]:
    rows = read(path, **settings)
    assert not [row for row in rows if row.problem]
    return [list(row.cells) for row in rows]


def problems(path: Path, **settings: Any) -> list[tuple[int, str | None]]:
    return [(row.line, row.problem) for row in read(path, **settings) if row.problem]


def error(path: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- What is read


def test_a_plain_table(tmp_path: Path) -> None:
    table = open_table(write(tmp_path, 'id,text\r\n1,a b\r\n2,"x, ""y"""\r\n'))
    assert table.info == TableInfo(str(tmp_path / "t.csv"), "csv", ("id", "text"), "utf-8", ",")
    assert list(table.rows()) == [RawRow(2, ["1", "a b"]), RawRow(3, ["2", 'x, "y"'])]
    assert list(table.rows()) == list(table.rows())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_true_line_numbers(tmp_path: Path, end: str) -> None:
    text = end.join(["", "a,b", "", '1,"x', "", 'y"', ",", " , ", "", '"",', '2,"z', 'z"', "3,4"])
    assert read(write(tmp_path, text)) == [
        RawRow(4, ["1", f"x{end}{end}y"]),
        RawRow(8, [" ", " "]),
        RawRow(11, ["2", f"z{end}z"]),
        RawRow(13, ["3", "4"]),
    ]


def test_a_quote_inside_a_cell_is_text(tmp_path: Path) -> None:
    assert cells(write(tmp_path, 'a,b\n1"2,x "y" z\n')) == [['1"2', 'x "y" z']]


def test_nothing_is_trimmed_and_nul_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, ' a,b \n\0, x\ty \n"\0\n",\n')
    assert open_table(path).info.headers == (" a", "b ")
    assert cells(path) == [["\0", " x\ty "], ["\0\n", ""]]


def test_blank_rows_before_the_header_are_left_out(tmp_path: Path) -> None:
    assert read(write(tmp_path, '\n\r\n,,\n""\na,b\n1,2\n')) == [RawRow(6, ["1", "2"])]


def test_a_header_alone_is_a_table(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a,b")) == []


@pytest.mark.parametrize("content", [b"", b"\n\r\n\r", b",,\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_a_header(tmp_path: Path, content: bytes) -> None:
    assert error(write(tmp_path, content)) == f"{tmp_path / 't.csv'}: csv input must include a header row"


Quoting = Literal[0, 1, 2, 3]


@given(
    rows=st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(TEXT, min_size=width, max_size=width), max_size=6)),
    names=st.lists(NAME, min_size=5, max_size=5, unique=True),
    delimiter=st.sampled_from(",;\t|: ~§\0"),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_MINIMAL]),
    encoding=st.sampled_from([None, "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7", "gb18030"]),
    packed=st.booleans(),
)
def test_what_the_csv_module_writes_is_read_back(
    rows: list[list[str]],
    names: list[str],
    delimiter: str,
    end: str,
    quoting: Quoting,
    encoding: str | None,
    packed: bool,
) -> None:
    width = len(rows[0]) if rows else 3
    # Older versions of the csv module quote a line break only if the dialect's own lines end in it.
    quoting = csv.QUOTE_ALL if any("\r" in cell or "\n" in cell for row in [names, *rows] for cell in row) else quoting
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([names[:width], *rows])
    content = text.getvalue().encode(encoding or "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv.gz" if packed else "t.csv")
        path.write_bytes(gzip.compress(content) if packed else content)
        table = open_table(path, encoding=encoding, delimiter=delimiter)
        found = list(table.rows())
    assert table.info.headers == tuple(names[:width])
    kept = [row for row in rows if any(row)]
    assert [list(row.cells) for row in found] == kept
    assert not any(row.problem for row in found)
    assert [row.line for row in found] == naive_lines([names[:width], *rows])


def naive_lines(rows: list[list[str]]) -> list[int]:
    """Where each row but the first begins that is not blank, by counting line breaks in cells."""
    line, found = 1, []
    for place, row in enumerate(rows):
        if place and any(row):
            found.append(line)
        # Every cell begins and ends with something that is no line break: breaks never grow together over cells.
        line += 1 + sum(len(("x" + cell.replace("\r\n", "\n").replace("\r", "\n")).split("\n")) - 1 for cell in row)
    return found


# --- Encodings


@pytest.mark.parametrize(
    ("mark", "codec", "name"),
    [
        (codecs.BOM_UTF8, "utf-8", "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le", "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16-be", "utf-16"),
        (codecs.BOM_UTF32_LE, "utf-32-le", "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32-be", "utf-32"),
    ],
)
def test_a_byte_order_mark_is_recognised_and_removed(tmp_path: Path, mark: bytes, codec: str, name: str) -> None:
    path = write(tmp_path, mark + '"ä",b\r\n1,ö\n'.encode(codec))
    table = open_table(path)
    assert (table.info.headers, table.info.encoding) == (("ä", "b"), name)
    assert cells(path) == [["1", "ö"]]
    assert cells(path, encoding=name) == [["1", "ö"]]


def test_all_marks_before_the_first_name_are_removed(tmp_path: Path) -> None:
    assert open_table(write(tmp_path, "\ufeff\ufeffa,\ufeffb\n")).info.headers == ("a", "\ufeffb")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_utf_16_without_a_mark_is_known_by_its_zeros(tmp_path: Path, codec: str, end: str) -> None:
    path = write(tmp_path, f"вопрос,naïve{end}“x”,日本{end}yes,1{end * 9999}".encode(codec))
    assert (open_table(path).info.headers, open_table(path).info.encoding) == (("вопрос", "naïve"), codec)
    assert cells(path) == [["“x”", "日本"], ["yes", "1"]]


def test_nul_characters_alone_make_no_utf_16(tmp_path: Path) -> None:
    path = write(tmp_path, "a\0,\0\n\0,b\0\nc\0,\0d\n")
    assert (open_table(path).info.headers, open_table(path).info.encoding) == (("a\0", "\0"), "utf-8")


def test_an_encoding_given(tmp_path: Path) -> None:
    path = write(tmp_path, "naïve,日本\n1,\n".encode("shift_jis", "replace"))
    assert open_table(path, encoding="Shift-JIS").info.encoding == "shift_jis"
    assert cells(write(tmp_path, "a\né\n".encode("cp1252")), encoding="windows-1252") == [["é"]]


@pytest.mark.parametrize("name", ["nonsense", "hex", "", "rot13", "a\0b"])
def test_an_unknown_encoding(tmp_path: Path, name: str) -> None:
    assert error(write(tmp_path, "a\n1\n"), encoding=name).startswith(f"unknown encoding {name!r};")


def test_bytes_that_do_not_decode_spoil_their_row_only(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b\nä,1\n"\n'.encode() + b'\xe9",\xfc\nok,2\n')
    hint = "is not utf-8 text; if the file has another encoding, name it with --encoding"
    assert read(path) == [
        RawRow(2, ["ä", "1"]),
        RawRow(3, [None, None], f"the byte 0xE9 {hint}"),
        RawRow(5, ["ok", "2"]),
    ]
    assert problems(path, encoding="ascii")[0] == (2, f"the byte 0xC3 {hint.replace('utf-8', 'ascii')}")


def test_bytes_that_do_not_decode_in_the_header(tmp_path: Path) -> None:
    assert error(write(tmp_path, b"\na,\xe9\n1,2\n")).startswith(f"{tmp_path / 't.csv'}, line 2: the byte 0xE9 is not")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_where_broken_utf_16_can_not_be_read_the_line_is_named(tmp_path: Path, end: str) -> None:
    start = ("a,b" + end + f"1,2{end}" * 50_000).encode("utf-16")
    path = write(tmp_path, start + b"\x00\xdc" + f"3,4{end}".encode("utf-16-le"))
    assert error(path).startswith(f"{path}, line 50002: holds bytes that are not utf-16 text; ")
    cut = write(tmp_path, start + b"1")
    assert error(cut).startswith(f"{cut}, line 50002: holds bytes that are not utf-16 text; ")


# --- Delimiters


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (",", "a,b\n1,2\n"),
        (";", "a;b\n1,5;2\n2,5;3\n"),
        ("\t", "a\tb\nx, y\tz; z\n"),
        ("|", "a|b\n1|2\n"),
        (";", "a;b|c\n1;2|3\n"),
        ("|", "a;b|c|d\n1;2|3|4\n"),
        (",", "a;b,c|d\n1;2,3|4\n"),
        (";", "a;b, c;d\n1;2;3\n4;5;6\n"),
        (";", "a;b\n1;2\n3;4\n5\n"),
        (";", 'a;b\n1;2\n"3"x;4\n5;6\n'),
        (",", "text\n"),
        (",", "text\na;b\nc;d\n"),
        (",", "text\na\tb\nc\td\n"),
        (",", "yes; or no\nthis\nthat; or other; things\nnothing\n"),
        (",", 'text\n"a,b"\n"c\n;d"\n'),
        (",", '"a;b","c;d"\n"1;2","3;4"\n'),
        (",", "a,b\n1;2,3\n4;5\n6\n"),
        (";", "a;b\n"),
        (",", ""),
        (",", "\n\n"),
        (";", '\n;;\n"a";"b"\n1;"x'),
    ],
)
def test_detected_delimiters(expected: str, text: str) -> None:
    assert find_delimiter(text.splitlines(keepends=True)) == expected


@given(
    st.lists(st.lists(st.text("ab;\t| \n\"'", max_size=6), min_size=3, max_size=3).filter(any), min_size=1, max_size=8)
)
def test_a_plain_comma_table_is_split_at_commas(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    assert find_delimiter(list(io.StringIO(text.getvalue(), newline=""))) == ","


@given(st.lists(st.text("ab,;\t| \n\"'", max_size=9), max_size=8))
def test_one_column_with_a_plain_name_is_not_split(values: list[str]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["name"], *([value] for value in values)])
    assert find_delimiter(list(io.StringIO(text.getvalue(), newline=""))) == ","


@pytest.mark.parametrize("given", ["\t", "tab", "TAB", "\\t"])
def test_a_tab_may_be_written_out(tmp_path: Path, given: str) -> None:
    path = write(tmp_path, "a,b\tc\n1,2\t3\n")
    assert open_table(path, delimiter=given).info.delimiter == "\t"
    assert cells(path, delimiter=given) == [["1,2", "3"]]


def test_a_tsv_has_tabs(tmp_path: Path) -> None:
    assert cells(write(tmp_path, "a,b\tc,d\n1,2\t3,4\n", "t.tsv")) == [["1,2", "3,4"]]
    assert cells(write(tmp_path, "a,b\tc,d\n1,2\t3,4\n", "t.tsv"), delimiter=",") == [["1", "2\t3", "4"]]


@pytest.mark.parametrize("given", ["", ",,", '"', "\n", "\r", "comma"])
def test_impossible_delimiters(tmp_path: Path, given: str) -> None:
    assert error(write(tmp_path, "a,b\n"), delimiter=given).startswith(f"the delimiter {given!r} can't be used; ")


# --- Headers


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("a,b,a", f"csv header a is duplicated (columns 1 and 3); {REPEATED}"),
        ('a,"x, y","x, y"', f"csv header 'x, y' is duplicated (columns 2 and 3); {REPEATED}"),
        ('a,"b"c', "broken quoting: ',' expected after '\"'"),
        ('a,"b', "a quote in this row is never closed; everything from here to the end, line 4, is inside it"),
    ],
)
def test_headers_that_can_not_be_used(tmp_path: Path, header: str, problem: str) -> None:
    path = write(tmp_path, f"\n\n{header}\n1,2,3\n")
    assert error(path) == f"{path}, line 3: {problem}"


@pytest.mark.parametrize(
    ("header", "names", "said"),
    [
        (",a,b", "column_1 a b", "a column without a name is called column_1"),
        ("a,,", "a column_2 column_3", "columns without names are called column_2, column_3"),
        ("a, ,column_2", "a column_2_2 column_2", "a column without a name is called column_2_2"),
    ],
)
def test_columns_without_a_name_are_called_by_their_number(tmp_path: Path, header: str, names: str, said: str) -> None:
    path = write(tmp_path, f"{header}\n1,2,3\n")
    table = open_table(path)
    assert table.info.headers == tuple(names.split())
    assert table.notices == (f"{path}, line 1: {said}",)
    assert cells(path) == [["1", "2", "3"]]


def test_names_differ_in_case_and_spaces(tmp_path: Path) -> None:
    assert open_table(write(tmp_path, "a,A, a\n")).info.headers == ("a", "A", " a")


# --- Bad rows


def test_ragged_rows_keep_their_cells(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b,c\n1,"x\n\ny",3\n\n,,\n1,"\n"\n4,5,6,,\n1,2,3,4,,5\n""\n9\n')
    table = open_table(path)
    assert table.info.headers == ("a", "b", "c", "column_4", "column_5", "column_6")
    assert list(table.rows())[1:] == [
        RawRow(7, ["1", "\n", "", "", "", ""]),
        RawRow(9, ["4", "5", "6", "", "", ""]),
        RawRow(10, ["1", "2", "3", "4", "", "5"]),
        RawRow(12, ["9", "", "", "", "", ""]),
    ]
    assert table.notices == (
        f"{path}: 1 row (line 10) has more cells than the header: the others are kept in column_4 to column_6",
        f"{path}: 2 rows (lines 7, 12) have fewer cells than the header: empty ones are added",
    )


def test_a_row_with_far_too_many_cells_is_bad(tmp_path: Path) -> None:
    path = write(tmp_path, f"a,b\n1,2\n{'x,' * 1500}y\n3,4{',' * 1500}\n")
    assert problems(path) == [(3, "1,501 cells, but the header has 2")]
    assert open_table(path).info.headers == ("a", "b")


def test_broken_quoting_spoils_one_row(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b\n1,"x"y\n2,"x\n\ny" ,3\n4,5\n"6" ,7\n8,9')
    assert read(path) == [
        RawRow(2, (), "broken quoting: ',' expected after '\"'"),
        RawRow(3, (), "broken quoting on line 5: ',' expected after '\"'"),
        RawRow(6, ["4", "5"]),
        RawRow(7, (), "broken quoting: ',' expected after '\"'"),
        RawRow(8, ["8", "9"]),
    ]


def test_a_quote_that_is_never_closed_ends_the_table(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b\n1,2\n3,"x\n5,6\n\n7,8')
    taken = "a quote in this row is never closed; everything from here to the end, line 6, is inside it"
    assert read(path) == [RawRow(2, ["1", "2"]), RawRow(3, (), taken)]
    assert problems(write(tmp_path, 'a,b\n1,2\n3,"x')) == [(3, "a quote in this row is never closed")]


def test_an_endless_cell_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w") as stream:
        stream.write('a,b\n1,2\n3,"x\n')
        stream.writelines([f"{'y' * 999_999}\n"] * 135)
    message = "a cell is longer than 128 MiB; is a quote left open? Nothing behind it can be read"
    assert error(path) == f"{path}, line 3: {message}"


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w") as stream:
        stream.write("a,b\n1,2\n")
        stream.writelines(["y," * 500_000] * 135)
    assert error(path) == f"{path}, line 3: longer than 128 MiB"


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    value = "x,\n" * 1_000_000
    assert cells(write(tmp_path, f'a,b\n"{value}",2\n')) == [[value, "2"]]


# --- Files


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    begin = "failed to read csv input "
    assert error(tmp_path) == f"{begin}{tmp_path}: it is a directory"
    assert error(tmp_path / "none.csv") == f"{begin}{tmp_path / 'none.csv'}: No such file or directory"
    assert error(Path("none.csv")) == f"{begin}{Path.cwd() / 'none.csv'}: No such file or directory"
    assert error(Path("/dev/null")) == f"{begin}/dev/null: not a regular file"
    assert "standard input" in error(Path("-"))
    assert error(Path("a\0b")).startswith(begin)
    assert error(write(tmp_path, "a,b\n1,2\n", "plain.csv.gz")).startswith(f"{begin}{tmp_path / 'plain.csv.gz'}: ")
    assert error(write(tmp_path, b"\x1f\x8b", "short.csv.gz")).startswith(f"{begin}{tmp_path / 'short.csv.gz'}: ")


def test_damaged_compressed_data(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f"{n},x\n" for n in range(100_000)).encode())
    path = write(tmp_path, packed[:-20_000], "t.csv.gz")
    assert ": the compressed data is damaged from here on: " in error(path)


def test_a_header_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,2\n")
    table = open_table(path)
    write(tmp_path, "\na,c\n1,2\n")
    with pytest.raises(UserError, match="line 2: the header changed since the table was opened"):
        list(table.rows())


def test_a_large_table_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("w") as stream:
        stream.write("id,text\n")
        stream.writelines(f'{n},"{"some text," * 9}\n{n}"\n' for n in range(40_000))
    tracemalloc.start()
    count = sum(1 for _ in open_table(path).rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 2_000_000
