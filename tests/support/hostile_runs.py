"""Runs in which every text that a person, a data set, a model, a tool or a file gives is hostile: copies of ``marked_runs``, written by the
engine's own journal.

The texts come from ``hostile_texts``. A copy has many items; in each, every mark stands for another text, and the first items have several
texts in the place of each mark, so that few pages show all of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.jsonio import loads, without_surrogates
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.contract import ItemRow, PlannedItem
from manyhands.engine.journal.lock import META
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import StepRow, pack
from manyhands.engine.journal.store import Store
from manyhands.runs.ledger import REPLICAS
from tests.support.hostile_texts import HOSTILE_TEXTS
from tests.support.marked_runs import MARKED

MAX_TEXT = 4000
TEXTS: Sequence[str] = tuple(dict.fromkeys(text[:MAX_TEXT] for text in HOSTILE_TEXTS.values()))
"""The texts, of long ones the beginning: their lengths are about the time that they take."""
MAX_TOGETHER, MAX_LENGTH = 40, 15_000
"""Texts that stand in the place of one mark, and their characters together; a longer text stands alone."""
_MARK = re.compile(r"q7([a-z]+?)7q")
_NAMES = re.compile(r"[\s/\0\\]+")
_AT = 1_790_000_000.0
_USAGE = Usage(calls=1, input_tokens=10, output_tokens=5, cost=0.001)


def _groups() -> Iterator[tuple[str, ...]]:
    together: list[str] = []
    for text in sorted(TEXTS, key=len):
        if together and (len(together) == MAX_TOGETHER or sum(map(len, together)) + len(text) > MAX_LENGTH):
            yield tuple(together)
            together = []
        together.append(text)
    yield tuple(together)


GROUPS: Sequence[tuple[str, ...]] = tuple(_groups())
"""All texts, in groups that stand in one place."""


class Replaced:
    """What the marks of one run stand for, or of one item of it. Nothing but the mark's name and ``number`` decides it, so that each text
    stands in the place of each mark once in as many runs or items as there are groups, or texts if ``is_single``."""

    def __init__(self, number: int, *, is_single: bool, run: Replaced | None = None) -> None:
        self._number, self._is_single, self._run = number, is_single, run

    def text(self, name: str) -> str:
        """What the mark of a name stands for."""
        if name.startswith("the") and self._run is not None:
            return self._run.text(name)
        place = self._number + zlib.crc32(name.encode())
        return TEXTS[place % len(TEXTS)] if self._is_single else "\n\n".join(GROUPS[place % len(GROUPS)])

    def texts(self, name: str) -> Sequence[str]:
        """The same as texts of their own."""
        place = self._number + zlib.crc32(name.encode())
        return (TEXTS[place % len(TEXTS)],) if self._is_single else GROUPS[place % len(GROUPS)]

    def value(self, value: Any, *, sentences: bool = False) -> Any:
        """JSON with texts in the place of marks. ``sentences``: whatever has a blank in it is a mark, too."""
        if isinstance(value, str):
            if sentences and " " in value and not _MARK.search(value):
                return self.text(f"sentence{zlib.crc32(value.encode()) % 7}")
            return _MARK.sub(lambda found: self.text(found[1]), value)
        if isinstance(value, list):
            return [self.value(each, sentences=sentences) for each in value]
        if isinstance(value, dict):
            return {self.value(name): self.value(each, sentences=sentences) for name, each in value.items()}
        return value


def hostile_run(marked: Path, folder: Path, number: int, *, singles: Sequence[int] = range(len(TEXTS))) -> Path:
    """A copy of a marked run. ``number``: of those whose columns, targets and models are other texts. It has an item for each group, and
    then one for each number of ``singles``, with one text in the place of each mark."""
    shutil.copytree(marked, folder, ignore=shutil.ignore_patterns("run.*"))
    with closing(JournalReader(marked)) as reader, closing(Store(folder, SystemClock(), lambda text: None)) as store:
        copy = _Copy(reader, store, number, singles)
        copy.make()
    _replace_files(folder, Replaced(number, is_single=False))
    return folder


class _Copy:
    def __init__(self, reader: JournalReader, store: Store, number: int, singles: Sequence[int]) -> None:
        self._reader, self._store, self._number, self._singles = reader, store, number, singles
        self._rows = list(reader.items())
        self._steps = {row.number: list(reader.steps(row.number, row.attempt)) for row in self._rows}
        self._workload = reader.meta("workload")
        self._run = Replaced(number, is_single=False)

    def make(self) -> None:
        facts = {name: self._reader.meta(name) for name in _facts(self._reader.folder) if name != META}
        spec = self._run.value(facts["spec"], sentences=self._sentences)
        self._store.set_meta(**{**facts, "run_id": str(uuid.uuid4()), "spec": spec, REPLICAS: [*self._replicas()]})
        rows = [self._row(number) for number in range(len(GROUPS) + len(self._singles))]
        keys, planned = set[str](), []
        for number, row in enumerate(rows):
            key = row.key if without_surrogates(row.key) not in keys else f"{row.key} {number}"
            keys.add(without_surrogates(key))
            planned.append(PlannedItem(key, row.payload))
        self._store.plan(planned, 1)
        asyncio.run(self._execute(rows))

    @property
    def _sentences(self) -> bool:
        return bool(self._workload == "memory")

    def _of_item(self, number: int) -> Replaced:
        if number < len(GROUPS):
            return Replaced(number, is_single=False, run=self._run)
        return Replaced(self._singles[number - len(GROUPS)], is_single=True, run=self._run)

    def _row(self, number: int) -> ItemRow:
        row, texts = self._rows[number % len(self._rows)], self._of_item(number)
        is_replaced = self._workload in ("steps", "csv_jobs", "trajectories")
        key = texts.text("key") if is_replaced else texts.value(row.key)
        return replace(
            row,
            number=number + 1,
            key=key,
            payload=texts.value(row.payload, sentences=self._sentences),
            record=texts.value(row.record, sentences=self._sentences),
        )

    async def _execute(self, rows: Sequence[ItemRow]) -> None:
        store = self._store
        store.begin()
        for number, row in enumerate(rows):
            texts = self._of_item(number)
            self._take_steps(number, row, texts)
            store.add_failure(row.number, 1, ItemError(without_surrogates(texts.text("cause")), texts.text("message")))  # type: ignore[arg-type]
            if number % 3 == 0:
                store.end_attempt(row.number, 1, texts.text("attempt"))
            state = (row.state, ItemState.FAILED, ItemState.DISCARDED, ItemState.CANCELLED)[number % 4]
            has_cause = state in (ItemState.FAILED, ItemState.CANCELLED)
            outcome = Outcome(
                state,
                row.record or {},
                None,
                without_surrogates(texts.text("why")) if state is ItemState.DISCARDED else None,
                without_surrogates(texts.text("why")) if has_cause else None,  # type: ignore[arg-type]
                texts.text("failure"),
            )
            store.settle(row.number, outcome, lambda failure: None)
            if number % 50 == 0:
                await store.writer.committed()
        for number in range(len(GROUPS)):
            texts = Replaced(number, is_single=False)
            store.note_order(
                without_surrogates(texts.text("user")), "retry", {"items": 1, "select": texts.text("select")}
            )
        await store.end(self._run.text("ending"))

    def _take_steps(self, number: int, row: ItemRow, texts: Replaced) -> None:
        steps = self._steps[self._rows[number % len(self._rows)].number]
        for step in steps if number < len(GROUPS) else ():
            scope = without_surrogates(texts.value(step.scope))
            self._record(row, scope, step.seq, step.kind, texts.value(step.request), texts.value(step.output))
        if number < len(GROUPS) and self._workload != "steps":
            for place, (scope, kind, request, output) in enumerate(conversation(texts), 1000):
                self._record(row, without_surrogates(scope), place, without_surrogates(kind), request, output)

    def _record(self, row: ItemRow, scope: str, seq: int, kind: str, request: Any, output: Any) -> None:
        at = _AT + row.number + seq
        step = StepRow(row.number, 1, scope, seq, kind, b"", pack(request), pack(output), _USAGE, at, at + 0.5)
        self._store.writer.submit("add_steps", step.columns(), step.usage)

    def _replicas(self) -> Iterator[Mapping[str, Any]]:
        for number in range(3):
            texts = Replaced(self._number + number, is_single=False)
            figures = {"in_flight": 0, "window": 4, "answered": 5, "failed": 1, "seconds": 0.5, "out_since": _AT}
            yield {"replica": texts.text("replica"), "reason": texts.text("out"), **figures}


def conversation(texts: Replaced) -> Iterator[tuple[str, str, Any, Any]]:
    """Steps of an agent: scope, kind, request, output. Each text of a group is a message, a call, a result or an image of its own."""
    calls: list[dict[str, Any]] = [
        {"id": each, "type": "function", "function": {"name": each, "arguments": argument}}
        for each, argument in zip(texts.texts("toolname"), _arguments(texts), strict=False)
    ]
    images = [{"type": "image_url", "image_url": {"url": each}} for each in texts.texts("image")]
    added = [
        {"role": "system", "content": texts.text("system")},
        {"role": "user", "content": [{"type": "text", "text": texts.text("part")}, *images], "_given": True},
        {"role": texts.text("role"), "content": texts.text("content"), "_synthetic": texts.text("synthetic")},
    ]
    message = {
        "role": "assistant",
        "content": texts.text("answer"),
        "reasoning": texts.text("thought"),
        "tool_calls": calls,
    }
    output = {"message": message, "finish_reason": texts.text("finish"), "extra": {"model": texts.text("model")}}
    refused = {str(len(calls) - 1): texts.text("refused")} if calls else {}
    scope = without_surrogates(texts.text("scope"))
    yield scope, "model", {"added": added, "settings": {"model": texts.text("asked")}}, {**output, "refused": refused}
    named = [{"index": index, "name": call["function"]["name"], "arguments": "{}"} for index, call in enumerate(calls)]
    results = [
        {"content": {"output": each, "exit_code": index % 2}, **({"failed": True} if index % 3 == 0 else {})}
        for index, each in zip(
            range(len(calls)), (*texts.texts("result"), *texts.texts("resulttwo"), *[""] * len(calls)), strict=False
        )
    ]
    yield scope, "tools", {"turn": f"{scope}/1000", "calls": named}, {"results": results}
    yield scope, "model", {"added": []}, {"overflow": texts.text("overflow"), "message": None, "extra": {}}
    yield scope, texts.text("kind") or "x", {texts.text("name"): texts.text("request")}, [texts.text("output")]


def _arguments(texts: Replaced) -> Iterator[str]:
    """Arguments of calls: JSON of each text, and each text as it is."""
    for number, text in zip(count(), (*texts.texts("argument"), *texts.texts("brokenarguments")), strict=False):
        yield json.dumps({"command": text, text: number}) if number % 2 else text


def _facts(folder: Path) -> Sequence[str]:
    with closing(sqlite3.connect(folder / JOURNAL)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM meta")]


def _replace_files(folder: Path, texts: Replaced) -> None:
    """Files of a run: JSON with texts in the place of marks, others too; and one more for each text, called by it."""
    is_memory = (folder / "results").is_dir()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("run."):
            _replace_file(path, lambda value: texts.value(value, sentences=is_memory))
    for text in texts.texts("filename"):
        path = folder / file_name(text)
        path.touch()


def _replace_file(path: Path, replaced: Callable[[Any], Any]) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        path.write_text(json.dumps(replaced(loads(text))), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text(
            "".join(json.dumps(replaced(loads(each))) + "\n" for each in text.splitlines()), encoding="utf-8"
        )


def file_name(text: str) -> str:
    """A text as the name of a file, as nearly as there can be one: bytes that are no characters stay as such."""
    name = (
        text.replace("/", "\u2215")
        .replace("\0", "")
        .encode("utf-8", "replace")[:240]
        .decode("utf-8", "surrogateescape")
    )
    return name if name not in ("", ".", "..") and not name.startswith("run.") else f"_{name}"


def hostile_runs(folder: Path, runs: int, *, is_every: bool) -> list[Path]:
    """Copies of a run of each workload, so many of each, under a folder. ``is_every``: each has items with each text alone; else every text
    is alone in an item of one of the workloads."""
    found = []
    for first, (kind, make) in enumerate(MARKED.items()):
        marked = folder / "marked" / kind
        marked.mkdir(parents=True)
        made = make(marked)
        singles = range(len(TEXTS)) if is_every else range(first, len(TEXTS), len(MARKED))
        for number in range(runs):
            found.append(folder / "runs" / f"{kind}-{number}")
            hostile_run(made, found[-1], number, singles=singles)
    return found
