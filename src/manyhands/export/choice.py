"""Choices between the conversations of one prompt: the best of them, and pairs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

_TABLE = """CREATE TABLE entries (
    number INTEGER PRIMARY KEY, run INTEGER, item INTEGER, prompt TEXT, score REAL, said TEXT, chosen INTEGER
)"""
_BY_PROMPT = """SELECT run, item, entries.prompt, score, said FROM entries
JOIN (SELECT prompt, min(number) AS first FROM entries GROUP BY prompt) AS firsts ON firsts.prompt = entries.prompt
ORDER BY firsts.first, number"""
_BEST = """UPDATE entries SET chosen = ranked.place <= ? FROM (
    SELECT number AS which, row_number() OVER (PARTITION BY prompt ORDER BY coalesce(score, -1) DESC, number) AS place FROM entries
) AS ranked WHERE ranked.which = entries.number"""


class Entry(NamedTuple):
    """A conversation, as choices see it."""

    run: int
    """The number of its run in the export."""
    item: int
    prompt: str
    score: float | None
    said: str
    """The same for two conversations in which the same was said."""


class Choice:
    """Conversations to choose between, kept on disk."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA temp_store = FILE", _TABLE, "BEGIN"):
            self._database.execute(statement)

    def add(self, entry: Entry) -> None:
        self._database.execute("INSERT INTO entries (run, item, prompt, score, said) VALUES (?, ?, ?, ?, ?)", entry)

    def close(self) -> None:
        self._database.close()

    def choose_best(self, number: int) -> None:
        """Of each prompt the conversations with the highest scores; of equal ones the earlier. Those without a score come last."""
        self._database.execute(_BEST, (number,))
        self._database.execute("CREATE INDEX by_item ON entries (run, item)")

    def is_chosen(self, run: int, item: int) -> bool:
        """Whether a conversation is one of those that were chosen."""
        found = self._database.execute("SELECT max(chosen) FROM entries WHERE run = ? AND item = ?", (run, item))
        return bool(found.fetchone()[0])

    def pairs(self, *, every: bool, min_gap: float) -> Iterator[tuple[Entry, Entry]]:
        """Pairs of one prompt, the better first: the best against the worst, or every two. Neither equal scores nor equal words make
        one; entries must have scores."""
        for entries in self._by_prompt():
            ordered = sorted(entries, key=lambda entry: -(entry.score or 0.0))
            if every:
                for at, better in enumerate(ordered):
                    yield from ((better, worse) for worse in ordered[at + 1 :] if _differ(better, worse, min_gap))
            elif (found := _widest(ordered, min_gap)) is not None:
                yield found

    def _by_prompt(self) -> Iterator[list[Entry]]:
        rows = (Entry(*row) for row in self._database.execute(_BY_PROMPT))
        for _, entries in groupby(rows, key=lambda entry: entry.prompt):
            yield list(entries)


def _differ(better: Entry, worse: Entry, min_gap: float) -> bool:
    gap = (better.score or 0.0) - (worse.score or 0.0)
    return gap > 0 and gap >= min_gap - 1e-9 and better.said != worse.said


def _widest(ordered: list[Entry], min_gap: float) -> tuple[Entry, Entry] | None:
    """Of entries from the best to the worst, the best with the worst."""
    best, worst = ordered[0], ordered[-1]
    if (best.score or 0.0) - (worst.score or 0.0) <= 0:
        return None
    worst = next(entry for entry in ordered if entry.score == worst.score)  # of several that are worst, the earliest
    return (best, worst) if _differ(best, worst, min_gap) else None
