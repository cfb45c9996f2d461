"""``field_accuracy``: fields of structured answers."""

from __future__ import annotations

import json
from datetime import date, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.json_values import MISSING, at, equal, json_in, steps_of
from manyhands.graders.protocol import Candidate, Score
from manyhands.graders.text.fields import day_of, number_in, pattern_of
from manyhands.testing.grader_doubles import grade, graders_of


async def held(answer: Json, expected: Json, *fields: Any, **entry: Any) -> Score:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    rules = [{"path": field} if isinstance(field, str) else field for field in fields]
    candidate = Candidate("t", text, expected_output=[{"role": "assistant", "content": expected}])
    return await grade({"type": "field_accuracy", "fields": rules, **entry}, candidate)


@pytest.mark.parametrize(
    ("answer", "expected", "hit"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ("a", "a ", False),
        (None, None, True),
        ([1, {"b": 2, "c": 3}], [1, {"c": 3, "b": 2}], True),
        ([1, 2], [2, 1], False),
        ({}, {}, True),
        ({}, [], False),
    ],
)
async def test_exact(answer: Json, expected: Json, hit: bool) -> None:
    assert (await held({"a": answer}, {"a": expected}, "a")).value == float(hit)
    assert equal(answer, expected) == equal(expected, answer) == hit


@pytest.mark.parametrize(
    ("answer", "expected", "keys", "hit"),
    [
        (10, 10, {}, True),
        (10.1, 10, {}, False),
        (1.1, 1, {"tolerance": 0.1}, True),  # which binary arithmetic denies
        (1.11, 1, {"tolerance": 0.1}, False),
        (0.9, 1, {"tolerance": 0.1}, True),
        (110, 100, {"tolerance": 0.1, "relative": True}, True),
        (110.1, 100, {"tolerance": 0.1, "relative": True}, False),
        (-90, -100, {"tolerance": 0.1, "relative": True}, True),
        (0.05, 0, {"tolerance": 0.1, "relative": True}, True),  # nothing to be relative to
        (0.2, 0, {"tolerance": 0.1, "relative": True}, False),
        ("12.5 kg", 12.5, {}, True),
        (" 12.50", "12.5", {}, True),
        ("1,234.50 USD", 1234.5, {}, True),
        ("1,5", 1, {"tolerance": 1}, False),
        ("kg", 0, {"tolerance": 9}, False),
        (True, 1, {}, False),
        (None, 0, {}, False),
        ("1e3", 1000, {}, True),
    ],
)
async def test_numbers(answer: Json, expected: Json, keys: dict[str, Any], hit: bool) -> None:
    rule = {"path": "a", "match": "numeric-tolerance", **keys}
    assert (await held({"a": answer}, {"a": expected}, rule)).value == float(hit)


@pytest.mark.parametrize(
    ("answer", "expected", "formats", "hit"),
    [
        ("15-JAN-2025", "2025-01-15", None, True),
        ("2025-01-15T23:30:00-08:00", "2025-01-15", None, True),
        ("2025-01-16", "2025-01-15", None, False),
        ("03/04/2025", "2025-04-03", ["DD/MM/YYYY"], True),
        ("03/04/2025", "2025-03-04", ["DD/MM/YYYY"], False),
        ("03/04/2025", "03/04/2025", "DD/MM/YYYY", True),
        ("soon", "2025-01-15", None, False),
        (20250115, "2025-01-15", None, False),
    ],
)
async def test_dates(answer: Json, expected: Json, formats: Json, hit: bool) -> None:
    rule = {"path": "a", "match": "date", **({} if formats is None else {"formats": formats})}
    assert (await held({"a": answer}, {"a": expected}, rule)).value == float(hit)


async def test_a_date_that_was_guessed_is_said() -> None:
    score = await held({"a": "03/04/2025"}, {"a": "2025-03-04"}, {"path": "a", "match": "date"})
    assert score.value == 1
    assert "'03/04/2025' was read with the month first; give formats" in (score.reasoning or "")


# --- What counts


async def test_weights() -> None:
    fields = [{"path": "a", "weight": 2}, {"path": "b", "weight": 3}, {"path": "c", "weight": 5}]
    score = await held({"a": 1, "b": 0, "c": 3}, {"a": 1, "b": 2, "c": 3}, *fields)
    assert score.value == 0.7  # (2 + 5) ÷ 10
    assert score.hits == ("a: 1", "c: 3")
    assert score.misses == ("b: 0 (expected 2)",)
    assert score.reasoning == "2/3 fields matched"


async def test_fields_that_nothing_is_expected_of() -> None:
    score = await held({"a": 1, "b": 2}, {"a": 1}, "a", "b")
    assert (score.value, score.hits, score.misses) == (1, ("a: 1",), ())
    assert "b is not in expected_output, so it was not compared" in (score.reasoning or "")
    assert (await held({"a": 9, "b": 2}, {"a": 1}, "a", "b")).value == 0


