"""Runs of which nothing comes because everything is discarded: said while they go on, and at their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import counted

WARN_AFTER = 20
"""Discards of one kind without a completion, after which the person is informed."""
Remedies = Mapping[str, str]
"""What can be done about discards, by their reason: a sentence that names the setting."""


class DiscardWatch:
    """Calls ``notice`` once for each kind of discard that comes again and again while nothing is completed. ``completed``: whether anything
    was before."""

    def __init__(self, remedies: Remedies, notice: Callable[[str], None], *, completed: bool) -> None:
        self._remedies = remedies
        self._notice = notice
        self._completed = completed
        self._counts: Counter[str] = Counter()

    def ended(self, outcome: Outcome) -> None:
        """An item has ended."""
        if self._completed:
            return
        if outcome.state is ItemState.COMPLETED:
            self._completed = True
        elif outcome.state is ItemState.DISCARDED:
            reason = outcome.reason or "no reason given"
            self._counts[reason] += 1
            if self._counts[reason] == WARN_AFTER:
                remedy = _remedy(self._remedies, [reason])
                self._notice(f"{WARN_AFTER} items were discarded ({reason}), and none is completed so far{remedy}")


def nothing_kept(ledger: Mapping[str, Any], remedies: Remedies) -> str | None:
    """Why nothing came of a run that is over, though items ended well: in one line, the most frequent reason first. None if something
    did, or if nothing was discarded."""
    discarded = ledger[ItemState.DISCARDED]
    if ledger[ItemState.COMPLETED] or ledger[ItemState.PENDING] or not discarded:
        return None
    reasons, causes = (_sorted(ledger["by_cause"].get(state, {})) for state in (ItemState.DISCARDED, ItemState.FAILED))
    text = f"nothing was completed: {counted(discarded, 'item')} discarded{_listed(reasons)}"
    if failed := ledger[ItemState.FAILED]:
        text += f", {failed:,} failed{_listed(causes)}"
    return text + _remedy(remedies, reasons)


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def _listed(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{name} {count:,}' for name, count in counts.items())})" if counts else ""


def _remedy(remedies: Remedies, reasons: Iterable[str]) -> str:
    known = [remedies[reason] for reason in reasons if reason in remedies]
    return "".join(f"; {remedy}" for remedy in known)
