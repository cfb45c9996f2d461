"""The table of a run's items: columns, filters, sorting, pages of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from manyhands.core.text import cut, shell_quoted
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.runs.shown.blocks import Cell, Column, Tone
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import ItemSummary, summarizer_of
from manyhands.view.index.filters import RANGES as INDEX_RANGES
from manyhands.view.index.filters import Cursor, Filters
from manyhands.view.index.queries import RunIndex
from manyhands.view.pages.damaged import checked, damaged_summary
from manyhands.view.pages.page import Page, Query, Site, view_for, whole_number
from manyhands.view.rendering import LEDGER, TONES, column_id, duration, money, short
from manyhands.view.source import NotFound, ShownRun

PAGE = 100
COMMON = (
    Column("item", "#", is_number=True, about="Its number, in order of planning; it never changes."),
    Column("label", "item", about="What people call it."),
    Column("state", "state", about="pending, running, completed, discarded, failed or cancelled; and why."),
    Column("score", "score", is_number=True, about="From 0 to 1."),
    Column("verdict", "verdict"),
    Column("input", "input", about="The beginning of what was given."),
    Column("outcome", "outcome", about="The beginning of what came of it, or why there is none."),
    Column(
        "calls",
        "calls",
        is_number=True,
        about="Of models and paid services, those of tools, graders and abandoned attempts included.",
    ),
    Column("tokens", "tokens", is_number=True, about="Input and output of all calls."),
    Column("cost", "cost", is_number=True, about="US dollars, of all calls."),
    Column(
        "seconds", "seconds", is_number=True, about="From its first beginning, or from that after a retry, to its end."
    ),
    Column("attempts", "attempts", is_number=True, about="More than one: it was begun afresh."),
    Column("key", "key", about="Its identity, by which exports and commands find it."),
)
_LAST = ("calls", "tokens", "cost", "seconds", "attempts", "key")
"""Columns that stand behind those of the workload."""
_HIDDEN = frozenset({"key", "calls"})
"""Columns that are shown only where somebody asks for them."""
SORTED_BY = {
    "item": "position",
    "score": "score",
    "tokens": "tokens",
    "cost": "cost",
    "seconds": "seconds",
    "attempts": "retries",
    "turns": "turns",
    "tool_calls": "tools",
}
"""By what the index sorts when a heading is clicked."""
_ONLY_DESCENDING = "retries"
"""Which the index does not have of items without any: they come last either way."""
RANGES = {"score": "Score", "cost": "Cost, US dollars", "tokens": "Tokens", "turns": "Turns", "seconds": "Seconds"}
"""What can be filtered by its least and greatest value."""
_NOT_FILTERS = frozenset({"page", "at", "columns", "format", "as", "item"})
_OTHER_NAMES = {"detail": "why"}
_EXPORTED = ("completed", "discarded", "failed", "cancelled")
"""States of items whose conversations can be exported."""
_MAX_FACET = 20
_LAST_PLACE = 1 << 62
"""Behind every position."""
_MAX_LABEL, _MAX_KEY = 300, 1000
"""Characters of a label, a reason or a value of a filter, and of a key."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """A row of the table."""

    summary: ItemSummary
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class FacetValue:
    """A filter to choose."""

    label: str
    count: str
    href: str
    is_chosen: bool
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facet:
    """Filters of one kind."""

    label: str
    values: Sequence[FacetValue]
    more: int = 0
    """Values that are not among them."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of the table."""

    column: Column
    href: str | None
    """Where the table is sorted by it; None if it can't be."""
    order: str
    """A value of ``aria-sort``."""


def shown_items(reader: JournalBrowser, view: RunView, rows: Sequence[ItemRow]) -> list[ShownItem]:
    """Items as the table shows them. One that is damaged, or of a form that its workload does not know, says so, and disturbs no other."""
    try:
        return _shown(reader, view, rows)
    except UNREADABLE:
        return [_shown_alone(reader, view, row) for row in rows]


