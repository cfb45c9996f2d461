"""Runs as a folder of pages that lead to each other: from a disk, or from any web server. All items of a run are there, also those
that left the input, with the conversations of all their attempts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from manyhands.core.errors import RunError, StorageError, UserError
from manyhands.core.jsonio import loads, pretty
from manyhands.core.text import counted, printable
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.shown.blocks import Cell, Column, Link, Note, Section, Table
from manyhands.runs.shown.run_view import RunView, view_of
from manyhands.runs.steering.selection import Selection
from manyhands.runs.summaries import run_status
from manyhands.view.conversation import value_at
from manyhands.view.links import Pairs
from manyhands.view.pages.item_table import shown_items, usual_columns
from manyhands.view.pages.run import ledger_values, notes
from manyhands.view.rendering import TONES, Renderer, duration, money, short, since
from manyhands.view.source import ShownRun, explained, look_at
from manyhands.view.static.document import SCRIPTS, STYLES, as_part, resource
from manyhands.view.static.passing_on import STOPPING, PassingOn, without_folders
from manyhands.view.static.run_pages import overview, workload_pages
from manyhands.view.static.shown_items import ShownItems
from manyhands.view.static.static_links import StaticLinks

MARK = "manyhands-report.txt"
"""The file by which a folder of pages is known to be one, so that a newer one may take its place. It lists all others."""
ROWS = 500
"""Items of a page of the table."""
_ITEMS_OF_FOLDER = 1000
_MAX_PAGES = 10_000
"""Pages of rows that a page of the workload is made of."""
_POLICY = (
    "default-src 'none'; style-src 'self' file:; script-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a folder of pages holds."""

    runs: int
    items: int
    files: int


class FolderLinks(StaticLinks):
    """Links of pages in a folder, relative to the page that is written."""

    def __init__(self, runs: Mapping[str, int]) -> None:
        """``runs``: of each run, by its ``run_id``, the number that its folder is called by."""
        self._runs = runs
        self.base = ""
        """From the page that is written to the folder of all."""
        self.selected: Mapping[str, frozenset[int]] = {}
        """Of runs of which only some items are written, which."""
        self.wanted: dict[tuple[int, str], str] = {}
        """Texts of steps that the page leads to: the step and the path in it, and the name of the file."""

    def runs(self, query: Mapping[str, str] | None = None) -> str:
        return f"{self.base}index.html"

    def run(self, run: str) -> str:
        return self._in(run, "index.html")

    def items(self, run: str, query: Pairs | None = None) -> str:
        return "" if query else self._in(run, "items-1.html")

    def item(self, run: str, number: int, query: Mapping[str, str] | None = None) -> str:
        selected = self.selected.get(run)
        attempt = (query or {}).get("attempt", "")
        return self._in(run, item_path(number, attempt=attempt)) if selected is None or number in selected else ""

    def step(self, run: str, step: int, what: str, query: Mapping[str, str] | None = None) -> str:
        path = (query or {}).get("path", "")
        if what != "text" or not path:
            return ""
        name = self.wanted.setdefault((step, path), f"steps/{step}-{path.replace('/', '-')}.txt")
        return self._in(run, name)

    def page(self, run: str, name: str, query: Mapping[str, str] | None = None) -> str:
        return self._in(run, f"page-{name}.html" if name else "index.html")

    def _in(self, run: str, path: str) -> str:
        number = self._runs.get(run)
        return "" if number is None else f"{self.base}runs/{number}/{path}"


def item_path(number: int, page: int = 1, attempt: str = "") -> str:
    """The file of an item in the folder of its run. ``attempt``: which earlier one; empty: the latest one."""
    name = f"{number}{f'-attempt-{attempt}' if attempt else ''}{'' if page == 1 else f'-{page}'}"
    return f"items/{number // _ITEMS_OF_FOLDER}/{name}.html"


