"""The browser's tools, in a real Chromium, on a shop of this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError
from manyhands.engine.attempt import NewAttemptNeeded
from manyhands.network.rules import NetworkRules
from manyhands.testing.agent_doubles import ScriptedModel, no_sandbox
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.browser.chromium import Chromium
from manyhands.tools.services.browser.looking import browser_vision
from manyhands.tools.services.browser.session import Pool
from manyhands.tools.services.browser.tools import BROWSER_TOOLS
from manyhands.tools.services.registry import ModelChoice, ToolServices
from manyhands.tools.services.steps import ToolSteps
from manyhands.tools.services.vision import Vision
from tests.support.browsers import CHROMIUM, main_process, needs_chromium, network_process, running_browser, words_of
from tests.support.local_shop import Shop, local_shop
from tests.support.local_web import LocalNames, local_server
from tests.support.web_fakes import CLOSED, LocalSite

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]
TOOLS = {tool.name.removeprefix("browser_"): tool for tool in BROWSER_TOOLS}
SECRET = "127.0.0.2"
NAMES = {"inner.example": [[SECRET]], "fickle.example": [["127.0.0.1"], [SECRET]], "shop.example": [["127.0.0.1"]]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop() -> AsyncIterator[Shop]:
    async with local_shop() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    folder = tmp_path_factory.mktemp("run")
    rules = NetworkRules.all(["127.0.0.1"])
    chromium = Chromium(CHROMIUM, None, folder / "browser", rules, look_up=LocalNames(NAMES).look_up)
    yield Pool(chromium, asyncio.Semaphore(2), folder / "states", ArtifactStore(folder), quiet=0.15)
    await chromium.close()


def home_of(pool: Pool) -> Path:
    """The folder with the browser's home."""
    return pool.states.with_name("browser")


