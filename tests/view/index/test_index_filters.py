"""Filters and cursors as in an address: what is right comes back, what is wrong is ignored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from manyhands.view.index.filters import MAX_VALUES, RANGES, SORTS, Cursor, Filters

words = some.text(min_size=1, max_size=20)
numbers = some.one_of(some.integers(-(10**12), 10**12), some.floats(allow_nan=False, allow_infinity=False))
bounds = some.tuples(some.one_of(some.none(), numbers), some.one_of(some.none(), numbers)).filter(
    lambda pair: pair != (None, None)
)
names = words.filter(lambda name: "=" not in name)
lists = some.lists(words, max_size=3, unique=True).map(tuple)
filters = some.builds(
    Filters,
    states=lists,
    details=lists,
    ranges=some.dictionaries(some.sampled_from(RANGES), bounds),
    tools=lists,
    failed_tools=lists,
    labels=some.lists(some.tuples(names, words), max_size=3, unique=True).map(tuple),
    retried=some.booleans(),
    text=some.one_of(some.just(""), words),
    sort=some.sampled_from(SORTS),
    descending=some.booleans(),
)
cursors = some.one_of(
    some.builds(
        Cursor, some.sampled_from(["after", "before"]), some.one_of(some.none(), numbers), some.integers(0, 10**12)
    ),
    some.builds(Cursor, some.just("at"), numbers),
)


@given(filters)
def test_an_address_gives_its_filters_back(found: Filters) -> None:
    assert Filters.parse(found.query()) == found


@given(
    some.lists(
        some.tuples(
            some.one_of(some.sampled_from(["state", "sort", "score_min", "label", "text", "retried"]), words), words
        )
    )
)
def test_any_address_has_filters(query: list[tuple[str, str]]) -> None:
    found = Filters.parse(query)
    assert found.sort in SORTS
    assert Filters.parse(found.query()) == found


def test_what_is_wrong_is_ignored() -> None:
    wrong = [("sort", "-nothing"), ("score_min", "nan"), ("cost_max", "1e999"), ("label", "no value"), ("retried", "0")]
    assert Filters.parse(wrong) == Filters()
    assert Filters.parse([("state", "")]).is_empty
    assert len(Filters.parse([("state", str(number)) for number in range(99)]).states) == MAX_VALUES


@given(cursors)
def test_an_address_gives_its_cursor_back(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor


@given(some.text(max_size=30))
def test_any_text_is_a_cursor_or_none(text: str) -> None:
    found = Cursor.parse(text)
    assert found is None or Cursor.parse(str(found)) == found