def write_run_folder(
    folders: Sequence[Path],
    target: Path,
    *,
    select: Sequence[str] = (),
    plain: bool = False,
    passing_on: PassingOn = STOPPING,
) -> Written:
    """Write runs as pages into a folder, which appears under its name once it is whole.

    ``select``: which items, as ``Selection.parse`` takes it; none: all. ``plain``: texts of models are never taken for markdown. A folder
    that is there is replaced if it is an earlier one of this program's, to which nothing was added; another one must be empty. Raises
    UserError (RunError for a run that can't be read, SecretFound for what ``passing_on`` finds), StorageError.
    """
    _check_may_be_replaced(target)
    runs = [look_at(folder) for folder in dict.fromkeys(folders)]
    known: dict[str, Path] = {}
    for run in runs:
        if run.summary is None:
            raise RunError(f"{run.folder}: {run.problem}")
        if (other := known.setdefault(run.id, run.folder)) != run.folder:
            raise UserError(f"{run.folder}: is a copy of {other}; name one of them")
    aside = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.new")
    try:
        try:
            aside.mkdir(parents=True)
            written = _Folder(aside, runs, passing_on, plain=plain).write(select)
            _check_may_be_replaced(target)  # it may have taken long
            _take_place(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{target}: can't be written ({error.strerror or error})") from error
    return written


def _check_may_be_replaced(target: Path) -> None:
    """Raises UserError where something would be lost."""
    if not os.path.lexists(target):
        return
    mark = target / MARK
    if not target.is_dir() or (not mark.is_file() and any(target.iterdir())):
        raise UserError(f"{target}: is there already, and is no earlier report")
    if not mark.is_file():
        return
    own = {MARK, *mark.read_text(encoding="utf-8", errors="replace").splitlines()}
    for folder, folders, names in os.walk(target):
        links = (name for name in folders if os.path.islink(os.path.join(folder, name)))
        for name in (*names, *links):
            path = Path(folder, name).relative_to(target)
            if path.as_posix() not in own:
                raise UserError(f"{target}: holds {path}, which is no file of the report that would be replaced")


def _take_place(aside: Path, target: Path) -> None:
    old = aside.with_suffix(".old")
    with suppress(FileNotFoundError):
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)


class _Folder:
    def __init__(self, folder: Path, runs: Sequence[ShownRun], passing_on: PassingOn, *, plain: bool) -> None:
        self._folder = folder
        self._runs = runs
        self._links = FolderLinks({run.id: number for number, run in enumerate(runs, 1)})
        self._renderer = Renderer(self._links, plain=plain, colours=not passing_on.redact)
        self._passing_on = passing_on
        self._written: list[str] = []

    def write(self, select: Sequence[str]) -> Written:
        for name in (*STYLES, *SCRIPTS):
            self._put(f"assets/{name}", [resource(name)])
        items = 0
        for number, run in enumerate(self._runs, 1):
            with closing(JournalBrowser(run.folder)) as reader, explained(run.folder):
                selected = None
                if select:
                    selected = frozenset(each.number for each in Selection.parse(select).found(reader))
                    self._links.selected = {**self._links.selected, run.id: selected}
                items += _RunPages(self, reader, run, f"runs/{number}", selected).write()
        self.page("index.html", "Runs", [Section("", [_run_table(self._runs)])])
        about = "Pages made by manyhands report. Begin with index.html. All of its files:"
        self._put(MARK, (f"{line}\n" for line in (about, *sorted(self._written))))
        return Written(len(self._runs), items, len(self._written))

    def _put(self, path: str, parts: Iterable[str]) -> None:
        place = self._folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as handle:
            for part in parts:
                shown = without_folders(part, [run.folder for run in self._runs])
                handle.write(self._passing_on.html(shown, path).encode())
        self._written.append(path)

    def page(
        self, path: str, title: str, sections: Iterable[Section], template: str = "static.html", **more: Any
    ) -> None:
        """Write a page."""
        self._links.base = "../" * path.count("/")
        values = {
            "policy": _POLICY,
            "style": "",
            "style_files": [f"assets/{name}" for name in STYLES],
            "scripts": (),
            "script_files": [f"assets/{name}" for name in SCRIPTS],
            "base": self._links.base,
            "title": printable(title),
            "about": (),
            "crumbs": [("Runs", self._links.runs())],
            "run": "",
            "sections": ((section, False) for section in sections),
            **more,
        }
        self._put(path, self._renderer.streamed(template, values))

    def items_of(self, reader: JournalBrowser, view: RunView, run: str) -> ShownItems:
        return ShownItems(reader, view, self._renderer, run)

    def at(self, path: str) -> FolderLinks:
        """The links as a page has them."""
        self._links.base = "../" * path.count("/")
        self._links.wanted = {}
        return self._links

    def part(self, template: str, macro: str, *values: Any) -> str:
        """What one macro of a template makes."""
        return self._renderer.part(template, macro, *values)

    def text(self, path: str, text: str) -> None:
        """Write a text."""
        self._put(path, [self._passing_on.text(text.encode("utf-8", "replace").decode(), path)])


