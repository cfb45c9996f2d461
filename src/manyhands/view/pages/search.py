"""The page of what is found in all runs: runs by their names, items by their keys and ids, and by words where there is an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.listing import item_called
from manyhands.view.index.filters import MAX_LENGTH, Filters
from manyhands.view.index.pool import Indexes
from manyhands.view.index.queries import BadText, RunIndex
from manyhands.view.pages.item_table import ShownItem, shown_items
from manyhands.view.pages.page import Page, Query, Site, view_for
from manyhands.view.source import ShownRun

SECONDS = 2.0
"""For all runs together."""
MAX_ITEMS = 20
"""Of a run."""
MAX_RUNS = 50
"""Of which items are shown, and as many that are found by their names."""
_AT_ONCE = 2
"""Runs that are looked into at once, so that other pages have threads as well."""
_RUN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class FoundIn:
    """What was found in a run."""

    run: ShownRun
    items: Sequence[ShownItem]
    is_more: bool
    """Whether there is more than is shown."""
    has_index: bool


async def search_page(site: Site, query: Query) -> Page:
    """What is found for ``q``."""
    text = query.get("q", "").strip()[:MAX_LENGTH]
    every = await site.runs.in_thread(site.runs.listed)
    named = [run for run in every if text and run.id and text.lower() in run.folder.name.lower()]
    found, left_out = await _found(site, every, text) if text else ([], 0)
    shown = [each for each in found if each.items]
    without = sum(not each.has_index for each in found)
    values = {
        "search_text": text,
        "named": named[:MAX_RUNS],
        "found": shown,
        "left_out": left_out,
        "without_index": without,
        "is_cut": len(named) > MAX_RUNS,
    }
    data: dict[str, Any] = {
        "text": text,
        "runs": [{"run": run.folder.name, "run_id": run.id, "state": run.state} for run in named[:MAX_RUNS]],
        "items": [
            {"run_id": each.run.id, "items": [item.summary for item in each.items], "is_more": each.is_more}
            for each in shown
        ],
        "not_looked_into": left_out,
        "without_index": without,
    }
    return Page(f"Search: {text}" if text else "Search", "search.html", values, data)


async def _found(site: Site, every: Sequence[ShownRun], text: str) -> tuple[list[FoundIn], int]:
    """What is found in runs, those made last first, and how many runs there was no time for."""
    end = monotonic() + SECONDS
    waiting = iter([run for run in every if run.id])
    found: dict[str, FoundIn] = {}

    async def look() -> None:
        for run in waiting:
            left = end - monotonic()
            if left <= 0 or sum(bool(each.items) for each in found.values()) >= MAX_RUNS:
                return
            with suppress(ManyhandsError):
                looking = partial(found_in, run=run, text=text, indexes=site.indexes)
                found[run.id] = await site.runs.read(run.id, looking, seconds=min(left, _RUN_SECONDS))

    await asyncio.gather(*(look() for _ in range(_AT_ONCE)))
    ordered = [found[run.id] for run in every if run.id in found]
    return ordered, sum(bool(run.id) for run in every) - len(ordered)


def found_in(reader: JournalBrowser, run: ShownRun, text: str, indexes: Indexes) -> FoundIn:
    """The items of a run that are called so, then those that have the words."""
    with indexes.opened(run, reader) as (index, _):
        rows = list(_rows(reader, text, index))
    shown = shown_items(reader, view_for(reader), rows[:MAX_ITEMS])
    return FoundIn(run, shown, len(rows) > MAX_ITEMS, index is not None)


def _rows(reader: JournalBrowser, text: str, index: RunIndex | None) -> Iterator[ItemRow]:
    called = item_called(reader, text)
    if called is not None:
        yield called
    if index is None:
        return
    with suppress(BadText):
        numbers = index.page(Filters(text=text), None, MAX_ITEMS + 1).numbers
        yield from (row for row in reader.items_of(numbers) if called is None or row.number != called.number)
