"""JSON, with what models really write: huge integers and halves of characters."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyhands.core.jsonio import (
    MAX_DEPTH,
    canonical,
    compact_line,
    dumps,
    exact_line,
    line,
    loads,
    spaced,
    too_deep,
    without_surrogates,
)

TEXT = st.text(st.characters(exclude_categories=()))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


def same(left: Any, right: Any) -> bool:
    """Equal, with types and the order of keys."""
    return json.dumps(left) == json.dumps(right)


@given(VALUES)
def test_dumps_and_loads(value: Any) -> None:
    assert same(loads(dumps(value)), value)
    assert same(loads(dumps(value).decode()), value)


@given(st.integers(min_value=-(2**200), max_value=2**200))
def test_integers_of_any_size(number: int) -> None:
    found = loads(dumps({"n": [number]}))["n"][0]
    assert found == number
    assert isinstance(found, int)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_canonical_does_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical(value) == canonical(backwards)
    assert loads(canonical(value)) == value


@given(VALUES)
def test_a_line_is_one_line_of_valid_utf8(value: Any) -> None:
    text = line(value)
    assert "\n" not in text
    assert "\r" not in text
    loads(text.encode())


@given(VALUES)
def test_a_compact_line_says_the_same(value: Any) -> None:
    found = compact_line(value)
    assert found.endswith(b"\n")
    assert b"\n" not in found[:-1]
    assert loads(found) == loads(line(value))


BREAKS = st.text(st.sampled_from("\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\n\r\\u2\xc2\u3028a\ud800"))


@given(st.recursive(LEAVES | BREAKS, lambda inner: st.lists(inner) | st.dictionaries(BREAKS, inner), max_leaves=20))
def test_a_line_is_one_line_wherever_a_reader_ends_lines(value: Any) -> None:
    for text in (line(value), compact_line(value).decode(), exact_line(value).decode()):
        assert len(text.splitlines()) == 1
    assert loads(line(value)) == loads(spaced(value))
    assert same(loads(exact_line(value)), value)


@given(VALUES)
def test_a_line_without_such_characters_is_written_as_ever(value: Any) -> None:
    if not any(mark in spaced(value) for mark in "\u2028\u2029\x85"):
        assert line(value) == spaced(value)
        assert exact_line(value) == dumps(value) + b"\n"


@given(TEXT)
def test_text_without_surrogates_can_be_encoded_and_loses_nothing_else(text: str) -> None:
    clean = without_surrogates(text)
    clean.encode()
    whole = [character for character in text if not 0xD800 <= ord(character) < 0xE000]
    kept = iter(clean)
    assert all(character in kept for character in whole), "in their order"
    assert len(clean) <= len(text)
    if len(whole) == len(text):
        assert clean == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("a\ud800", "a\ufffd"), ("\ud83d\ude00", "😀"), ("ü", "ü")],
)
def test_surrogates_are_replaced_or_joined(text: str, expected: str) -> None:
    assert without_surrogates(text) == expected


@pytest.mark.parametrize(
    "text", ["", "NaN", "[Infinity]", "-Infinity", '{"a": 1', "[1,]", "1 2", "{'a': 1}", "\ufeff1"]
)
def test_what_is_not_one_json_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)
    if not text.startswith("\ufeff"):
        with pytest.raises(ValueError):
            loads(text.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ValueError):
        loads(b'"\xff"')


def deepest(document: str) -> int:
    """How deep a document is, read letter by letter."""
    depth = deepest = 0
    quoted = escaped = False
    for letter in document:
        if quoted:
            quoted, escaped = escaped or letter != '"', letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        else:
            depth += (letter in "[{") - (letter in "]}")
            deepest = max(deepest, depth)
    return deepest


PARTS = st.sampled_from(["[" * 70, "{" * 90, "]" * 60, "}" * 3, '"', '\\"', "\\", '"[["', '"a",' * 700, "1", "é"])


def test_what_is_too_deep_takes_little_memory() -> None:
    document = b"[" * 8_000_000
    tracemalloc.start()
    try:
        assert too_deep(document)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.lists(PARTS, max_size=12).map("".join))
@example("[" * 150 + '"a",' * 2500 + "[" * 51)
@example("[" * 150 + '"a",' * 2500 + "[" * 50)
def test_depth_is_counted_outside_strings(document: str) -> None:
    assert too_deep(document) == (deepest(document) > MAX_DEPTH)
