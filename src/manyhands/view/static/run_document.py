"""One run as a document: where every item is, the pages of its workload, its items, and as many conversations as there is room for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from manyhands.core.errors import RunError
from manyhands.core.text import are, counted, cut, printable
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.shown.blocks import Block, Cell, Column, Fold, Link, Note, Section, Table
from manyhands.runs.shown.run_view import RunView, view_of
from manyhands.runs.steering.selection import Selection
from manyhands.runs.summaries import RunStatus, run_status
from manyhands.view.pages.item_table import ShownItem, all_columns, chosen_columns, shown_items
from manyhands.view.pages.run import ledger_values, notes
from manyhands.view.rendering import Renderer
from manyhands.view.source import ShownRun, explained, look_at
from manyhands.view.static import DEFAULT_MB
from manyhands.view.static.document import as_part, inline_parts, without_blanks
from manyhands.view.static.item_choice import Candidates, candidates, evenly
from manyhands.view.static.passing_on import STOPPING, PassingOn, without_folders
from manyhands.view.static.run_pages import WorkloadPage, overview, workload_pages
from manyhands.view.static.shown_items import ShownItems
from manyhands.view.static.static_links import RunDocumentLinks

_PAGES_SHARE, _TABLE_SHARE = 0.35, 0.25
"""Of the size: the most that the pages of the workload and the table of items take."""
_FAILED_SHARE, _LOWEST_SHARE = 0.5, 0.5
"""Of the room for conversations: what those that failed take at most, and of what is left then, those with the lowest scores."""
_MARGIN = 30_000
"""Bytes that are kept free for what comes last: the bar of filters, headings."""
_MIN_TEXT, _MAX_TEXT = 20_000, 600_000
"""Characters of one conversation, about."""
_LEAST = 2_000
"""Bytes that a conversation takes at least: where less is left, no further one is tried."""
_MISSES = 20
"""Conversations that may be too large for what is left, before no further one is tried."""
_MAX_PAGES = 100
"""Pages of rows that a page of the workload is made of."""
MAX_ROWS = 20_000
"""Items in the table."""
_AT_ONCE = 500
_CERTAIN = 0.95
"""Of the room, what is used where a size is estimated."""
_CELL, _NAME = 100, 300
"""Characters of what was given and of what came of it, in the table, and of anything else."""
_OPEN_ROWS = 300
"""Rows up to which the table is open."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a document about a run holds."""

    items: int
    """Of the run's input, or of those selected."""
    conversations: int


def write_run_report(
    handle: BinaryIO,
    folder: Path,
    *,
    select: Sequence[str] = (),
    max_mb: float = DEFAULT_MB,
    plain: bool = False,
    passing_on: PassingOn = STOPPING,
) -> Contents:
    """Write a run as one HTML file of no more than ``max_mb`` (10⁶ bytes).

    ``select``: which items, as ``Selection.parse`` takes it; none: all, those that failed first, then those with the lowest scores, then an
    even choice over the others. ``plain``: texts of models are never taken for markdown. In the head is counted what there is no room for,
    and what is left out besides: items that the input does not name any more, and conversations of attempts before the latest ones. The
    same run gives the same bytes, once it has ended. Raises UserError (RunError if the run can't be read, SecretFound
    for what ``passing_on`` finds).
    """
    shown = look_at(folder)
    if shown.summary is None:
        raise RunError(f"{folder}: {shown.problem}")
    with closing(JournalBrowser(folder)) as reader, explained(folder):
        selected = None
        if select:
            selected = {each.number for each in Selection.parse(select).found(reader)}
        return _Report(reader, shown, selected, int(max_mb * 1e6), passing_on, plain=plain).write(handle)


