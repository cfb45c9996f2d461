"""The ids of rows."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.workloads.csv_jobs.rows.planning import ItemIds, source_id_of

SOURCE_IDS = st.sampled_from(
    ["a", "a-2", "a-3", "a-2-2", "row-1", "row-2", "row-2-2", " a", "a" * 63, "a" * 64, "b" * 200]
)


def ids_of(source_ids: list[str | None], *, from_column: bool = True) -> list[str]:
    with ItemIds(from_column=from_column) as ids:
        return [ids.next(source_id, index) for index, source_id in enumerate(source_ids)]


def by_definition(source_ids: list[str | None]) -> list[str]:
    given: list[str] = []
    for index, source_id in enumerate(source_ids):
        base = f"row-{index + 1}" if source_id is None else source_id
        suffixes = (f"{base}-{number}" for number in range(2, len(source_ids) + 2))
        given.append(base if base not in given else next(candidate for candidate in suffixes if candidate not in given))
    return given


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "x"),
        (" x\n", " x\n"),
        ("", None),
        (" \t\r\n\u00a0", None),
        (None, None),
        (0, "0"),
        (True, "true"),
        (1.5, "1.5"),
        (10**40, str(10**40)),
        ([1, "ä"], '[1,"ä"]'),
        ({}, "{}"),
    ],
)
def test_the_id_that_a_cell_holds(value: Any, expected: str | None) -> None:
    assert source_id_of(value) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["foo", "foo", "foo"], ["foo", "foo-2", "foo-3"]),
        ([None, None], ["row-1", "row-2"]),
        (["row-3", "x", None], ["row-3", "x", "row-3-2"]),
        (["foo", "foo", "foo-2", "foo"], ["foo", "foo-2", "foo-2-2", "foo-3"]),
        (["foo-2", "foo", "foo", "foo-2"], ["foo-2", "foo", "foo-3", "foo-2-2"]),
        (["a", "A", "a "], ["a", "A", "a "]),
        (["\ud800", "\udfff"], ["\ufffd", "\ufffd-2"]),
    ],
)
def test_ids_that_are_taken_get_a_number(given: list[str | None], expected: list[str]) -> None:
    assert ids_of(given) == expected


@given(st.lists(st.none() | SOURCE_IDS, max_size=25))
def test_ids_are_what_the_definition_says(source_ids: list[str | None]) -> None:
    found = ids_of(source_ids)
    assert found == by_definition(source_ids)
    assert len(set(found)) == len(found)


def test_numbers_alone_need_no_table() -> None:
    assert ids_of([None] * 3, from_column=False) == ["row-1", "row-2", "row-3"]


def test_equal_ids_cost_no_more_the_more_there_are() -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        assert ids_of(["same"] * count)[-1] == f"same-{count}"
        return time.process_time() - began

    assert seconds(40_000) < 40 * seconds(4_000)  # a hundred times, if each looked at all before it


def test_memory_does_not_grow_with_the_ids() -> None:
    tracemalloc.start()
    with ItemIds(from_column=True) as ids:
        for index in range(40_000):
            ids.next(f"id {index % 20_000}", index)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
