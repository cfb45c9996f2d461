"""Charts in Chromium, under the headers that the pages have and in a file of its own: drawn, and nothing reported."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Page, async_playwright

from manyhands.runs.shown.blocks import Chart, Lane, Lanes, Link, Mark, Series, Span
from manyhands.view.charts import LEVELS, SCRIPTS, STYLES, chart_html
from tests.support.browsers import CHROMIUM, needs_chromium

pytestmark = needs_chromium

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "require-trusted-types-for 'script'; trusted-types manyhands"
)
ASSETS = files("manyhands.view") / "assets"
EVIL = "<img src=x onerror=alert(1)>"
KINDS: list[Literal["line", "area", "bars", "dots"]] = ["line", "area", "bars", "dots"]


def blocks() -> list[Chart | Lanes]:
    two = [
        Series(EVIL, [(i, i * 2.0) for i in range(300)], tone="good"),
        Series("b", [(i, None if i % 7 else 9) for i in range(300)]),
    ]
    timed = [Series("a", [(1_790_000_000 + i * 3600, i) for i in range(48)])]
    agents = [
        (f"agent {number} with a very long name that goes on and on {EVIL}", number / 25) for number in range(25, 0, -1)
    ]
    means = [Series("score", agents, [y - 0.04 for _, y in agents], [y for _, y in agents])]
    mark = [Mark(1, EVIL), Mark(3, "limit", "y")]
    found: list[Chart | Lanes] = [Chart(kind, kind, two, "x", "y", marks=mark) for kind in KINDS]
    found += [Chart(kind, f"{kind} over time", timed, "", "y", "time", "dollars") for kind in KINDS]
    found += [
        Chart(kind, f"{kind} of names", means, "", "score", "name", "share", horizontal=kind != "line")
        for kind in KINDS
    ]
    found += [Chart(kind, f"one {kind}", [Series("one", [(5, 0)])], "x", "y", y_kind="seconds") for kind in KINDS]
    found.append(Chart("dots", "far apart", [Series("a", [(3, 1), (90_000, 0.5)])], "tokens", "score", y_kind="share"))
    spans = [
        Span(0, 500, EVIL, "statement", link=Link(anchor="there")),
        Span(500, 2000, "waits", "wait", "muted"),
        Span(2000, 2000, "?", "question", "bad"),
    ]
    found += [
        Lanes("Lanes", [Lane(f"lane {i}", spans) for i in range(60)], "tokens", "tokens"),
        Lanes("one", [Lane(EVIL, [Span(5, 5, "s", "k")])], "time", "time"),
    ]
    return [*found, Chart("bars", "empty", [], "x", "y")]


def body() -> str:
    cells = "".join(f'<td class="level level-{level}">0.{level}</td>' for level in range(LEVELS))
    heat = f'<table class="heat"><tr><th>agent</th>{cells}</tr></table>'
    charts = [
        chart_html(block, chart_id=f"c{i}", href_of=lambda link: f"#{link.anchor}") for i, block in enumerate(blocks())
    ]
    return f'<main>{"".join(charts)}{heat}<p id="there">there</p></main>'


def drawn() -> int:
    return len(blocks()) - 1  # but for the empty one


@pytest.fixture
async def address() -> AsyncIterator[str]:
    styles = "".join(f'<link rel="stylesheet" href="/{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="/{name}"></script>' for name in SCRIPTS)
    page = f'<!doctype html><html lang="en"><title>charts</title>{styles}{scripts}{body()}'

    async def serve(request: web.Request) -> web.Response:
        name = request.path[1:]
        kind = {"css": "text/css", "js": "text/javascript"}.get(name.rpartition(".")[2], "text/html")
        text = ASSETS.joinpath(name).read_text("utf-8") if name in (*STYLES, *SCRIPTS) else page
        return web.Response(text=text, content_type=kind, headers={"Content-Security-Policy": POLICY})

    app = web.Application()
    app.router.add_get("/{name:.*}", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("/page"))


Look = Callable[[Page], Awaitable[None]]


async def visit(address: str, look: Look, *, scripts: bool = True, width: int = 1440) -> None:
    """Opens a page, looks, and fails at whatever the browser has to complain of."""
    complaints: list[str] = []
    async with async_playwright() as started:
        arguments = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
        ]
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = await browser.new_page(java_script_enabled=scripts, viewport={"width": width, "height": 900})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(address.rpartition("/")[0]) else complaints.append(sent.url),
        )
        if scripts:
            await page.add_init_script(
                "document.addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective))"
            )
        await page.goto(address)
        await look(page)
        await browser.close()
    assert complaints == []


async def until(page: Page, condition: str) -> None:
    """Waits at most ten seconds. (Playwright's own waiting for a condition needs ``unsafe-eval``.)"""
    for _ in range(200):
        if await page.evaluate(condition):
            return
        await page.wait_for_timeout(50)
    raise AssertionError(condition)


CANVASES = "document.querySelectorAll('.chart-plot canvas').length"
INK = """(selector) => {
  const canvas = document.querySelector(selector), shades = new Set();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) shades.add(data.slice(i, i + 3).join());
  return [...shades].sort();
}"""


async def test_all_kinds_are_drawn_without_a_violation(address: str) -> None:
    async def look(page: Page) -> None:
        await until(page, f"{CANVASES} === {drawn()}")
        for number in range(drawn()):
            assert await page.evaluate(INK, f"#c{number} canvas"), number
        assert await page.locator("main img").count() == 0

    await visit(address, look)


async def test_a_narrow_window_has_no_chart_that_is_wider(address: str) -> None:
    async def look(page: Page) -> None:
        await until(page, f"{CANVASES} === {drawn()}")
        assert (
            await page.evaluate("Math.max(...[...document.querySelectorAll('figure')].map((each) => each.scrollWidth))")
            <= 360
        )

    await visit(address, look, width=360)


async def test_charts_are_drawn_anew_for_another_theme_and_width(address: str) -> None:
    async def look(page: Page) -> None:
        await until(page, f"{CANVASES} === {drawn()}")
        light = await page.evaluate(INK, "#c0 canvas")
        await page.evaluate("document.documentElement.dataset.theme = 'dark'")
        await page.wait_for_timeout(200)
        assert await page.evaluate(INK, "#c0 canvas") != light
        await page.set_viewport_size({"width": 500, "height": 900})
        await until(page, "document.querySelector('#c0 canvas').clientWidth < 500")

    await visit(address, look)


async def test_values_show_where_it_is_pointed_at_and_spans_lead_somewhere(address: str) -> None:
    lanes = next(i for i, block in enumerate(blocks()) if isinstance(block, Lanes))

    async def look(page: Page) -> None:
        await until(page, f"{CANVASES} === {drawn()}")
        await page.locator("#c0 .u-over").hover()
        assert (await page.locator("#c0 .chart-tip").all_inner_texts())[0].splitlines()[1].startswith(f"{EVIL}: ")
        await page.locator(f"#c{lanes} .u-over").hover(position={"x": 20, "y": 8})
        assert (await page.locator(f"#c{lanes} .chart-tip").inner_text()).splitlines() == [
            "lane 0",
            f"statement: {EVIL}",
            "0 to 500",
        ]
        await page.locator(f"#c{lanes} .u-over").click(position={"x": 20, "y": 8})
        assert page.url.endswith("#there")

    await visit(address, look)


async def test_charts_that_come_later_are_drawn_when_asked_for(address: str) -> None:
    async def look(page: Page) -> None:
        await until(page, f"{CANVASES} === {drawn()}")
        await page.evaluate(
            "const copy = document.getElementById('c0').cloneNode(true); copy.querySelector('.chart-plot').replaceChildren();"
            "document.getElementById('c0').replaceWith(copy); drawCharts()"
        )
        await until(page, f"{CANVASES} === {drawn()}")

    await visit(address, look)


async def test_without_scripts_the_tables_show_the_values(address: str) -> None:
    async def look(page: Page) -> None:
        assert not await page.locator("#c0 .chart-plot").is_visible()
        await page.locator("#c0 summary").click()
        assert await page.locator("#c0 tbody tr").first.is_visible()
        assert await page.locator("#c0 .chart-marks").is_visible()

    await visit(address, look, scripts=False)


async def test_a_file_with_hashes_of_its_script_and_style_draws_them_too(tmp_path: Path) -> None:
    style, script = (
        "\n".join(ASSETS.joinpath(name).read_text("utf-8") for name in names) for names in (STYLES, SCRIPTS)
    )
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; require-trusted-types-for 'script'"
    page = tmp_path / "report.html"
    meta = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    page.write_text(f"<!doctype html>{meta}<style>{style}</style>{body()}<script>{script}</script>", "utf-8")

    async def look(opened: Page) -> None:
        await until(opened, f"{CANVASES} === {drawn()}")

    await visit(page.as_uri(), look)


def test_the_scripts_and_styles_may_stand_inside_of_an_element() -> None:
    for name in (*STYLES, *SCRIPTS):
        text = ASSETS.joinpath(name).read_text("utf-8").lower()
        assert "</" not in text.replace("</=", ""), name
        assert "<!--" not in text, name


def test_the_library_is_the_version_that_is_named_and_comes_with_its_licence() -> None:
    library = ASSETS.joinpath("vendor/uPlot.iife.min.js").read_bytes()
    assert sha256(library).hexdigest() == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert b"uPlot (v1.6.32)" in library
    assert "The MIT License" in ASSETS.joinpath("vendor/uPlot.LICENSE.txt").read_text("utf-8")
