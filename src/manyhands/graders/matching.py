"""Pairing things so that as many as possible have a partner."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def most_pairs(partners: Sequence[Sequence[int]]) -> list[int | None]:
    """A largest matching of a bipartite graph: for each left one, given by the right ones it may have, the one that it gets, or None.

    Augmenting paths (C. Berge 1957, H. W. Kuhn 1955), found breadth first. A left one that has a partner never loses it for another,
    it only changes it.
    """
    right_of: list[int | None] = [None] * len(partners)
    left_of: dict[int, int] = {}
    for left in range(len(partners)):
        _augment(left, partners, right_of, left_of)
    return right_of


def _augment(
    start: int, partners: Sequence[Sequence[int]], right_of: list[int | None], left_of: dict[int, int]
) -> None:
    """Give the left one a partner, if others can change theirs for it."""
    reached_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        left = waiting.popleft()
        for right in partners[left]:
            if right in reached_from:
                continue
            reached_from[right] = left
            if right not in left_of:
                _turn(right, reached_from, right_of, left_of)
                return
            waiting.append(left_of[right])


def _turn(free: int, reached_from: dict[int, int], right_of: list[int | None], left_of: dict[int, int]) -> None:
    """Along the path that leads to a free right one, give each left one the right one that it was reached by."""
    right: int | None = free
    while right is not None:
        left = reached_from[right]
        before = right_of[left]
        right_of[left], left_of[right] = right, left
        right = before
