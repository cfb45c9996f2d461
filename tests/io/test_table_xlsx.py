"""Spreadsheets: what is read of sheets, what is refused, and what is written."""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import without_surrogates
from manyhands.io.tables.formats import open_records, open_table
from manyhands.io.tables.xlsx import MAX_CELL, need_xlsx, write_xlsx


def write(folder: Path, *rows: list[Any], sheet: str = "Sheet", name: str = "t.xlsx") -> Path:
    book = openpyxl.Workbook()
    book.active.title = sheet
    for row in rows:
        book.active.append(row)
    book.save(folder / name)
    return folder / name


def error(path: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(open_table(path, **settings).rows())
    message = str(caught.value)
    assert "\n" not in message
    return message


def cells(path: Path, **settings: Any) -> list[Any]:
    return [row.cells for row in open_table(path, **settings).rows()]


def packed(folder: Path, members: dict[str, bytes], name: str = "t.xlsx") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return folder / name


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_values_are_json(tmp_path: Path) -> None:
    moments = [date(2024, 5, 6), datetime(2024, 5, 6, 7, 8, 9), time(7, 30), timedelta(seconds=90)]
    path = write(tmp_path, ["text", "n", "f", "b", "day", "at", "time", "long"], ["a", 1, 1.5, True, *moments])
    table = open_table(path)
    assert [row.cells for row in table.rows()] == [
        ["a", 1, 1.5, True, "2024-05-06", "2024-05-06T07:08:09", "07:30:00", "PT90S"]
    ]
    assert table.info.times == ("", "", "", "", "date", "datetime", "time", "")
    assert (table.info.sheet, table.unit, table.notices) == ("Sheet", "row", ())


def test_the_used_part_of_a_sheet_is_the_table(tmp_path: Path) -> None:
    rows: list[list[Any]] = [
        ["Report"],
        [],
        [None, "id", "2024", None, "note"],
        [None, "a", 1, None, None, 5],
        [],
        [None, "b", None],
    ]
    path = write(tmp_path, *rows, [None, None], [""])
    table = open_table(path)
    assert table.info.headers == ("id", "2024", "note", "column_6")
    assert [(row.line, row.cells) for row in table.rows()] == [(4, ["a", 1, None, 5]), (6, ["b", None, None, None])]
    where = f"{path}, sheet Sheet, row 3"
    assert [notice.split(";")[0] for notice in table.notices] == [
        f"{where}: the header is here",
        f"{where}: a column without a name is called column_6",
    ]


def test_a_sheet_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, ["a"], [1], sheet="Old")
    book = openpyxl.load_workbook(path)
    book["Old"].sheet_state = "hidden"
    for title in ("New", "Next"):
        book.create_sheet(title).append([title])
    book.save(path)
    table = open_table(path)
    assert table.info.headers == ("New",)
    assert table.notices == (f"{path}: New is read, the first of 3 sheets (Old, New, Next); --sheet names another",)
    assert open_table(path, sheet="Next").info.headers == ("Next",)
    assert error(path, sheet="next") == (
        f"{path}: there is no sheet 'next'; did you mean Next?; the sheets are: Old, New, Next"
    )


