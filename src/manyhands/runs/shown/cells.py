"""Cells that pages of all workloads have: states, scores, values of any kind, times, sizes; and where the next page of rows is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Final

from manyhands.core.jsonio import Json, as_text
from manyhands.core.text import cut
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import DamagedRow
from manyhands.runs.ledger import timestamp
from manyhands.runs.shown.blocks import Cell, Fact, Facts, Link, Tone

DAMAGED: Final = "damaged"
"""What stands in the place of whatever can't be read."""
AFTER: Final = "after"
"""In the query of a page of rows: the position in the input behind which they begin."""
ITEM: Final = "item"
"""In the query of a page about one of several items: its number."""
SHOW, SHOWN, OPEN = "show", "shown", "open"
"""Cells of facts by which people choose what a page is about: what leads there, what is shown now (the text may go on), and another page.
Pages show the labels of such facts only, and a report takes a page for each choice."""
STATE_TONES: Mapping[str, Tone] = {
    "completed": "good",
    "failed": "bad",
    "error": "bad",
    "discarded": "warn",
    "skipped": "muted",
    "cancelled": "muted",
    "pending": "muted",
    "running": "active",
}
"""How states are coloured."""
VERDICT_TONES: Mapping[str, Tone] = {"pass": "good", "borderline": "warn", "fail": "bad", "error": "bad"}
"""How verdicts are coloured."""
_WIDTH = 80
_MAX_ABOUT = 1000
_MAX_READ = 4 * _MAX_ABOUT
"""Characters of a text that are looked at, as white space in it counts once."""
_MAX_MEMBERS = 20
"""Members of a list or object that a cell looks at."""


def state_cell(row: ItemRow, link: Link | None = None) -> Cell:
    """Where an item stands, and why; of one whose row is damaged, that it is."""
    if isinstance(row, DamagedRow):
        return damaged_cell(row.message, link)
    why = row.message or row.reason or row.cause or ""
    return Cell(row.state.value, tone=STATE_TONES.get(row.state.value, ""), about=cut(why, _MAX_ABOUT), link=link)


def damaged_cell(problem: str | None, link: Link | None = None) -> Cell:
    """In the place of what can't be read, and why it can't."""
    return Cell(DAMAGED, tone="bad", about=cut(problem or "", _MAX_ABOUT), link=link)


def verdict_cell(verdict: Any) -> Cell:
    """A verdict in its colour."""
    return Cell("", tone="muted") if verdict is None else Cell(str(verdict), tone=VERDICT_TONES.get(str(verdict), ""))


def score_cell(score: Any, verdict: Any = None) -> Cell:
    """A score from 0 to 1, in the colour of its verdict; nothing of None."""
    if not is_number(score):
        return Cell("", tone="muted")
    return Cell(f"{score:.3f}", value=float(score), tone=VERDICT_TONES.get(str(verdict), ""))


def number_cell(number: Any, form: str = ",", *, tone: Tone = "", link: Link | None = None) -> Cell:
    """A number; nothing of what is none. ``form``: as of ``format``."""
    if not is_number(number):
        return Cell("", tone="muted")
    return Cell(format(number, form), value=float(number), tone=tone, link=link)


def time_cell(seconds: float | None) -> Cell:
    """A time, given in seconds since 1970 UTC."""
    return Cell("") if seconds is None else Cell(timestamp(seconds) or "", value=seconds)


def size_cell(size: int) -> Cell:
    """A number of bytes."""
    for unit, amount in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= amount:
            return Cell(f"{size / amount:.1f} {unit}", value=size)
    return Cell(f"{size} bytes", value=size)


def file_size(path: Path) -> int | None:
    """The bytes of a file; None if it is not there, or can't be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def value_cell(value: Json, *, tone: Tone = "", about: str = "", link: Link | None = None, width: int = _WIDTH) -> Cell:
    """The beginning of a JSON value on one line; of a long one, more of it in ``about`` where nothing else is."""
    text = _beginning(value)
    whole = " ".join(text[:_MAX_READ].split()) + "…" * (len(text) > _MAX_READ)
    shown = cut(whole, width)
    sorted_by = float(value) if is_number(value) else None
    return Cell(shown, sorted_by, tone, about or (cut(whole, _MAX_ABOUT) if shown != whole else ""), link)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _beginning(value: Json) -> str:
    """The text of a value, of a large one only of its first members."""
    if value is None:
        return ""
    return as_text(value if isinstance(value, str) else _pruned(value, 3))


def _pruned(value: Json, depth: int) -> Json:
    """A value without most of its members, and of these only so many levels, so that writing it takes no time."""
    if isinstance(value, str):
        return value[: _MAX_READ + 1]
    if not isinstance(value, (list, dict)):
        return value
    if depth == 0:
        return "…"
    more = len(value) > _MAX_MEMBERS
    if isinstance(value, list):
        return [_pruned(each, depth - 1) for each in value[:_MAX_MEMBERS]] + ["…"] * more
    found = {name: _pruned(each, depth - 1) for name, each in islice(value.items(), _MAX_MEMBERS)}
    return {**found, **({"…": "…"} if more else {})}


# --- Pages of rows


def position_in(query: Mapping[str, str]) -> int:
    """Behind which position the rows of a page begin; -1 for the first ones, and for whatever is no position."""
    text = query.get(AFTER, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1


def pager(page: str, query: Mapping[str, str], shown: str, following: int | None) -> Facts:
    """What rows a page shows, and where the first and the next ones are. ``following``: the position behind which the next ones begin;
    None after the last row."""
    rest = {name: value for name, value in query.items() if name != AFTER}
    facts = [Fact("Shown", Cell(shown))]
    if position_in(query) >= 0:
        facts.append(Fact("Back", Cell("first rows", link=Link(page=page, query=rest))))
    if following is not None:
        onward = Link(page=page, query={**rest, AFTER: str(following)})
        facts.append(Fact("Next", Cell("more rows", link=onward)))
    return Facts(facts)
