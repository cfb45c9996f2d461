"""What the index holds of each item: read from the journal, a page of items at a time, in short reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import floor, isfinite, log2
from operator import attrgetter
from typing import Any

from manyhands.agents.trajectory import MODEL, TOOL
from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.core.messages import text_of
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader, StepMark
from manyhands.engine.journal.records import unpack_within
from manyhands.runs.shown.run_view import view_of
from manyhands.runs.summaries import ItemFacts, summarizer_of

SLOT_SECONDS = 5
"""Of what happened over time, the shortest that is told apart."""
MAX_TEXT = 4_000
"""Characters of each text of an item that are searched."""
MAX_LABEL = 200
"""Characters of the name or the value of a label, and of the name of a tool."""
MAX_LABELS = 20
"""Labels of one item."""
MAX_BLOB = 4 << 20
"""Bytes of a request or an output, as recorded, that is looked into. Of larger ones the calls, or their failures, are not counted."""
MAX_JSON = 16 << 20
"""Bytes of JSON of the items that are read at once, and of a request or an output. Of an item with more there is what its row says."""
_MAX_USAGE = 1 << 12
"""The same of what a step used."""
VERDICT = "verdict"
"""The label that every item with a verdict has, besides those of its workload."""
_MAX_KNOWN = 10_000
"""Sets of labels that are remembered."""
_FAILED = b'"failed":true'
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading a record raises that is not what its workload writes."""


@dataclass(slots=True)
class Entry:
    """An item as the index holds it. Figures are None where no step was recorded; times are seconds since 1970 UTC."""

    number: int
    position: int
    state: str
    detail: str
    """The reason or cause; empty without one."""
    retries: int | None
    """Attempts after the first; None without."""
    finished: float | None
    score: float | None = None
    cost: float | None = None
    """This and the tokens are of all attempts."""
    tokens: int | None = None
    """Of input and output."""
    tokens_out: int | None = None
    turns: int | None = None
    """Model calls of the item's own conversation, in the latest attempt. So are ``tools``, ``tool_failures`` and ``calls``."""
    tools: int | None = None
    """Tool calls."""
    tool_failures: int | None = None
    seconds: float | None = None
    """From its first beginning, or from that after a retry, to its end."""
    calls: Mapping[str, tuple[int, int]] | None = None
    """Of each tool: calls, and how many of them failed."""
    labels: tuple[tuple[str, str], ...] = ()
    text: str = ""
    """What is searched for words."""


@dataclass(slots=True)
class Events:
    """What happened in steps, to be added to what is known of earlier ones."""

    slots: dict[int, list[float]] = field(default_factory=dict)
    """By slots (see ``slot_of``): tokens of input and of output, cost, failures."""
    tool_seconds: dict[tuple[str, int], int] = field(default_factory=dict)
    """By tool and bucket of ``bucket_of``: calls."""

    def at(self, time: float) -> list[float]:
        """The figures of the slot of a time."""
        return self.slots.setdefault(slot_of(time), [0, 0, 0.0, 0])


class Gatherer:
    """Reads entries from one journal."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._summarizer = summarizer_of(reader)
        self._view = view_of(reader)
        self._known_labels: dict[tuple[Any, ...], tuple[tuple[str, str], ...]] = {}

    def page(self, behind: int, last: int, limit: int, steps: tuple[int, int], events: Events) -> list[Entry]:
        """The entries of up to ``limit`` items behind a number, up to ``last``, in order: of at least one, if there is one.

        ``steps``: those behind the first id, up to the second one, are counted in ``events``.
        """
        rows = self._reader.items_numbered(behind, last, limit, MAX_JSON)
        if not rows:
            return []
        attempts = {row.number: row.attempt for row in rows}
        marks = self._reader.step_marks(rows[0].number, rows[-1].number, MAX_BLOB)
        counted = {
            number: _counted(each, attempts[number], steps, events)
            for number, each in groupby(marks, attrgetter("item"))
            if number in attempts
        }
        facts = self._facts(rows)
        return [self._entry(row, each, counted.get(row.number)) for row, each in zip(rows, facts, strict=True)]

    def entries(self, numbers: Iterable[int], steps: tuple[int, int], events: Events) -> Iterator[Entry]:
        """The entries of items, in order of their numbers. ``steps`` and ``events``: as for ``page``."""
        for first, last in _stretches(sorted(set(numbers))):
            behind = first - 1
            while found := self.page(behind, last, last - behind, steps, events):
                yield from found
                behind = found[-1].number

    def _facts(self, rows: Sequence[ItemRow]) -> Sequence[ItemFacts]:
        """What the workload knows of items; of those with a record that it can't read: nothing."""
        try:
            return self._summarizer.facts_of(rows)
        except _DAMAGED:
            return [self._facts_of_one(row) for row in rows]

    def _facts_of_one(self, row: ItemRow) -> ItemFacts:
        try:
            return self._summarizer.facts_of([row])[0]
        except _DAMAGED:
            return ItemFacts(row.key, outcome=row.message)

    def _labels(self, row: ItemRow, facts: ItemFacts) -> tuple[tuple[str, str], ...]:
        """The labels of an item, as they are in the index; most items share theirs with many others."""
        try:
            given = tuple(self._view.labels(row).items())
            if facts.verdict is not None:
                given = ((VERDICT, facts.verdict), *given)
            found = self._known_labels.get(given)
        except _DAMAGED:
            return ()
        if found is None:
            found = tuple({_short(name): _short(value) for name, value in given[:MAX_LABELS]}.items())
            if len(self._known_labels) < _MAX_KNOWN:
                self._known_labels[given] = found
        return found

    def _entry(self, row: ItemRow, facts: ItemFacts, counted: _Counted | None) -> Entry:
        entry = Entry(
            row.number,
            row.position,
            row.state.value,
            row.reason or row.cause or "",
            row.attempt - 1 or None,
            row.finished_at,
            _score(facts.score),
        )
        if row.started_at is not None and row.finished_at is not None:
            entry.seconds = row.finished_at - row.started_at
        entry.labels = self._labels(row, facts)
        texts = [row.key, _text(facts.input), _text(facts.outcome)]
        if row.message and row.message != facts.outcome:
            texts.append(row.message[:MAX_TEXT])
        if counted is not None:
            counted.fill(entry)
            if row.state.final and (answer := counted.answer()) and answer != texts[2]:
                texts.append(answer)
        entry.text = _encodable("\n".join(texts))
        return entry