def _shown(reader: JournalBrowser, view: RunView, rows: Sequence[ItemRow]) -> list[ShownItem]:
    summaries = summarizer_of(reader).items([checked(row) for row in rows])
    own = view.cells(rows, summaries)
    columns = view.run_columns()
    return [
        ShownItem(
            summary, {**_common(row, summary), **{column.name: cells.get(column.name, Cell("")) for column in columns}}
        )
        for row, summary, cells in zip(rows, summaries, own, strict=True)
    ]


def _shown_alone(reader: JournalBrowser, view: RunView, row: ItemRow) -> ShownItem:
    try:
        return _shown(reader, view, [row])[0]
    except UNREADABLE as error:
        summary = damaged_summary(row, error)
        cells = {**_common(row, summary), "outcome": Cell(summary["outcome"], tone="bad")}
        return ShownItem(summary, {**{column.name: Cell("") for column in view.run_columns()}, **cells})


def all_columns(view: RunView) -> list[Column]:
    """Every column that there is of a run, in order."""
    own = [column for column in view.run_columns() if column.name not in {each.name for each in COMMON}]
    first = [column for column in COMMON if column.name not in _LAST]
    place = next(n for n, column in enumerate(first) if column.name == "input")
    return [*first[:place], *own, *first[place:], *(column for column in COMMON if column.name in _LAST)]


def usual_columns(view: RunView) -> list[Column]:
    """The columns that are shown without asking for them, if they say something."""
    return [column for column in all_columns(view) if column.name not in _HIDDEN]


def chosen_columns(columns: Sequence[Column], items: Sequence[ShownItem], wanted: str) -> list[Column]:
    """The columns that are shown: those that were named, else those that say something in these rows."""
    names = set(filter(None, wanted.split(",")))
    if names:
        return [column for column in columns if column_id(column.name) in names or column.name == "label"]
    return [column for column in columns if column.name in _ALWAYS or _speaks(column.name, items)]


_ALWAYS = frozenset({"item", "label", "state", "input", "outcome", "tokens", "seconds"})
"""Columns that are always shown. The others are left out where they say the same of all items that have
ended."""


def _speaks(name: str, items: Sequence[ShownItem]) -> bool:
    if name in _HIDDEN:
        return False
    texts = {item.cells[name].text for item in items if item.summary["state"] not in ("pending", "running")}
    return len(texts) > 1 or (len(items) == 1 and texts != {""})


def _common(row: ItemRow, summary: ItemSummary) -> dict[str, Cell]:
    usage, why = summary["usage"], summary["reason"] or summary["cause"] or ""
    tokens = usage["input_tokens"] + usage["output_tokens"]
    label = f"{summary['label']} #{summary['sample'] + 1}" if summary["sample"] else summary["label"]
    seconds = None if row.started_at is None or row.finished_at is None else row.finished_at - row.started_at
    score = summary["score"]
    verdict = cut(summary["verdict"] or "", _MAX_LABEL)
    return {
        "item": Cell(str(summary["item"]), summary["item"]),
        "label": Cell(cut(label, _MAX_LABEL)),
        "state": Cell(summary["state"], tone=TONES[summary["state"]], about=cut(why, _MAX_LABEL).replace("_", " ")),
        "score": Cell("" if score is None else f"{score:.3f}", score, tone=TONES.get(verdict, "")),
        "verdict": Cell(verdict, tone=TONES.get(verdict, "")),
        "input": Cell(summary["input"]),
        "outcome": Cell(summary["outcome"], tone="bad" if summary["state"] == "failed" else ""),
        "calls": Cell(f"{usage['calls']:,}", usage["calls"]),
        "tokens": Cell(short(tokens), tokens),
        "cost": Cell(money(usage["cost"]), usage["cost"]),
        "seconds": Cell("" if seconds is None else duration(seconds), seconds),
        "attempts": Cell(str(summary["attempt"]), summary["attempt"]),
        "key": Cell(summary["key"][:_MAX_KEY]),
    }


