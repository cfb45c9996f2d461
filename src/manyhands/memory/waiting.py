"""Which tests wait, for what, and which may go on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from manyhands.memory.model import Wait


@dataclass(frozen=True, slots=True)
class Target:
    """What a test waits for. ``tokens``: the session's count of tokens; ``time``: virtual, in seconds since the epoch."""

    tokens: int
    time: float

    def is_reached(self, tokens: int, now: float) -> bool:
        return self.tokens <= tokens and self.time <= now


class WaitList:
    """The waiting tests with their targets, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}

    def __contains__(self, test_id: str) -> bool:
        return test_id in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, test_id: str) -> Target:
        return self._targets[test_id]

    def put(self, test_id: str, target: Target) -> None:
        """The test begins to wait."""
        self._targets.pop(test_id, None)
        self._targets[test_id] = target

    def drop(self, test_id: str) -> None:
        """The test waits no longer, if it did."""
        self._targets.pop(test_id, None)

    def is_reached(self, test_id: str, tokens: int, now: float) -> bool:
        return self._targets[test_id].is_reached(tokens, now)

    def reached(self, tokens: int, now: float) -> str | None:
        """The test that may go on and has waited for the smallest count of tokens."""
        free = (test_id for test_id, target in self._targets.items() if target.is_reached(tokens, now))
        return min(free, key=self._tokens, default=None)

    def next_in_time(self, now: float) -> str | None:
        """Of the tests that wait for a time to come, the one with the earliest."""
        pending = (test_id for test_id, target in self._targets.items() if target.time > now)
        return min(pending, key=lambda test_id: self._targets[test_id].time, default=None)

    def next_in_tokens(self, tokens: int) -> str | None:
        """Of the tests that wait for tokens, the one that needs the fewest."""
        pending = (test_id for test_id, target in self._targets.items() if target.tokens > tokens)
        return min(pending, key=self._tokens, default=None)

    def _tokens(self, test_id: str) -> int:
        return self._targets[test_id].tokens


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Which datasets may be interleaved. ``sets``: the ids of datasets that exclude each other; a dataset always excludes itself."""

    sets: Sequence[frozenset[str]] = ()

    def allows(self, dataset: str, others: Iterable[str]) -> bool:
        """Whether a test of the dataset may run beside tests of the others."""
        return not any(self._exclude(dataset, other) for other in others)

    def _exclude(self, one: str, other: str) -> bool:
        return one == other or any(one in each and other in each for each in self.sets)


def tokens_to_wait(wait: Wait, memory_span: int, elapsed: int, last_reply: int) -> int:
    """How many tokens a test really waits for.

    ``elapsed``: tokens since the test began; ``last_reply``: tokens of the last reply to it, which count as waited for already.
    """
    tokens = wait.tokens
    if wait.percentage > 0:
        target = math.floor(memory_span / 100 * wait.percentage)
        tokens = max(0, target - elapsed, wait.tokens)
    return max(0, tokens - last_reply) if tokens > 1 else tokens
