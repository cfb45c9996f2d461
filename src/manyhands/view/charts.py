"""Charts and timelines as HTML: a table of their values, above which the page's script draws them.

The table is all that a page without scripts has, what a screen reader reads, and what ``assets/charts.js`` reads the values from, so that
no value stands in a page twice and no JSON at all. The script draws with uPlot (``assets/vendor``).

Every element and attribute is made by ``text.element``, which escapes texts and attribute values; only what it returned is put into another
element as it is. Names of elements and attributes are constants of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from manyhands.core.text import counted, cut, printable
from manyhands.runs.shown.blocks import Chart, Lanes, Link, Mark, Series, Span
from manyhands.view.text import element

MAX_POINTS = 300
"""Points of a series."""
MAX_SPANS = 5000
"""Spans of a timeline that are shown; how many more there are is said below it."""
LEVELS = 10
"""Classes of cells of a heat map, ``level-0`` to ``level-9``."""
SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
"""Of the assets, those that a page with charts needs, in this order."""
STYLES = ("vendor/uPlot.min.css", "charts.css")
_MAX_LABEL = 200
_WIDE = 50
"""How many times the smallest x the largest one must be for a logarithmic axis."""

HrefOf = Callable[[Link], str]


def chart_html(block: Chart | Lanes, *, chart_id: str, href_of: HrefOf) -> Markup:
    """A chart as a ``figure`` with its table of values in a fold.

    ``chart_id`` is the figure's ``id``, unique in its page. ``href_of`` says where a link leads, with nothing for one that leads nowhere;
    what it returns is escaped here, and only addresses within the page or app must come of it. Raises ValueError if a value is not finite,
    a series has more than ``MAX_POINTS`` points, or its parts are not of one length. The same block gives the same text.
    """
    return _lanes(block, chart_id, href_of) if isinstance(block, Lanes) else _chart(block, chart_id)


def level_of(share: float) -> int:
    """Which of ten levels a cell of a heat map has: 0 for the worst tenth, 9 for the best. Raises ValueError outside 0 to 1."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"the share of a cell is {share}, which is not from 0 to 1")
    return min(LEVELS - 1, int(share * LEVELS))


# --- Elements


def _label(text: str) -> str:
    return cut(printable(" ".join(text.split())), _MAX_LABEL)


def _figure(block: Chart | Lanes, chart_id: str, below: Sequence[str], **attributes: str | None) -> Markup:
    title, about = _label(block.title), printable(block.about)
    caption = [element("span", title, class_="chart-title")]
    if about:
        caption.append(element("span", about, class_="chart-about"))
    if "data_chart" in attributes:
        below = [element("div", class_="chart-plot", role="img", aria_label=f"{title}. {about}".strip(" .")), *below]
    return element("figure", element("figcaption", *caption), *below, class_="chart", id=chart_id, **attributes)


def _fold(title: str, count: str, head: Sequence[str], bodies: Iterable[Iterable[str]]) -> Markup:
    table = element("table", element("thead", element("tr", *head)), *[element("tbody", *rows) for rows in bodies])
    frame = element(
        "div", table, class_="chart-table", role="group", aria_label=f"Values of {_label(title)}", tabindex="0"
    )
    return element("details", element("summary", f"Values ({count})"), frame, class_="chart-values")


def _head(text: str, *, is_number: bool = False, tone: str = "") -> Markup:
    return element("th", text, scope="col", class_="number" if is_number else None, data_tone=tone or None)


# --- Values


def _finite(value: float, title: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a value of the chart {title!r} is {value}")
    return value


def _number(value: float) -> str:
    """As the script reads it."""
    return f"{value:.10g}"


def _exact(value: float, text: str) -> str | None:
    """What the script reads instead of a cell's text, unless that is the number itself."""
    number = _number(value)
    return None if text.replace(",", "") == number else number


def _shown(value: float, kind: str) -> str:
    """As people read it."""
    if kind == "share":
        return f"{100 * value:.1f}%"
    if kind == "dollars":
        return f"${value:,.4f}" if abs(value) < 1 else f"${value:,.2f}"
    if kind == "time":
        return _time(value)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} s" if kind == "seconds" else text


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{seconds:.10g}"


# --- Charts


def _chart(chart: Chart, chart_id: str) -> Markup:
    for series in chart.series:
        _check(series, chart)
    rows = _rows(chart)
    below: list[str] = []
    if not any(y is not None for series in chart.series for _, y in series.points):
        below.append(element("p", "There are no values yet.", class_="chart-empty"))
        return _figure(chart, chart_id, below)
    if chart.marks:
        below.append(element("ul", *[_mark(mark, chart.title) for mark in chart.marks], class_="chart-marks"))
    x_label = chart.x_label or {"time": "time", "name": "name", "number": "x"}[chart.x_kind]
    head = [_head(f"{_label(x_label)} (UTC)" if chart.x_kind == "time" else _label(x_label))]
    head += [_head(_label(series.name), is_number=True, tone=series.tone) for series in chart.series]
    below.append(_fold(chart.title, counted(len(rows), "row"), head, [_table_rows(chart, rows)]))
    return _figure(
        chart,
        chart_id,
        below,
        data_chart=chart.kind,
        data_x=chart.x_kind,
        data_y=chart.y_kind,
        data_x_label=_label(chart.x_label) or None,
        data_y_label=_label(chart.y_label) or None,
        data_horizontal="" if chart.horizontal else None,
        data_scale="log" if _is_wide(chart) else None,
    )


