"""What all pages are made with, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.runs.shown.blocks import block_json
from manyhands.runs.shown.run_view import RunView, view_of
from manyhands.view.index.pool import Indexes
from manyhands.view.links import Links
from manyhands.view.source import Runs, ShownRun

Query = Mapping[str, str]
"""What an address asks for. Whatever is wrong in it is ignored."""
Tab = tuple[str, str, str]
"""A page of a run: its name, its label and its address."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page before it is written."""

    title: str
    template: str
    values: Mapping[str, Any]
    data: Mapping[str, Any]
    """The same for programs; blocks as they are."""
    status: int = 200

    @property
    def context(self) -> Mapping[str, Any]:
        """What the template is given."""
        return {"title": self.title, **self.values}

    def json(self) -> Any:
        """The page as JSON."""
        return {"title": self.title, **block_json(self.data)}


@dataclass(slots=True)
class Site:
    """What the pages are about."""

    runs: Runs
    links: Links
    folders: Sequence[Path]
    """As they were named."""
    indexes: Indexes

    def tabs(self, run: ShownRun, view: RunView) -> Sequence[Tab]:
        """The pages of a run, for its navigation."""
        links = self.links
        own = [(info.name, info.label, links.page(run.id, info.name)) for info in view.pages()]
        return [
            ("overview", "Overview", links.run(run.id)),
            *own,
            ("items", "Items", links.items(run.id)),
            *([] if links.is_static else [("compare", "Compare", links.compare([run.id]))]),
        ]


def view_for(reader: JournalBrowser) -> RunView:
    """What a run's workload has to show of it; of one that is not installed, or whose settings nobody here knows, what all runs have."""
    try:
        view = view_of(reader)
        view.run_columns()
        view.pages()
    except UNREADABLE:
        return RunView(reader)
    return view


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What an address asks for; values of one name, as boxes that are ticked in a form give them, with commas between them."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).extend([value] if value else [])
    return {name: ",".join(values) for name, values in found.items()}


def whole_number(text: str | None) -> int | None:
    """A number from 0 up; None for anything else."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None