async def left_out(answer: Json, expected: Json, *fields: Any, **entry: Any) -> str:
    score = await held(answer, expected, *fields, **entry)
    assert (score.value, score.verdict, score.error) == (None, "left_out", None)
    assert score.to_json()["left_out"] == score.left_out
    return score.left_out or ""


@pytest.mark.parametrize("aggregation", ["weighted_average", "all_or_nothing"])
async def test_with_nothing_to_compare_there_is_no_score(aggregation: str) -> None:
    optional = {"path": "b", "required": False}
    more = {"aggregation": aggregation}
    assert await left_out({"b": 2}, {"a": 1}, "b", "c", **more) == "expected_output has none of the fields b, c"
    assert "none of the fields" in await left_out("no JSON", {}, "a", **more)
    assert "none is required" in await left_out({"a": 1}, {"b": 2}, optional, **more)
    names = [f"f{number}" for number in range(9)]
    assert (await left_out({}, {"a": 1}, *names, **more)).endswith("f0, f1, f2, f3, f4 and 4 more")
    assert (await held({"a": 1}, {"a": 1}, "a", "b", negate=True, **more)).value == 0
    assert await left_out({"a": 1}, {"a": 1}, "b", negate=True, required=True, **more)  # nothing to turn round


async def test_fields_that_weigh_nothing_are_nothing_to_compare() -> None:
    field = {"path": "a", "weight": 0}
    assert await left_out({"a": 1}, {"a": 1}, field) == "no field that is compared weighs anything"
    assert (await held({"a": 1}, {"a": 2}, field, aggregation="all_or_nothing")).value == 0


async def test_fields_that_are_missing() -> None:
    score = await held({"a": 1}, {"a": 1, "b": 2}, "a", "b")
    assert (score.value, score.misses) == (0.5, ("b: missing (expected 2)",))
    score = await held({"a": 1}, {"a": 1, "b": 2}, "a", {"path": "b", "required": False})
    assert (score.value, score.misses) == (1, ())
    assert (await held({"a": 1, "b": 3}, {"a": 1, "b": 2}, "a", {"path": "b", "required": False})).value == 0.5
    assert (await held({"a": None}, {"a": None}, "a")).value == 1


async def test_all_or_nothing() -> None:
    for answer, value in (({"a": 1, "b": 2}, 1), ({"a": 1, "b": 3}, 0), ({"a": 1}, 0)):
        assert (await held(answer, {"a": 1, "b": 2}, "a", "b", aggregation="allOrNothing")).value == value
    optional = {"path": "b", "required": False}
    assert (await held({"a": 1}, {"a": 1, "b": 2}, "a", optional, aggregation="all_or_nothing")).value == 1


async def test_full_lists_of_hits_and_misses() -> None:
    names = [f"f{number}" for number in range(20)]
    score = await held(dict.fromkeys(names, 1), {name: number % 2 for number, name in enumerate(names)}, *names)
    assert (len(score.hits), len(score.misses), score.value) == (10, 10, 0.5)
    assert score.details is not None
    assert [field["result"] for field in score.details["fields"]] == ["miss", "hit"] * 10


async def test_paths() -> None:
    value = {"rows": [{"name": "x"}, {"a.b": 1}], "deep": {"er": {"est": [[1, 2]]}}}
    score = await held(value, value, "rows[0].name", 'rows[1]["a.b"]', "deep.er.est[0][1]", "rows.0.name")
    assert score.value == 1
    assert (await held([{"a": 1}], [{"a": 1}], "[0].a")).value == 1


# --- Where the values are


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Here:\n```\n[{"a": 1}]\n```\nDone {it}.', [{"a": 1}]),
        ('The result is {"a": {"b": [1]}} as asked.', {"a": {"b": [1]}}),
        ('The list [{"a": 1}, {"a": 2}] follows.', [{"a": 1}, {"a": 2}]),
        ('{"a": 1} [1]', {"a": 1}),
        ('```python\nprint({})\n```\n```json\n{"a": 1}\n```', {"a": 1}),
        ("5", MISSING),
        ('"text"', MISSING),
        ("no JSON here", MISSING),
        ("{broken", MISSING),
        ("", MISSING),
        ("{" * 100_000, MISSING),
    ],
)
def test_the_json_of_an_answer(answer: str, expected: Json) -> None:
    assert json_in(answer) == expected


async def test_an_answer_without_json_scores_nothing() -> None:
    score = await held("I do not know.", {"a": 1}, "a")
    assert (score.value, score.misses) == (0, ("the answer holds no JSON object or list",))