def test_formulas_are_their_values_or_else_their_texts(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b"], [1, "=A2+1"], [2, "=A3+1"])
    table = open_table(path)
    assert [row.cells for row in table.rows()] == [[1, "=A2+1"], [2, "=A3+1"]]
    assert "2 formulas never calculated, read as text" in table.notices[0]
    members = members_of(path)
    name = "xl/worksheets/sheet1.xml"
    for empty in (b"<v/>", b"<v />", b"<v></v>"):  # as libraries of XML write it
        members[name] = members[name].replace(b"<f>A2+1</f>" + empty, b"<f>A2+1</f><v>2</v>")
    assert cells(packed(tmp_path, members)) == [[1, 2], [2, "=A3+1"]]


def test_a_formula_whose_value_is_empty_text_was_calculated(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b", "c"], [1, '=IF(A2>5,"big","")', 3], [1, None, '=IF(A3>5,"big","")'])
    members = members_of(path)
    name = "xl/worksheets/sheet1.xml"
    for cell in (b"B2", b"C3"):
        members[name] = members[name].replace(b'<c r="%b">' % cell, b'<c r="%b" t="str">' % cell)
    table = open_table(packed(tmp_path, members))
    assert [row.cells for row in table.rows()] == [[1, "", 3], [1, None, None]]
    assert table.notices == ()


def test_a_file_of_libreoffice() -> None:
    """Made of a CSV table by ``soffice --headless --convert-to xlsx``; ``=1+1`` became a formula there."""
    table = open_table(Path(__file__).parents[1] / "data/io/libreoffice.xlsx")
    assert (table.info.headers, table.info.sheet) == (("column_1", "text", "n", "f", "d", "b"), "index")
    assert [row.cells[:4] for row in table.rows()] == [
        ["r1", "one", 1, 1.5],
        ["r2", "zwei, drei", 2, None],
        ["r3", 'q"uo\nte', 3, -0.25],
        ["r4", 2, 4, 1e20],
        ["r5", None, 5, 3],
    ]


TEXTS = b"""<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">
<si><t>_x005F_x0041_ lit</t></si><si><t xml:space="preserve">keyx005F_1 </t></si><si><t/></si>
<si><r><rPr><b/></rPr><t>rich </t></r><r><t>text</t></r><rPh sb="0" eb="1"><t>said so</t></rPh></si></sst>"""
TEXTS_TYPE = (
    b'<Override PartName="/xl/sharedStrings.xml" '
    b'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
)


def test_texts_that_cells_refer_to(tmp_path: Path) -> None:
    """As spreadsheet programs write them; a number beyond all is text, as JSON has no such number."""
    members = members_of(write(tmp_path, ["n", "text"], *([number, None] for number in range(5))))
    rows = "".join(
        f'<row r="{n + 2}"><c r="A{n + 2}"><v>{n}</v></c><c r="B{n + 2}" t="s"><v>{n}</v></c></row>' for n in range(4)
    )
    end = rows.encode() + b'<row r="6"><c r="A6"><v>1E999</v></c><c r="B6"><v>1E9</v></c></row></sheetData>'
    sheet = members["xl/worksheets/sheet1.xml"]
    members["xl/worksheets/sheet1.xml"] = sheet.partition(b'<row r="2"')[0] + end + sheet.partition(b"</sheetData>")[2]
    members["[Content_Types].xml"] = members["[Content_Types].xml"].replace(b"</Types>", TEXTS_TYPE)
    table = open_table(packed(tmp_path, {**members, "xl/sharedStrings.xml": TEXTS}))
    expected = [[0, "_x0041_ lit"], [1, "keyx005F_1 "], [2, None], [3, "rich text"], ["inf", 1e9]]
    assert [row.cells for row in table.rows()] == expected
    packed(tmp_path, {**members, "xl/sharedStrings.xml": TEXTS.replace(b"rich", b"changed")})
    assert [row.cells[1] for row in table.rows()][3] == "changed text"


@pytest.mark.parametrize(
    "parts", [b"<a/>" * 300_000, b"<si>" + b"<r/>" * 300_000 + b"</si>"], ids=["no text", "one text"]
)
def test_a_text_of_too_many_parts_is_refused(tmp_path: Path, parts: bytes) -> None:
    members = members_of(write(tmp_path, ["n"], [1]))
    members["[Content_Types].xml"] = members["[Content_Types].xml"].replace(b"</Types>", TEXTS_TYPE)
    members["xl/sharedStrings.xml"] = TEXTS.partition(b"<si>")[0] + parts + b"</sst>"
    with pytest.raises(UserError, match="a text of more than 200,000 parts"):
        open_table(packed(tmp_path, members))


def test_what_a_file_says_of_its_size_does_not_count(tmp_path: Path) -> None:
    members = members_of(write(tmp_path, ["a", "b"], [1, 2], [3, 4]))
    name = "xl/worksheets/sheet1.xml"
    members[name] = members[name].replace(b'ref="A1:B3"', b'ref="A1"')
    assert cells(packed(tmp_path, members)) == [[1, 2], [3, 4]]


def test_datasets_may_be_spreadsheets(tmp_path: Path) -> None:
    path = write(tmp_path, ["prompt", "n"], ["say hi", 1], ["say ho", None])
    assert [record.value for record in open_records(path, "prompt").read()] == [
        {"prompt": "say hi", "n": 1},
        {"prompt": "say ho", "n": None},
    ]
    twice = write(tmp_path, ["prompt", "note", "note "], ["say hi", 1, 2])
    with pytest.raises(UserError, match=r"t\.xlsx.*header note is duplicated \(columns 2 and 3\)"):
        list(open_records(twice).read())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a readable spreadsheet"),
        (b"PK\x03\x04 and no more", "not a readable spreadsheet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old workbook, or one with a password"),
    ],
)
def test_files_that_are_no_spreadsheets(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "t.xlsx").write_bytes(content)
    assert said in error(tmp_path / "t.xlsx")


