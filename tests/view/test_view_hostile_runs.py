"""Runs in which all texts of others are hostile, in every page of the real viewer: nothing runs, is asked for or is reported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support.browsers import ARGUMENTS, CHROMIUM
from tests.support.engine_runs import make_steps_run
from tests.support.hostile_runs import GROUPS, TEXTS, file_name, hostile_runs
from tests.support.served_views import View, served

playwright = pytest.importorskip("playwright.sync_api")
TABS = ("conversation", "result", "timeline", "attempts", "raw")
MAX_PAGE = 2_500_000
"""Bytes of a page: all of these have very long names everywhere."""
ATTRIBUTES = re.compile(
    r"class|id|href|title|rel|dir|lang|name|value|type|role|tabindex|hidden|disabled|open|checked|selected|download|for|start|scope|"
    r"colspan|rowspan|span|action|placeholder|inputmode|size|src|alt|loading|defer|charset|content|sizes|media|"
    r"data-[a-z-]+|aria-[a-z]+|viewBox|viewbox|width|height|x|y|cx|cy|r|d|fill|stroke|stroke-width|stroke-linecap|preserveaspectratio"
)
ELEMENTS = re.compile(
    r"a|article|aside|b|blockquote|body|br|button|circle|code|dd|del|details|div|dl|dt|em|fieldset|figcaption|figure|form|g|"
    r"h1|h2|h3|h4|h5|h6|head|header|hr|html|i|input|ins|kbd|label|legend|li|link|main|meta|nav|ol|option|p|path|pre|rect|s|"
    r"script|section|select|small|span|strong|summary|svg|table|tbody|td|th|thead|time|title|tr|ul|img"
)
WATCH = """
window.reports = [];
document.addEventListener("securitypolicyviolation", (event) => window.reports.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
FOUND = """() => {
  const names = new Set();
  for (const element of document.querySelectorAll("*")) {
    if (element.closest(".chart-plot")) continue; // what the page's own script draws
    names.add(element.localName);
    for (const each of element.attributes) names.add(`${element.localName} ${each.name}`);
  }
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const handlers = [...names].filter((name) => / on|style$|srcdoc$/.test(name));
  return { ran: window.ran ?? null, reports: window.reports, frames: window.frames.length, handlers };
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return hostile_runs(tmp_path_factory.mktemp("hostile"), 1, is_every=False)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each name that a folder can have, of which every other one is unreadable."""
    folder = tmp_path_factory.mktemp("names")
    steps = tmp_path_factory.mktemp("steps")
    make_steps_run(steps, {"items": 1})
    for number, text in enumerate(TEXTS):
        made = folder / file_name(f"{text[:60]}{number}")
        made.mkdir()
        if number % 2:
            (made / "run.db").write_bytes(b"no journal")
        else:
            (made / "run.db").symlink_to(steps / "run.db")
    return folder


@pytest.fixture(scope="module")
def view(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    with served([runs[0].parent], tmp_path_factory.mktemp("cache")) as found:
        yield found


class Markup(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.wrong: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if not ELEMENTS.fullmatch(tag):
            self.wrong.add(tag)
        for name, value in attrs:
            if not ATTRIBUTES.fullmatch(name):
                self.wrong.add(f"{tag} {name}")
            if name == "href" and value is not None:
                self._take_link(tag, value)
            if name in ("src", "action") and not re.match(
                r"/(?!/)|data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+\Z", value or ""
            ):
                self.wrong.add(f"{tag} {name}={value!r:.200}")

    def _take_link(self, tag: str, value: str) -> None:
        if value.startswith("/") and not value.startswith("//"):
            self.links.append(value.partition("#")[0])
        elif not (value.startswith("#") or (tag == "a" and re.match(r"https?://", value, re.IGNORECASE))):
            self.wrong.add(f"{tag} href={value!r:.200}")


def kind_of(address: str) -> str:
    """What sort of page an address asks for: pages of one sort are made by the same code of a run."""
    parts = urlsplit(address)
    asked = sorted(
        {each.partition("=")[0] + each.partition("=")[2] * (each[:4] == "tab=") for each in parts.query.split("&")}
    )
    return re.sub(r"/(steps|items)/\d+", r"/\1/N", parts.path) + "?" + "&".join(asked)


def crawled(view: View, most: int) -> tuple[dict[str, Any], list[str]]:
    """Pages from the list of runs on, no more than ``most`` of a sort: their answers by address, and all that is wrong."""
    waiting, seen, kinds, wrong = ["/"], dict[str, Any](), dict[str, int](), list[str]()
    while waiting:
        address = waiting.pop(0)
        kind = kind_of(address)
        if address in seen or kinds.get(kind, 0) >= most:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        got = seen[address] = view.get(address)
        if got.status != 200:
            wrong.append(f"{got.status} {address:.200}")
        if got.headers["content-type"].startswith("text/html"):
            page = Markup(got.text)
            wrong += [f"{each} in {address:.200}" for each in page.wrong]
            waiting += [link for link in dict.fromkeys(page.links) if link not in seen]
    return seen, wrong


def run_ids(view: View) -> dict[str, str]:
    """The ids of the runs by the names of their folders."""
    return {run["run"]: run["run_id"] for run in json.loads(view.get("/?format=json").body)["runs"]}


def test_each_text_is_in_each_field() -> None:
    assert len(TEXTS) >= 300
    assert sorted(text for group in GROUPS for text in group) == sorted(TEXTS)


def pages_of(view: View, numbers: Sequence[int], tabs: Sequence[str] = TABS) -> Iterator[str]:
    """The pages of all runs, and of the items of these numbers."""
    ids = run_ids(view)
    yield from ("/", "/help", f"/search?q={quote(TEXTS[0])}", "/compare")
    for run in ids.values():
        links = Markup(view.get(f"/runs/{run}").text).links
        of_run = {kind_of(link): link for link in reversed(links) if f"{run}/pages/" in link}
        yield from (f"/runs/{run}", f"/runs/{run}/items", *of_run.values())
        yield from (f"/runs/{run}/items/{number}?tab={tab}" for number in numbers for tab in tabs)
        yield f"/difference?a={run}:1&b={run}:2"
        yield f"/difference?a={run}:1"
        yield f"/compare?runs={run}"


def looked_at(view: View, addresses: Iterable[str]) -> int:
    """How many pages hold no markup but their own, and no more than they should; the others are named."""
    count, wrong = 0, list[str]()
    for address in addresses:
        got = view.get(address)
        if got.status != 200 or len(got.body) > MAX_PAGE:
            wrong.append(f"{got.status}, {len(got.body):,} bytes: {address:.200}")
        wrong += [f"{each} in {address:.200}" for each in Markup(got.text).wrong]
        count += 1
    assert wrong == []
    return count


@pytest.mark.slow
def test_pages_hold_no_markup_but_their_own(view: View) -> None:
    assert looked_at(view, pages_of(view, (1, 2))) > 70


@pytest.mark.slow
def test_every_item_shows_its_texts_as_texts(view: View) -> None:
    for name, run in run_ids(view).items():
        tab = "conversation" if name.startswith("trajectories") else "result"
        looked_at(view, (f"/runs/{run}/items/{number}?tab={tab}" for number in range(4, len(GROUPS) + 1)))


@pytest.mark.slow
def test_twins_are_json(view: View) -> None:
    for address in pages_of(view, (3,)):
        got = view.get(f"{address}{'&' if '?' in address else '?'}format=json")
        assert got.status == 200, (address, got.body[:300])
        json.loads(got.body)


@pytest.mark.parametrize(
    "place", ["/search?q={}", "/?text={}&state={}&model={}&sort={}", "/runs/{}", "/runs/x/pages/{}", "/assets/{}"]
)
def test_a_text_in_the_address_is_text_on_the_page(view: View, place: str) -> None:
    for text in TEXTS[::40] if "search" in place else TEXTS:
        address = place.replace("{}", quote(text[:500].encode("utf-8", "replace"), safe=""))
        got = view.get(address)
        assert got.status in (200, 400, 404), (got.status, address)
        assert Markup(got.text).wrong == set(), address


@pytest.mark.slow
def test_a_text_as_a_filter_is_text_on_the_page(view: View) -> None:
    run = run_ids(view)["steps-0"]
    for text in TEXTS[::40]:
        asked = quote(text[:300].encode("utf-8", "replace"), safe="")
        for name in (
            "why",
            "state",
            "tool",
            "text",
            "columns",
            "sort",
            "page",
            "at",
            "label",
            "score_min",
            asked or "x",
        ):
            got = view.get(f"/runs/{run}/items?{name}={asked}")
            assert got.status in (200, 400), (got.status, name, text)
            assert Markup(got.text).wrong == set()


def test_folders_of_any_name_are_listed(names: Path, tmp_path: Path) -> None:
    with served([names], tmp_path / "cache", has_index=False) as view:
        got, twin = view.get("/"), view.get("/?format=json")
        assert (got.status, twin.status) == (200, 200)
        assert Markup(got.text).wrong == set()
        listed = json.loads(twin.body)["runs"]
        assert len(listed) == len(TEXTS)
        one = next(run for run in listed if "run_id" in run)
        assert Markup(view.get(f"/runs/{one['run_id']}").text).wrong == set()


# --- In a browser


class Watched:
    """A browser that was let in, and everything that pages should not do."""

    def __init__(self, driver: Any, view: View) -> None:
        self.view = view
        self.wrong: list[str] = []
        self._browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        context = self._browser.new_context()
        name, _, value = view.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": view.base}])
        context.add_init_script(WATCH)
        context.route("**/*", self._route)
        self.tab = context.new_page()
        self.tab.set_default_timeout(20_000)
        self.tab.on("dialog", self._dismiss)
        self.tab.on("console", lambda message: self._say(message.type, message.text))
        self.tab.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        self.tab.on("popup", lambda page: self.wrong.append(f"window {page.url}"))
        self.tab.on("download", lambda download: self.wrong.append(f"download {download.url}"))

    def _dismiss(self, dialog: Any) -> None:
        self.wrong.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _route(self, route: Any) -> None:
        url = route.request.url
        if url.startswith((f"{self.view.base}/", "data:")):
            route.continue_()
        else:
            self.wrong.append(f"request {url}")
            route.abort()

    def _say(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind} {text}")

    def look(self, address: str) -> Mapping[str, Any]:
        """Open a page and all that is folded in it, let it live for a moment, and say what is there."""
        self.tab.goto(f"{self.view.base}{address}")
        found: Mapping[str, Any] = self.tab.evaluate(FOUND)
        if found["ran"] is not None or found["reports"] or found["frames"] or found["handlers"]:
            self.wrong.append(f"{address}: {found['ran']} {found['reports']} {found['frames']} {found['handlers']}")
        return found

    def close(self) -> None:
        self._browser.close()


@contextmanager
def browsing(view: View) -> Iterator[Watched]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        made = Watched(driver, view)
        yield made
        made.close()


@pytest.fixture(scope="module")
def watched(view: View) -> Iterator[Watched]:
    with browsing(view) as made:
        yield made


@pytest.mark.slow
def test_nothing_runs_in_a_browser(view: View, watched: Watched) -> None:
    for address in pages_of(view, (1, 14), TABS[:2]):
        watched.look(address)
    assert watched.wrong == []


def test_the_item_beside_the_table_is_text_too(view: View, watched: Watched) -> None:
    run = run_ids(view)["trajectories-0"]
    for number in (1, 20, 45):
        watched.look(f"/runs/{run}/items#item={number}")
        watched.tab.locator("#panel .conversation").wait_for()
        found = watched.tab.evaluate(FOUND)
        assert (found["ran"], found["reports"], found["handlers"]) == (None, [], [])
    assert watched.wrong == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_runs_on_any_page(tmp_path: Path) -> None:
    made = hostile_runs(tmp_path, 1, is_every=True)
    with served([made[0].parent], tmp_path / "cache") as view, browsing(view) as watched:
        for address in pages_of(view, range(1, len(GROUPS) + 1)):
            watched.look(address)
        assert watched.wrong == []
        seen, wrong = crawled(view, most=3)
        assert wrong == []
        assert len(seen) > 300