class Item:
    """An item's calls, as an agent makes them."""

    def __init__(self, pool: Pool, name: str = "1") -> None:
        self.name = name
        services = ToolServices(pool.artifacts, [pool])
        self.environment = ToolEnvironment(no_sandbox, SystemClock(), services=services, call_key=f"run/{name}/1/0/0")
        self.results: list[tuple[str, dict[str, Any], ToolResult]] = []

    async def __call__(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        result = await TOOLS[name].call(arguments, self.environment)
        self.results.append((name, arguments, result))
        json.dumps(result.content)
        assert result.failed is not result.content["success"]
        return dict(result.content)

    async def see(self) -> str:
        return str((await self("snapshot"))["snapshot"])

    async def ref(self, what: str) -> str:
        """The ref of an element of the present snapshot."""
        found = re.search(rf"{re.escape(what)}.*?\[ref=(\w+)\]", await self.see())
        assert found is not None, what
        return found[1]

    async def killed(self, pool: Pool) -> Item:
        """The same item after a crash: its calls are replayed."""
        killed = Crash()
        await self.environment.__aexit__(Crash, killed, None)  # what a kill leaves: no context, and all files
        again = Item(pool, self.name)
        for name, arguments, result in self.results:
            TOOLS[name].restore(arguments, result, again.environment)
        return again


@pytest_asyncio.fixture(loop_scope="module")
async def item(pool: Pool) -> AsyncIterator[Item]:
    made = Item(pool)
    async with made.environment:
        yield made


async def test_a_customer_logs_in_and_buys(item: Item, shop: Shop) -> None:
    opened = await item("navigate", url=shop.url)
    assert (opened["title"], opened["status"]) == ("Lamps", 200)
    seen = await item.see()
    assert '- link "Lamp 1" [ref=' in seen
    assert '- heading "Lamps"' in seen
    assert "costs 80" in seen
    clicked = await item("click", ref=await item.ref('link "Log in"'))
    assert clicked["navigated"]
    assert clicked["title"] == "Log in"
    assert (await item("type", ref="@" + await item.ref('textbox "Name"'), text="Ada"))["typed"] == "Ada"
    await item("type", ref=await item.ref('textbox "Password"'), text="light")
    assert (await item("press", key="Enter"))["title"] == "Cart"
    assert "Cart of Ada" in await item.see()
    await item("navigate", url=f"{shop.url}/goods/4")
    await item("click", ref=await item.ref("Buy lamp 4"))
    assert shop.carts["Ada"] == ["4"]
    assert (await item("back"))["title"] == "Lamp 4"
    assert (await item("close")) == {"success": True, "closed": True}
    assert "warning" in await item("close")
    assert "browser_navigate first" in (await item("snapshot"))["error"]


async def test_a_page_is_opened_right_behind_one_that_could_not_be(item: Item, shop: Shop) -> None:
    for _ in range(2):
        assert "ERR_UNSAFE_PORT" in (await item("navigate", url="http://127.0.0.1:9/"))["error"]
        opened = await item("navigate", url=shop.url)
        assert opened.get("title") == "Lamps", opened


async def test_refs_that_are_not_there_are_answered_at_once(item: Item, shop: Shop) -> None:
    await item("navigate", url=shop.url)
    ref = await item.ref('link "Lamp 2"')
    await item("navigate", url=f"{shop.url}/cart")
    assert (await item("click", ref=ref))["error"] == f"there is no element {ref} on this page now; take a snapshot"
    await item("navigate", url=f"{shop.url}/tricks/covered")
    assert "intercepts pointer events" in (await item("click", ref=await item.ref("Below")))["error"]


async def test_what_follows_from_a_click_is_told(item: Item, shop: Shop, pool: Pool) -> None:
    await item("navigate", url=f"{shop.url}/tricks/dialog")
    clicked = await item("click", ref=await item.ref("Ask"))
    assert clicked["dialogs"] == [{"type": "confirm", "message": "Really?", "dismissed": True}]
    assert "said false" in await item.see()
    await item("navigate", url=f"{shop.url}/tricks/file")
    clicked = await item("click", ref=await item.ref("Price list"))
    (download,) = clicked["downloads"]
    assert download["file"] == "price-list.txt"
    assert await pool.artifacts.get(download["artifact"]) == b"lamp 1: 10\n"
    await item("navigate", url=f"{shop.url}/tricks/tab")
    clicked = await item("click", ref=await item.ref("Open lamp 7"))
    assert clicked["title"] == "Lamp 7"
    assert len(clicked["new_tabs"]) == 1
    assert (await item("back"))["title"] == "tab"
    await item("navigate", url=f"{shop.url}/tricks/frame")
    assert (await item("click", ref=await item.ref("Buy lamp 3")))["success"]


async def test_forms_images_console_and_scrolling(item: Item, shop: Shop) -> None:
    await item("navigate", url=f"{shop.url}/tricks/form")
    await item("type", ref=await item.ref("combobox"), text="blue")
    await item("type", ref=await item.ref('textbox "Name"'), text="Ada")
    await item("press", key="Enter")
    assert "got Ada in blue" in await item.see()
    assert "Unknown key" in (await item("press", key="Nothing"))["error"]
    await item("navigate", url=f"{shop.url}/tricks/images")
    images = await item("get_images")
    assert [image["alt"] for image in images["images"]] == ["A lamp"]
    await item("navigate", url=f"{shop.url}/tricks/console")
    console = await item("console", clear=True)
    assert [message["text"] for message in console["console_messages"]] == ["hello 5"]
    assert "broken" in console["js_errors"][0]["message"]
    evaluated = await item("console", expression="[1 + 1, document.title]")
    assert evaluated["result"] == [2, "console"]
    assert evaluated["total_messages"] == 0
    await item("navigate", url=f"{shop.url}/tricks/long")
    part = await item("snapshot", full=True)
    assert len(part["snapshot"]) <= 8000
    more = await item("snapshot", full=True, offset=part["next_offset"])
    assert more["snapshot"].split("\n")[0] not in part["snapshot"]
    assert (await item("scroll", direction="down"))["at_end"] is False
    assert (await item("scroll", direction="up"))["at_end"] is True


async def test_a_page_does_not_change_what_is_seen(item: Item, shop: Shop) -> None:
    assert (await item("navigate", url=f"{shop.url}/tricks/false"))["title"] == "T" * 300
    assert (await item("scroll", direction="down"))["at_end"] in (True, False)
    assert [image["alt"] for image in (await item("get_images"))["images"]] == ["A lamp"]


async def test_a_page_that_floods_its_console_is_closed(item: Item, shop: Shop) -> None:
    await item("navigate", url=f"{shop.url}/tricks/noise")
    told = await item("console", expression="new Promise(() => 0)")
    (closed,) = told.get("closed_pages") or (item.results[0][2].content or {})["closed_pages"]
    assert closed == {"url": f"{shop.url}/tricks/noise", "reason": "it wrote too much to its console"}
    assert (await item("navigate", url=shop.url))["title"] == "Lamps"
    assert (await item("console"))["total_messages"] == 0


async def test_a_download_ends_when_it_is_too_large(item: Item, shop: Shop) -> None:
    await item("navigate", url=f"{shop.url}/tricks/files")
    clicked = await item("click", ref=await item.ref("All lamps"))
    assert clicked["downloads"] == [{"file": "lamps.bin", "error": "it has more than 20,971,520 bytes"}]
    clicked = await item("click", ref=await item.ref("Each lamp"))
    errors = Counter(each["error"] for each in clicked["downloads"])
    assert errors.pop("no more than 3 may come at the same time") == 2
    assert errors.total() == 3
    assert errors.keys() <= {"it has more than 20,971,520 bytes", "it took longer than 20 seconds"}  # on a busy machine


async def test_a_script_without_end_is_stopped(item: Item, shop: Shop) -> None:
    await item("navigate", url=shop.url)
    assert "stopped after 5 seconds" in (await item("console", expression="while (true) {}"))["error"]
    assert (await item("console", expression="2 + 2"))["result"] == 4


@pytest.mark.slow
async def test_a_page_that_is_stuck_is_given_up(item: Item, shop: Shop) -> None:
    await item("navigate", url=f"{shop.url}/tricks/stuck")
    assert "imeout" in (await item("click", ref=await item.ref("Stick")))["error"]
    told = await item("snapshot")
    assert told["resumed"]
    assert "Stick" in told["snapshot"]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "chrome://version",
        "javascript:alert(1)",
        "view-source:http://a.example",
        "data:text/html,x",
    ],
)
async def test_only_the_web_is_opened(item: Item, url: str) -> None:
    with pytest.raises(Exception, match="can't be opened"):
        await item("navigate", url=url)


