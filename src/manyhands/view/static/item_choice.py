"""Which items of a run a report has room for: those that failed, those with the lowest scores, and an even choice over the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.runs.steering.selection import removed
from manyhands.runs.summaries import ItemFacts, Summarizer, summarizer_of
from manyhands.view.pages.damaged import checked

MAX_SCORED = 100_000
"""Items whose scores are looked at, the first ones of the input."""
_PAGE = 500


@dataclass(slots=True)
class Candidates:
    """The items that may be shown, by their numbers."""

    failed: list[int] = field(default_factory=list)
    """In order of the input."""
    lowest: list[int] = field(default_factory=list)
    """Those with a score, the lowest first."""
    others: list[int] = field(default_factory=list)
    """Those that have ended or begun otherwise, in order of the input."""
    places: dict[int, int] = field(default_factory=dict)
    """The position in the input by the number."""
    items: int = 0
    """Items of the input, or those selected, also those with nothing to show."""
    removed: int = 0
    """Items that are not among them because the input does not name them any more."""

    @property
    def count(self) -> int:
        return len(self.failed) + len(self.lowest) + len(self.others)


def candidates(reader: JournalBrowser, selected: Collection[int] | None) -> Candidates:
    """The items of a run that have something to show: all but those that have not begun, and those that the input does not name any more.
    ``selected``: only these, whether the input names them or not."""
    found, scores = Candidates(), _scores(reader)
    scored: list[tuple[float, int, int]] = []
    for page in reader.outlines():
        for each in page:
            if selected is None and removed(each):
                found.removed += 1
            if removed(each) if selected is None else each.number not in selected:
                continue
            found.items += 1
            found.places[each.number] = each.position
            if each.state == ItemState.FAILED:
                found.failed.append(each.number)
            elif (score := scores.get(each.number)) is not None:
                scored.append((score, each.position, each.number))
            elif each.state != ItemState.PENDING:
                found.others.append(each.number)
    found.lowest = [number for *_, number in sorted(scored)]
    return found


def _scores(reader: JournalBrowser) -> dict[int, float]:
    found, behind, looked = dict[int, float](), -1, 0
    summarizer = summarizer_of(reader)
    while looked < MAX_SCORED and (rows := reader.items_page(behind, _PAGE)):
        facts = (_facts(summarizer, row) for row in rows)
        found.update(
            (row.number, each.score) for row, each in zip(rows, facts, strict=True) if each and each.score is not None
        )
        behind, looked = rows[-1].position, looked + len(rows)
    return found


def _facts(summarizer: Summarizer, row: ItemRow) -> ItemFacts | None:
    """What is known of an item; None of one that is damaged."""
    try:
        return summarizer.facts_of([checked(row)])[0]
    except UNREADABLE:
        return None


def evenly(numbers: Sequence[int]) -> Iterator[int]:
    """All of them, in an order of which every beginning is spread evenly over the whole."""
    bits = max(1, (len(numbers) - 1).bit_length())
    for place in range(1 << bits):
        turned = int(f"{place:0{bits}b}"[::-1], 2)
        if turned < len(numbers):
            yield numbers[turned]