def _check(series: Series, chart: Chart) -> None:
    if len(series.points) > MAX_POINTS:
        raise ValueError(
            f"a series of the chart {chart.title!r} has {len(series.points):,} points, more than {MAX_POINTS}"
        )
    for part in (series.low, series.high, series.labels):
        if part and len(part) != len(series.points):
            raise ValueError(
                f"a series of the chart {chart.title!r} has {len(series.points)} points and {len(part)} ends or labels"
            )
    for x, y in series.points:
        if isinstance(x, str) != (chart.x_kind == "name"):
            raise ValueError(f"an x of the chart {chart.title!r} is {x!r}, and its axis is one of {chart.x_kind}s")
        for value in (x, y):
            if isinstance(value, (int, float)):
                _finite(value, chart.title)
    for end in (*series.low, *series.high):
        if end is not None:
            _finite(end, chart.title)


def _rows(chart: Chart) -> list[tuple[float | str, list[int | None]]]:
    """Each x, with the index of its point in each series. Numbers ascend; names stand as they come first. An x that a series has several
    times has as many rows."""
    found: dict[tuple[float | str, int], list[int | None]] = {}
    for number, series in enumerate(chart.series):
        seen: dict[float | str, int] = {}
        for index, (x, _) in enumerate(series.points):
            seen[x] = seen.get(x, -1) + 1
            found.setdefault((x, seen[x]), [None] * len(chart.series))[number] = index
    rows = [(x, indexes) for (x, _), indexes in found.items()]
    return rows if chart.x_kind == "name" else sorted(rows, key=lambda row: row[0])


def _table_rows(chart: Chart, rows: Sequence[tuple[float | str, list[int | None]]]) -> Iterator[Markup]:
    for x, indexes in rows:
        if isinstance(x, str):
            name = element("th", _label(x), scope="row")
        else:
            text = _shown(x, chart.x_kind)
            name = element("th", text, scope="row", data_value=_exact(x, text))
        yield element("tr", name, *map(_value_cell, [chart] * len(indexes), chart.series, indexes))


def _value_cell(chart: Chart, series: Series, index: int | None) -> Markup:
    y = None if index is None else series.points[index][1]
    if index is None or y is None:
        return element("td", "–")
    low = series.low[index] if series.low else None
    high = series.high[index] if series.high else None
    label = _label(series.labels[index]) if series.labels else ""
    text = _shown(y, chart.y_kind)
    if low is not None and high is not None:
        text += f" ({_shown(low, chart.y_kind)} to {_shown(high, chart.y_kind)})"
    text = f"{label}: {text}" if label else text
    return element(
        "td",
        text,
        data_value=_exact(y, text),
        data_low=None if low is None else _number(low),
        data_high=None if high is None else _number(high),
    )


def _mark(mark: Mark, title: str) -> Markup:
    return element("li", _label(mark.label), data_axis=mark.axis, data_value=_number(_finite(mark.value, title)))


def _is_wide(chart: Chart) -> bool:
    """Whether the points are so far apart that a logarithmic axis shows them better."""
    if chart.x_kind != "number" or chart.kind not in ("line", "dots"):
        return False
    values = [x for series in chart.series for x, _ in series.points if not isinstance(x, str)]
    return min(values) > 0 and max(values) >= _WIDE * min(values)


# --- Timelines


def _lanes(block: Lanes, chart_id: str, href_of: HrefOf) -> Markup:
    count = sum(len(lane.spans) for lane in block.lanes)
    if not count:
        return _figure(block, chart_id, [element("p", "There is nothing on it yet.", class_="chart-empty")])
    x_label = _label(block.x_label) or block.x_kind
    is_time = block.x_kind == "time"
    unit = " (UTC)" if is_time else ""
    head = [
        _head("lane"),
        _head("kind"),
        _head("what"),
        _head(f"from{unit}", is_number=True),
        _head(f"to{unit}", is_number=True),
    ]
    below = [_fold(block.title, f"{counted(count, 'span')}, by {x_label}", head, _lane_bodies(block, href_of))]
    if count > MAX_SPANS:
        below.append(element("p", f"{count - MAX_SPANS:,} more are not shown.", class_="chart-empty"))
    return _figure(
        block, chart_id, below, data_chart="lanes", data_x=block.x_kind, data_x_label=_label(block.x_label) or None
    )


def _lane_bodies(block: Lanes, href_of: HrefOf) -> Iterator[list[Markup]]:
    """The rows of each lane, which its name stands beside."""
    left = MAX_SPANS
    for lane in block.lanes:
        if not left:
            return
        rows = [_span_cells(block, span, href_of) for span in lane.spans[:left]] or [
            [element("td", "nothing", colspan="4")]
        ]
        name = element("th", _linked(lane.label, lane.link, href_of), scope="rowgroup", rowspan=str(len(rows)))
        rows[0].insert(0, name)
        tones = [span.tone or None for span in lane.spans[:left]] or [None]
        yield [element("tr", *row, data_tone=tone) for row, tone in zip(rows, tones, strict=True)]
        left -= min(left, len(lane.spans))


def _span_cells(block: Lanes, span: Span, href_of: HrefOf) -> list[Markup]:
    start, end = _finite(span.start, block.title), _finite(span.end, block.title)
    if end < start:
        raise ValueError(f"a span of the timeline {block.title!r} ends at {end}, before its start at {start}")
    first, last = _shown(start, block.x_kind), _shown(end, block.x_kind)
    return [
        element("td", _label(span.kind)),
        element("td", _linked(span.label, span.link, href_of)),
        element("td", first, data_value=_exact(start, first)),
        element("td", "") if end == start else element("td", last, data_value=_exact(end, last)),
    ]


def _linked(text: str, link: Link | None, href_of: HrefOf) -> str:
    label = _label(text)
    href = "" if link is None else href_of(link)
    return element("a", label, href=href) if href else label