def test_made_up_files_are_refused(tmp_path: Path) -> None:
    good = members_of(write(tmp_path, ["a"], [1]))
    sheet = "xl/worksheets/sheet1.xml"
    entities = b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><worksheet><sheetData/></worksheet>'
    far = good[sheet].replace(b'<row r="2"', b'<row r="99999999"')
    for content in (b"<worksheet", b"", entities, far):
        message = error(packed(tmp_path, {**good, sheet: content}))
        assert str(tmp_path / "t.xlsx") in message, content
    assert "xl/workbook.xml" in error(packed(tmp_path, {"[Content_Types].xml": good["[Content_Types].xml"]}))
    assert error(packed(tmp_path, {**good, sheet: b"<worksheet><sheetData/></worksheet>"})).endswith(
        "csv input must include a header row; --sheet names another sheet"
    )


def test_a_file_that_unpacks_to_far_too_much_is_refused(tmp_path: Path) -> None:
    good = members_of(write(tmp_path, ["a"], [1]))
    bomb = packed(tmp_path, {**good, "xl/worksheets/sheet2.xml": b" " * (100 << 20)})
    assert "is no honest spreadsheet" in error(bomb)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ["a"], [1])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert error(path) == f"{path}: reading a spreadsheet needs more libraries: pip install 'manyhands[xlsx]'"
    with pytest.raises(UserError, match=r"pip install 'manyhands\[xlsx\]'"):
        need_xlsx()


# --- Writing


def written(names: list[str], *rows: Any, **options: Any) -> io.BytesIO:
    handle = io.BytesIO()
    assert write_xlsx(handle, names, rows, **options) == len(rows)
    handle.seek(0)
    return handle


def test_no_cell_becomes_a_formula_or_an_error() -> None:
    texts = ["=1+1", "#N/A", "+1", "@x", "-2", "1", "2024-01-01", "true", "'x"]
    sheet = openpyxl.load_workbook(written(["=h", *"abcdefgh"], texts)).active
    assert [cell.value for cell in sheet[2]] == texts
    assert {cell.data_type for row in sheet for cell in row} <= {"s", "inlineStr"}


def test_values_keep_their_types() -> None:
    row = [None, True, -5, 1.25, 2**53, 2**53 + 1, [1, {"a": None}], ""]
    sheet = openpyxl.load_workbook(written(list("abcdefgh"), row)).active
    assert [cell.value for cell in sheet[2]] == [None, True, -5, 1.25, 2**53, str(2**53 + 1), '[1,{"a":null}]', None]


def test_dates_stay_dates() -> None:
    rows: list[list[Any]] = [["2024-05-06", "2024-05-06T07:08:09", "07:30:00", "2024-05-06"], [None, "soon", "", "x"]]
    sheet = openpyxl.load_workbook(written(list("abcd"), *rows, times=("date", "datetime", "time", ""))).active
    assert [cell.value for cell in sheet[2]] == [
        datetime(2024, 5, 6),
        datetime(2024, 5, 6, 7, 8, 9),
        time(7, 30),
        "2024-05-06",
    ]
    assert [cell.value for cell in sheet[3]] == [None, "soon", None, "x"]


def test_what_a_sheet_can_not_hold_is_refused() -> None:
    assert written(["a"], ["x" * MAX_CELL])
    with pytest.raises(UserError, match=r"row 3, column 'b': 32,768 characters"):
        written(["a", "b"], ["x", "y"], ["x", "y" * (MAX_CELL + 1)])
    with pytest.raises(UserError, match="at most 16,384 columns"):
        written([str(number) for number in range(16_385)])


def test_a_sheet_that_can_not_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def rows() -> Iterator[list[str]]:
        yield ["x"]
        raise UserError("the journal can't be read")

    with pytest.raises(UserError, match="the journal can't be read"):
        write_xlsx(io.BytesIO(), ["a"], rows())
    assert [*tmp_path.iterdir()] == []


@given(st.lists(st.text(st.characters(), max_size=8) | st.sampled_from(["_x0041_", "_x005F_", "a\r\nb"]), max_size=5))
def test_any_text_is_read_back(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.xlsx")
        path.write_bytes(written(["key", "text"], *([number, text] for number, text in enumerate(texts))).getvalue())
        found = {row.cells[0]: row.cells[-1] for row in open_table(path).rows()}
    expected = {number: without_surrogates(text) or None for number, text in enumerate(texts)}
    assert {key: value or None for key, value in found.items()} == expected or not any(expected.values())