class _RunPages:
    def __init__(
        self, folder: _Folder, reader: JournalBrowser, run: ShownRun, path: str, selected: frozenset[int] | None
    ) -> None:
        self._folder = folder
        self._reader = reader
        self._run = run
        self._path = path
        self._selected = selected
        self._view = view_of(reader)

    def write(self) -> int:
        """Write the pages of the run; how many items."""
        self._overview()
        for page in workload_pages(self._view, _MAX_PAGES):
            self._page(f"page-{page.info.name}.html", page.info.label, page.sections, about=(page.info.about,))
        return self._items()

    def _page(
        self, name: str, title: str, sections: Iterable[Section], template: str = "static_run.html", **more: Any
    ) -> None:
        path = f"{self._path}/{name}"
        links = self._folder.at(path)
        values = {
            "run": self._run.id,
            "shown": self._run,
            "tabs": [
                ("Overview", links.run(self._run.id)),
                *((info.label, links.page(self._run.id, info.name)) for info in self._view.pages()),
                ("Items", links.items(self._run.id)),
            ],
            "current": title,
            "is_overview": False,
            "notes": (),
            "parts_behind": (),
            **more,
        }
        self._folder.page(path, f"{title} · {self._run.folder.name}", sections, template, **values)

    def _overview(self) -> None:
        status = run_status(self._reader)
        sections = overview(self._reader, self._view, status)
        facts = ledger_values(self._run, status["figures"])
        about = [*notes(self._run)]
        if self._selected is not None:
            about.append(Note(f"{counted(len(self._selected), 'item')}, as selected, have pages.", ""))
        more = {name: value for name, value in facts.items() if name != "run"}
        self._page("index.html", "Overview", sections, is_overview=True, **{**more, "notes": about})

    # --- Items

    def _items(self) -> int:
        """Write the pages of the table and of the items; how many items."""
        shown = self._folder.items_of(self._reader, self._view, self._run.id)
        rows = self._some()
        page, columns, count = list(islice(rows, ROWS)), None, 0
        for number in count_from(1):
            following = list(islice(rows, ROWS))
            columns = self._table_page(page, number, columns, has_more=bool(following))
            for row in page:
                self._item(shown, row)
            count += len(page)
            if not following:
                break
            page = following
        return count

    def _some(self) -> Iterator[ItemRow]:
        behind = -1
        while rows := self._reader.items_page(behind, ROWS):
            behind = rows[-1].position
            yield from (row for row in rows if self._selected is None or row.number in self._selected)

    def _table_page(
        self, rows: Sequence[ItemRow], number: int, columns: Sequence[Column] | None, *, has_more: bool
    ) -> Sequence[Column]:
        items = shown_items(self._reader, self._view, rows) if rows else []
        columns = usual_columns(self._view) if columns is None else columns
        cells = [[item.cells[column.name] for column in columns] for item in items]
        place = next(n for n, column in enumerate(columns) if column.name == "label")
        for line, item in zip(cells, items, strict=True):
            cell = line[place]
            line[place] = Cell(cell.text, cell.value, cell.tone, cell.about, Link(item=item.summary["item"]))
        around = [("← Back", f"items-{number - 1}.html")] if number > 1 else []
        around += [("More →", f"items-{number + 1}.html")] if has_more else []
        pager = self._folder_part("pager", around)
        self._page(f"items-{number}.html", "Items", [Section("", [Table(columns, cells)])], parts_behind=[pager])
        return columns

    def _folder_part(self, macro: str, *values: Any) -> Markup:
        return as_part(self._folder.part("static_parts.html", macro, *values))

    def _item(self, shown: ShownItems, row: ItemRow) -> None:
        self._attempt(shown, row, row.attempt)
        for attempt in shown.earlier_attempts(row):
            self._attempt(shown, row, attempt)

    def _attempt(self, shown: ShownItems, row: ItemRow, attempt: int) -> None:
        """Write the pages of an attempt, those of the latest one as those of the item."""
        earlier = "" if attempt == row.attempt else str(attempt)
        pages = shown.pages(row, attempt)
        steps, number = next(pages), 1
        while True:
            following = next(pages, None)
            path = f"{self._path}/{item_path(row.number, number, earlier)}"
            links = self._folder.at(path)
            around = [(f"Attempt {row.attempt}", links.item(self._run.id, row.number))] if earlier else []
            if number > 1:
                before = item_path(row.number, number - 1, earlier)
                around.append(("← Earlier", f"{links.base}{self._path}/{before}"))
            if following is not None:
                behind = item_path(row.number, number + 1, earlier)
                around.append(("Later →", f"{links.base}{self._path}/{behind}"))
            parts = [
                as_part(shown.body(row, attempt, steps, is_first=number == 1 and not earlier)),
                self._folder_part("pager", around),
            ]
            wanted = dict(links.wanted)
            crumbs = [
                ("Runs", links.runs()),
                (self._run.folder.name, links.run(self._run.id)),
                ("Items", links.items(self._run.id)),
            ]
            title = f"{row.key} · {f'attempt {attempt} · ' if earlier else ''}{self._run.folder.name}"
            self._folder.page(path, title, (), "static_page.html", crumbs=crumbs, parts_behind=parts)
            for (step, place), name in wanted.items():
                self._folder.text(f"{self._path}/{name}", _text_of(self._reader, step, place))
            if following is None:
                return
            steps, number = following, number + 1


