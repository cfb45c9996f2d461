"""Journals that are written step by step, for what pages make of steps in an order or of a size that no small run has."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal.records import pack
from manyhands.engine.journal.store import Store
from manyhands.view.index.pool import Indexes
from manyhands.view.links import Links
from manyhands.view.pages.page import Page, Site
from manyhands.view.rendering import Renderer
from manyhands.view.source import Runs, look_at


@dataclass(frozen=True)
class MadeStep:
    """A step to be written. The address is the scope with the number that follows in it."""

    kind: str
    request: Any
    output: Any
    scope: str = ""
    item: int = 1
    attempt: int = 1


def asked(*calls: str, text: str = "", scope: str = "", item: int = 1) -> MadeStep:
    """A turn of a model that calls tools; ``calls``: their names."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for index, name in enumerate(calls)
        ]
    output = {"message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return MadeStep("model", {"added": [], "settings": {}}, output, scope, item)


def answered_together(turn: str, *contents: Any, item: int = 1) -> MadeStep:
    """The results of all calls of a turn, which is named by its address, as one step."""
    calls = [{"index": index, "id": f"c{index}", "name": "t", "arguments": {}} for index in range(len(contents))]
    output = {"results": [{"content": content} for content in contents]}
    return MadeStep("tools", {"turn": turn, "calls": calls}, output, turn.rpartition("/")[0], item)


def answered_alone(turn: str, index: int, content: Any, item: int = 1) -> MadeStep:
    """The result of one call of a turn in a step of its own."""
    scope = turn.rpartition("/")[0]
    call = {"index": index, "id": f"c{index}", "name": "t", "arguments": {}}
    own = f"{scope}/call-{turn}-{index}" if scope else f"call-{turn}-{index}"
    return MadeStep("tool", {"turn": turn, "call": call}, {"content": content}, own, item)


def made_journal(folder: Path, steps: Iterable[MadeStep] = (), *, items: Sequence[str] = ("a",)) -> Path:
    """A run folder with completed items, whose keys are given, and these steps in that order."""
    folder.mkdir(parents=True)
    with closing(Store(folder, SystemClock(), print)) as store:
        store.set_meta(
            run_id=uuid.uuid4().hex,
            workload="steps",
            spec={"items": []},
            seed=0,
            created_at=1_700_000_000.0,
            version="1",
        )
        store.plan([PlannedItem(key, {}, Outcome(ItemState.COMPLETED, {})) for key in items], 1)
    seqs: dict[tuple[int, int, str], int] = {}
    rows = []
    for at, step in enumerate(steps):
        seq = seqs.setdefault((step.item, step.attempt, step.scope), 0)
        seqs[step.item, step.attempt, step.scope] += 1
        times = (1_700_000_000.0 + at, 1_700_000_001.0 + at)
        packed = (pack(step.request), pack(step.output))
        rows.append((step.item, step.attempt, step.scope, seq, step.kind, b"d", *packed, *times))
    write(
        folder,
        "INSERT INTO steps (item, attempt, scope, seq, kind, digest, request, output, started_at, finished_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *rows,
    )
    return folder


def write(folder: Path, statement: str, *rows: Sequence[object]) -> None:
    """Execute a statement in a journal, once with each of the rows."""
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        connection.executemany(statement, rows)
        connection.commit()


class Pages:
    """The pages of one run, made without a server."""

    def __init__(self, folder: Path) -> None:
        self.id = look_at(folder).id
        links = Links()
        self.site = Site(Runs([folder]), links, [folder], Indexes(folder, 1.0, is_on=False))

    def html(self, page: Page) -> str:
        """A page as a browser gets it."""
        return Renderer(self.site.links).page(page.template, page.context)

    def close(self) -> None:
        self.site.runs.close()
