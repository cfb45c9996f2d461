"""The parts of a page as data: facts, tables, charts, lanes of time, texts, messages, and folds of such parts.

Workloads make them and know nothing of HTML; whatever shows them escapes every text. All are immutable, and JSON by ``block_json``.
Times are seconds since 1970 UTC, unless an axis says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from manyhands.core.jsonio import Json
from manyhands.core.messages import Message

Tone: TypeAlias = Literal["", "good", "bad", "warn", "muted", "active"]
"""What a state means to a person; the only thing that is coloured. Text says the same in words."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where a cell or a span leads, in the run that is shown or in another one."""

    item: int | None = None
    """An item, by its number. With ``versus``: the difference between the two."""
    versus: int | None = None
    """Another item, to be shown beside it."""
    page: str | None = None
    """A page of the workload's, by its name."""
    query: Mapping[str, str] = field(default_factory=dict)
    """What the page is asked for; of an item, which tab. Without item and page: filters of the table of items."""
    run: str | None = None
    """The ``run_id`` of the run, where it is another one."""
    versus_run: str | None = None
    """The same of the other item's run."""
    anchor: str | None = None
    """A fold of the same page, by its ``name``; nothing else is set."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a table or a fact."""

    text: str
    """As people read it."""
    value: float | str | None = None
    """What it is sorted by, where that is not the text."""
    tone: Tone = ""
    about: str = ""
    """What else there is to know, shown when it is pointed at or opened."""
    link: Link | None = None
    share: float | None = None
    """Of a cell of a heat map: where it is from 0 (worst) to 1 (best)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    """The same in all runs of the workload."""
    label: str
    is_number: bool = False
    """Numbers are set to the right."""
    about: str = ""
    """What its values are, in one line."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure or statement with its name."""

    label: str
    cell: Cell
    about: str = ""
    """What it means, in one line."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Figures side by side."""

    facts: Sequence[Fact]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    about: str = ""
    """What it shows, in a sentence or two, above it."""
    sort: str = ""
    """The column that it is sorted by, with ``-`` in front if the largest comes first; empty: as it is given."""
    row_names: Sequence[str] = ()
    """Of a table whose rows are filtered in the page: what each row is found by (a state, a status), as words."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one line, one set of bars or dots."""

    name: str
    points: Sequence[tuple[float | str, float | None]]
    """(x, y); x is text on an axis of names."""
    low: Sequence[float | None] = ()
    """Of points with an interval: its lower end, for each."""
    high: Sequence[float | None] = ()
    labels: Sequence[str] = ()
    """What each point is called; empty: nothing but its values."""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a chart, such as a threshold."""

    value: float
    label: str
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over one axis. No more than 300 points a series."""

    kind: Literal["line", "area", "bars", "dots"]
    """Areas and bars of several series are stacked; dots have intervals where there are any."""
    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    x_kind: Literal["number", "time", "name"] = "number"
    """``time``: seconds since 1970."""
    y_kind: Literal["number", "share", "dollars", "seconds", "tokens"] = "number"
    marks: Sequence[Mark] = ()
    about: str = ""
    horizontal: bool = False
    """Names down the side and values to the right: for long names."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that takes a while, or happens at one moment (``end`` equal to ``start``), in a lane."""

    start: float
    end: float
    label: str
    kind: str
    """What it is, in a word: spans of one kind look alike, and the legend names each kind."""
    tone: Tone = ""
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """What belongs together, on one line of a timeline."""

    label: str
    spans: Sequence[Span]
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Lanes:
    """A timeline: lanes one below the other, over one axis."""

    title: str
    lanes: Sequence[Lane]
    x_label: str
    x_kind: Literal["number", "time", "seconds", "tokens"] = "number"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of any length, as somebody or some program wrote it."""

    text: str
    title: str = ""
    form: Literal["plain", "markdown", "json", "diff"] = "plain"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of this program's own."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Messages:
    """A conversation, or part of one."""

    messages: Sequence[Message]
    title: str = ""
    names: Sequence[str] = ()
    """Of each message, whose test or speaker it belongs to; messages of one name are coloured alike. Empty: nobody's."""
    about: Sequence[str] = ()
    """Of each message, what stands in small type beside its role, such as a time; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value."""

    value: Json
    title: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that open at a click."""

    title: str
    blocks: Sequence[Block]
    name: str = ""
    """Makes an anchor of it, unique in its page."""
    cells: Sequence[Cell] = ()
    """What stands beside the title while it is closed."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """What it is found by: values by the names of filters. Folds next to each other that have any are a list that can be filtered."""
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Parts side by side."""

    blocks: Sequence[Sequence[Block]]


Block: TypeAlias = Facts | Table | Chart | Lanes | Text | Note | Messages | Value | Fold | Columns


@dataclass(frozen=True, slots=True)
class Section:
    """Parts of a page under one heading."""

    title: str
    blocks: Sequence[Block]
    about: str = ""
    name: str = ""
    """Makes an anchor of it, unique in its page."""


def block_json(value: Any) -> Any:
    """A block, or a sequence of them, as JSON: each object with a ``block`` that names its kind; what is empty is left out, but not a 0."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: block_json(getattr(value, each.name)) for each in fields(value)}
        kept = {name: each for name, each in found.items() if each or (each == 0 and each is not False)}
        return {"block": type(value).__name__.lower(), **kept}
    if isinstance(value, Mapping):
        return {str(name): block_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [block_json(each) for each in value]
    return value
