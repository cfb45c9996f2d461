"""Largest matchings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from manyhands.graders.trajectory.tool_calls import most_pairs


def test_partners_are_changed_for_others() -> None:
    assert most_pairs([[0, 1], [0]]) == [1, 0]
    assert most_pairs([[0, 1], [0], [1, 2]]) == [1, 0, 2]
    assert most_pairs([[0], [0]]) == [0, None]
    assert most_pairs([[], [3]]) == [None, 3]
    assert most_pairs([]) == []


def _most(partners: list[list[int]], taken: frozenset[int] = frozenset()) -> int:
    """The size of a largest matching, by trying all."""
    if not partners:
        return 0
    first, *others = partners
    choices = [1 + _most(others, taken | {right}) for right in first if right not in taken]
    return max([_most(others, taken), *choices])


@given(st.lists(st.lists(st.integers(0, 4), unique=True), max_size=5))
def test_no_other_matching_is_larger(partners: list[list[int]]) -> None:
    pairs = most_pairs(partners)
    taken = [right for right in pairs if right is not None]
    assert len(set(taken)) == len(taken)
    assert all(right is None or right in partners[left] for left, right in enumerate(pairs))
    assert len(taken) == _most(partners)


def test_long_chains() -> None:
    """Each left one that comes pushes all earlier ones along."""
    count = 2000
    assert most_pairs([[index, index - 1] if index else [0] for index in range(count)]) == list(range(count))