async def items_page(site: Site, run_id: str, query: Query) -> Page:
    """The items of a run by filters (see ``view.index.filters``), in pages. ``page``: a cursor; ``at``: the value of what they are sorted
    by that the page begins at, or an item's number; ``columns``: names of those to show, with commas between."""
    run = await site.runs.in_thread(lambda: site.runs.shown(run_id))
    if run.summary is None:
        raise NotFound(run.problem or "the run can't be read")
    await site.indexes.wanted(run)
    return await site.runs.read(run_id, lambda reader: _look(site, run, reader, query))


def filters_of(query: Query) -> Filters:
    """The filters in an address. What is no filter's name is that of a label."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        known = _OTHER_NAMES.get(name, name)
        if name in _NOT_FILTERS:
            continue
        is_filter = known in _FILTER_NAMES or known.rpartition("_")[0] in INDEX_RANGES
        pairs.append((known, value) if is_filter else ("label", f"{name}={value}"))
    return Filters.parse(pairs)


def columns_of(query: Query) -> str:
    """The columns that an address names, with commas between: as boxes that are ticked in a form give them, one by one, too."""
    return ",".join(value for name, value in query.items() if name == "columns")


_FILTER_NAMES = frozenset({"state", "why", "tool", "tool_failed", "label", "retried", "text", "sort"})


def applied_without_index(filters: Filters) -> Filters:
    """What of filters can be applied where there is no index: one state and one reason or cause, in order of the input."""
    return Filters(filters.states[:1], filters.details[:1])


def found_items(
    reader: JournalBrowser, index: RunIndex | None, filters: Filters, cursor: Cursor | None, limit: int = PAGE
) -> tuple[list[ItemRow], Cursor | None, Cursor | None]:
    """A page of the items that pass filters, and where the pages before and behind it are. Without an index
    they are those of ``applied_without_index``."""
    if index is not None:
        page = index.page(filters, cursor, limit)
        return reader.items_of(page.numbers), page.previous, page.next
    state, why = next(iter(filters.states), None), next(iter(filters.details), None)
    place = -1 if cursor is None or cursor.value is None else int(max(-1, min(cursor.value, _LAST_PLACE)))
    if cursor is not None and cursor.side == "before":
        rows = reader.items_before(place, limit + 1, state=state, detail=why)
        more, rows = len(rows) > limit, rows[-limit:]
        return rows, _cursor("before", rows[0]) if more else None, _cursor("after", rows[-1]) if rows else None
    behind = place - 1 if cursor is not None and cursor.side == "at" else place
    rows = reader.items_page(behind, limit + 1, state=state, detail=why)
    more, rows = len(rows) > limit, rows[:limit]
    return (
        rows,
        _cursor("before", rows[0]) if rows and behind >= 0 else None,
        _cursor("after", rows[-1]) if more else None,
    )


def pages_of_items(reader: JournalBrowser, index: RunIndex | None, filters: Filters) -> Iterator[list[ItemRow]]:
    """All items that pass filters, a page at a time."""
    rows, _, behind = found_items(reader, index, filters, None)
    yield rows
    while behind is not None:
        rows, _, behind = found_items(reader, index, filters, behind)
        yield rows


def _cursor(side: Literal["after", "before"], row: ItemRow) -> Cursor:
    return Cursor(side, row.position, row.number)


class _Table:
    """The addresses of one table of items."""

    def __init__(self, site: Site, run: ShownRun, query: Query) -> None:
        self._links = site.links
        self.run = run
        self.filters = filters_of(query)
        self.columns = columns_of(query)
        self.pairs = [*self.filters.query(), *([("columns", self.columns)] if self.columns else [])]

    def href(self, pairs: Sequence[tuple[str, str]]) -> str:
        return self._links.items(self.run.id, pairs)

    def at(self, cursor: Cursor | None) -> str | None:
        """The address of a page of the table."""
        return None if cursor is None else self.href([*self.pairs, ("page", str(cursor))])

    def without(self, name: str) -> list[tuple[str, str]]:
        return [pair for pair in self.pairs if pair[0] != name]

    def switched(self, name: str, value: str) -> tuple[str, bool]:
        """The address with a filter set, or without it if it is; and whether it is. There is one state and one reason at a time."""
        if (name, value) in self.pairs:
            return self.href([pair for pair in self.pairs if pair != (name, value)]), True
        kept = self.without(name) if name in ("state", "why") else self.pairs
        return self.href([*kept, (name, value)]), False

    def heading(self, column: Column, *, is_sorted: bool) -> Heading:
        """A heading: numbers are first sorted from the largest on."""
        key = SORTED_BY.get(column.name) if is_sorted else None
        if key is None:
            return Heading(column, None, "")
        now = ("-" if self.filters.descending else "") + self.filters.sort
        turns = {"position": [key, f"-{key}"], _ONLY_DESCENDING: [f"-{key}", "position"]}.get(key, [f"-{key}", key])
        following = turns[(turns.index(now) + 1) % 2] if now in turns else turns[0]
        pairs = self.without("sort") if following == "position" else [*self.without("sort"), ("sort", following)]
        order = "descending" if now == f"-{key}" else "ascending" if now == key else "none"
        return Heading(column, self.href(pairs), order)

    def value(self, name: str, value: str, label: str, count: str, tone: Tone = "") -> FacetValue:
        href, is_chosen = self.switched(name, value)
        return FacetValue(cut(label, _MAX_LABEL), count, href, is_chosen, tone)


def _look(site: Site, run: ShownRun, reader: JournalBrowser, query: Query) -> Page:
    assert run.summary is not None
    view, table = view_for(reader), _Table(site, run, query)
    counts = reader.counts()
    with site.indexes.opened(run, reader) as (index, note):
        filters = table.filters if index is not None else applied_without_index(table.filters)
        rows, before, behind = found_items(reader, index, filters, _start(reader, filters, query))
        count = _count(index, counts, filters)
        facets = [*_facets(index, counts, table)]
    ignored = [pair for pair in table.filters.query() if pair not in filters.query()]
    if ignored:
        note = f"{note} Not applied: {', '.join(f'{name} {value}' for name, value in ignored)}.".strip()
    items = shown_items(reader, view, rows)
    columns = all_columns(view)
    chosen = chosen_columns(columns, items, table.columns)
    values = {
        "run": run,
        "tabs": site.tabs(run, view),
        "items": items,
        "columns": chosen,
        "headings": [table.heading(column, is_sorted=index is not None) for column in chosen],
        "all_columns": columns,
        "facets": facets,
        "chosen": [*_chosen(table, ignored)],
        "count": count,
        "has_index": index is not None,
        "is_index_coming": index is None and site.indexes.is_coming(run),
        "note": note,
        "text": table.filters.text,
        "ranges": [(name, label, *_bounds(table.filters, name)) for name, label in RANGES.items()],
        "kept": [pair for pair in table.pairs if pair[0] != "text" and pair[0].rpartition("_")[0] not in RANGES],
        "kept_for_columns": table.without("columns"),
        "is_filtered": not table.filters.is_empty,
        "sorted_by": filters.sort,
        "previous": table.at(before),
        "next": table.at(behind),
        "export": exports_of(site, run, table, chosen),
    }
    data = {
        "run": run.id,
        "count": count,
        "items": [item.summary for item in items],
        "next": None if behind is None else str(behind),
        "previous": None if before is None else str(before),
        "note": note,
        "not_applied": [f"{name}={value}" for name, value in ignored],
    }
    return Page(f"Items · {run.summary['run']}", "items.html", values, data)


def _start(reader: JournalBrowser, filters: Filters, query: Query) -> Cursor | None:
    """Where the page begins that an address asks for."""
    at = query.get("at", "")
    if at and filters.sort == "position":
        number = whole_number(at)
        found = None if number is None else next(iter(reader.items_of([number])), None)
        return None if found is None else Cursor("at", found.position)
    return Cursor.parse(f"at:{at}") if at else Cursor.parse(query.get("page", ""))


def _count(index: RunIndex | None, counts: Mapping[tuple[str, str], int], filters: Filters) -> str:
    if index is not None and not filters.is_empty:
        found = index.count(filters)
        return f"{found} item{'' if found.items == 1 and found.is_exact else 's'}"
    states, details = filters.states, filters.details
    number = sum(n for (s, d), n in counts.items() if (not states or s in states) and (not details or d in details))
    return f"{number:,} item{'' if number == 1 else 's'}"


def _facets(index: RunIndex | None, counts: Mapping[tuple[str, str], int], table: _Table) -> Iterator[Facet]:
    """The filters to choose, with how many of the items that are found they would leave: at least so many, where there was no time to
    count them all."""
    found = None if index is None or table.filters.is_empty else index.facets(table.filters)
    states: dict[str, int] = dict.fromkeys((*LEDGER[:-1], "running", "pending"), 0)
    why: dict[str, int] = {}
    for (state, detail), number in (counts if found is None else found.states).items():
        states[state] = states.get(state, 0) + number
        if detail:
            why[detail] = why.get(detail, 0) + number
    count = "{:,}" if found is None or found.is_exact else "≥ {:,}"
    yield Facet(
        "State",
        [
            table.value("state", each, each, count.format(n), TONES.get(each, "muted"))
            for each, n in states.items()
            if n
        ],
    )
    if why:
        values = [table.value("why", each, each.replace("_", " "), count.format(n)) for each, n in _most(why)]
        yield Facet("Why", values, len(why) - len(values))
    if index is None:
        return
    found = found or index.facets(table.filters)
    count = "{:,}" if found.is_exact else "≥ {:,}"
    for name, of_label in found.labels.items():
        if len(of_label) > 1 or (len(of_label) == 1 and table.filters.labels):
            values = [table.value("label", f"{name}={each}", each, count.format(n)) for each, n in _most(of_label)]
            yield Facet(name.replace("_", " ").capitalize(), values, len(of_label) - len(values))
    if found.tools:
        values = [table.value("tool", each, each, count.format(n)) for each, n in _most(found.tools)]
        yield Facet("Tools called", values, len(found.tools) - len(values))


def _most(values: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(values.items(), key=lambda each: -each[1])[:_MAX_FACET]


def _chosen(table: _Table, ignored: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str, bool]]:
    """The filters that are set: name, value, the address without it, and whether it is applied."""
    for name, value in table.filters.query():
        if name != "sort":
            kept = [pair for pair in table.pairs if pair != (name, value)]
            label, _, shown = value.partition("=") if name == "label" else (name.replace("_", " "), "", value)
            yield label, shown, table.href(kept), (name, value) not in ignored


def _bounds(filters: Filters, name: str) -> tuple[str, str]:
    least, greatest = filters.ranges.get(name, (None, None))
    return "" if least is None else f"{least:g}", "" if greatest is None else f"{greatest:g}"


def exports_of(site: Site, run: ShownRun, table: _Table, columns: Sequence[Column]) -> Mapping[str, str]:
    """Where what the filters find can be had as files; the command that writes its conversations, as far as a command can choose them, or
    nothing; and what that command does not heed."""
    assert run.summary is not None
    command = f"manyhands export {shell_quoted(run.summary['folder'])} --to openai"
    states = [state for state in table.filters.states if state in _EXPORTED]
    chosen = [("columns", ",".join(column_id(column.name) for column in columns))]
    others = [name for name, _ in table.filters.query() if name not in ("state", "sort")]
    kinds = {kind: site.links.export(run.id, [*table.pairs, ("as", kind)]) for kind in ("jsonl", "keys")}
    return {
        **kinds,
        "csv": site.links.export(run.id, [*table.without("columns"), *chosen, ("as", "csv")]),
        "command": f"{command} --states {','.join(states)}" if states else "" if table.filters.states else command,
        "ticked": f"{command} --states {','.join(_EXPORTED)}",
        "not_heeded": ", ".join(dict.fromkeys(name.replace("_", " ") for name in others)),
    }