async def test_nothing_private_is_reached(item: Item, shop: Shop) -> None:
    async with local_server("secret", SECRET) as secret:
        port = secret.port
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((SECRET, port))
        datagrams.setblocking(False)
        for host in (
            SECRET,
            "inner.example",
            "127.2",
            "0x7f000002",
            "[::ffff:127.0.0.2]",
            "localhost",
            "169.254.169.254",
        ):
            told = await item("navigate", url=f"http://{host}:{port}/")
            assert told["success"] is False, host
            assert "does not list" in told["error"] or "host" in told["error"], told
        secure = await item("navigate", url=f"https://{SECRET}:{port}/")
        assert "loopback" in secure["error"]
        redirected = await item("navigate", url=f"{shop.url}/to?url=http://{SECRET}:{port}/")
        assert "is a loopback address" in redirected["error"]
        await item("navigate", url=f"http://fickle.example:{shop.url.rpartition(':')[2]}/")
        await item("navigate", url=f"http://fickle.example:{port}/")
        await item("navigate", url=shop.url)
        target = f"'{SECRET}:{port}'"
        for script in (
            f"fetch('http://' + {target}, {{mode: 'no-cors'}}).then(r => r.text(), () => 'refused')",
            f"new Promise(r => {{ const s = new WebSocket('ws://' + {target}); s.onerror = () => r('refused'); s.onopen = () => r('x') }})",
            f"new Promise(r => {{ const i = new Image(); i.onerror = () => r('refused'); i.onload = r; i.src = 'http://' + {target} }})",
            f"new Promise(r => {{ const f = document.createElement('iframe'); f.onload = () => r('refused');"
            f" f.src = 'http://' + {target}; document.body.append(f) }})",
            f"navigator.sendBeacon('http://' + {target}) ? 'refused' : 'refused'",
            f"(async () => {{ const c = new RTCPeerConnection({{iceServers: [{{urls: 'stun:' + {target}}}]}}); c.createDataChannel('x');"
            " await c.setLocalDescription(await c.createOffer()); await new Promise(r => setTimeout(r, 500));"
            " return /typ (host|srflx)/.test(c.localDescription.sdp) ? c.localDescription.sdp : 'refused' })()",
        ):
            told = await item("console", expression=script)
            assert told.get("result") in (None, "refused", ""), told
        assert secret.connections == 0
        with datagrams, pytest.raises(BlockingIOError):
            datagrams.recv(1)


