"""What is sent while a run goes on: every change, once, however many there are."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.engine.journal.reader import JOURNAL, run_id_of
from manyhands.engine.journal.records import pack
from manyhands.view.index.pool import Indexes
from manyhands.view.links import Links
from manyhands.view.live import CHANGED, Event, Looker, Watched
from manyhands.view.pages.export import export_parts
from manyhands.view.pages.item_table import ShownItem, items_page
from manyhands.view.pages.page import Site
from manyhands.view.source import Runs, ShownRun
from tests.support.engine_runs import make_steps_run

ITEMS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of which no item has begun."""
    made = tmp_path / "runs" / "run"
    make_steps_run(made, {"items": ITEMS})
    return made


def change(run_folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
        for statement in statements:
            journal.execute(statement)
        journal.commit()


def end_items(run_folder: Path, first: int, last: int) -> None:
    """As if they had been executed just now, with a step each."""
    now = time.time()
    with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
        journal.executemany(
            "INSERT INTO steps (item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at) "
            "VALUES (?, 1, '', 0, 'count', x'00', ?, ?, NULL, ?, ?)",
            [(number, pack({}), pack(1), now, now) for number in range(first, last + 1)],
        )
        journal.execute(
            "UPDATE items SET state = 'completed', record = ?, finished_at = ? WHERE number BETWEEN ? AND ?",
            (pack({}), now, first, last),
        )
        journal.commit()


class Looking:
    """Looks at a run, and what they found."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[int] = []
        self.others: list[str] = []
        self._runs = Runs([folder])
        self._runs.listed()
        self._looker = Looker(self._runs, run_id_of(folder), self._written)
        self.look(is_new=True)

    def _written(self, _: ShownRun, items: Sequence[ShownItem], __: JournalBrowser) -> Sequence[Event]:
        self.sent += [item.summary["item"] for item in items]
        return []

    def look(self, *, is_new: bool = False) -> bool:
        events, has_ended = self._looker.look(is_new=is_new)
        self.others += [event.name for event in events]
        return has_ended

    def close(self) -> None:
        self._looker.close()
        self._runs.close()


def test_more_rows_than_can_be_sent_at_once_come_with_the_next_looks(folder: Path) -> None:
    with closing(Looking(folder)) as looking:
        end_items(folder, 1, ITEMS)
        ended = [looking.look() for _ in range(3)]
    assert sorted(looking.sent) == [*range(1, ITEMS + 1)]
    assert ended == [False, False, True], "a run has not ended while there is something to send"


def test_items_that_change_without_a_step_have_pages_ask_again(folder: Path) -> None:
    with closing(Looking(folder)) as looking:
        change(folder, "UPDATE items SET state = 'cancelled', finished_at = 1 WHERE number > 200")
        looking.look()
        assert looking.others == [CHANGED]
        change(folder, "UPDATE items SET state = 'pending', finished_at = NULL WHERE number > 250")
        looking.look()
        assert looking.others == [CHANGED, CHANGED]
        for _ in range(3):
            looking.look()
    assert looking.others == [CHANGED, CHANGED]


def test_what_comes_back_is_sent_again() -> None:
    """A run that is paused and goes on is said to be running again."""
    watched = Watched()
    sent = [len([*watched.unsent([Event("part", json.dumps(state), "state")])]) for state in "rpprrp"]
    assert sent == [1, 1, 0, 1, 0, 1]


# --- What is behind


async def test_an_index_that_is_behind_its_run_says_so(folder: Path, tmp_path: Path) -> None:
    for last in (10, 200):
        end_items(folder, 1 if last == 10 else 11, last)
        change(folder, "UPDATE meta SET value = value + 1 WHERE name = 'commits'")
        site = site_of(folder, tmp_path / "cache")
        try:
            found = await items_page(site, run_id_of(folder), {"state": "completed"})
            for _ in range(100):
                if found.context["has_index"] and not found.context["note"]:
                    break
                await asyncio.sleep(0.1)
                found = await items_page(site, run_id_of(folder), {"state": "completed"})
            assert found.context["count"] == f"{last} items", found.context["note"]
        finally:
            site.indexes.close()
            site.runs.close()
    site = site_of(folder, tmp_path / "cache")
    try:
        with closing(JournalBrowser(folder)) as reader:
            end_items(folder, 201, 230)
            with site.indexes.opened(site.runs.listed()[0], reader) as (index, note):
                assert index is not None
                assert note == "The index is behind the run, in 30 items."
    finally:
        site.indexes.close()
        site.runs.close()


def site_of(folder: Path, cache: Path) -> Site:
    return Site(Runs([folder]), Links(), [folder], Indexes(cache, 1.0))


def test_a_file_of_all_columns_has_those_that_differ_in_later_rows_only(folder: Path, tmp_path: Path) -> None:
    end_items(folder, 1, ITEMS)
    change(folder, f"UPDATE items SET attempt = 3, performances = 3 WHERE number = {ITEMS}")
    site = site_of(folder, tmp_path / "cache")
    try:
        with closing(JournalBrowser(folder)) as reader:
            lines = b"".join(export_parts(reader, site.runs.listed()[0], site.indexes, "csv", {})).decode().splitlines()
    finally:
        site.runs.close()
    assert len(lines) == ITEMS + 1
    column = lines[0].split(",").index("attempts")
    assert [line.split(",")[column] for line in lines[-2:]] == ["1", "3"]
