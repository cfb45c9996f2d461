"""What the journal stores comes back exactly; its named queries."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhands
from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal import database
from manyhands.engine.journal.browsing import MAX_QUERY_SECONDS, JournalBrowser, TooSlow
from manyhands.engine.journal.database import queries
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import COMPRESS_FROM, pack, unpack
from manyhands.engine.journal.store import Store

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


# --- Streams


def journal_of(folder: Path, items: int) -> Path:
    """A run of so many completed items."""
    with closing(Store(folder, SystemClock(), print)) as store:
        outcome = Outcome(ItemState.COMPLETED, {"text": "x" * 100})
        store.plan((PlannedItem(f"k{number}", {"n": number}, outcome) for number in range(items)), 1)
    return folder


def test_what_is_streamed_may_be_taken_slowly(tmp_path: Path) -> None:
    folder = journal_of(tmp_path, 1200)
    with closing(JournalReader(folder)) as reader:
        expected = [each.key for each in reader.results()]
    with closing(JournalBrowser(folder)) as reader, reader.limited(60.0):
        stream = reader.results()
        found = [next(stream).key]
        time.sleep(1.1 * MAX_QUERY_SECONDS)
        assert [*found, *(each.key for each in stream)] == expected
        assert [each["n"] for each in reader.payloads()] == list(range(1200))
        assert len(list(reader.completed_records())) == 1200


def test_a_stream_that_takes_too_long_says_so(tmp_path: Path) -> None:
    with closing(JournalBrowser(journal_of(tmp_path, 1200))) as reader, reader.limited(-1.0), pytest.raises(TooSlow):
        list(reader.results())