async def test_its_proxy_serves_nobody_else(item: Item, shop: Shop, pool: Pool) -> None:
    await item("navigate", url=shop.url)
    words, proxy = words_of(main_process(home_of(pool))), pool.chromium.proxy
    assert proxy is not None
    assert proxy.password not in " ".join(words)
    (port,) = [word.rpartition(":")[2] for word in words if word.startswith("--proxy-server=")]
    host = shop.url.removeprefix("http://")
    wrong = base64.b64encode(f"{proxy.user}:{proxy.password}x".encode()).decode()
    shop.hits.clear()
    for asked in (f"GET {shop.url}/ HTTP/1.1\r\nHost: {host}", f"CONNECT {host} HTTP/1.1\r\nHost: {host}"):
        for proof in ("", f"\r\nProxy-Authorization: Basic {wrong}"):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(f"{asked}{proof}\r\n\r\n".encode())
            writer.write_eof()
            assert (await reader.read()).startswith(b"HTTP/1.1 407 ")
            writer.close()
    assert not shop.hits


async def test_the_proxys_password_is_for_the_proxy_alone(item: Item, shop: Shop) -> None:
    script = f"new Promise(r => {{ const s = new WebSocket('{shop.url.replace('http', 'ws')}/echo'); s.onopen = () => s.send('hi');"
    script += " s.onmessage = m => r(m.data); s.onerror = () => r('refused') })"
    assert (await item("navigate", url="about:blank"))["success"]
    assert (await item("console", expression=script))["result"] == "you said hi"
    await item("navigate", url=f"{shop.url}/locked/407")
    assert "as if it were a proxy" in str(await item("snapshot", full=True))
    assert (await item("console", expression=script))["result"] == "you said hi"
    assert "asks for a name and a password" in (await item("navigate", url=f"{shop.url}/locked/401"))["error"]
    assert shop.proofs == []


async def test_the_password_is_given_again(item: Item, shop: Shop, pool: Pool) -> None:
    await item("navigate", url=shop.url)
    process = network_process(main_process(home_of(pool)))
    os.kill(process, signal.SIGKILL)
    while Path(f"/proc/{process}").exists():
        await asyncio.sleep(0.01)
    assert (await item("navigate", url=f"{shop.url}/goods/2"))["success"] is False
    assert (await item("navigate", url=f"{shop.url}/goods/2"))["title"] == "Lamp 2"


async def test_a_browser_that_runs_already(tmp_path: Path, shop: Shop) -> None:
    from playwright.async_api import async_playwright

    with running_browser(tmp_path / "profile") as address:
        async with async_playwright() as playwright:
            own = await playwright.chromium.connect_over_cdp(address)
            (context,) = own.contexts
            await context.add_cookies([{"name": "customer", "value": "Eve", "url": shop.url}])
            page = context.pages[0]
            await page.goto(f"{shop.url}/cart")
            chromium = Chromium(None, address, tmp_path / "browser", NetworkRules.web(private=False))
            joined = Pool(chromium, asyncio.Semaphore(1), tmp_path / "states", ArtifactStore(tmp_path), quiet=0.15)
            item = Item(joined)
            async with item.environment:
                assert (await item("navigate", url=f"{shop.url}/cart"))["success"]
                assert "Cart of nobody" in await item.see()
                await item("navigate", url=f"{shop.url}/tricks/file")
                (download,) = (await item("click", ref=await item.ref("Price list")))["downloads"]
                assert await joined.artifacts.get(download["artifact"]) == b"lamp 1: 10\n"
                again = await item.killed(joined)
            async with again.environment:
                assert (await again("snapshot"))["resumed"]
            await chromium.close()
            # Nothing of ours is left, and the owner's page is as it was.
            assert [len(each.pages) for each in own.contexts] == [1]
            assert "Cart of Eve" in await page.inner_text("body")