def _text_of(reader: JournalBrowser, step: int, path: str) -> str:
    """A text in a step."""
    value, *inner = path.split("/")
    try:
        data = b"".join(reader.value_parts(step, "request" if value == "request" else "output"))
        found = value_at(loads(data), inner)
    except (KeyError, ValueError) as error:
        return f"It can't be read: {error}"
    return found if isinstance(found, str) else pretty(found)


def _run_table(runs: Sequence[ShownRun]) -> Table:
    columns = (
        Column("run", "run"),
        Column("workload", "workload"),
        Column("state", "state"),
        Column("items", "items", is_number=True),
        Column("failed", "failed", is_number=True),
        Column("models", "models"),
        Column("tokens", "tokens", is_number=True),
        Column("cost", "cost", is_number=True),
        Column("work", "work", is_number=True),
        Column("created", "created (UTC)"),
    )
    return Table(columns, [_run_row(run) for run in runs])


def _run_row(run: ShownRun) -> Sequence[Cell]:
    assert run.summary is not None
    summary, ledger, usage = run.summary, run.summary["ledger"], run.summary["usage"]
    return (
        Cell(summary["run"], link=Link(run=run.id, page="")),
        Cell(summary["workload"].replace("_", " ")),
        Cell(run.state, tone=TONES.get(run.state, "")),
        Cell(f"{ledger['items']:,}", ledger["items"]),
        Cell(f"{ledger['failed']:,}", ledger["failed"], tone="bad" if ledger["failed"] else ""),
        Cell(", ".join(run.models)),
        Cell(short(usage["total_tokens"]), usage["total_tokens"]),
        Cell(money(usage["cost"]), usage["cost"]),
        Cell(duration(summary["working_seconds"]), summary["working_seconds"]),
        Cell(since(summary["created_at"])),
    )
