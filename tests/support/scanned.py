"""What the index of a run must say, found by going through the whole journal in another way: for small runs only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manyhands.agents.trajectory import fold_transcript
from manyhands.core.messages import text_of
from manyhands.core.usage import Usage
from manyhands.engine.contract import RecordedStep
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.runs.shown.run_view import view_of
from manyhands.runs.summaries import summarizer_of
from manyhands.view.index.filters import Filters, Number
from manyhands.view.index.queries import RunIndex

WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class Scanned:
    """An item."""

    number: int
    state: str
    detail: str
    values: dict[str, Number | None]
    """By the names of ``SORTS``."""
    calls: dict[str, tuple[int, int]]
    labels: dict[str, str]
    words: frozenset[str]

    def passes(self, filters: Filters) -> bool:
        return (
            (not filters.states or self.state in filters.states)
            and (not filters.details or self.detail in filters.details)
            and all(self._is_within(name, *bounds) for name, bounds in filters.ranges.items())
            and all(tool in self.calls for tool in filters.tools)
            and all(self.calls.get(tool, (0, 0))[1] for tool in filters.failed_tools)
            and all(self.labels.get(name) == value for name, value in filters.labels)
            and (not filters.retried or self.values["retries"] is not None)
            and all(word.lower() in self.words for word in WORD.findall(filters.text))
        )

    def _is_within(self, name: str, least: Number | None, greatest: Number | None) -> bool:
        value = self.values[name]
        return value is not None and (least is None or value >= least) and (greatest is None or value <= greatest)


def scanned(folder: Path) -> list[Scanned]:
    """All items of a run."""
    with closing(JournalReader(folder)) as reader:
        summarizer, view, found = summarizer_of(reader), view_of(reader), []
        for row in reader.items():
            steps = [step for attempt in range(1, row.attempt + 1) for step in reader.steps(row.number, attempt)]
            latest = [step for step in steps if step.attempt == row.attempt]
            used = sum((Usage.from_json(dict(step.usage)) for step in steps if step.usage), Usage())
            calls = _calls(latest)
            facts = summarizer.facts(row)
            answers = [
                text_of(each["content"]) for each in fold_transcript(latest).messages if each["role"] == "assistant"
            ]
            texts = [row.key, *(str(text) for text in (facts.input, facts.outcome, row.message) if text is not None)]
            texts += answers[-1:] if row.state.final else []
            values: dict[str, Number | None] = {
                "position": row.position,
                "score": facts.score,
                "cost": used.cost if steps else None,
                "tokens": used.total_tokens if steps else None,
                "turns": sum(step.kind == "model" and not step.scope for step in latest) if steps else None,
                "tools": sum(count for count, _ in calls.values()) if steps else None,
                "seconds": None
                if row.started_at is None or row.finished_at is None
                else row.finished_at - row.started_at,
                "finished": row.finished_at,
                "retries": row.attempt - 1 or None,
            }
            labels = {"verdict": facts.verdict} if facts.verdict is not None else {}
            words = frozenset(word.lower() for text in texts for word in WORD.findall(text))
            detail = row.reason or row.cause or ""
            found.append(
                Scanned(row.number, row.state.value, detail, values, calls, {**labels, **view.labels(row)}, words)
            )
        return found


def listed(items: Sequence[Scanned], filters: Filters) -> list[Scanned]:
    """Those that pass filters, in their order."""

    def key(item: Scanned) -> tuple[bool, Number, int]:
        value = item.values[filters.sort]
        sign = -1 if filters.descending and value is not None else 1
        return value is None, sign * (value or 0), sign * item.number

    return sorted((item for item in items if item.passes(filters)), key=key)


def check(folder: Path, index_dir: Path) -> None:
    """Raises AssertionError where an index differs from its journal."""
    items = scanned(folder)
    index = RunIndex.open(folder, run_id_of(folder), index_dir)
    assert index is not None
    with closing(index):
        assert index.progress.difference == 0
        found = {number: each for some in _batches(items) for number, each in index.items(some).items()}
        assert found.keys() == {item.number for item in items}
        for item in items:
            indexed = found[item.number]
            assert (indexed.state, indexed.detail, dict(indexed.calls)) == (item.state, item.detail, item.calls)
            retries = indexed.attempt - 1 or None
            for name, value in item.values.items():
                assert (retries if name == "retries" else getattr(indexed, name)) == _about(value), (item.number, name)
        facets = index.facets(Filters())
        assert facets.is_exact
        assert dict(facets.states) == Counter((item.state, item.detail) for item in items)
        assert dict(facets.tools) == Counter(tool for item in items for tool in item.calls)
        labels = Counter((name, value) for item in items for name, value in item.labels.items())
        assert {(name, value): n for name, of in facets.labels.items() for value, n in of.items()} == labels
        points = index.series().points
        assert sum(point.finished for point in points) == sum(item.values["finished"] is not None for item in items)
        assert sum(point.tokens_in + point.tokens_out for point in points) == sum(
            item.values["tokens"] or 0 for item in items
        )
        for tool in index.tools():
            assert tool.items == facets.tools[tool.name]
        for word in sorted({word for item in items[:5] for word in item.words})[:20]:
            found_by_word = index.page(Filters(text=word), limit=1000).numbers
            assert list(found_by_word) == [item.number for item in listed(items, Filters(text=word))][:1000], word


def _about(value: Number | None) -> object:
    return value if value is None else _Near(value)


class _Near(float):
    """Equal to what differs from it by rounding."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float)) and abs(other - float(self)) <= 1e-6 * max(1.0, abs(float(self)) / 1e9)

    __hash__ = float.__hash__


def _batches(items: Sequence[Scanned]) -> list[list[int]]:
    numbers = [item.number for item in items]
    return [numbers[start : start + 500] for start in range(0, len(numbers), 500)]


def _calls(steps: Sequence[RecordedStep]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        if step.kind == "tools":
            pairs = list(zip(step.request["calls"], step.output["results"], strict=True))
        else:
            pairs = [(step.request["call"], step.output)] if step.kind == "tool" else []
        for call, result in pairs:
            calls, failures = found.get(call["name"], (0, 0))
            found[call["name"]] = calls + 1, failures + bool(result.get("failed"))
    return found
