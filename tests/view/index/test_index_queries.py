"""Pages, counts and facets of an index are those of a plain look through the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from benchmarks.index_run import CAUSES, REASONS, TOOLS, WORDS, made
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.view.index.building import build
from manyhands.view.index.conditions import Effort
from manyhands.view.index.database import make_folder, stem_of
from manyhands.view.index.filters import RANGES, SORTS, Cursor, Filters
from manyhands.view.index.gathering import SLOT_SECONDS
from manyhands.view.index.queries import BadText, RunIndex, TookTooLong
from tests.support.scanned import Scanned, check, listed, scanned

ITEMS = 2_500
GREATEST = {"score": 1.0, "cost": 0.002, "tokens": 14_000, "turns": 3, "tools": 2, "seconds": 60.0}


EFFORTS = [
    Effort(),
    Effort(many=40, many_with_words=20, few=0),
    Effort(many=40, many_with_words=20, few=10, seconds=0.0, seconds_for_words=0.0),
    Effort(many=2_000, many_with_words=20, few=0),
]
"""All ways in which pages are found, which large runs take."""


class Indexed:
    """A run with its index."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index_dir = folder / "run", folder / "indexes"
        made({"folder": str(self.folder), "items": ITEMS})
        make_folder(self.index_dir)
        self.run_id = run_id_of(self.folder)
        with closing(JournalReader(self.folder)) as reader:
            build(reader, stem_of(self.folder, self.run_id, self.index_dir), lambda: None)
        self.items: Sequence[Scanned] = scanned(self.folder)
        self.indexes = [self.opened(effort) for effort in EFFORTS]
        self.index = self.indexes[0]

    def opened(self, effort: Effort) -> RunIndex:
        index = RunIndex.open(self.folder, self.run_id, self.index_dir, effort)
        assert index is not None
        return index


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexed]:
    found = Indexed(tmp_path_factory.mktemp("indexed"))
    yield found
    for index in found.indexes:
        index.close()


@some.composite
def ranges(draw: some.DrawFn) -> dict[str, Any]:
    names = draw(some.lists(some.sampled_from(RANGES), max_size=2, unique=True))
    bound = some.one_of(some.none(), some.floats(-0.1, 1.1))
    found = {}
    for name in names:
        bounds = tuple(None if each is None else each * GREATEST[name] for each in (draw(bound), draw(bound)))
        if bounds != (None, None):
            found[name] = bounds
    return found


filters = some.builds(
    Filters,
    states=some.lists(some.sampled_from(["completed", "failed", "pending", "discarded", "none such"]), max_size=2).map(
        tuple
    ),
    details=some.lists(some.sampled_from([*CAUSES, *REASONS]), max_size=2).map(tuple),
    ranges=ranges(),
    tools=some.lists(some.sampled_from([*TOOLS, "none such"]), max_size=1).map(tuple),
    failed_tools=some.lists(some.sampled_from(TOOLS), max_size=1).map(tuple),
    labels=some.lists(some.sampled_from([("verdict", "pass"), ("verdict", "fail"), ("verdict", "")]), max_size=1).map(
        tuple
    ),
    retried=some.sampled_from([False, False, False, True]),
    text=some.lists(some.sampled_from([*WORDS[:40], "row", "endpoint"]), max_size=2).map(" ".join),
    sort=some.sampled_from(SORTS),
    descending=some.booleans(),
)
few_filters = filters.flatmap(
    lambda found: some.sampled_from(
        [
            replace(found, details=(), ranges={}, tools=(), failed_tools=(), labels=(), retried=False),
            replace(found, states=(), details=(), tools=(), failed_tools=(), text=""),
            replace(found, states=(), ranges={}, labels=(), retried=False, text=""),
            found,
        ]
    )
)
quick = settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(found=few_filters, limit=some.sampled_from([1, 7, 100, 1000]), way=some.sampled_from(range(len(EFFORTS))))
def test_pages_are_those_of_a_plain_look(indexed: Indexed, found: Filters, limit: int, way: int) -> None:
    index = indexed.indexes[way]
    expected = [item.number for item in listed(indexed.items, found)]
    pages = [index.page(found, limit=limit)]
    while pages[-1].next is not None and len(pages) < 4:
        pages.append(index.page(found, Cursor.parse(str(pages[-1].next)), limit))
    for number, page in enumerate(pages):
        assert list(page.numbers) == expected[number * limit : (number + 1) * limit]
    page = pages.pop()
    assert (page.next is None) == ((len(pages) + 1) * limit >= len(expected))
    for before in reversed(pages):
        assert page.previous is not None
        page = index.page(found, Cursor.parse(str(page.previous)), limit)
        assert page.numbers == before.numbers
    assert page.previous is None


