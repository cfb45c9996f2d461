"""The page of runs beside each other: their figures, and what their workload finds where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.engine.journal.browsing import JournalBrowser, TooSlow
from manyhands.runs.shown.blocks import Cell, Column, Note, Section
from manyhands.runs.shown.pairs import RUNS
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import RunStatus, run_status
from manyhands.view.pages.page import Page, Query, Site, Tab, view_for
from manyhands.view.rendering import TONES, duration, money, short
from manyhands.view.source import NotFound, ShownRun, explained

MAX_RUNS = 20
"""Compared at once."""
_MAX_PICKED_FROM = 200
"""Runs that the form lists."""
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Found:
    tabs: Sequence[Tab]
    figures: Sequence[RunStatus]
    """Of each run."""
    sections: Sequence[Section]


@dataclass(frozen=True, slots=True)
class Line:
    """A run in the table on top."""

    run: ShownRun
    cells: Sequence[Cell]
    as_base: str | None
    """The address of the page with this run as the first one; None of the first one."""
    without: str
    """The address of the page without it."""


async def compare_page(site: Site, query: Query) -> Page:
    """Runs of one workload: ``runs`` names them with commas between them, the first one is what the others are compared with. The rest of
    the query is the workload's. With less than two there is a form to choose others."""
    named = list(dict.fromkeys(filter(None, query.get(RUNS, "").split(","))))
    every = await site.runs.in_thread(site.runs.listed)
    by_id = {run.id: run for run in every if run.id}
    notes = [*_notes(named, by_id)]
    runs = [by_id[name] for name in named if name in by_id][:MAX_RUNS]
    if named and not runs:
        raise NotFound("there are no such runs under the folders that are shown (any more)")
    if not runs:
        return _page(site, [], _Found([], [], []), _choices(every, []), notes)
    same = [run for run in runs if _workload(run) == _workload(runs[0])]
    if len(same) < len(runs):
        names = ", ".join(run.folder.name for run in runs if run not in same)
        notes.append(Note(f"Runs of another workload can't be compared with these: {names}.", "warn"))
    rest = {name: value for name, value in query.items() if name != "format" and value}
    rest[RUNS] = ",".join(run.id for run in same)
    found = await site.runs.in_thread(lambda: _look(site, same, rest))
    return _page(site, same, found, _choices(every, same), notes)


def _page(
    site: Site,
    runs: Sequence[ShownRun],
    found: _Found,
    choices: Sequence[ShownRun],
    notes: Sequence[Note],
) -> Page:
    columns, rows = _table(runs, found.figures)
    links, ids = site.links, [run.id for run in runs]
    lines = [
        Line(
            run,
            row,
            None if run is runs[0] else links.compare([run.id, *(each for each in ids if each != run.id)]),
            links.compare([each for each in ids if each != run.id]),
        )
        for run, row in zip(runs, rows, strict=True)
    ]
    values = {
        "run": runs[0] if runs else None,
        "tabs": found.tabs,
        "columns": columns,
        "lines": lines,
        "sections": found.sections,
        "choices": choices,
        "chosen": ids,
        "notes": notes,
        "is_nothing": len(runs) > 1 and not found.sections,
    }
    data: dict[str, Any] = {
        "runs": [{**figures, "run_id": run.id} for run, figures in zip(runs, found.figures, strict=True)],
        "sections": found.sections,
        "choices": [{"run": run.folder.name, "run_id": run.id} for run in choices],
        "notes": notes,
    }
    title = " and ".join(run.folder.name for run in runs[:3]) + (" …" if len(runs) > 3 else "") if runs else "runs"
    return Page(f"Compare {title}", "compare.html", values, data)


def _look(site: Site, runs: Sequence[ShownRun], query: Query) -> _Found:
    with explained(runs[0].folder), ExitStack() as stack:
        readers: list[JournalBrowser] = []
        for run in runs:
            readers.append(stack.enter_context(closing(site.runs.open(run.id))))
            stack.enter_context(readers[-1].limited(_SECONDS))
        view = view_for(readers[0])
        figures = [run_status(reader) for reader in readers]
        tabs = site.tabs(runs[0], view)
        return _Found(tabs, figures, _compared(view, readers[1:], query))


def _compared(view: RunView, others: Sequence[JournalBrowser], query: Query) -> list[Section]:
    """What the workload finds; nothing if it has nothing to say."""
    try:
        with explained(view.reader.folder):
            try:
                found = view.compared(others, query)
            except KeyError:
                return []
            return list(found)
    except TooSlow:
        note = Note(f"Comparing these runs takes more than {_SECONDS:g} s: too long for a page.", "warn")
    except ManyhandsError as error:
        note = Note(f"These runs can't be compared: {error}", "bad")
    return [Section("Comparison", [note])]


def _notes(named: Sequence[str], by_id: Mapping[str, ShownRun]) -> Iterator[Note]:
    if missing := sum(name not in by_id for name in named):
        yield Note(f"{missing} of the runs are not under the folders that are shown (any more).", "warn")
    if (more := sum(name in by_id for name in named) - MAX_RUNS) > 0:
        yield Note(f"{MAX_RUNS} runs are compared at once; the last {more} are left out.", "warn")


def _workload(run: ShownRun) -> str:
    return "" if run.summary is None else run.summary["workload"]


def _choices(every: Sequence[ShownRun], runs: Sequence[ShownRun]) -> list[ShownRun]:
    """The runs that may be added."""
    chosen = {run.id for run in runs}
    found = [
        run for run in every if run.id and run.id not in chosen and (not runs or _workload(run) == _workload(runs[0]))
    ]
    if not runs:
        found.sort(key=_workload)
    return found[:_MAX_PICKED_FROM]


# --- The table on top

_COLUMNS = (
    Column("state", "state"),
    Column("items", "items", is_number=True),
    Column("completed", "completed", is_number=True),
    Column("failed", "failed", is_number=True),
    Column("model", "model"),
    Column("tokens", "tokens", is_number=True),
    Column("cost", "cost", is_number=True),
    Column("work", "work", is_number=True, about="How long the run was executed, all sessions together."),
)


def _table(runs: Sequence[ShownRun], found: Sequence[RunStatus]) -> tuple[list[Column], list[list[Cell]]]:
    """The columns behind the name of a run, and the cells of each run."""
    labels = {figure["name"]: figure["label"] for status in found for figure in status["figures"]}
    own = [Column(f"figure_{name}", label, is_number=True) for name, label in labels.items()]
    rows = [[*_cells(run, status), *_figures(status, labels)] for run, status in zip(runs, found, strict=True)]
    return [*_COLUMNS, *own], rows


def _cells(run: ShownRun, status: RunStatus) -> Iterable[Cell]:
    ledger, usage = status["ledger"], status["usage"]
    return (
        Cell(status["state"], tone=TONES.get(status["state"], "")),
        Cell(f"{ledger['items']:,}", ledger["items"]),
        Cell(f"{ledger['completed']:,}", ledger["completed"]),
        Cell(f"{ledger['failed']:,}", ledger["failed"], tone="bad" if ledger["failed"] else ""),
        Cell(", ".join(run.models)),
        Cell(short(usage["total_tokens"]), usage["total_tokens"]),
        Cell(money(usage["cost"]), usage["cost"]),
        Cell(duration(status["working_seconds"]), status["working_seconds"]),
    )


def _figures(status: RunStatus, labels: Mapping[str, str]) -> Iterator[Cell]:
    own = {figure["name"]: figure for figure in status["figures"]}
    for name in labels:
        figure = own.get(name)
        yield Cell("") if figure is None else Cell(figure["text"], figure["value"])
