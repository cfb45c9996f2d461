"""Conditions of stages: read once, or refused with what is wrong; and true or false of any values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.io.tables.formats import open_table
from manyhands.workloads.csv_jobs.stages.conditions import MAX_CHARS, MAX_DEPTH, Condition, LocalText
from manyhands.workloads.csv_jobs.stages.definitions import stages_of_records
from manyhands.workloads.csv_jobs.stages.row_stages import stages_for

ROW: dict[str, Any] = {
    "score": 7,
    "text_score": " 7.0 ",
    "price": "n/a",
    "low": "9",
    "high": "10",
    "lang": "de",
    "unit price": "3",
    "day": "2024-03-01",
    "blank": "  ",
    "missing": None,
    "yes": True,
    "said_no": "False",
    "zero": "0",
    "topic.name": "sea",
    "tags": ["a", "7", None],
    "place": {"city": "Bonn"},
}


def holds(text: str, row: dict[str, Any] | None = None) -> bool:
    return Condition.parse(text).holds((ROW if row is None else row).__getitem__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score >= 7", True),
        ("score > 7", False),
        ("text_score == 7 and score == text_score", True),
        ("text_score == '7'", False),
        ("low < high", True),
        ("'b' > 'a' and day >= '2024-02-28'", True),
        ("price > 1 or price <= 1", False),
        ("missing < 1 or missing >= 1 or blank < 1", False),
        ("missing == null and blank == null and missing == ''", True),
        ("lang == 'de' or lang == \"fr\" and false", True),
        ("(lang == 'de' or lang == 'fr') and false", False),
        ("not lang == 'de'", False),
        ("not not yes", True),
        ("yes == true and yes != 1 and yes != 'no' and said_no == false", True),
        ("said_no or zero or blank or missing", False),
        ("price", True),
        ("{unit price} > 2 and {score} == 7", True),
        ("topic.name == 'sea'", True),
        ("lang in ['en', 'de',]", True),
        ("lang not in ['en', \"de\"]", False),
        ("score in [text_score]", True),
        ("7 in tags and 'b' not in tags", True),
        ("'/' in price and 'x' in missing", False),
        ("'city' in place and place != null", True),
        ("score in []", False),
        ("-1.5e1 < -2 and +.5 < 1.", True),
        (r"""'it\'s\n' == "it's
" """, True),
        ("null == false or 0 == false", False),
        ("score == 1e400", False),
        ("TRUE", False),
    ],
)  # fmt: skip
def test_conditions(text: str, expected: bool) -> None:
    assert holds(text, {**ROW, "TRUE": ""}) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a name or a value is expected at its end"),
        ("score >=", "a name or a value is expected at its end"),
        ("score = 7", "write '==' at '= 7'"),
        ("a && b", "write 'and' at '&& b'"),
        ("a || b", "write 'or' at '|| b'"),
        ("!a", "write 'not' at '!a'"),
        ("1 < score < 9", "compare two values at a time, and join comparisons with 'and' at '< 9'"),
        ("(a or b", "')' is expected at its end"),
        ("a in ['b' 'c']", "']' is expected at \"'c']\""),
        ("a b", "'and' or 'or' is expected at 'b'"),
        ("a not b", "'in' is expected behind 'not' at 'b'"),
        ("lang == 'de", 'the quotation has no end at "\'de"'),
        ("a == 7x", "can't be read at '7x'"),
        ("f(x)", "'and' or 'or' is expected at '(x)'"),
        ("__import__('os')", "'and' or 'or' is expected at"),
        ("a + b", "can't be read at '+ b'"),
        ("a < 1e1000", "a number has at most 300 digits, and its exponent 3 at '1e1000'"),
        ("a < " + "9" * 301, "a number has at most 300 digits"),
        ("and", "a name or a value is expected at 'and'"),
        ("(" * 1000, f"nested more than {MAX_DEPTH} deep"),
        ("not " * 900 + "a", f"nested more than {MAX_DEPTH} deep"),
        ("a" * (MAX_CHARS + 1), f"is longer than {MAX_CHARS} characters"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Condition.parse(text)
    assert message in str(caught.value)


def test_names_are_each_given_once() -> None:
    assert Condition.parse("b > 1 and (a.c or {b} or not {x y}) and true").names == ("b", "a.c", "x y")


NAMES = ("a", "b.c", "d e")
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["7", "0", "true", " "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES))
LITERALS = st.integers(-99, 99).map(str) | st.text(st.characters(codec="utf-8", exclude_characters="\\")).map(json.dumps) | st.sampled_from(
    ["true", "false", "null"]
)  # fmt: skip
OPERANDS = LITERALS.filter(lambda text: "\\" not in text) | st.sampled_from(NAMES).map(lambda name: f"{{{name}}}")
SIGNS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
CONDITIONS = st.recursive(
    OPERANDS | st.tuples(OPERANDS, SIGNS, OPERANDS).map(" ".join),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda three: "({} {} {})".format(*three))
        | inner.map(lambda one: f"(not ({one}))")
    ),
    max_leaves=8,
)


@given(CONDITIONS, ROWS)
def test_every_condition_is_true_or_false_of_every_row(text: str, row: dict[str, Any]) -> None:
    assert holds(text, row) is not holds(f"not ({text})", row)


@given(CONDITIONS, CONDITIONS, ROWS)
def test_and_or_and_not_are_those_of_logic(left: str, right: str, row: dict[str, Any]) -> None:
    one, other = holds(left, row), holds(right, row)
    assert holds(f"{left} and {right}", row) is (one and other)
    assert holds(f"{left} or {right}", row) is (one or other)
    assert holds(f"not ({left} or {right})", row) is holds(f"not ({left}) and not ({right})", row)


@given(OPERANDS, OPERANDS, ROWS)
def test_comparisons_agree_with_each_other(left: str, right: str, row: dict[str, Any]) -> None:
    assert holds(f"{left} == {right}", row) is holds(f"{right} == {left}", row)
    assert holds(f"{left} == {right}", row) is not holds(f"{left} != {right}", row)
    assert holds(f"{left} < {right}", row) is holds(f"{right} > {left}", row)
    if holds(f"{left} < {right}", row):
        assert holds(f"{left} <= {right} and not {left} >= {right}", row)


@given(st.text() | st.text(alphabet="ab1.\"'()[]{}<>=! ,\\\n") | CONDITIONS.map(lambda text: text[::-1]))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        condition = Condition.parse(text)
    except ValueError:
        return
    assert condition.holds(lambda name: 1) in (True, False)


@pytest.mark.parametrize(
    ("cell", "condition", "expected"),
    [
        ("1.234,5", "price == 1234.5 and price > 1000", True),
        ("0,5", "price < 1 and price", True),
        ("1.234", "price == 1234", True),
        ("1.5", "price == 1.5", True),
        ("0,0", "price", False),
        ("1,2,3", "price > 0", False),
        ("9,5", "price < other", True),
    ],
)
def test_cells_with_decimal_commas(cell: str, condition: str, expected: bool) -> None:
    assert holds(condition, {"price": LocalText(cell), "other": LocalText("10,25")}) is expected


def test_a_table_with_decimal_commas_has_them_in_conditions(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("name;price\na;0,5\nb;1.234,5\nc;12,25\n", encoding="utf-8")
    table = open_table(tmp_path / "prices.csv")
    definitions = stages_of_records([{"name": "dear", "instruction": "Look at {name}.", "when": "price > 12"}])
    (stage,) = stages_for(definitions, table.info.headers, decimal_comma=table.info.decimal_comma)
    assert [stage.applies(row.cells, {}) for row in table.rows()] == [False, True, True]
