"""What pages do besides being read, in Chromium under the headers that they have: keys, the item beside the table, ticks, rows that
come when they are needed and while a run goes on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.browsers import ARGUMENTS, CHROMIUM, needs_chromium
from tests.support.engine_runs import make_steps_run, start_steps_run
from tests.support.keys_runs import Sent, make_batches, pages_of

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = needs_chromium
PROMPTS = ["one", "two", "fail three", "four", "five", "fail six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
FAILED = (3, 6)
MANY = 2150
NUMBERS = "[...document.querySelectorAll('table.item-list tbody tr')].map((row) => Number(row.id.slice(5)))"
NOT_THERE = "/items/99999"
"""An address for which the browser reports that there is nothing."""
MAX_BYTES = 60_000
"""Of the scripts of a page that are not vendored, together."""


@dataclass(frozen=True)
class Shown:
    """The pages of some runs."""

    base: str
    ids: dict[str, str]
    sent: Sent

    def items(self, name: str = "first") -> str:
        return f"{self.base}/runs/{self.ids[name]}/items"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("shown")
    make_batches(folder, PROMPTS, ("first", "second"))
    make_steps_run(folder / "data" / "many", {"items": MANY})
    going = start_steps_run(folder / "data" / "going", {"items": 4, "steps": 2, "delay": 600})
    sent = Sent()
    try:
        with pages_of(folder / "data", lambda application: application.router.add_get("/events", sent.handle)) as base:
            yield Shown(base, ids_of(base), sent)
            sent.texts.append("cut")
    finally:
        going.kill()
        going.communicate()


def ids_of(base: str) -> dict[str, str]:
    """The ids of the runs by their names, once the run that goes on does."""
    for _ in range(100):
        with urlopen(f"{base}/?format=json", timeout=10) as answer:
            runs = json.load(answer)["runs"]
        if any(run["run"] == "going" and run.get("running") == 4 for run in runs):
            return {run["run"]: run["run_id"] for run in runs}
        time.sleep(0.1)
    raise AssertionError(runs)


@pytest.fixture(scope="module")
def browser(shown: Shown) -> Iterator[Any]:
    """After the runs are made: they need event loops of their own, and while the browser is open there is one."""
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, shown: Shown) -> Iterator[Any]:
    """A page in a window of its own; at the end, nothing may have been reported that breaks the policy, and no error."""
    shown.sent.texts.clear()
    context = browser.new_context(viewport={"width": 1400, "height": 800})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(10_000)
    found = context.new_page()
    said: list[str] = []
    found.on("console", lambda message: said.append(f"{message.type} {message.text} {message.location['url']}"))
    found.on("pageerror", lambda error: said.append(str(error)))
    yield found
    shown.sent.texts.append("cut")
    context.close()
    assert [text for text in said if NOT_THERE not in text] == []


def press(page: Any, keys: str) -> None:
    """Press keys, with spaces between."""
    for key in keys.split():
        page.keyboard.press(key)


def expect(page: Any, condition: str, argument: Any = None) -> None:
    """Wait for what a script says to become true."""
    page.wait_for_function(condition, arg=argument)


def said(page: Any, text: str) -> None:
    """Wait for what is read aloud."""
    expect(page, "(text) => document.querySelector('#announce').textContent.includes(text)", text)


def in_panel(page: Any, number: int) -> None:
    """Wait for an item beside the table."""
    expect(page, "(n) => document.querySelector('#panel .item')?.dataset.item === String(n)", number)


def hidden(page: Any) -> str:
    found: str = page.locator(".item").get_attribute("data-hide")
    return found


# --- By keyboard


def test_tour_by_keyboard_alone(page: Any, shown: Shown) -> None:
    run = shown.ids["first"]
    page.goto(shown.base)
    for _ in range(4):
        press(page, "j")
        if page.evaluate("document.activeElement.textContent") == "first":
            break
    press(page, "Enter")
    page.wait_for_url(f"{shown.base}/runs/{run}")
    press(page, "g i")
    page.wait_for_url(shown.items())
    press(page, "j j k f")
    assert page.evaluate("document.activeElement.closest('tr').id") == f"item-{FAILED[0]}"
    press(page, "Enter")
    in_panel(page, FAILED[0])
    press(page, "n")
    in_panel(page, FAILED[0] + 1)
    press(page, "p f")
    in_panel(page, FAILED[1])
    press(page, "]")
    first = page.locator("#panel .step.reading")
    assert first.count() == 1
    press(page, "]")
    step = page.locator("#panel .step.reading")
    assert step.locator(".call .tool").inner_text() == "terminal" or first.locator(".call .tool").count()
    assert page.evaluate("document.activeElement.classList.contains('step')")
    press(page, "t r")
    assert set(hidden(page).split()) == {"tools", "reasoning"}
    assert page.locator("#panel .calls").first.is_hidden()
    assert page.url.endswith(f"#item={FAILED[1]}&hide=tools,reasoning")
    press(page, "Escape")
    assert page.locator("#panel").is_hidden()
    assert page.evaluate("document.activeElement.closest('tr').id") == f"item-{FAILED[1]}"
    press(page, "x k k x")
    assert page.locator("tr.chosen").count() == 2
    assert page.locator("#ticked .count").inner_text() == "2 items ticked"
    press(page, "d")
    page.wait_for_url(re.compile(r"/difference\?"))
    assert page.url == f"{shown.base}/difference?a={run}:{FAILED[1]}&b={run}:{FAILED[1] - 2}"
    assert page.locator("h1").inner_text() == "Difference"
    press(page, "]")
    assert page.locator(".pair.reading").count() == 1
    press(page, "g r")
    page.wait_for_url(f"{shown.base}/")
    press(page, "?")
    page.wait_for_url(f"{shown.base}/help")
    press(page, "/")
    assert page.evaluate("document.activeElement.name") == "q"
    press(page, "g r s")
    assert page.locator(".search input").input_value() == "grs"


def test_keys_can_be_turned_off(page: Any, shown: Shown) -> None:
    page.goto(f"{shown.base}/help")
    page.locator("#keys-off").check()
    press(page, "g r /")
    assert page.evaluate("document.activeElement.id") == "keys-off"
    page.goto(shown.items())
    press(page, "j")
    assert page.evaluate("document.activeElement === document.body")
    page.goto(f"{shown.base}/help")
    assert page.locator("#keys-off").is_checked()
    page.locator("#keys-off").uncheck()
    press(page, "g r")
    page.wait_for_url(f"{shown.base}/")


def test_item_page_by_keys(page: Any, shown: Shown) -> None:
    page.goto(f"{shown.items()}/1")
    press(page, "n")
    page.wait_for_url(f"{shown.items()}/2")
    press(page, "f")
    page.wait_for_url(f"{shown.items()}/{FAILED[0]}")
    press(page, "p")
    page.wait_for_url(f"{shown.items()}/2")
    press(page, "s m")
    assert page.url == f"{shown.items()}/2?hide=system,metadata"
    press(page, "n")
    page.wait_for_url(f"{shown.items()}/3?hide=system,metadata")
    press(page, "s m")
    assert page.url == f"{shown.items()}/3"
    press(page, "] ]")
    step = page.locator(".step.reading").get_attribute("id")
    press(page, "Shift+L")
    said(page, "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{shown.items()}/3#{step}"
    press(page, "x")
    said(page, "1 item ticked")
    page.goto(f"{shown.items('second')}/4")
    press(page, "d")
    page.wait_for_url(f"{shown.base}/difference?a={shown.ids['first']}:3&b={shown.ids['second']}:4")


# --- The item beside the table


def test_item_beside_the_table(page: Any, shown: Shown) -> None:
    page.goto(f"{shown.items()}?state=completed")
    page.locator("#item-2 td[data-column=item]").click()
    in_panel(page, 2)
    assert page.url == f"{shown.items()}?state=completed#item=2"
    assert page.locator("tr.current").get_attribute("id") == "item-2"
    assert page.locator(".items.open").count() == 1
    page.locator("#panel .tabs a", has_text="Raw").click()
    expect(page, "() => document.querySelector('#panel .tabs a[aria-current]').textContent === 'Raw'")
    assert page.url.endswith("#item=2&tab=raw")
    press(page, "n")
    in_panel(page, 4)
    assert page.url.endswith("#item=4&tab=raw")
    page.locator("#panel .tabs a", has_text="Conversation").click()
    expect(page, "() => document.querySelector('#panel .step') !== null")
    page.locator("#panel .step-meta .address").first.click()
    assert page.locator("#panel .step.reading").count() == 1
    press(page, "Escape")
    assert page.url == f"{shown.items()}?state=completed"
    assert page.locator("#panel").is_hidden()


def test_item_beside_the_table_by_its_link(page: Any, shown: Shown) -> None:
    page.goto(f"{shown.items()}#item=5&hide=tools")
    in_panel(page, 5)
    assert hidden(page) == "tools"
    page.locator("#panel .toggle", has_text="tools").click()
    assert hidden(page) == ""
    assert page.url == f"{shown.items()}#item=5"
    page.evaluate("location.hash = 'item=7'")
    in_panel(page, 7)
    page.locator("#close-panel").click()
    assert page.url == shown.items()
    page.goto(f"{shown.base}/help")
    page.goto(f"{shown.items()}#item={NOT_THERE.rpartition('/')[2]}")
    page.locator("#panel .note.bad", has_text="no item 99999").wait_for()


def test_clicks_with_keys_open_pages(page: Any, shown: Shown) -> None:
    page.goto(shown.items())
    for place, options in (("#item-2 th a", {"modifiers": ["Control"]}), ("#item-2 td.text", {"button": "middle"})):
        with page.context.expect_page() as opened:
            page.locator(place).first.click(**options)
        opened.value.wait_for_url(f"{shown.items()}/2")
        opened.value.close()
    assert page.locator("#panel").is_hidden()
    page.locator("#item-3 th a").click()
    in_panel(page, 3)
    page.locator("#panel .full").click()
    page.wait_for_url(re.compile("/items/3"))


# --- Ticks, forms, the colour scheme, copying


def test_ticked_runs_are_compared(page: Any, shown: Shown) -> None:
    page.goto(shown.base)
    compare = page.locator("#compare")
    assert compare.is_visible()
    assert compare.is_disabled()
    first, second = shown.ids["first"], shown.ids["second"]
    page.locator(f"#run-{first} .tick").click()
    page.reload()
    assert page.locator(f"#run-{first} input").is_checked()
    page.locator(f"#run-{second} input").check()
    compare.click()
    page.wait_for_url(f"{shown.base}/compare?runs={first},{second}")


def test_ticked_items_are_copied(page: Any, shown: Shown) -> None:
    page.goto(shown.items())
    for number in (2, 4):
        page.locator(f"#item-{number} input").check()
    keys = [page.locator(f"#item-{number}").get_attribute("data-key") for number in (2, 4)]
    page.locator("[data-copy-ticked]", has_text="keys").click()
    said(page, "Copied")
    assert page.evaluate("navigator.clipboard.readText()").split("\n") == keys
    page.locator("[data-copy-ticked][data-command]").click()
    expect(page, "async () => (await navigator.clipboard.readText()).endsWith('--select item=2 --select item=4')")
    page.locator("#untick").click()
    assert page.locator("#ticked").is_hidden()
    assert page.locator("tr.chosen").count() == 0


def test_copying_where_there_is_no_clipboard(page: Any, shown: Shown) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {get: () => undefined})")
    page.goto(shown.items())
    page.locator("summary", has_text="Export").click()
    page.locator("button.copy").click()
    said(page, "Copied")
    page.locator(".search input").focus()
    page.keyboard.press("Control+V")
    assert page.locator(".search input").input_value().startswith("manyhands export ")


def test_forms_are_sent_while_they_are_filled_in(page: Any, shown: Shown) -> None:
    page.goto(shown.base)
    page.locator("select[name=workload]").select_option("trajectories")
    page.wait_for_url(f"{shown.base}/?workload=trajectories")
    page.locator(".filters input[name=text]").press_sequentially("firs")
    page.wait_for_url(f"{shown.base}/?workload=trajectories&text=firs")
    page.keyboard.type("t")
    page.wait_for_url(f"{shown.base}/?workload=trajectories&text=first")
    assert page.locator("table.runs tbody tr").count() == 1
    assert page.evaluate("document.activeElement.name") == "text"


def test_colour_scheme(page: Any, shown: Shown) -> None:
    page.goto(shown.base)
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto(shown.items())
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_tables_are_sorted(page: Any, shown: Shown) -> None:
    page.goto(f"{shown.items()}/2?tab=raw")
    steps = "[...document.querySelectorAll('table[data-sortable] tbody th')].map((cell) => cell.textContent)"
    before = page.evaluate(steps)
    heading = page.locator("table[data-sortable] thead th", has_text="step")
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert page.evaluate(steps) == sorted(before)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert page.evaluate(steps) == sorted(before, reverse=True)
    assert len(before) > 1


# --- Rows


def test_rows_come_while_one_scrolls(page: Any, shown: Shown) -> None:
    page.goto(shown.items("many"))
    assert page.evaluate("document.querySelectorAll('table.item-list tbody tr').length") == 100
    page.locator("a[data-more]").scroll_into_view_if_needed()
    expect(page, "() => document.getElementById('item-200')")


def test_rows_do_not_jump_when_the_oldest_go(page: Any, shown: Shown) -> None:
    page.goto(shown.items("many"))
    for number in (*range(200, MANY, 100), MANY):
        page.evaluate("document.querySelector('a[data-more]').click()")
        expect(page, "(id) => document.getElementById(id)", f"item-{number}")
        if number == 2000:
            page.locator("#item-1950").scroll_into_view_if_needed()
            place = page.locator("#item-1950").bounding_box()["y"]
    page.locator("#rows-before a").wait_for(state="attached")
    assert abs(page.locator("#item-1950").bounding_box()["y"] - place) < 3
    found = page.evaluate(NUMBERS)
    first = found[0]
    assert found == list(range(first, MANY + 1))
    assert first % 100 == 1
    assert len(found) <= 2000
    page.evaluate("window.scrollTo(0, 0)")
    page.locator("#rows-before a").click()
    expect(page, f"(before) => ({NUMBERS}).includes(before)", first - 1)


# --- While a run goes on


def event(name: str, number: int, **data: object) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def test_rows_and_parts_are_replaced(page: Any, shown: Shown) -> None:
    page.goto(shown.items("going"))
    page.locator("#item-2 input").check()
    page.locator("#item-2 th a").focus()
    row = page.evaluate("document.querySelector('#item-2').outerHTML")
    changed = row.replace("running", "gone on").replace("<th ", '<td data-column="x">not shown</td><th ')
    shown.sent.texts.append(event("row", 1, id="item-2", html=changed))
    page.locator("#item-2", has_text="gone on").wait_for()
    assert page.locator("#item-2 [data-column=x]").count() == 0
    assert page.locator("#item-2 input").is_checked()
    assert "fresh" in page.locator("#item-2").get_attribute("class")
    assert page.evaluate("document.activeElement.closest('tr').id") == "item-2"
    for number in (90, 91, 91):
        shown.sent.texts.append(event("row", 2, id=f"item-{number}", html="<tr></tr>", new=True))
    page.locator("#news", has_text="2 new, show").wait_for()
    shown.sent.texts.append(event("part", 3, id="state", html="<b>paused</b>"))
    page.locator("[data-live=state] b").wait_for()
    shown.sent.texts.clear()
    page.locator("#news").click()
    # The page is loaded anew: its button is hidden from the start, its rows are chosen again by a script that runs a little later.
    expect(page, "() => document.querySelector('#news').hidden && document.querySelector('#item-2 input').checked")


def test_what_goes_on_is_said_now_and_then(page: Any, shown: Shown) -> None:
    page.clock.install()
    page.goto(f"{shown.base}/runs/{shown.ids['going']}")
    bar = '<svg class="ledger" role="img" aria-label="completed {}"></svg>'
    for number in range(3):
        shown.sent.texts.append(event("part", number, id="ledger", html=bar.format(number)))
    expect(page, "() => document.querySelector('[data-live=ledger] svg').getAttribute('aria-label') === 'completed 2'")
    assert page.locator("#announce").inner_text() == ""
    page.clock.fast_forward(5100)
    shown.sent.texts.append(event("part", 4, id="ledger", html=bar.format(9)))
    said(page, "completed 9")


def test_lost_connections_come_back_and_ended_ones_do_not(page: Any, shown: Shown) -> None:
    page.goto(shown.items("going"))
    row = '<tr id="item-1" data-href="/"><th data-column="label"><a href="/">other</a></th></tr>'
    shown.sent.texts.append(event("row", 7, id="item-1", html=row))
    page.locator("#item-1 a", has_text="other").wait_for()
    count = len(shown.sent.asked)
    shown.sent.texts.append("cut")
    page.locator("#item-1 a", has_text="item-0").wait_for(timeout=20_000)
    assert shown.sent.asked[count:] == ["7"]
    shown.sent.texts += [event("ended", 8), "cut"]
    page.wait_for_timeout(4000)
    assert len(shown.sent.asked) == count + 1


# --- For everybody


@pytest.mark.parametrize(
    ("scheme", "which"),
    [
        ("light", "main"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("light", "others"), ("dark", "main"), ("dark", "others"))
        ),
    ],
)
def test_accessible(page: Any, shown: Shown, scheme: str, which: str) -> None:
    """No rule of axe is broken in a way that it calls serious or critical. It has its own world, which no policy of the page holds."""
    page.emulate_media(color_scheme=scheme)
    script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    run, going = f"/runs/{shown.ids['first']}", f"/runs/{shown.ids['going']}"
    addresses = ["/", run, f"{run}/items#item=3", f"{run}/items/3"]
    addresses += [f"/compare?runs={shown.ids['first']},{shown.ids['second']}"]
    addresses += [f"/difference?a={shown.ids['first']}:1&b={shown.ids['second']}:3"]
    if which == "others":
        addresses = [f"{run}/items", f"{going}/items", "/help", "/search?q=one"]
        addresses += [f"{run}/items/3?tab={tab}" for tab in ("result", "timeline", "attempts", "raw")]
    broken = {}
    for address in addresses:
        page.goto("about:blank")
        page.goto(shown.base + address)
        if "#item" in address:
            in_panel(page, 3)
            page.locator("#item-2 input").check()
        page.evaluate(script)
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        for rule in found:
            if rule["impact"] in ("serious", "critical"):
                places = [node["html"][:160] + " | " + node["failureSummary"][:300] for node in rule["nodes"][:4]]
                broken[f"{address} {rule['id']} ({len(rule['nodes'])})"] = places
    assert broken == {}, json.dumps(broken, indent=1)


def test_scripts_of_a_page_are_small(shown: Shown) -> None:
    with urlopen(shown.items(), timeout=10) as answer:
        names = re.findall(r'<script src="/assets/([^"]+)"', answer.read().decode())
    assert "app.js" in names
    own = [name for name in names if not name.startswith("vendor/")]
    assert sum(len((files("manyhands.view") / "assets" / name).read_bytes()) for name in own) <= MAX_BYTES
