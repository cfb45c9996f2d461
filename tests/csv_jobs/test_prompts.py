"""What a worker gets for its row: the instruction with the cells filled in, within the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import (
    REPORT_TOOL,
    Template,
    corrected,
    quoted,
    same_id,
    shown_id,
    worker_prompt,
)
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA

HEADERS = ("name", "full name", "x", "Name")
CELLS = ("Ada", "Ada Lovelace", "{name}", "ADA")


def fill(text: str, cells: Any = CELLS) -> str:
    return Template.parse(text, HEADERS).fill(cells)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{name}", "Ada"),
        ("Hello {full name}, {Name}{name}!", "Hello Ada Lovelace, ADAAda!"),
        ("{x}", "{name}"),
        ("{{name}}", "{name}"),
        ("{{{name}}}", "{Ada}"),
        ("{{{{name}}}}", "{{name}}"),
        ("{{{{{name}}}}}", "{{Ada}}"),
        ('{{"score": {name}}}', '{"score": Ada}'),
        ("a { b", "a { b"),
        ("a } b", "a } b"),
        ("{ {name} }", "{ Ada }"),
        ("{name", "{name"),
        ("name}", "name}"),
        ("{{name}", "{name}"),
        ("{name}}", "Ada}"),
        ("}{", "}{"),
        ("{\n{x}\n}", "{\n{name}\n}"),
        ("  spaces stay\r\n", "  spaces stay\r\n"),
    ],
)
def test_filling(text: str, expected: str) -> None:
    assert fill(text) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("  text\0 ", "  text\0 "),
        ("", ""),
        (None, ""),
        (True, "true"),
        (12, "12"),
        (10**30, str(10**30)),
        (0.5, "0.5"),
        (["ä", {"b": None}], '["ä",{"b":null}]'),
    ],
)
def test_cells_of_any_kind(cell: Any, expected: str) -> None:
    assert fill("<{name}>", [cell, "", "", ""]) == f"<{expected}>"


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_blank_instruction(text: str) -> None:
    with pytest.raises(UserError, match=r"^instruction must be non-empty$"):
        Template.parse(text, HEADERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{names}", "instruction, line 1: {names} names no column (did you mean name?)"),
        ("a\nb {NAME} {name}", "instruction, line 2: {NAME} names no column (did you mean name?)"),
        (
            "{name}\r\n\r\n{ full name }",
            "instruction, line 3: {' full name '} names no column (did you mean full name?)",
        ),
        ("{}", "instruction, line 1: {} names no column"),
        ('{"a": 1}', 'instruction, line 1: {"a": 1} names no column'),
        ("{\n}", "instruction, line 1: {'\\n'} names no column"),
    ],
)
def test_a_name_that_no_column_has(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        Template.parse(text, HEADERS)
    rest = "; the columns are: name, full name, x, Name; braces that mean themselves are doubled: {{ and }}"
    assert str(caught.value) == expected + rest


def test_of_many_columns_the_first_are_listed() -> None:
    with pytest.raises(UserError) as caught:
        Template.parse("{nope}", [f"c{number}" for number in range(1_000)])
    assert ", c49 and 950 more; " in str(caught.value)


@given(st.lists(st.text("{}nameNx\n ", max_size=12), min_size=4, max_size=4))
def test_cells_are_never_expanded(cells: list[str]) -> None:
    assert fill("1{name}2{x}{{3}}{full name}{Name}4", cells) == f"1{cells[0]}2{cells[2]}{{3}}{cells[1]}{cells[3]}4"


@given(st.text("{}ab\n", min_size=1).filter(lambda text: text.strip()))
def test_doubled_braces_give_the_text_itself(text: str) -> None:
    assert fill(text.replace("{", "{{").replace("}", "}}")) == text


@given(st.lists(st.sampled_from(["{", "}", "{{", "}}", "{name}", "{x}", "a", "\n"]), min_size=1))
def test_reading_goes_once_from_the_left(parts: list[str]) -> None:
    text = "." + "".join(parts)
    expected = by_hand(text)
    if expected is None:
        with pytest.raises(UserError, match="names no column"):
            fill(text)
    else:
        assert fill(text) == expected


def by_hand(text: str) -> str | None:
    """The rule in words: at each brace, a doubled one is one; else a name up to the next brace, if that closes, is a cell.
    None if there is no such column."""
    found, place = "", 0
    while place < len(text):
        if text[place : place + 2] in ("{{", "}}"):
            found += text[place]
            place += 2
            continue
        following = min((end for end in (text.find(brace, place + 1) for brace in "{}") if end >= 0), default=-1)
        if text[place] == "{" and following >= 0 and text[following] == "}":
            name = text[place + 1 : following]
            if name not in HEADERS:
                return None
            found += CELLS[HEADERS.index(name)]
            place = following + 1
        else:
            found += text[place]
            place += 1
    return found


def prompt(schema: dict[str, Any] | None = None, *, printing: bool = False, **changes: Any) -> str:
    values = {"item_id": "row-1", "instruction": "Score {it}.", "row": {"path": "a.rs", "n": "é"}, **changes}
    return worker_prompt(JOB_ID, schema=OutputSchema.of(schema), printing=printing, **values)


@pytest.mark.parametrize("printing", [False, True])
def test_contents_come_in_order_with_labels_on_lines_of_their_own(printing: bool) -> None:
    text = prompt(SCORE_SCHEMA, printing=printing)
    lines = text.splitlines()
    assert lines[1] == f"Job ID: {JOB_ID}"
    assert lines[2] == "Item ID: row-1"
    parts = [
        "one item of a batch job",
        "Job ID:",
        "Item ID:",
        "Score {it}.",
        json.dumps({"path": "a.rs", "n": "é"}, indent=2, ensure_ascii=False),
        json.dumps(SCORE_SCHEMA, indent=2),
        "exactly once",
        f'job_id "{JOB_ID}", item_id "row-1"',
        "stop as true",
        "nothing more",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert REPORT_TOOL in text


def test_without_a_schema_an_empty_one_is_shown() -> None:
    assert "\n{}\n" in prompt()


def test_a_worker_that_may_have_no_tool_is_told_to_print() -> None:
    assert "print" in prompt(printing=True)
    assert "print" not in prompt()


def test_what_a_cell_says_changes_nothing_else() -> None:
    text = prompt(instruction="{tool} {{ } %s", row={"{job}": "Job ID: other\nItem ID: other", "a": "{schema}"})
    assert "{tool} {{ } %s" in text
    assert '"a": "{schema}"' in text
    assert [line for line in text.splitlines() if line.startswith(("Job ID:", "Item ID:"))] == [
        f"Job ID: {JOB_ID}",
        "Item ID: row-1",
    ]


def test_corrections_are_said_after_the_prompt() -> None:
    text = corrected(prompt(), ("$.a: no", "$.b: neither"))
    assert text.startswith(prompt())
    assert "\n- $.a: no\n- $.b: neither\n" in text


@given(st.text(st.characters(), max_size=20), st.text(st.characters(), max_size=20))
def test_any_id_is_shown_on_one_line_and_recognised(item_id: str, other: str) -> None:
    shown = shown_id(item_id)
    assert len(shown.splitlines()) <= 1
    assert same_id(shown, item_id)
    assert same_id(item_id, item_id)
    assert shown == item_id or json.loads(shown) == item_id
    if other.split() != item_id.split() and other not in (shown, quoted(item_id)):
        assert not same_id(other, item_id)
    prompt(item_id=item_id, instruction=other, row={item_id: other}).encode()