@pytest.mark.slow
async def test_no_closed_address_is_opened(tmp_path: Path) -> None:
    chromium = Chromium(CHROMIUM, None, tmp_path / "browser", NetworkRules.web(private=False))
    pool = Pool(chromium, asyncio.Semaphore(1), tmp_path / "states", ArtifactStore(tmp_path), quiet=0.01)
    item = Item(pool)
    async with LocalSite() as site:
        try:
            async with item.environment:
                for address in CLOSED:
                    with suppress(ToolError):
                        await item("navigate", url=address.format(port=site.port, long="a" * 3000))
        finally:
            await chromium.close()
        assert not site.counts


async def test_a_page_is_opened_again_after_a_crash(pool: Pool, shop: Shop) -> None:
    first = Item(pool)
    await first("navigate", url=f"{shop.url}/login")
    await first("type", ref=await first.ref('textbox "Name"'), text="Bob")
    await first("type", ref=await first.ref('textbox "Password"'), text="light")
    await first("press", key="Enter")
    await first("navigate", url=f"{shop.url}/goods/5")
    ref = await first.ref("Buy lamp 5")
    (cookies,) = pool.states.glob("1-1/*.json")
    assert b"customer" in cookies.read_bytes()
    assert "customer" not in json.dumps([[result.content, result.kept] for _, _, result in first.results])
    second = await first.killed(pool)
    told = await second("click", ref=ref)
    assert "loaded again" in told["error"]
    await second("click", ref=await second.ref("Buy lamp 5"))
    assert shop.carts["Bob"] == ["5"]
    third = await second.killed(pool)
    async with third.environment:
        back = await third("back")
        assert back["resumed"]
        assert back["title"] == "Lamp 5"
        assert "resumed" not in await third("snapshot")
    assert not cookies.exists()


async def test_local_storage_comes_back(pool: Pool, shop: Shop) -> None:
    first = Item(pool, "stored")
    async with local_shop() as other:
        await first("navigate", url=other.url)
        await first("console", expression="localStorage.setItem('where', 'there')")
        await first("navigate", url=shop.url)
        await first(
            "console", expression="localStorage.setItem('mark', '\\u00e4'.repeat(3)); localStorage.setItem('b', '')"
        )
        second = await first.killed(pool)
        assert (await second("console", expression="localStorage.mark + localStorage.b.length"))["result"] == "äää0"
        await second("console", expression="localStorage.clear()")
        third = await second.killed(pool)
        async with third.environment:
            assert (await third("console", expression="localStorage.length"))["result"] == 0
            await third("navigate", url=other.url)
            assert (await third("console", expression="localStorage.where"))["result"] == "there"


async def test_an_attempt_may_begin_anew_instead(pool: Pool, shop: Shop) -> None:
    first = Item(pool, "fresh")
    async with first.environment:
        await first("navigate", url=shop.url)
    again = Item(replace(pool, fresh=True), "fresh")
    again.environment.steps = ToolSteps("browser_navigate", MemoryContext)
    for name, arguments, result in first.results:
        TOOLS[name].restore(arguments, result, again.environment)
    with pytest.raises(NewAttemptNeeded, match="browser_resume=attempt"):
        await again("snapshot")


def seeing(item: Item, context: MemoryContext) -> ScriptedModel:
    """Have a model that sees look at an item's page. Its answer has the number of pictures that it has seen."""
    model = ScriptedModel(lambda request: f"picture {len(model.requests)}")
    services = item.environment.services
    assert services is not None
    vision = Vision(ModelChoice("sees", "http://localhost/v1"), model)
    item.environment.services = ToolServices(services.artifacts, [services.of(Pool), vision])
    item.environment.steps = ToolSteps("browser_vision", lambda: context, artifacts=services.artifacts)
    return model


async def looked(item: Item) -> dict[str, Any]:
    return dict((await browser_vision.call({"question": "How many?", "annotate": True}, item.environment)).content)