class _Counted:
    """What the steps of an item come to."""

    __slots__ = ("calls", "cost", "last_output", "tokens_in", "tokens_out", "turns")

    def __init__(self) -> None:
        self.tokens_in = self.tokens_out = self.turns = 0
        self.cost = 0.0
        self.calls: dict[str, list[int]] = {}
        self.last_output: bytes | None = None

    def fill(self, entry: Entry) -> None:
        """Enter the figures."""
        entry.cost, entry.turns = self.cost, self.turns
        entry.tokens, entry.tokens_out = self.tokens_in + self.tokens_out, self.tokens_out
        entry.tools = entry.tool_failures = 0
        if self.calls:
            entry.calls = {name: (calls, failures) for name, (calls, failures) in self.calls.items()}
            entry.tools = sum(calls for calls, _ in entry.calls.values())
            entry.tool_failures = sum(failures for _, failures in entry.calls.values())

    def answer(self) -> str:
        """The beginning of what was answered last."""
        try:
            return "" if self.last_output is None else _text(text_of(_unpacked(self.last_output)["message"]["content"]))
        except _DAMAGED:
            return ""

    def add_usage(self, blob: bytes) -> tuple[int, int, float]:
        """What a step used: tokens of input and of output, cost."""
        try:
            usage = unpack_within(blob, _MAX_USAGE)[0]
            tokens_in, tokens_out, cost = usage["input_tokens"], usage["output_tokens"], usage["cost"]
            self.tokens_in += tokens_in
            self.tokens_out += tokens_out
            self.cost += cost
        except _DAMAGED:
            return 0, 0, 0.0
        return tokens_in, tokens_out, cost


def _counted(marks: Iterable[StepMark], attempt: int, counted: tuple[int, int], events: Events) -> _Counted:
    """What the steps of an item come to. ``attempt``: the latest; ``counted`` and ``events``: as for ``Gatherer.page``."""
    found = _Counted()
    behind, upto = counted
    for step, _, of_attempt, scope, _, kind, started, ended, usage, request, output in marks:
        is_event, is_latest = behind < step <= upto, of_attempt == attempt
        if usage is not None:
            used = found.add_usage(usage)
            if is_event:
                slot = events.at(ended)
                slot[0] += used[0]
                slot[1] += used[1]
                slot[2] += used[2]
        if kind == MODEL:
            if is_latest and not scope:
                found.turns += 1
                found.last_output = output or found.last_output
        elif request is not None and (is_event or is_latest):
            calls = _calls(kind, request, output)
            for name, failed in calls:
                if is_latest:
                    figures = found.calls.setdefault(name, [0, 0])
                    figures[0] += 1
                    figures[1] += failed
                if is_event:
                    key = (name, bucket_of((ended - started) / len(calls)))
                    events.tool_seconds[key] = events.tool_seconds.get(key, 0) + 1
    return found


def _unpacked(blob: bytes) -> Json:
    return unpack_within(blob, MAX_JSON)[0]


def _calls(kind: str, request: bytes, output: bytes | None) -> list[tuple[str, bool]]:
    """The tool calls of a step: the name of the tool, and whether it failed."""
    try:
        given: Json = _unpacked(request)
        names = [_short(call["name"]) for call in ([given["call"]] if kind == TOOL else given["calls"])]
        if output is None or (output[:1] != b"z" and _FAILED not in output):
            return [(name, False) for name in names]
        found = _unpacked(output)
        results = [found] if kind == TOOL else found["results"]
        return [(name, bool(result.get("failed"))) for name, result in zip(names, results, strict=True)]
    except _DAMAGED:
        return []


def slot_of(time: float) -> int:
    """The slot of SLOT_SECONDS since 1970 that a time is in; 0 for what is no time."""
    return int(time // SLOT_SECONDS) if 0 <= time < 1e11 else 0


def bucket_of(seconds: float) -> int:
    """Where a duration is on a logarithmic scale of eight buckets to each doubling, from a tenth of a millisecond on."""
    return floor(8 * log2(max(seconds, 1e-4)))


def seconds_of(bucket: int) -> float:
    """The middle of a bucket, which is no more than 4.5 % from anything in it."""
    return float(2 ** ((bucket + 0.5) / 8))


def _score(score: Any) -> float | None:
    return float(score) if isinstance(score, (int, float)) and isfinite(score) else None


def _text(value: Json) -> str:
    return "" if value is None else (value if type(value) is str else as_text(value))[:MAX_TEXT]


def _short(text: Any) -> str:
    return _encodable(str(text)[:MAX_LABEL])


def _encodable(text: str) -> str:
    return text if text.isascii() else without_surrogates(text)


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as stretches without a gap: first, last."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        stretch = [number for _, number in group]
        yield stretch[0], stretch[-1]
