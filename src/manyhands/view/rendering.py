"""Pages as HTML, by templates in which every text is escaped. The same templates make the web app and the static report."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from manyhands.core.jsonio import without_surrogates
from manyhands.core.messages import text_of
from manyhands.core.text import cut, printable
from manyhands.runs.progress import sandbox_text
from manyhands.runs.shown.blocks import Block, Cell, Chart, Column, Lanes, Section, Tone
from manyhands.runs.shown.cells import OPEN, SHOW, SHOWN, STATE_TONES
from manyhands.view import charts, text
from manyhands.view.conversation import ShownStep, step_label
from manyhands.view.links import Links

TONES: Mapping[str, Tone] = {
    **STATE_TONES,
    "finished": "good",
    "passed": "good",
    "pass": "good",
    "finished, with failures": "bad",
    "unreadable": "bad",
    "fail": "bad",
    "borderline": "warn",
    "interrupted": "warn",
    "limit reached": "warn",
    "paused": "warn",
    "not started": "muted",
}
"""How the states of runs and items, and verdicts, are coloured."""
LEDGER = ("completed", "discarded", "failed", "cancelled", "pending")
"""The states of items in the order in which they are shown."""
MAX_BLOCK = 400_000
"""Characters of a text that stands by itself."""
MAX_TIP = 1000
"""Characters of what is shown when something is pointed at."""
MAX_CELL = 20_000
"""Characters of a cell of a table that are shown."""
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "overflow"))
_NO_NAME = re.compile(r"[^a-z0-9]")
_BAR, _MAX_COLUMN = 1000, 60
_LAST_SECOND = 253402300799.0


class Renderer:
    """Makes HTML of pages and of their parts."""

    def __init__(self, links: Links, *, plain: bool = False, live: bool = True, colours: bool = True) -> None:
        """``plain``: texts of models are never taken for markdown, and no images are shown. ``live``: pages are kept up to date.
        ``colours``: whether code is coloured."""
        self.links = links
        self.plain = plain
        self._colours = colours
        self._charts = 0
        self._environment = Environment(
            loader=PackageLoader("manyhands.view"),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(_FILTERS)
        self._environment.globals.update(
            links=links,
            plain_only=plain,
            keeps_live=live,
            SHOW=SHOW,
            SHOWN=SHOWN,
            OPEN=OPEN,
            kind=kind_of_block,
            bar=bar,
            step_label=step_label,
            scopes=by_scope,
            cell=self._cell,
            item_cell=self._item_cell,
            cell_class=cell_class,
            table_cell=self._table_cell,
            chart=self._chart,
            prose=self._prose,
            tones=TONES,
            chart_styles=charts.STYLES,
            chart_scripts=charts.SCRIPTS,
        )

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """A page."""
        with text.one_page(has_colours=self._colours):
            return without_surrogates(self._environment.get_template(template).render(values))

    def streamed(self, template: str, values: Mapping[str, Any]) -> Iterator[str]:
        """A page, part by part."""
        return map(without_surrogates, self._environment.get_template(template).generate(values))

    def part(self, template: str, macro: str, *values: Any) -> str:
        """What one macro of a template makes."""
        found = getattr(self._environment.get_template(template).module, macro)
        with text.one_page(has_colours=self._colours):
            return without_surrogates(str(found(*values)))

    # Cells are most of what there is on most pages, and macros of templates take several times as long.
    def _cell(self, run: str, cell: Cell) -> Markup:
        """What stands in a cell, with where it leads and what is shown when it is pointed at."""
        html = cell_text(cell.text)
        if cell.link is None and not cell.about:
            return html
        href = self.links.of(run, cell.link) if cell.link is not None else ""
        title = tip(cell.about) if cell.about else None
        if href:
            return text.element("a", html, href=href, title=title)
        return html if title is None else text.element("span", html, title=title)

    def _table_cell(self, run: str, column: Column, cell: Cell, *, is_first: bool) -> Markup:
        """A cell of a table in its element, which says by what it is sorted if that is not what stands in it."""
        return text.element(
            "th" if is_first else "td",
            self._cell(run, cell),
            scope="row" if is_first else None,
            class_=cell_class(column, cell) or None,
            data_value=None if cell.value is None or str(cell.value) == cell.text else str(cell.value),
        )

    def _item_cell(self, run: str, column: Column, cell: Cell) -> Markup:
        """A cell of the table of items."""
        classes = cell_class(column, cell)
        if column.name in ("input", "outcome"):
            classes = f"{classes} text".lstrip()
        return text.element("td", self._cell(run, cell), data_column=column_id(column.name), class_=classes or None)

    def _chart(self, run: str, block: Chart | Lanes) -> Markup:
        self._charts += 1
        return charts.chart_html(block, chart_id=f"chart-{self._charts}", href_of=partial(self.links.of, run))

    def _prose(self, written: str) -> Markup:
        return text.plain(written) if self.plain else text.markdown(written)


def kind_of_block(block: Block | Section) -> str:
    """The name of a block's kind, for templates."""
    return type(block).__name__.lower()