async def test_a_model_looks_at_the_page(item: Item, shop: Shop) -> None:
    await item("navigate", url=shop.url)
    context = MemoryContext()
    model = seeing(item, context)
    told = await looked(item)
    assert told["analysis"] == "picture 1"
    assert {"ref": await item.ref('link "Lamp 1"'), "name": "Lamp 1"} in told["annotations"]
    assert (told["screenshot"]["width"], told["screenshot"]["height"]) == (1280, 800)
    ((_, picture),) = [message["content"] for message in model.requests[0].messages]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert "base64" not in json.dumps([step.request for step in context.steps])


async def test_what_a_page_says_is_no_label(item: Item, shop: Shop) -> None:
    await item("navigate", url=shop.url)
    fields = "".join(
        f"<input aria-label=Field value='{text}'>" for text in ("[ref=e1] [box=.,.,.,.]", "[ref=e99] [box=1,2,3,4]")
    )
    long = "<textarea aria-label=Long></textarea>"
    script = f"document.body.innerHTML = {json.dumps(fields + long)}; document.querySelector('textarea').value = '[ref=e1]'.repeat(6000)"
    await item("console", expression=script)
    seeing(item, MemoryContext())
    labels = (await looked(item))["annotations"]
    assert [label["name"] for label in labels] == ["Field", "Field", "Long"]
    assert not {"e1", "e99"} & {label["ref"] for label in labels}


async def test_a_picture_that_was_taken_needs_no_page_after_a_crash(pool: Pool, shop: Shop) -> None:
    first = Item(pool)
    await first("navigate", url=f"{shop.url}/tricks/moving")
    context = MemoryContext(crash=CrashPoint(2))
    seeing(first, context)
    with pytest.raises(Crash):
        await looked(first)
    second = await first.killed(pool)
    shop.hits.clear()
    async with second.environment:
        again = MemoryContext(context.journal)
        seeing(second, again)
        told = await looked(second)
        assert (told["success"], told["analysis"]) == (True, "picture 1")
        assert [label["name"] for label in told["annotations"]] == ["Home", "Cart"]
        assert again.state.unused() == []
        assert not shop.hits
        assert (await second("snapshot"))["resumed"]


async def test_few_cookies_are_kept(item: Item, shop: Shop, pool: Pool) -> None:
    await item("navigate", url=shop.url)
    for number in range(5):
        await item("console", expression=f"document.cookie = 'count={number}'")
    files = [path.read_text() for path in pool.states.glob("1-1/*.json")]
    assert len(files) == 2
    assert any('"4"' in text for text in files)


async def test_what_does_not_end_with_the_browser_is_ended(tmp_path: Path) -> None:
    chromium = Chromium(CHROMIUM, None, tmp_path / "browser", NetworkRules.web(private=False))
    await chromium.browser()
    variables = (main_process(tmp_path / "browser") / "environ").read_bytes().decode().split("\0")
    environment = dict(variable.partition("=")[::2] for variable in variables if variable)
    left = await asyncio.create_subprocess_exec("sleep", "60", env=environment, start_new_session=True)
    try:
        await chromium.close()
        async with asyncio.timeout(10):
            assert await left.wait() == -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            left.kill()


async def test_items_wait_for_a_free_browser(pool: Pool, shop: Shop) -> None:
    items = [Item(pool, str(number)) for number in range(4)]
    browser = await pool.chromium.browser()
    contexts = []

    async def visit(item: Item) -> None:
        async with item.environment:
            assert (await item("navigate", url=shop.url))["success"]
            contexts.append(len(browser.contexts))

    await asyncio.gather(*map(visit, items))
    assert max(contexts) == 2


async def test_a_browser_that_ended_is_started_again(item: Item, shop: Shop, pool: Pool) -> None:
    await item("navigate", url=f"{shop.url}/goods/2")
    await (await pool.chromium.browser()).close()
    told = await item("snapshot")
    assert told["resumed"]
    assert told["title"] == "Lamp 2"


async def test_homes_are_private(pool: Pool) -> None:
    homes = [path for path in home_of(pool).glob("home-*") if path.is_dir()]
    assert homes
    assert all(path.stat().st_mode & 0o077 == 0 for path in homes)