@quick
@given(found=few_filters, way=some.sampled_from(range(len(EFFORTS))))
def test_counts_and_facets_are_those_of_a_plain_look(indexed: Indexed, found: Filters, way: int) -> None:
    index = indexed.indexes[way]
    expected = listed(indexed.items, found)
    count = index.count(found)
    assert (count.items, count.is_exact) == (len(expected), True)
    facets = index.facets(found)
    assert facets.is_exact
    assert dict(facets.states) == Counter((item.state, item.detail) for item in expected)
    assert dict(facets.tools) == Counter(tool for item in expected for tool in item.calls)
    verdicts = Counter(item.labels["verdict"] for item in expected if "verdict" in item.labels)
    assert dict(facets.labels.get("verdict", {})) == verdicts
    scores = Counter(min(19, int(score * 20)) for item in expected if (score := item.values["score"]) is not None)
    assert list(facets.scores) == [scores[bucket] for bucket in range(20)]


@quick
@given(found=few_filters, value=some.floats(-0.1, 1.1), sort=some.sampled_from(RANGES))
def test_one_jumps_to_a_value(indexed: Indexed, found: Filters, value: float, sort: str) -> None:
    found, at = replace(found, sort=sort), value * GREATEST[sort]
    page = indexed.index.page(found, Cursor("at", at), 50)
    behind = [
        item.number
        for item in listed(indexed.items, found)
        if (own := item.values[sort]) is None or (own <= at if found.descending else own >= at)
    ]
    assert list(page.numbers) == behind[:50]


def test_one_jumps_to_a_position(indexed: Indexed) -> None:
    assert list(indexed.index.page(Filters(), Cursor("at", 1_234), 3).numbers) == [1_235, 1_236, 1_237]
    assert list(indexed.index.page(Filters(descending=True), Cursor("at", 1_234), 3).numbers) == [1_235, 1_234, 1_233]


def test_all_of_it_is_that_of_a_plain_look(indexed: Indexed) -> None:
    check(indexed.folder, indexed.index_dir)


def test_a_key_is_found_by_its_beginning(indexed: Indexed) -> None:
    with closing(JournalReader(indexed.folder)) as reader:
        row = reader.item("77")
    assert row is not None
    for text in (row.key, row.key.upper(), f"{row.key[:12]}*"):
        assert list(indexed.index.page(Filters(text=text)).numbers) == [77]


@given(text=some.text(max_size=20))
@quick
def test_any_text_can_be_searched_for(indexed: Indexed, text: str) -> None:
    try:
        indexed.index.page(Filters(text=text))
        indexed.index.count(Filters(text=text))
    except BadText:
        pass


def test_tools_have_figures(indexed: Indexed) -> None:
    figures = {tool.name: tool for tool in indexed.index.tools()}
    assert set(figures) == set(TOOLS)
    for name, tool in figures.items():
        calls = [item.calls[name] for item in indexed.items if name in item.calls]
        assert (tool.calls, tool.failures) == (sum(c for c, _ in calls), sum(f for _, f in calls))
        assert tool.median_seconds == pytest.approx(1.0, rel=0.1)


def test_a_series_has_no_more_points_than_asked_for(indexed: Indexed) -> None:
    whole = indexed.index.series()
    assert whole.seconds % SLOT_SECONDS == 0
    assert {after.at - before.at for before, after in pairwise(whole.points)} == {whole.seconds}
    few = indexed.index.series(max_points=2)
    assert len(few.points) <= 2
    assert sum(point.tokens_in for point in few.points) == sum(point.tokens_in for point in whole.points)


def test_a_query_ends_within_its_time(indexed: Indexed) -> None:
    index = indexed.opened(Effort())
    with closing(index), index._within(0.0), pytest.raises(TookTooLong):
        index._all("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n", ())
