"""Variables of the environment in settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.interpolation import has_reference
from manyhands.workloads.evals.targets.keys import Interpolation, is_reference, variables

LOCATION = Location("targets.yaml", ("targets", 0), {("targets", 0): 3})
ENVIRON = {"A": "one", "B": "two", "EMPTY": "", "TRICKY": "${{ A }} {OUTPUT_FILE}"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${{ A }}", "one"),
        ("${{A}}", "one"),
        ("  ${{ A }} ", "one"),
        ("x ${{ A }}-${{B}} ", "x one-two "),
        ("${{ NONE:-text }}", "text"),
        ("${{ NONE :- a b }}", "a b"),
        ("${{ NONE:- }}", ""),
        ("${{ EMPTY:-text }}", "text"),
        ("${{ A:-text }}", "one"),
        ("${{ TRICKY }}", "${{ A }} {OUTPUT_FILE}"),
        ("$A ${A} {A} {{ A }}", "$A ${A} {A} {{ A }}"),
        ({"${{ A }}": ["${{ A }}", 5, None, {"b": "${{ B }}!"}]}, {"${{ A }}": ["one", 5, None, {"b": "two!"}]}),
        (True, True),
    ],
)
def test_values_are_put_in(value: Any, expected: Any) -> None:
    assert Interpolation(ENVIRON).value(value, LOCATION) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${{ NONE }}", "targets.yaml, line 3: targets[0]: the environment variable NONE is not set"),
        ("${{ EMPTY }}", "targets.yaml, line 3: targets[0]: the environment variable EMPTY is not set"),
        (
            {"a": ["x", "y ${{ NONE }}"]},
            "targets.yaml, line 3: targets[0].a[1]: the environment variable NONE is not set",
        ),
        ("${{ a.b }}", "${{ a.b }} is no variable"),
        ("${{ }}", "is no variable"),
        ("${{ 1A }}", "is no variable"),
    ],
)
def test_what_is_missing_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Interpolation(ENVIRON).value(value, LOCATION)

    assert said in str(caught.value)


def test_names_that_need_a_value() -> None:
    value = {"a": "${{ A }} ${{ B:-x }}", "b": ["${{ C }}"], "c": 3}

    assert list(variables(value, LOCATION)) == ["A", "C"]


def test_which_values_hold_a_variable() -> None:
    assert has_reference({"a": [{"b": "x${{ A }}"}]})
    assert not has_reference({"${{ A }}": ["${A}"]})
    assert is_reference(" ${{ A }} ")
    assert not is_reference("${{ A:-x }}")
    assert not is_reference("x${{ A }}")


def test_secrets_are_known_by_their_names() -> None:
    interpolation = Interpolation({"MY_API_KEY": "k1", "MODEL": "m", "DB_PASSWORD": "p"})

    interpolation.value(["${{ MY_API_KEY }}", "${{ MODEL }}", "x${{ DB_PASSWORD }}"], LOCATION)

    assert interpolation.secrets == ["k1", "p"]


@given(st.text())
def test_text_without_variables_stays(text: str) -> None:
    if "${{" not in text:
        assert Interpolation({}).value(text, LOCATION) == text


@given(
    st.text(st.characters(exclude_characters="{}$")),
    st.text(min_size=1),
    st.text(st.characters(exclude_characters="{}$"), min_size=1),
)
def test_values_are_put_in_once_and_as_they_are(before: str, value: str, after: str) -> None:
    found = Interpolation({"V": value}).value(f"{before}${{{{ V }}}}{after}.", LOCATION)

    assert found == f"{before}{value}{after}."