@pytest.mark.parametrize(
    ("messages", "value"),
    [
        ([{"role": "assistant", "content": {"a": 1}}], 1),
        ([{"role": "assistant", "content": '{"a": 1}'}], 1),
        ([{"role": "assistant", "content": {"a": 1}}, {"role": "assistant", "content": "and that is all"}], 1),
        ([{"role": "assistant", "content": {"a": 2}}, {"role": "assistant", "content": {"a": 1}}], 1),
        ([{"role": "assistant", "content": {"a": 1}}, {"role": "user", "content": {"a": 2}}], 1),
        ([{"role": "assistant", "content": "text"}], None),
        ([{"role": "assistant"}], None),
        ([], None),
    ],
)
async def test_what_is_expected(messages: list[dict[str, Any]], value: float | None) -> None:
    candidate = Candidate("t", '{"a": 1}', expected_output=messages)
    score = await grade({"type": "field_accuracy", "fields": [{"path": "a"}]}, candidate)
    assert score.value == value
    assert (score.left_out is not None) == (value is None)
    assert score.error is None


async def test_expected_values_that_can_not_be_compared_are_the_tests_fault() -> None:
    for match in ("numeric_tolerance", "date"):
        score = await held({"a": 1}, {"a": "soon"}, {"path": "a", "match": match})
        assert (score.value, score.verdict) == (None, "error")
        assert "a: the expected value 'soon' is not a" in (score.error or "")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "[0]: fields is required"),
        ({"fields": []}, "[0].fields: must not be empty"),
        ({"fields": [{}]}, "[0].fields[0]: path is required"),
        ({"fields": [{"path": "a["}]}, "[0].fields[0].path: must be names with dots between them"),
        ({"fields": [{"path": ""}]}, "[0].fields[0].path: must not be empty"),
        (
            {"fields": [{"path": "a", "match": "close"}]},
            "[0].fields[0].match: must be one of exact, numeric_tolerance, date",
        ),
        ({"fields": [{"path": "a", "weight": -1}]}, "[0].fields[0].weight: must be 0 or more"),
        ({"fields": [{"path": "a", "tolerance": -1}]}, "[0].fields[0].tolerance: must be 0 or more"),
        ({"fields": [{"path": "a", "formats": ["YYYY"]}]}, "[0].fields[0].formats: must have the month once"),
        ({"fields": [{"path": "a", "tolerence": 1}]}, "[0].fields[0].tolerence: unknown key; did you mean tolerance?"),
        (
            {"fields": [{"path": "a"}], "aggregation": "sum"},
            "[0].aggregation: must be one of weighted_average, all_or_nothing",
        ),
    ],
)
def test_settings_that_are_wrong(entry: dict[str, Json], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of({"type": "field_accuracy", **entry})
    assert str(caught.value).startswith(f"checks.yaml: {message}")


# --- By properties

_NAMES = st.text("abcde", min_size=1, max_size=2)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("xyz", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=5)


@settings(deadline=None)
@given(_OBJECTS, st.lists(_NAMES, max_size=3))
async def test_the_expected_answer_scores_1(value: dict[str, Any], others: list[str]) -> None:
    score = await held(value, value, *value, *others)
    assert (score.value, score.misses) == (1, ())


@settings(deadline=None)
@given(_OBJECTS, _OBJECTS, st.data())
async def test_scores_follow_the_formula(expected: dict[str, Any], answer: dict[str, Any], data: st.DataObject) -> None:
    rules: list[dict[str, Any]] = [
        {"path": name, "weight": data.draw(st.integers(0, 4)), "required": data.draw(st.booleans())}
        for name in data.draw(st.lists(_NAMES, min_size=1, max_size=6))
    ]
    score = await held(answer, expected, *rules)
    counted = [
        (Fraction(name in answer and equal(answer[name], expected[name])), rule["weight"])
        for rule in rules
        for name in (rule["path"],)
        if name in expected and (name in answer or rule["required"])
    ]
    weight = sum(each for _, each in counted)
    if not weight:
        assert score.left_out is not None
        return
    goal = sum(hit * each for hit, each in counted) / weight
    assert score.value == pytest.approx(float(goal), abs=1e-15)
    assert len(score.hits) + len(score.misses) == len(counted)


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(0, 10**4), st.integers(-(10**4), 10**4))
async def test_tolerances_are_exact(whole: int, tolerance: int, off: int) -> None:
    """Hundredths, so that what a person would call a border case is one."""
    rule = {"path": "a", "match": "numeric_tolerance", "tolerance": tolerance / 100}
    score = await held({"a": (whole + off) / 100}, {"a": whole / 100}, rule)
    assert score.value == float(abs(off) <= tolerance)


@settings(deadline=None)
@given(_VALUES)
def test_paths_lead_to_every_value(value: Json) -> None:
    for path, inner in _walk(value, ""):
        assert at(value, steps_of(path)) is inner


