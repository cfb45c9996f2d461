"""Calendar days."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.graders.text.dates import day_of, pattern_of

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