@dataclass(slots=True)
class _Chosen:
    """The conversations of a document: where each one is in the file that they are written to meanwhile."""

    failed: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, begin, end), as all of them."""
    lowest: list[tuple[int, int, int]] = field(default_factory=list)
    others: list[tuple[int, int, int]] = field(default_factory=list)
    earlier_attempts: int = 0
    """Attempts of these items before the latest ones, whose conversations are not among them."""

    @property
    def all(self) -> list[tuple[int, int, int]]:
        return [*self.failed, *self.lowest, *self.others]


class _Report:
    def __init__(
        self,
        reader: JournalBrowser,
        shown: ShownRun,
        selected: Collection[int] | None,
        most: int,
        passing_on: PassingOn,
        *,
        plain: bool,
    ) -> None:
        self._reader = reader
        self._shown = shown
        self._selected = selected
        self._most = most
        self._passing_on = passing_on
        self._view: RunView = view_of(reader)
        self._links = RunDocumentLinks(shown.id, [info.name for info in self._view.pages()])
        self._plain = plain
        self._renderer = Renderer(self._links, plain=plain, colours=not passing_on.redact)
        self._status: RunStatus = run_status(reader)
        self._candidates: Candidates = candidates(reader, selected)

    def write(self, handle: BinaryIO) -> Contents:
        sections = overview(self._reader, self._view, self._status)
        pages = list(workload_pages(self._view, _MAX_PAGES))
        head = self._size(self._head(sections, _Chosen(), ()))
        pages, taken = self._fitting(pages, int(self._most * _PAGES_SHARE))
        table = self._table(int(self._most * _TABLE_SHARE))
        fixed = head + taken + self._size([self._table_part(table)])
        with TemporaryFile() as aside:
            chosen = self._written_aside(aside, self._most - fixed - _MARGIN)
            self._links.shown = {number for number, *_ in chosen.all}
            self._renderer = Renderer(self._links, plain=self._plain, colours=not self._passing_on.redact)
            behind = [*map(self._page_part, pages), self._table_part(table), *self._talks(aside, chosen)]
            for part in self._head(sections, chosen, behind):
                clean = self._passing_on.html(without_folders(part, [self._shown.folder]), self._shown.folder.name)
                handle.write(clean.encode())
        return Contents(self._candidates.items, len(chosen.all))

    def _size(self, parts: Iterable[str]) -> int:
        return sum(len(part.encode()) for part in parts)

    # --- The head

    def _head(self, sections: Sequence[Section], chosen: _Chosen, behind: Iterable[str]) -> Iterator[str]:
        assert self._shown.summary is not None
        names = [("Overview", "#main"), *((each.label, f"#page-{each.name}") for each in self._view.pages())]
        values: dict[str, Any] = {
            **inline_parts(),
            **ledger_values(self._shown, self._status["figures"]),
            "title": printable(self._shown.summary["run"]),
            "about": (),
            "run": self._shown.id,
            "shown": self._shown,
            "tabs": [*names, ("Items", "#items"), ("Conversations", "#conversations")],
            "current": "",
            "is_overview": True,
            "notes": [*notes(self._shown), *self._left_out(chosen)],
            "sections": ((section, False) for section in sections),
            "parts_behind": map(as_part, behind),
        }
        return self._renderer.streamed("static_run.html", values)

    def _left_out(self, chosen: _Chosen) -> Iterator[Note]:
        shown, there = len(chosen.all), self._candidates.count
        if self._selected is not None:
            of = self._shown.summary["ledger"]["items"] if self._shown.summary is not None else 0
            yield Note(f"{counted(self._candidates.items, 'item')} of {of:,}, as selected.", "")
        if shown < there:
            yield Note(
                f"{shown:,} of {counted(there, 'conversation')} are in this file: {_share(chosen.failed, self._candidates.failed)} that "
                f"failed, {len(chosen.lowest):,} with the lowest scores, {len(chosen.others):,} evenly chosen of the others. "
                "For others: --select @FILE, with a key on each line; for more: --max_mb, or --folder for all.",
                "warn",
            )
        if gone := self._candidates.removed:
            yield Note(
                f"{counted(gone, 'item')} that the input does not name any more {are(gone)} not in this file.", "warn"
            )
        if earlier := chosen.earlier_attempts:
            words = f"The conversations of {counted(earlier, 'earlier attempt')} of these items are not in this file; --folder has them."
            yield Note(words, "warn")

    # --- Pages of the workload

    def _page_part(self, page: WorkloadPage) -> str:
        heading = self._renderer.part(
            "static_parts.html", "heading", f"page-{page.info.name}", page.info.label, page.info.about
        )
        sections = map(_folded, page.sections)
        parts = (self._renderer.part("blocks.html", "section", self._shown.id, each) for each in sections)
        return heading + "".join(map(without_blanks, parts))

    def _fitting(self, pages: Sequence[WorkloadPage], most: int) -> tuple[list[WorkloadPage], int]:
        """The pages as far as there is room, and what they take: those that are larger than their share lose the last rows of tables."""
        sizes = [self._size([self._page_part(page)]) for page in pages]
        found, taken = [], 0
        for place, (page, size) in enumerate(zip(pages, sizes, strict=True)):
            left = most - taken
            room = max(left - sum(sizes[place + 1 :]), left // (len(pages) - place))
            kept, needed = self._shortened(page, size, room)
            found.append(kept)
            taken += needed
        return found, taken

    def _shortened(self, page: WorkloadPage, size: int, room: int) -> tuple[WorkloadPage, int]:
        """A page with as many rows as there is room for, and what it takes."""
        if size <= room:
            return page, size
        kept = WorkloadPage(page.info, [_shortened(each, room / size) for each in page.sections])
        needed = self._size([self._page_part(kept)])
        if needed <= room:
            return kept, needed
        kept = WorkloadPage(page.info, [Section("", [Note("There was no room for this page.", "warn")])])
        return kept, self._size([self._page_part(kept)])

    # --- The table of items

    def _table(self, room: int) -> Table:
        items = self._listed()
        columns = chosen_columns(all_columns(self._view), items, "")
        rows = [[_cell(column, item) for column in columns] for item in items]
        sample = rows[:: max(1, len(rows) // _AT_ONCE)]
        size = self._size([self._table_part(Table(columns, sample))])
        most = int(room / size * len(sample) * _CERTAIN) if rows else 0
        return Table(columns, rows[:most])

    def _listed(self) -> list[ShownItem]:
        items: list[ShownItem] = []
        behind = -1
        while len(items) < MAX_ROWS and (rows := self._reader.items_page(behind, _AT_ONCE)):
            behind = rows[-1].position
            wanted = [row for row in rows if self._is_listed(row.number, left_input=row.left_input)]
            items += shown_items(self._reader, self._view, wanted) if wanted else []
        return items[:MAX_ROWS]

    def _is_listed(self, number: int, *, left_input: bool) -> bool:
        return not left_input if self._selected is None else number in self._selected

    def _table_part(self, table: Table) -> str:
        """The table in a section."""
        heading = self._renderer.part("static_parts.html", "heading", "items", "Items", "")
        blocks: list[Block] = []
        if len(table.rows) < self._candidates.items:
            left = self._candidates.items - len(table.rows)
            blocks.append(
                Note(f"The first {counted(len(table.rows), 'item')}; there was no room for {left:,} more.", "warn")
            )
        section = _folded(Section("", [*blocks, table]))
        return heading + without_blanks(self._renderer.part("blocks.html", "section", self._shown.id, section))

    # --- Conversations

    def _written_aside(self, aside: BinaryIO, room: int) -> _Chosen:
        """Write the conversations that there is room for."""
        all_of = self._candidates
        writing = _Writing(self._reader, ShownItems(self._reader, self._view, self._renderer, self._shown.id), aside)
        writing.max_text = min(_MAX_TEXT, max(_MIN_TEXT, room // max(1, all_of.count) // 2))
        chosen = _Chosen()
        part = int(room * _FAILED_SHARE) if all_of.lowest or all_of.others else room
        chosen.failed = writing.as_many(all_of.failed, part)
        left = room - writing.size
        chosen.lowest = writing.as_many(
            all_of.lowest, int(left * _LOWEST_SHARE) if self._needs_choice(left, writing) else left
        )
        taken = {number for number, *_ in chosen.lowest}
        others = sorted(
            (*all_of.others, *(each for each in all_of.lowest if each not in taken)), key=all_of.places.__getitem__
        )
        chosen.others = writing.as_many(evenly(others), room - writing.size)
        chosen.others.sort(key=lambda each: all_of.places[each[0]])
        chosen.failed += writing.as_many(all_of.failed[len(chosen.failed) :], room - writing.size)
        chosen.earlier_attempts = writing.earlier_attempts
        return chosen

    def _needs_choice(self, left: int, writing: _Writing) -> bool:
        """Whether there may be no room for all that did not fail."""
        return bool(self._candidates.others) or self._candidates.count * writing.max_text > left

    def _talks(self, aside: BinaryIO, chosen: _Chosen) -> Iterator[str]:
        part = self._renderer.part
        yield part("static_parts.html", "heading", "conversations", "Conversations", "")
        yield part("static_parts.html", "filters")
        titles = ("Failed", "Lowest scores first", "Others" if chosen.failed or chosen.lowest else "")
        for title, found in zip(titles, (chosen.failed, chosen.lowest, chosen.others), strict=True):
            if found:
                yield part("static_parts.html", "begin", title)
                for number, begin, end in found:
                    aside.seek(begin)
                    place = f"{self._shown.folder.name} item {number}"
                    yield self._passing_on.html(aside.read(end - begin).decode(), place)
                yield part("static_parts.html", "end")


class _Writing:
    """Writes conversations to a file, each as it stands in the document."""

    def __init__(self, reader: JournalBrowser, items: ShownItems, handle: BinaryIO) -> None:
        self._reader = reader
        self._items = items
        self._handle = handle
        self.size = 0
        """Bytes so far."""
        self.max_text = _MAX_TEXT
        self.earlier_attempts = 0
        """Of what was written, attempts before the latest ones."""

    def as_many(self, numbers: Iterable[int], room: int) -> list[tuple[int, int, int]]:
        """Write the first ones that fit into so many bytes; where each is."""
        found, misses, end = [], 0, self.size + room
        for number in numbers:
            if end - self.size < _LEAST or misses > _MISSES:
                break
            row = next(iter(self._reader.items_of([number])), None)
            if row is None:
                continue
            data = without_blanks(self._items.fold(row, self.max_text)).encode()
            if self.size + len(data) > end:
                self._items.forget(row)
                misses += 1
                continue
            self._handle.write(data)
            self.earlier_attempts += max(0, row.attempt - 1)
            found.append((number, self.size, self.size + len(data)))
            self.size += len(data)
        return found


def _share(chosen: Sequence[object], there: Sequence[object]) -> str:
    return (
        f"all {len(there):,}"
        if len(chosen) == len(there) and there
        else f"{len(chosen):,} of {len(there):,}"
        if there
        else "none"
    )


def _folded(section: Section) -> Section:
    """A section whose long tables open at a click, so that a browser need not lay them out before."""
    blocks = [
        Fold(counted(len(block.rows), "row"), [block])
        if isinstance(block, Table) and len(block.rows) > _OPEN_ROWS
        else block
        for block in section.blocks
    ]
    return replace(section, blocks=blocks)


def _cell(column: Column, item: ShownItem) -> Cell:
    cell = item.cells[column.name]
    if column.name in ("input", "outcome"):
        return replace(cell, text=cut(" ".join(cell.text.split()), _CELL))
    cell = replace(cell, text=cut(cell.text, _NAME), about=cut(cell.about, _NAME))
    return replace(cell, link=Link(item=item.summary["item"])) if column.name == "label" else cell


def _shortened(section: Section, share: float) -> Section:
    """A section with the first rows of its tables."""
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Table) and len(block.rows) > 20:
            kept = int(len(block.rows) * share * 0.9)
            blocks.append(replace(block, rows=block.rows[:kept], row_names=block.row_names[:kept]))
            blocks.append(Note(f"There was no room for {counted(len(block.rows) - kept, 'more row')}.", "warn"))
        else:
            blocks.append(block)
    return replace(section, blocks=blocks)