def _walk(value: Json, path: str) -> list[tuple[str, Json]]:
    parts: list[tuple[str, Json]] = []
    if isinstance(value, dict):
        parts = [(f"{path}.{name}".lstrip("."), inner) for name, inner in value.items()]
    elif isinstance(value, list):
        parts = [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]
    return [*parts, *(found for place, inner in parts for found in _walk(inner, place))]


@settings(deadline=None)
@given(st.text("0123456789+-.,eE $", max_size=12))
def test_numbers_in_texts_never_break(text: str) -> None:
    found = number_in(text)
    assert found is None or isinstance(found, Fraction)


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15))
def test_thousands_with_commas(number: int) -> None:
    assert number_in(f"{number:,}") == number_in(f"{number} EUR") == number_in(number) == number


JANUARY = date(2025, 1, 15)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "2025-01-15",
            " 2025-01-15\n",
            "2025-01-15T23:59:59Z",
            "2025-01-15T23:59:59-11:00",
            "2025-01-15 00:00:00+14:00",
        ),
        *("15-JAN-2025", "15-Jan-2025", "15 January 2025", "15. January 2025", "Jan 15, 2025", "January 15 2025"),
        *(
            "Jan. 15, 2025",
            "2025/01/15",
            "2025.1.15",
            "20250115",
            "15.1.2025",
            "15.01.2025",
            "Wed, 15 Jan 2025 10:00:00 GMT",
        ),
        *("1/15/2025", "15/1/2025", "01-15-2025", "Wednesday, January 15, 2025", "15 Jan 2025, 10:00"),
    ],
)
def test_ways_to_write_a_day(text: str) -> None:
    found = day_of(text)
    assert found is not None
    assert (found.date, found.guessed) == (JANUARY, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2025-13-01",
        "2025-02-30",
        "15",
        "2025-01-15x",
        "2025-01",
        "32 Jan 2025",
        "13/13/2025",
        "15 Foo 2025",
    ],
)
def test_what_is_no_day(text: str) -> None:
    assert day_of(text) is None


@pytest.mark.parametrize(
    ("text", "formats", "expected", "guessed"),
    [
        ("03/04/2025", [], date(2025, 3, 4), True),
        ("04/04/2025", [], date(2025, 4, 4), False),
        ("03/04/2025", ["DD/MM/YYYY"], date(2025, 4, 3), False),
        ("03/04/2025", ["%d/%m/%Y"], date(2025, 4, 3), False),
        ("03/04/2025", ["MM/DD/YYYY"], date(2025, 3, 4), False),
        ("03/04/2025 10:15", ["DD/MM/YYYY"], date(2025, 4, 3), False),
        ("3.4.25", ["DD/MM/YYYY", "D.M.YY"], date(2025, 4, 3), False),
        ("3.4.68", ["D.M.YY"], date(2068, 4, 3), False),
        ("3.4.69", ["D.M.YY"], date(1969, 4, 3), False),
        ("sept 3 2025", ["MMM D YYYY"], date(2025, 9, 3), False),
        ("MAY 3 2025", ["MMMM D YYYY"], date(2025, 5, 3), False),
        ("3rd of May 2025", ["D[rd of ]MMMM YYYY"], date(2025, 5, 3), False),
        ("2025-05-03 at 10:15:00 pm", ["YYYY-MM-DD [at] hh:mm:ss a"], date(2025, 5, 3), False),
        ("2025-05-03", ["DD/MM/YYYY"], date(2025, 5, 3), False),
    ],
)
def test_formats(text: str, formats: list[str], expected: date, guessed: bool) -> None:
    found = day_of(text, formats)
    assert found is not None
    assert (found.date, found.guessed) == (expected, guessed)


def test_formats_rule_out_others() -> None:
    assert day_of("1/15/2025", ["DD/MM/YYYY"]) is None
    assert day_of("15 January 2025", ["DD/MM/YYYY"]) is None


@pytest.mark.parametrize("wanted", ["", "DD/MM", "YYYY", "DD/MM/YYYY D", "MM/MMM/YYYY DD", "%d/%m/%Y %Q"])
def test_formats_that_are_wrong(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"once|not known"):
        pattern_of(wanted)


@given(st.dates(min_value=date(1970, 1, 1), max_value=date(2068, 12, 31)))
def test_round_trips(day: date) -> None:
    for form, codes in (("DD/MM/YYYY", "%d/%m/%Y"), ("D MMM YYYY", "%d %b %Y"), ("MMMM D, YYYY", "%B %d, %Y")):
        for wanted in (form, codes):
            found = day_of(day.strftime(codes), [wanted])
            assert found is not None
            assert found.date == day
    iso = day_of(day.isoformat())
    assert iso is not None
    assert iso.date == day
    assert day_of((day + timedelta(days=1)).isoformat()) != iso
