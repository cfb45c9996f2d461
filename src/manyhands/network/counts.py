"""Which hosts somebody asked for, and how often that was allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NETWORK = "network"
"""The kind, and the scope, of the step that records such counts."""
OTHERS = "(other hosts)"
_MAX_HOSTS = 200
_MAX_LENGTH = 253


class HostCounts:
    """Counts of requests by host. Of an item whose commands ask for more than 200 hosts, all further ones count together."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def allowed(self, host: str) -> None:
        self._count(host, 0)

    def refused(self, host: str) -> None:
        self._count(host, 1)

    def to_json(self) -> dict[str, dict[str, int]]:
        """By host: ``allowed`` and ``refused``, those that are not 0."""
        named = (
            (host, {"allowed": allowed, "refused": refused})
            for host, (allowed, refused) in sorted(self._counts.items())
        )
        return {host: {name: count for name, count in counts.items() if count} for host, counts in named}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def _count(self, host: str, which: int) -> None:
        host = host[:_MAX_LENGTH]
        if host not in self._counts and len(self._counts) >= _MAX_HOSTS:
            host = OTHERS
        self._counts.setdefault(host, [0, 0])[which] += 1


def in_words(counts: Mapping[str, Any]) -> str:
    """What ``HostCounts.to_json`` gave, on one line: ``a.example 3, b.example 1 refused``."""
    parts = []
    for host, count in counts.items():
        said = [str(count["allowed"])] if count.get("allowed") else []
        said += [f"{count['refused']} refused"] if count.get("refused") else []
        parts.append(f"{host} {' and '.join(said)}")
    return ", ".join(parts)
