"""Charts and timelines as HTML: whatever is in them, nothing but the elements and attributes that charts are made of."""

from __future__ import annotations

import string
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.runs.shown.blocks import Chart, Lane, Lanes, Link, Mark, Series, Span
from manyhands.view.charts import MAX_POINTS, MAX_SPANS, chart_html, level_of

EVIL = "</script><img src=x onerror=alert(1)>\"' onload='x' &lt;b&gt; {{ 7*7 }} \u202e\x00\ud800]]>"
ELEMENTS = {
    "figure",
    "figcaption",
    "span",
    "div",
    "details",
    "summary",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "ul",
    "li",
    "p",
    "a",
}
ATTRIBUTES = {"class", "id", "role", "scope", "rowspan", "colspan", "tabindex", "href", "aria-label"} | {
    f"data-{name}"
    for name in ("chart", "x", "y", "x-label", "y-label", "horizontal", "scale", "axis", "value", "low", "high", "tone")
}


class Parsed(HTMLParser):
    """The elements and texts of a page. Fails at what is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def href_of(link: Link) -> str:
    return f"items/{link.item}?tab={link.query.get('tab', '')}&x=1"


def parsed(block: Chart | Lanes) -> Parsed:
    page = chart_html(block, chart_id="c1", href_of=href_of)
    found = Parsed(page)
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    assert {name for _, attributes in found.elements for name in attributes} <= ATTRIBUTES
    return found


def chart(*series: Series, **more: object) -> Chart:
    return Chart(**{"kind": "line", "title": "T", "series": series, "x_label": "step", "y_label": "tokens", **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["line", "area", "bars", "dots"])
def test_each_kind_has_its_values_in_a_table(kind: str) -> None:
    found = parsed(
        chart(Series("a", [(1, 2.5), (2, None)]), Series("b", [(2, 4), (3, 1234567)], tone="bad"), kind=kind)
    )
    (figure,) = found.of("figure")
    assert (figure["id"], figure["data-chart"], figure["data-x"]) == ("c1", kind, "number")
    assert found.of("div")[0] == {"class": "chart-plot", "role": "img", "aria-label": "T"}
    assert [head.get("data-tone") for head in found.of("th")[:3]] == [None, None, "bad"]
    assert found.texts[-9:] == ["1", "2.5", "–", "2", "–", "4", "3", "–", "1,234,567"]


def test_what_the_text_of_a_cell_does_not_say_exactly_is_an_attribute() -> None:
    found = parsed(
        chart(Series("a", [("n", 0.123456)], low=[0.1], high=[0.2], labels=["first"]), x_kind="name", y_kind="share")
    )
    assert found.of("td") == [{"data-value": "0.123456", "data-low": "0.1", "data-high": "0.2"}]
    assert found.texts[-1] == "first: 12.3% (10.0% to 20.0%)"


def test_intervals_may_be_missing_for_some_points() -> None:
    found = parsed(chart(Series("a", [(1, 1), (2, 2)], low=[0.5, None], high=[1.5, None]), kind="dots"))
    assert found.of("td") == [{"data-value": "1", "data-low": "0.5", "data-high": "1.5"}, {}]


@pytest.mark.parametrize("series", [[], [Series("a", [])], [Series("a", [(1, None)])]])
def test_a_chart_without_values_says_so(series: list[Series]) -> None:
    found = parsed(chart(*series))
    assert "There are no values yet." in found.texts
    assert "data-chart" not in found.of("figure")[0]


def test_a_timeline_without_spans_says_so() -> None:
    assert "There is nothing on it yet." in parsed(Lanes("T", [Lane("a", [])], "tokens")).texts


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    for block in (
        chart(Series("a", [(1, value)])),
        chart(Series("a", [(value, 1)])),
        chart(Series("a", [(1, 1)], low=[value], high=[2])),
        chart(Series("a", [(1, 1)]), marks=[Mark(value, "m")]),
        Lanes("T", [Lane("a", [Span(0, value, "s", "k")])], "x"),
    ):
        with pytest.raises(ValueError, match="a value of the chart 'T' is"):
            chart_html(block, chart_id="c", href_of=href_of)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (chart(Series("a", [(i, i) for i in range(MAX_POINTS + 1)])), "301 points, more than 300"),
        (chart(Series("a", [(1, 1)], low=[1, 2])), "1 points and 2 ends"),
        (chart(Series("a", [("x", 1)])), "an axis of numbers|one of numbers"),
        (chart(Series("a", [(1, 1)]), x_kind="name"), "one of names"),
        (Lanes("T", [Lane("a", [Span(2, 1, "s", "k")])], "x"), "before its start"),
    ],
)
def test_what_does_not_fit_together_is_refused(block: Chart | Lanes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chart_html(block, chart_id="c", href_of=href_of)


def test_300_points_of_three_series_stay_small() -> None:
    series = [Series(name, [(1_790_000_000 + i * 60, i * 1.5) for i in range(MAX_POINTS)]) for name in "abc"]
    page = chart_html(chart(*series, kind="area", x_kind="time"), chart_id="c", href_of=href_of)
    assert len(page) < 50_000
    assert page.count("<tr>") == MAX_POINTS + 1


def test_times_are_in_utc_and_exact_for_the_script() -> None:
    found = parsed(chart(Series("a", [(1_790_000_000.25, 1)]), x_kind="time", x_label="when"))
    assert found.texts[-2:] == ["2026-09-21 14:13:20", "1"]
    assert found.of("th")[-1]["data-value"] == "1790000000"
    assert "when (UTC)" in found.texts


def test_times_beyond_all_calendars_are_numbers() -> None:
    assert "1e+300" in parsed(chart(Series("a", [(1e300, 1)]), x_kind="time")).texts


def test_25_agents_keep_their_full_names_and_their_order() -> None:
    names = [f"agent {letter} over a-model-with-a-long-name-{letter * 60}" for letter in string.ascii_lowercase[24::-1]]
    dots = chart(Series("score", [(name, 0.5) for name in names]), kind="dots", x_kind="name", horizontal=True)
    found = parsed(dots)
    assert [text for text in found.texts if text.startswith("agent")] == names
    assert found.of("figure")[0]["data-horizontal"] == ""


def test_numbers_ascend_and_an_x_may_come_twice() -> None:
    found = parsed(chart(Series("a", [(3, 1), (1, 2), (3, 4)]), kind="dots"))
    assert found.texts[-6:] == ["1", "2", "3", "1", "3", "4"]


@pytest.mark.parametrize(("x", "scale"), [([1, 50], "log"), ([1, 49], None), ([0, 1000], None)])
def test_far_values_have_a_logarithmic_axis(x: list[float], scale: str | None) -> None:
    assert parsed(chart(Series("a", [(each, 1) for each in x]))).of("figure")[0].get("data-scale") == scale


def test_marks_are_named_below_the_chart() -> None:
    found = parsed(chart(Series("a", [(0, 1)]), marks=[Mark(0.8, "threshold"), Mark(5, "limit", "y")]))
    assert found.of("li") == [{"data-axis": "x", "data-value": "0.8"}, {"data-axis": "y", "data-value": "5"}]


def test_lanes_have_their_spans_links_and_moments() -> None:
    spans = [Span(0, 1500, "said", "statement", link=Link(item=7)), Span(9, 9, "asked", "question", "good")]
    found = parsed(
        Lanes("T", [Lane("one", spans, Link(item=3, query={"tab": "x"})), Lane("none", [])], "tokens", "tokens")
    )
    assert [each["href"] for each in found.of("a")] == ["items/3?tab=x&x=1", "items/7?tab=&x=1"]
    assert found.texts[-10:] == ["one", "statement", "said", "0", "1,500", "question", "asked", "9", "none", "nothing"]
    assert [row.get("data-tone") for row in found.of("tr")] == [None, None, "good", None]
    assert [each.get("rowspan") for each in found.of("th")[-2:]] == ["2", "1"]


def test_a_timeline_shows_a_bounded_number_of_spans() -> None:
    lanes = [Lane(f"lane {number}", [Span(i, i + 1, "s", "k") for i in range(1000)]) for number in range(7)]
    found = parsed(Lanes("T", lanes, "x"))
    assert len(found.of("tr")) == MAX_SPANS + 1
    assert "2,000 more are not shown." in found.texts


def evil_blocks(text: str) -> list[Chart | Lanes]:
    series = Series(text, [(text, 1.0)], low=[0.5], high=[2.0], labels=[text])
    marks = [Mark(1, text, "y")]
    more = {"title": text, "x_label": text, "y_label": text, "about": text, "marks": marks, "x_kind": "name"}
    lane = Lane(text, [Span(0, 1, text, text, link=Link(query={"tab": text}))], Link(query={"tab": text}))
    return [chart(series, **more), chart(title=text, about=text), Lanes(text, [lane], text, "tokens", text)]


@pytest.mark.parametrize("number", range(3))
def test_hostile_texts_stay_texts(number: int) -> None:
    found = parsed(evil_blocks(EVIL)[number])
    assert any("<img src=x onerror=alert(1)>" in text for text in found.texts)
    assert not any("\u202e" in text or "\x00" in text for text in found.texts)
    chart_html(evil_blocks(EVIL)[number], chart_id=EVIL, href_of=href_of)


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    for block in evil_blocks(text):
        parsed(block)


def test_ids_and_addresses_are_escaped() -> None:
    block = Lanes("T", [Lane("a", [Span(0, 1, "s", "k")], Link(item=1))], "x")
    found = Parsed(chart_html(block, chart_id='"><b>', href_of=lambda _: '"><script>'))
    assert found.of("figure")[0]["id"] == '"><b>'
    assert found.of("a") == [{"href": '"><script>'}]


def test_the_same_block_gives_the_same_text() -> None:
    assert [chart_html(each, chart_id="c", href_of=href_of) for each in evil_blocks(EVIL)] == [
        chart_html(each, chart_id="c", href_of=href_of) for each in evil_blocks(EVIL)
    ]


@pytest.mark.parametrize(("share", "level"), [(0, 0), (0.0999, 0), (0.1, 1), (0.55, 5), (0.9, 9), (1, 9)])
def test_levels_of_heat_maps(share: float, level: int) -> None:
    assert level_of(share) == level


@pytest.mark.parametrize("share", [-0.01, 1.01, float("nan")])
def test_a_share_outside_its_range_has_no_level(share: float) -> None:
    with pytest.raises(ValueError, match="not from 0 to 1"):
        level_of(share)
