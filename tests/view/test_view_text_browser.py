"""The hostile texts in Chromium, under the policy that pages are served with: nothing runs, nothing is asked for, nothing is reported."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from html import escape

import pytest
from aiohttp import web

from manyhands.view.text import code, markdown, plain
from tests.support.browsers import ARGUMENTS, CHROMIUM, needs_chromium
from tests.support.hostile_texts import HOSTILE_TEXTS

playwright = pytest.importorskip("playwright.async_api")
pytestmark = needs_chromium
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types manyhands; report-uri /report"
)
PAGES = 6
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: f"<pre>\n{plain(text)}</pre>",
    "markdown": markdown,
    "json": lambda text: f"<pre>\n{code(text, 'json')}</pre>",
    "attribute": lambda text: f'<p title="{escape(text.encode(errors="replace").decode())}">x</p>',
}


def page(texts: list[str], form: str) -> str:
    parts = "\n".join(f"<section>{FORMS[form](text)}</section>" for text in texts)
    return f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>texts</title><body><main>{parts}</main><p id=end>end</p></body></html>"


class Site:
    """Serves the pages, and keeps what else is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, str] = {}
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/favicon.ico":
            return web.Response(status=204)
        if request.path not in self.pages:
            self.asked.append(f"{request.method} {request.path} {(await request.text())[:300]}")
            return web.Response(status=404)
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=self.pages[request.path], content_type="text/html", headers=headers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    server = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, server).start()
    site.address = f"http://127.0.0.1:{server.getsockname()[1]}"
    yield site
    await runner.cleanup()


@pytest.mark.parametrize("form", FORMS)
async def test_hostile_texts_do_nothing(site: Site, form: str) -> None:
    texts = list(HOSTILE_TEXTS.values())
    site.pages = {f"/{number}": page(texts[number::PAGES], form) for number in range(PAGES)}
    requests: list[str] = []
    said: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        tab = await browser.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        for path in site.pages:
            await tab.goto(site.address + path)
            assert await tab.evaluate("window.ran") is None
            assert await tab.inner_text("#end") == "end"
            assert await tab.evaluate("document.querySelectorAll('main > section').length") == len(
                texts[int(path[1:]) :: PAGES]
            )
            assert not await tab.evaluate(
                "[...document.querySelectorAll('*')].some(e => [...e.attributes].some(a => a.name.startsWith('on') || a.name == 'style'))"
            )
        await browser.close()
    assert [url for url in requests if url.removeprefix(site.address) not in site.pages] == []
    assert site.asked == []
    assert said == []


async def test_what_is_looked_for_would_be_found(site: Site) -> None:
    site.pages = {"/": page([], "plain").replace("<main>", f"<main>{HOSTILE_TEXTS['handlers: handler of img']}")}
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        tab = await browser.new_page()
        await tab.goto(site.address)
        await tab.wait_for_timeout(500)
        await browser.close()
    assert any("/report" in line for line in site.asked)
