"""What the journal stores comes back exactly; its named queries."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhands
from manyhands.engine.journal import database
from manyhands.engine.journal.database import queries
from manyhands.engine.journal.records import COMPRESS_FROM, pack, unpack

TEXT = st.text(st.characters(exclude_categories=()))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


@settings(deadline=None)
@given(VALUES, st.integers(0, 300))
def test_round_trip(value: Any, copies: int) -> None:
    for whole in (value, [value] * copies):
        blob = pack(whole)
        assert json.dumps(unpack(blob)) == json.dumps(whole)
        assert blob[:1] in (b"c", b"j", b"z")


def test_large_values_are_compressed_and_small_ones_are_not() -> None:
    assert pack("x" * 10)[:1] == b"c"
    large = pack("x" * COMPRESS_FROM * 10)
    assert large[:1] == b"z"
    assert len(large) < COMPRESS_FROM


@given(st.binary(max_size=50))
def test_anything_else_is_a_value_error(data: bytes) -> None:
    try:
        unpack(data)
    except ValueError:
        return
    assert data[:1] in (b"c", b"j", b"z")


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError):
        pack({"a": object()})


@given(VALUES, st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_noticed(value: Any, place: int, change: int) -> None:
    blob = bytearray(pack(value))
    blob[place % len(blob)] ^= change
    try:
        found = unpack(bytes(blob))
    except ValueError:
        return
    assert json.dumps(found) == json.dumps(value)


JOURNAL = Path(database.__file__).parent


def used() -> Counter[str]:
    """How often the modules of the journal name each query."""
    text = "".join(path.read_text() for path in JOURNAL.glob("*.py"))
    return Counter({name: len(re.findall(rf'"{name}"', text)) for name in queries()})


def test_every_query_is_used() -> None:
    assert [name for name, times in used().items() if not times] == []


def test_each_query_that_reads_is_used_in_one_place() -> None:
    times = used()
    reading = [name for name, sql in queries().items() if re.match(r"(--.*\n)*SELECT", sql)]
    assert len(reading) > 20
    assert {name: times[name] for name in reading} == dict.fromkeys(reading, 1)


def test_nobody_else_reads_the_queries() -> None:
    outside = [path for path in Path(manyhands.__file__).parent.rglob("*.py") if path.parent != JOURNAL]
    assert [path for path in outside if "journal.database" in path.read_text()] == []
