"""Putting entries into an index, and keeping the totals that go with them."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias
from zlib import crc32

from manyhands.core.jsonio import Json
from manyhands.view.index.database import set_state
from manyhands.view.index.gathering import Entry, Events, slot_of

BUCKETS = 20
"""Of scores, from 0 to 1."""
VERSION_SHIFT = 40
"""The words of an item's text are under its number, and from this bit on how often the text had changed: words can't be taken out."""
MAX_NAMES = 5_000
"""Different tools, and different labels, of a run; further ones are left out."""
_COLUMNS = "number, kind, position, version, text, labels, calls, retries, score, finished"
_FIGURES = "cost, tokens, tokens_out, turns, tools, tool_failures, seconds"
_ITEM = f"INSERT INTO item ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, nullif(?, 0), nullif(?, ''), nullif(?, ''))"
_ITEM_WITH_STEPS = (
    _ITEM.replace(f"{_COLUMNS})", f"{_COLUMNS}, {_FIGURES})").removesuffix(")") + ", ?, ?, ?, ?, ?, ?, ?)"
)
"""None is bound as something else, and what no step was recorded for is left out: the sqlite3 module takes longer for a None than for
all the rest of a short row."""
_NO_TEXT = (-1, -1)
_figures_of = attrgetter("cost", "tokens", "tokens_out", "turns", "tools", "tool_failures", "seconds")
_Counted: TypeAlias = tuple[int, float | None, float | None]
"""Of an item: kind, score, when it ended."""
_READ = 500
"""Rows that are looked up by one query."""


class Writer:
    """Writes one index. What is put in is committed, with all totals, by ``commit``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._kinds: dict[tuple[str, str], int] = {
            (state, detail): number
            for number, state, detail in connection.execute("SELECT id, state, detail FROM kind")
        }
        self._labels: dict[tuple[str, str], int] = {
            (name, value): number for number, name, value in connection.execute("SELECT id, name, value FROM label")
        }
        self._label_sets: dict[tuple[tuple[str, str], ...], tuple[list[int], str]] = {}
        self._tools: dict[str, int] = dict(connection.execute("SELECT name, id FROM tool").fetchall())
        self._changes = _Changes()

    def begin(self) -> None:
        """Begin a transaction, unless one has begun."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def add(self, entries: Sequence[Entry]) -> None:
        """Put in entries of items that are not there yet."""
        self._put(entries, {})

    def replace(self, entries: Sequence[Entry]) -> None:
        """Put in entries in place of those of the same items, where there are any."""
        numbers = [entry.number for entry in entries]
        self._put(entries, self._take_out(numbers))

    def commit(self, events: Events | None = None, **facts: Json) -> None:
        """Make everything so far last, with what happened in steps, and facts about the index."""
        self.begin()
        self._write_changes(events or Events())
        set_state(self._connection, **facts)
        self._connection.execute("COMMIT")

    def _put(self, entries: Sequence[Entry], earlier: Mapping[int, tuple[int, int]]) -> None:
        """``earlier``: the version and mark of the text that items had."""
        self.begin()
        without_steps, with_steps, words, labels, tools = [], [], [], [], []
        changes = self._changes
        for entry in entries:
            number, mark = entry.number, _mark(entry.text)
            version, earlier_mark = earlier.get(number, _NO_TEXT)
            if mark != earlier_mark:
                version += 1
                words.append((number + (version << VERSION_SHIFT), entry.text))
            kind = self._kinds.get((entry.state, entry.detail)) or self._kind(entry.state, entry.detail)
            label_text = call_text = ""
            if entry.labels:
                of_labels, label_text = self._label_sets.get(entry.labels) or self._labels_of(entry.labels)
                labels.extend([(label, number) for label in of_labels])
            if entry.calls:
                of_tools = self._calls_of(entry.calls)
                tools += [(tool, number, failed) for tool, _, failed in of_tools]
                call_text = _joined(f"{tool}:{calls}:{failed}" for tool, calls, failed in of_tools)
                changes.count_calls(1, of_tools)
            score, finished = entry.score, entry.finished
            changes.added.append((kind, score, finished))
            row = (
                number,
                kind,
                entry.position,
                version,
                mark,
                label_text,
                call_text,
                entry.retries or 0,
                "" if score is None else score,
                "" if finished is None else finished,
            )
            if entry.turns is None and entry.seconds is None:
                without_steps.append(row)
            else:
                with_steps.append((*row, *_figures_of(entry)))
        changes.labels_added.extend([label for label, _ in labels])
        execute = self._connection.executemany
        execute(_ITEM, without_steps)
        execute(_ITEM_WITH_STEPS, with_steps)
        execute("INSERT INTO words (rowid, text) VALUES (?, ?)", words)
        execute("INSERT INTO item_label VALUES (?, ?)", labels)
        execute("INSERT INTO item_tool VALUES (?, ?, ?)", tools)

    def _take_out(self, numbers: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Remove items and what is counted of them. Returns the version and mark of the text of each."""
        self.begin()
        versions: dict[int, tuple[int, int]] = {}
        for some in (numbers[start : start + _READ] for start in range(0, len(numbers), _READ)):
            marks = ",".join("?" * len(some))
            rows = self._connection.execute(
                f"SELECT number, kind, score, finished, version, text, labels, calls FROM item WHERE number IN ({marks})",
                some,
            ).fetchall()
            labels, tools = [], []
            for number, kind, score, finished, version, mark, label_text, call_text in rows:
                versions[number] = (version, mark)
                of_labels = [int(each) for each in parts_of(label_text)]
                of_tools = [parsed_call(each) for each in parts_of(call_text)]
                labels += [(label, number) for label in of_labels]
                tools += [(tool, number) for tool, _, _ in of_tools]
                self._changes.removed.append((kind, score, finished))
                self._changes.labels_removed += of_labels
                self._changes.count_calls(-1, of_tools)
            self._connection.executemany("DELETE FROM item_label WHERE label = ? AND item = ?", labels)
            self._connection.executemany("DELETE FROM item_tool WHERE tool = ? AND item = ?", tools)
            self._connection.execute(f"DELETE FROM item WHERE number IN ({marks})", some)
        return versions

    def _kind(self, state: str, detail: str) -> int:
        key = (state, detail)
        found = self._kinds[key] = self._enter("INSERT INTO kind (state, detail) VALUES (?, ?)", key)
        return found

    def _labels_of(self, pairs: tuple[tuple[str, str], ...]) -> tuple[list[int], str]:
        """The ids of labels, also as in the column ``labels``."""
        found = []
        for pair in pairs:
            label = self._labels.get(pair)
            if label is None:
                if len(self._labels) >= MAX_NAMES:
                    continue
                label = self._labels[pair] = self._enter("INSERT INTO label (name, value) VALUES (?, ?)", pair)
            found.append(label)
        if len(self._label_sets) < MAX_NAMES:
            self._label_sets[pairs] = found, _joined(map(str, found))
        return found, _joined(map(str, found))

    def _calls_of(self, figures: Mapping[str, tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Tool, calls, failures."""
        named = ((self._tool(name), *each) for name, each in figures.items())
        return [(tool, calls, failures) for tool, calls, failures in named if tool is not None]

    def _tool(self, name: str) -> int | None:
        found = self._tools.get(name)
        if found is None and len(self._tools) < MAX_NAMES:
            found = self._tools[name] = self._enter("INSERT INTO tool (name) VALUES (?)", (name,))
        return found

    def _enter(self, query: str, values: Sequence[Any]) -> int:
        number = self._connection.execute(query, values).lastrowid
        assert number is not None
        return number

    def _write_changes(self, events: Events) -> None:
        changes, self._changes = self._changes, _Changes()
        execute = self._connection.executemany
        ends = [
            {number for (state, _), number in self._kinds.items() if state == end} for end in ("completed", "failed")
        ]
        totals = _Totals(*ends)
        totals.count(1, changes.added)
        totals.count(-1, changes.removed)
        labels = Counter(changes.labels_added)
        labels.subtract(changes.labels_removed)
        execute("UPDATE kind SET items = items + ?2 WHERE id = ?1", totals.kinds.items())
        execute("UPDATE label SET items = items + ?2 WHERE id = ?1", labels.items())
        execute(
            "UPDATE tool SET items = items + ?2, calls = calls + ?3, failures = failures + ?4, failed_items = failed_items + ?5 "
            "WHERE id = ?1",
            _flat(changes.tools.items()),
        )
        execute(
            "INSERT INTO score_bucket VALUES (?, ?) ON CONFLICT DO UPDATE SET items = items + excluded.items",
            totals.buckets.items(),
        )
        execute(
            "INSERT INTO slot VALUES (?1, ?2, ?3, ?4, 0, 0, 0, 0.0) "
            "ON CONFLICT DO UPDATE SET finished = finished + ?2, completed = completed + ?3, failed = failed + ?4",
            _flat(totals.slots.items()),
        )
        execute(
            "INSERT INTO slot VALUES (?1, 0, 0, 0, ?5, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET tokens_in = tokens_in + ?2, "
            "tokens_out = tokens_out + ?3, cost = cost + ?4, failures = failures + ?5",
            _flat(events.slots.items()),
        )
        seconds = [
            (tool, bucket, calls)
            for (name, bucket), calls in events.tool_seconds.items()
            if (tool := self._tool(name)) is not None
        ]
        execute("INSERT INTO tool_seconds VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET calls = calls + ?3", seconds)


class _Changes:
    """What was put in and taken out since the last commit, by ids."""

    def __init__(self) -> None:
        self.added: list[_Counted] = []
        self.removed: list[_Counted] = []
        self.labels_added: list[int] = []
        self.labels_removed: list[int] = []
        self.tools: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """Items, calls, failures, items with a failure."""

    def count_calls(self, by: int, tools: Iterable[tuple[int, int, int]]) -> None:
        """Count the tools of an item ``by`` so many times, 1 or -1."""
        for tool, calls, failures in tools:
            figures = self.tools[tool]
            figures[0] += by
            figures[1] += by * calls
            figures[2] += by * failures
            figures[3] += by * (failures > 0)


class _Totals:
    """By how much totals change. ``completed`` and ``failed``: the ids of kinds of such items."""

    def __init__(self, completed: set[int], failed: set[int]) -> None:
        self._completed = completed
        self._failed = failed
        self.kinds: Counter[int] = Counter()
        self.buckets: Counter[int] = Counter()
        self.slots: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        """Items that ended, those of them that completed, and those that failed."""

    def count(self, by: int, items: Iterable[_Counted]) -> None:
        """Count items ``by`` so many times, 1 or -1."""
        kinds, buckets = self.kinds, self.buckets
        for kind, score, finished in items:
            kinds[kind] += by
            if score is not None:
                buckets[score_bucket(score)] += by
            if finished is not None:
                slot = self.slots[slot_of(finished)]
                slot[0] += by
                if kind in self._completed:
                    slot[1] += by
                elif kind in self._failed:
                    slot[2] += by


def _mark(text: str) -> int:
    data = text.encode()
    return crc32(data) | (len(data) << 32)


def score_bucket(score: float) -> int:
    """Which of the buckets of equal width from 0 to 1 a score belongs to; those outside belong to the first and the last."""
    return min(BUCKETS - 1, max(0, int(score * BUCKETS)))


def parts_of(text: str) -> list[str]:
    """What is between the commas of the columns ``labels`` and ``calls``."""
    return text.split(",")[1:-1]


def parsed_call(text: str) -> tuple[int, int, int]:
    """Tool, calls, failures of one entry in the column ``calls``."""
    tool, calls, failures = text.split(":")
    return int(tool), int(calls), int(failures)


def _joined(parts: Iterable[str]) -> str:
    text = ",".join(parts)
    return f",{text}," if text else ""


def _flat(rows: Iterable[tuple[Any, Sequence[Any]]]) -> list[tuple[Any, ...]]:
    return [(key, *values) for key, values in rows]
