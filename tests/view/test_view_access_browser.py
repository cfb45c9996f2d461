"""What pages of other servers can do to the viewer from a real browser. Only where Chromium is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from manyhands.io.loopback import Address
from tests.support.browsers import ARGUMENTS, CHROMIUM, needs_chromium
from tests.support.guarded_viewers import SECRET, STATIC, Viewer
from tests.support.view_servers import server

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = needs_chromium
ATTEMPTS = """
async (base) => {
  const found = {};
  const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
  const element = (name, more) => new Promise((done) => {
    const made = Object.assign(document.createElement(name), more);
    made.onload = () => done("loaded");
    made.onerror = () => done("refused");
    document.body.append(made);
    setTimeout(() => done("nothing"), 3000);
  });
  for (const mode of ["cors", "no-cors"])
    for (const credentials of ["include", "omit"])
      for (const method of ["GET", "POST"])
        found[`fetch ${mode} ${credentials} ${method}`] = await fetch(base + "/item/fetched", {mode, credentials, method})
          .then((answer) => answer.text()).then((text) => `read: ${text}`, () => "refused");
  found.events = await new Promise((done) => {
    const source = new EventSource(base + "/events", {withCredentials: true});
    source.onmessage = (event) => done(`read: ${event.data}`);
    source.onerror = () => { source.close(); done("refused"); };
  });
  found.socket = await new Promise((done) => {
    const socket = new WebSocket(base.replace("http", "ws") + "/events");
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
  });
  found.img = await element("img", {src: base + "/item/img"});
  found.script = await element("script", {src: base + "/static/own.js"});
  found.module = await element("script", {src: base + "/static/own.js", type: "module"});
  found.style = await element("link", {href: base + "/item/style", rel: "stylesheet"});
  found.video = await element("video", {src: base + "/item/video"});
  found.variable = typeof window.x;
  found.worker = (() => { try { new Worker(base + "/static/own.js"); return "made"; } catch { return "refused"; } })();
  navigator.sendBeacon(base + "/item/beacon", "x");
  await element("link", {href: base + "/item/prefetch", rel: "prefetch"});
  for (const [name, attribute] of [["iframe", "src"], ["object", "data"], ["embed", "src"]]) {
    await element(name, {[attribute]: base + `/item/${name}`, name});
    found[name] = (() => { try { return String(window[name].document.body.innerText); } catch { return "refused"; } })();
  }
  for (const method of ["get", "post"]) {
    const frame = document.createElement("iframe");
    frame.name = `form_${method}`;
    document.body.append(frame);
    const form = Object.assign(document.createElement("form"), {method, action: base + "/item/form", target: frame.name});
    document.body.append(form);
    form.submit();
  }
  await wait(0.5);
  return found;
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    shown = Viewer(tmp_path_factory.mktemp("viewer"))
    with server(shown.application):
        yield shown


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """Of a server with one page, which leads wherever its address says."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=f'<a href="{request.query.get("to", "")}">to the viewer</a>', content_type="text/html")

    def application(_: Address) -> web.Application:
        made = web.Application()
        made.router.add_get("/", page)
        return made

    with server(application) as address:
        yield address.port


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    made = browser.new_context()
    made.set_default_timeout(20_000)
    yield made
    made.close()


def let_in(context: Any, viewer: Viewer) -> str:
    """A browser in which a link was opened; the viewer's address."""
    base = f"http://127.0.0.1:{viewer.address.port}"
    page = context.new_page()
    page.goto(viewer.access.link(base))
    assert page.url == f"{base}/"
    assert SECRET in page.content()
    page.close()
    viewer.reached.clear()
    return base


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_server_gets_no_data(context: Any, viewer: Viewer, other_port: int, host: str) -> None:
    base = let_in(context, viewer)
    page = context.new_page()
    page.goto(f"http://{host}:{other_port}/")
    found = page.evaluate(ATTEMPTS, base)
    assert viewer.reached == []
    assert found.pop("variable") == "undefined"
    assert set(found.values()) <= {"refused", "nothing", ""}
    for frame in page.frames:
        assert SECRET not in frame.content()
        assert STATIC not in frame.content()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_window_of_another_page_can_not_be_read(context: Any, viewer: Viewer, other_port: int, host: str) -> None:
    base = let_in(context, viewer)
    page = context.new_page()
    page.goto(f"http://{host}:{other_port}/")
    with context.expect_page() as opened:
        page.evaluate("(address) => { window.opened = window.open(address); }", f"{base}/item/a?b=1")
    window = opened.value
    window.wait_for_function("document.body.innerText.includes('said')")
    assert window.url == f"{base}/item/a?b=1"
    assert page.evaluate("window.opened.closed") is True  # it is out of its hands
    assert window.evaluate("window.opener") is None
    assert viewer.reached == ["/item/a"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_link_in_another_page_opens_the_right_page(context: Any, viewer: Viewer, other_port: int, host: str) -> None:
    base = let_in(context, viewer)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    target = f"{base}/item/a%2Fb?c=%22%3E&amp;d=;url=x"
    page.goto(f"http://{host}:{other_port}/?to={target.replace('%', '%25').replace('&', '%26').replace(';', '%3B')}")
    page.click("a")
    page.wait_for_function("document.body.innerText.includes('said')")
    assert page.url == target.replace("&amp;", "&")
    assert json.loads(page.inner_text("body")) == {"said": SECRET, "key": "a/b", "query": {"c": '">', "d": ";url=x"}}
    page.go_back()
    assert page.url.startswith(f"http://{host}:{other_port}/")
    assert complaints == []


def test_a_link_in_another_page_leads_to_the_refusal_without_a_cookie(
    context: Any, viewer: Viewer, other_port: int
) -> None:
    base = f"http://127.0.0.1:{viewer.address.port}"
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"http://localhost:{other_port}/?to={base}/item/a")
    viewer.reached.clear()
    page.click("a")
    page.get_by_role("heading", name="Not let in").wait_for()
    page.wait_for_timeout(300)
    assert [url for url in requests if url == f"{base}/item/a"] == [f"{base}/item/a"] * 2
    assert viewer.reached == []


def test_a_printed_link_may_be_clicked_in_another_page(context: Any, viewer: Viewer, other_port: int) -> None:
    base = f"http://127.0.0.1:{viewer.address.port}"
    page = context.new_page()
    page.goto(f"http://localhost:{other_port}/?to={viewer.access.link(base + '/item/a')}")
    page.click("a")
    page.wait_for_function("document.body.innerText.includes('said')")
    assert page.url == f"{base}/item/a"
