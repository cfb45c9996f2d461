"""Which worker has the most free slots, found without looking at all of them: a cluster has a thousand, with tens of thousands of items."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class ByLoad(Generic[W]):
    """Workers by how many items they have. Of those with equally few, the one that has been so for longest comes first."""

    def __init__(self) -> None:
        self._loads: dict[W, int] = {}
        self._having: list[dict[W, None]] = []
        """By number of items: the workers that have so many, in order."""
        self._least = 0
        """No worker has fewer."""

    def set(self, worker: W, items: int) -> None:
        """A worker has so many items now."""
        if self._loads.get(worker) == items:
            return
        self.remove(worker)
        while len(self._having) <= items:
            self._having.append({})
        self._loads[worker] = items
        self._having[items][worker] = None
        self._least = min(self._least, items)

    def remove(self, worker: W) -> None:
        """A worker takes no items, for now or for good."""
        items = self._loads.pop(worker, None)
        if items is not None:
            del self._having[items][worker]

    def least_loaded(self) -> W | None:
        """One with the fewest items; None if there is none."""
        if not self._loads:
            return None
        while not self._having[self._least]:
            self._least += 1
        return next(iter(self._having[self._least]))