def bar(ledger: Mapping[str, Any], running: int = 0) -> list[tuple[float, float, Tone, str]]:
    """The parts of a bar of all items: where each begins and how wide it is, of 1000, its tone and what it says."""
    counts = [(state, int(ledger[state]), TONES[state]) for state in LEDGER[:-1]]
    counts += [("running", running, TONES["running"])]
    total, place, found = max(1, int(ledger["items"])), 0.0, []
    for state, count, tone in counts:
        width = _BAR * count / total
        if count:
            found.append((round(place, 2), round(max(width, 2), 2), tone, f"{state} {count:,}"))
        place += width
    return found


def by_scope(steps: Sequence[ShownStep]) -> Iterator[tuple[str, list[ShownStep]]]:
    """Steps next to each other in the same scope, together."""
    return ((scope, list(found)) for scope, found in groupby(steps, key=lambda step: step.scope))


# --- How values are written


def moment(seconds: float | None) -> str:
    """A time of day, UTC, as people read it; nothing for one in no year that is written with four digits."""
    return (
        ""
        if seconds is None or not 0 <= seconds <= _LAST_SECOND
        else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    )


def since(stamp: str | None) -> str:
    """An RFC 3339 time as people read it."""
    return "" if stamp is None else stamp.replace("T", " ").removesuffix("Z")


def duration(seconds: float | None) -> str:
    """A time span: ``0.42 s``, ``12.3 s``, ``4 m 05 s``, ``2 h 03 m``, ``3 d 04 h``."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, name, small, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= large:
            return f"{whole // large} {name} {whole % large // small:02d} {less}"
    return f"{seconds:.1f} s"


def whole(number: float | None) -> str:
    """A count with separators."""
    return "–" if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """A count in few characters: ``950``, ``12.4 k``, ``3.1 M``."""
    if number is None:
        return "–"
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if name == 'k' else limit):.1f} {name}"
    return f"{number:,.0f}"


def money(dollars: float | None) -> str:
    """US dollars."""
    if dollars is None:
        return "–"
    return f"${dollars:,.2f}" if dollars >= 100 or not dollars else f"${dollars:.4f}"


def score(value: float | None) -> str:
    """A score from 0 to 1."""
    return "" if value is None else f"{value:.3f}"


def tone_of(state: str) -> Tone:
    """How a state is coloured."""
    return TONES.get(state, "")


def level(cell: Cell) -> str:
    """The class of a cell of a heat map."""
    return "" if cell.share is None else f"level level-{charts.level_of(cell.share)}"


def message_text(content: Any) -> str:
    """The text of a message's content."""
    return text_of(content)


def role_class(role: Any) -> str:
    """The class of a message of a role: of one that nobody knows no other than ``other``."""
    return role if role in _ROLES else "other"


def tip(written: str) -> str:
    """What is shown when something is pointed at: of a long text the beginning, with whatever is not seen spelled out."""
    return cut(printable(written[: MAX_TIP + 1]), MAX_TIP)


def for_clipboard(written: str) -> str:
    """A text that may be pasted into a terminal, on one line: a key or a name may hold what would be taken for keys there."""
    return printable(written).replace("\n", "\\x0a").replace("\t", "\\x09")


def beginning(written: str) -> str:
    """A text, or the beginning of a very long one."""
    return text.beginning_here(written, MAX_BLOCK)


def column_id(name: str) -> str:
    """A column's name in pages and addresses: short, and without commas. Columns of tables are called as somebody wrote it in a file."""
    if len(name) <= _MAX_COLUMN and "," not in name:
        return name
    return f"{name[:_MAX_COLUMN].replace(',', '-')}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def attribute_name(name: str) -> str:
    """A name as the end of an attribute's name: of small letters and digits, with ``-`` for everything else."""
    return _NO_NAME.sub("-", name.lower())


def cell_class(column: Column, cell: Cell) -> str:
    """The classes of a cell of a table."""
    return " ".join(filter(None, ("n" if column.is_number else "", cell.tone, level(cell))))


def cell_text(written: str) -> Markup:
    """The text of a cell of a table: of a very long one the beginning."""
    left_out = len(written) - MAX_CELL
    return text.plain(written if left_out <= 0 else f"{written[:MAX_CELL]}… ({left_out:,} more characters)")


def having(query: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """What an address asks for, with some of it replaced."""
    return {**query, **other}


def names_numbered(names: Iterable[str]) -> dict[str, int]:
    """Names by the order in which they first come, for colours."""
    return {name: number % 12 for number, name in enumerate(dict.fromkeys(each for each in names if each))}


_FILTERS: Mapping[str, Any] = {
    "moment": moment,
    "since": since,
    "duration": duration,
    "whole": whole,
    "short": short,
    "money": money,
    "score": score,
    "tone_of": tone_of,
    "message_text": message_text,
    "numbered": names_numbered,
    "having": having,
    "role_class": role_class,
    "beginning": beginning,
    "column_id": column_id,
    "tip": tip,
    "for_clipboard": for_clipboard,
    "attribute_name": attribute_name,
    "safe_image": text.safe_data_image,
    "plain_text": text.plain,
    "sandbox_text": sandbox_text,
    "code": text.code,
    "pretty": text.pretty_here,
}
