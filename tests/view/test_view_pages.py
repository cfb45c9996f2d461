"""The pages of the viewer about real runs of all workloads: each has a JSON twin, every link leads somewhere, and none is heavy."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urldefrag, urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from manyhands.view.pages.compare import MAX_RUNS
from manyhands.view.pages.difference import MAX_PAIRS
from manyhands.view.pages.help import KEYS, WORDS
from tests.support.batches import run_command
from tests.support.browsers import ARGUMENTS, CHROMIUM
from tests.support.shown_runs import Shown, links_in, make_runs, shown_runs

MAX_PAGE = 150_000
"""Bytes of a page."""
KINDS = ("tab", "show", "only", "as", "sort", "state", "what")
"""Names in addresses whose values tell kinds of pages apart."""
FACTS = {
    "with a score in both": "matched",
    "in both, without a score in one of them": "unscored",
    "mean score of base": "base_mean",
    "mean score of candidate": "candidate_mean",
    "mean difference": "mean_delta",
    "p": "p_value",
    "p by signs": "sign_test_p_value",
    "smallest difference that could be seen": "smallest_detectable_effect",
    "wins": "wins",
    "losses": "losses",
    "ties": "ties",
    "independent tests": "clusters",
    "standard error": "standard_error",
    "confidence": "confidence",
    "power": "power",
}
"""Facts of the page that compares evaluations, and what their values are called in the command's JSON."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shown")
    make_runs(made)
    return made


@pytest.fixture(scope="module")
def shown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with shown_runs(folder, tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture(scope="module")
def ids(shown: Shown) -> dict[str, str]:
    return shown.ids()


def page(shown: Shown, target: str) -> str:
    got = shown.get(target)
    assert got.status == 200, (target, got.text)
    assert got.is_page
    return got.text


def blocks(value: Any, kind: str) -> list[dict[str, Any]]:
    """All blocks of a kind in JSON."""
    found: list[dict[str, Any]] = []
    if isinstance(value, dict):
        found += [value] if value.get("block") == kind else []
        value = list(value.values())
    if isinstance(value, list):
        found += [each for part in value for each in blocks(part, kind)]
    return found


# --- All pages


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("alike", "of_page", "least"), [(1, 8, 80), pytest.param(3, 25, 200, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_every_link_leads_to_a_page_with_a_twin_and_none_is_heavy(
    shown: Shown, ids: dict[str, str], alike: int, of_page: int, least: int
) -> None:
    """``alike``, ``of_page``: at most how many addresses of one shape, and of one page, are looked at."""
    waiting = ["/", "/help", "/search?q=t1", "/compare", f"/compare?runs={ids['b1']},{ids['b2']}"]
    waiting += [f"/difference?a={ids['b1']}:1", f"/compare?runs={ids['j']},{ids['k']}", f"/compare?runs={ids['small']}"]
    waiting += [f"/compare?runs={ids['e1']},{ids['e2']}&baseline=x&target=x"]
    seen, counts, pages = set(waiting), Counter[str](), 0
    broken: list[tuple[str, int, str]] = []
    heavy: dict[str, int] = {}
    while waiting:
        target = waiting.pop(0)
        got = shown.get(target)
        if got.status != 200:
            broken.append((target, got.status, got.text[:300]))
        if got.status != 200 or not got.is_page:
            continue
        pages += 1
        if len(got.body) > MAX_PAGE:
            heavy[target] = len(got.body)
        if (twin := shown.get(f"{target}{'&' if '?' in target else '?'}format=json")).status != 200:
            broken.append((f"{target} as JSON", twin.status, twin.text[:300]))
        found, names = links_in(got.text)
        for link in found:
            address, anchor = urldefrag(link)
            assert address.startswith("/") or not address, (target, link)
            assert address or anchor in names, (target, link)
            if address and address not in seen and is_new(address, counts, alike, of_page):
                seen.add(address)
                waiting.append(address)
    assert not broken
    assert not heavy
    assert pages > least


def is_new(target: str, counts: Counter[str], most_alike: int, most_of_page: int) -> bool:
    """Whether there are not many addresses like this one yet: that differ in numbers only, or in what is asked of a page."""
    parts = urlsplit(target)
    run = re.search(r"/runs/([^/]+)", parts.path)
    path = re.sub(r"\b\d+\b", "N", parts.path) + (run[1] if run else "")
    asked = parse_qsl(parts.query)
    values = [(name, value if name in KINDS else value.count(",") if name == "hide" else "") for name, value in asked]
    shape = path + str(sorted(set(values), key=str))
    if counts[shape] >= most_alike or counts[path] >= most_of_page:
        return False
    counts[shape] += 1
    counts[path] += 1
    return True


@pytest.mark.parametrize(
    "target",
    [
        "/runs/nothing",
        "/runs/nothing/export?as=csv",
        "/difference",
        "/difference?a=x",
        "/difference?a=x:1",
        "/difference?a=:1&b=:2",
        "/difference?a=x:999999999999999999999&b=x:1",
        "/compare?runs=nothing",
        "/compare?runs=nothing,nowhere",
    ],
)
def test_what_is_not_there_is_said(shown: Shown, target: str) -> None:
    got = shown.get(target)
    assert got.status == 404
    assert "Traceback" not in got.text


# --- Two items side by side


def test_two_samples_are_lined_up(shown: Shown, ids: dict[str, str]) -> None:
    target = f"/difference?a={ids['b1']}:1&b={ids['b1']}:2"
    twin = shown.twin(target)
    assert sum(twin["counts"].values()) == len(twin["pairs"])
    assert twin["left"]["item"] == 1
    assert twin["right"]["item"] == 2
    labels = [row[0]["text"] for table in blocks(twin["figures"], "table") for row in table["rows"]]
    assert {"State", "Tokens", "Cost", "Steps"} <= set(labels)
    text = page(shown, target)
    assert f"/runs/{ids['b1']}/items/1" in text
    assert "only differences" in text


def test_words_that_differ_are_marked_and_equal_turns_can_be_hidden(shown: Shown, ids: dict[str, str]) -> None:
    target = f"/difference?a={ids['b1']}:1&b={ids['b2']}:1"
    twin, changed = shown.twin(target), shown.twin(f"{target}&only=changed")
    assert twin["counts"] == changed["counts"]
    assert twin["counts"]["equal"] > 0
    assert {pair["kind"] for pair in changed["pairs"]} == {pair["kind"] for pair in twin["pairs"]} - {"equal"}
    text = page(shown, f"{target}&only=changed")
    assert "<del>" in text
    assert "<ins>" in text
    assert 'class="pair equal"' not in text


def test_an_item_does_not_differ_from_itself(shown: Shown, ids: dict[str, str]) -> None:
    twin = shown.twin(f"/difference?a={ids['e1']}:1&b={ids['e1']}:1")
    assert twin["counts"]["equal"] == len(twin["pairs"])
    assert {row[3]["text"] for row in blocks(twin["figures"], "table")[0]["rows"]} == {"="}


def test_long_conversations_are_in_pages(shown: Shown, ids: dict[str, str]) -> None:
    target = f"/difference?a={ids['small']}:1&b={ids['small']}:2"
    found, turn = [], 1
    while turn is not None:
        assert len(page(shown, f"{target}&turn={turn}")) < MAX_PAGE
        twin = shown.twin(f"{target}&turn={turn}")
        assert twin["shown"]["first"] == turn
        found += twin["pairs"]
        turn = twin.get("next")
    assert len(found) == sum(twin["counts"].values()) > MAX_PAIRS
    assert shown.twin(f"{target}&turn=100000")["pairs"] == []


def test_an_item_has_others_to_be_compared_with(shown: Shown, ids: dict[str, str]) -> None:
    text = page(shown, f"/difference?a={ids['b1']}:1")
    assert "in b2" in text
    assert "sample 2" in text


def test_what_a_dataset_holds_is_no_markup(shown: Shown, ids: dict[str, str]) -> None:
    for target in (f"/difference?a={ids['b1']}:5&b={ids['b2']}:3", "/search?q=%3Cb%3Efive"):
        text = page(shown, target)
        assert "<b>five" not in text
        assert "&lt;b&gt;five" in text


# --- Runs beside each other


@pytest.mark.parametrize("query", [{}, {"baseline": "x", "target": "x"}, {"baseline": "y", "target": "x"}])
@pytest.mark.parametrize("turned", [False, True])
def test_evaluations_are_compared_as_the_command_does(
    shown: Shown, ids: dict[str, str], folder: Path, query: dict[str, str], turned: bool
) -> None:
    names = ["e2", "e1"] if turned else ["e1", "e2"]
    places = [folder / f"evals{name[1]}" / "data" / name for name in names]
    options = {"baseline": "--base_target", "target": "--candidate_target"}
    chosen = [f"{options[which]}={target}" for which, target in query.items()]
    ran = run_command(folder, "eval", "compare", *map(str, places), "--json", "--fail_on=never", *chosen)
    expected = json.loads(ran.out)["summary"]
    asked = "".join(f"&{name}={value}" for name, value in query.items())
    twin = shown.twin(f"/compare?runs={ids[names[0]]},{ids[names[1]]}{asked}")
    facts = {fact["label"]: fact["cell"] for each in blocks(twin["sections"], "facts") for fact in each["facts"]}
    compared = {FACTS[label]: cell.get("value") for label, cell in facts.items() if label in FACTS}
    assert compared == {name: expected[name] for name in compared}
    assert {"matched", "base_mean", "candidate_mean", "mean_delta", "wins", "losses", "ties"} <= compared.keys()


def test_runs_have_their_figures_on_top(shown: Shown, ids: dict[str, str]) -> None:
    target = f"/compare?runs={ids['j']},{ids['k']}"
    twin = shown.twin(target)
    assert [run["run"] for run in twin["runs"]] == ["j", "k"]
    assert [run["ledger"]["failed"] for run in twin["runs"]] == [1, 0]
    text = page(shown, target)
    assert f'href="/compare?runs={ids["k"]}%2C{ids["j"]}"' in text
    assert "What differs" in text


def test_the_form_gives_runs_one_by_one(shown: Shown, ids: dict[str, str]) -> None:
    text = page(shown, f"/compare?runs={ids['b1']}")
    assert f'name="runs" value="{ids["b2"]}"' in text
    assert ids["e1"] not in text
    by_form = shown.twin(f"/compare?runs={ids['b1']}&runs={ids['b2']}")
    assert [run["run"] for run in by_form["runs"]] == ["b1", "b2"]
    assert by_form["sections"] == shown.twin(f"/compare?runs={ids['b1']},{ids['b2']}")["sections"]


def test_runs_of_several_workloads_are_not_compared(shown: Shown, ids: dict[str, str]) -> None:
    twin = shown.twin(f"/compare?runs={ids['b1']},{ids['e1']},nothing")
    assert [run["run"] for run in twin["runs"]] == ["b1"]
    assert len(twin["notes"]) == 2


def test_two_targets_of_one_run_are_compared(shown: Shown, ids: dict[str, str]) -> None:
    twin = shown.twin(f"/compare?runs={ids['e1']}&baseline=y&target=x")
    facts = {fact["label"]: fact["cell"] for each in blocks(twin["sections"], "facts") for fact in each["facts"]}
    assert facts["base"]["text"] == "e1, y"
    assert facts["candidate"]["text"] == "e1, x"


def test_there_may_be_many_runs(shown: Shown, ids: dict[str, str]) -> None:
    names = ",".join([ids["b1"], *map(str, range(3 * MAX_RUNS)), ids["b2"]])
    assert [run["run"] for run in shown.twin(f"/compare?runs={names}")["runs"]] == ["b1", "b2"]


# --- Search and help


def test_runs_are_found_by_name_and_items_by_what_they_are_called(shown: Shown, ids: dict[str, str]) -> None:
    assert [run["run"] for run in shown.twin("/search?q=SMALL")["runs"]] == ["small"]
    found = {each["run_id"]: each["items"] for each in shown.twin("/search?q=row-2")["items"]}
    assert found.keys() == {ids["j"], ids["k"]}
    assert [item["key"] for item in found[ids["j"]]] == ["row-2"]
    assert shown.twin("/search")["items"] == []


def test_items_are_found_by_words_where_there_is_an_index(shown: Shown, ids: dict[str, str]) -> None:
    twin = shown.twin("/search?q=count+files")
    assert twin["without_index"] == 0
    found = {each["run_id"]: each["items"] for each in twin["items"]}
    assert {item["input"] for item in found[ids["b1"]]} == {PROMPT}
    assert "Traceback" not in page(shown, '/search?q="(*')


PROMPT = "Count the files here."


def test_without_an_index_search_says_what_it_does_not_do(folder: Path, tmp_path: Path) -> None:
    with shown_runs(folder, tmp_path, with_index=False) as found:
        assert found.twin("/search?q=count+files")["without_index"] == 7
        assert "7 runs have no index" in page(found, "/search?q=count+files")


def test_help_has_all_keys_and_words(shown: Shown) -> None:
    text = page(shown, "/help")
    assert 'id="keys-off"' in text
    assert all(f"<dd>{does}</dd>" in text for _, does in KEYS)
    assert len(shown.twin("/help")["words"]) == len(WORDS)
    assert {"discarded", "attempt", "item", "sample", "step", "verdict"} <= {word for word, _ in WORDS}


# --- Files


def test_a_csv_has_the_columns_that_are_shown_and_no_formulas(shown: Shown, ids: dict[str, str]) -> None:
    got = shown.get(f"/runs/{ids['b1']}/export?as=csv&columns=item&columns=state&columns=input,tokens")
    assert got.headers["content-type"] == "text/csv"
    assert got.headers["content-disposition"] == 'attachment; filename="b1-items.csv"'
    assert got.body.startswith(b"\xef\xbb\xbf")
    lines = list(csv.DictReader(io.StringIO(got.body.decode("utf-8-sig"))))
    assert list(lines[0]) == ["item", "label", "state", "why", "input", "tokens"]
    assert [line["item"] for line in lines] == [str(number) for number in range(1, 9)]
    assert {line["input"] for line in lines} >= {"'=1+1", PROMPT}
    assert all(int(line["tokens"]) > 0 for line in lines)


def test_the_filters_hold_for_files(shown: Shown, ids: dict[str, str]) -> None:
    items = f"/runs/{ids['j']}/items?state=failed"
    keys = [item["key"] for item in shown.twin(items)["items"]]
    assert any("/export?" in link and "as=csv" in link for link in links_in(page(shown, items))[0])
    found = {form: shown.get(f"/runs/{ids['j']}/export?state=failed&as={form}") for form in ("csv", "jsonl", "keys")}
    assert found["keys"].text.splitlines() == keys == ["row-2"]
    (line,) = map(json.loads, found["jsonl"].text.splitlines())
    assert line["key"] == "row-2"
    assert line["state"] == "failed"
    assert {"payload", "record", "usage"} <= line.keys()
    assert len(list(csv.reader(io.StringIO(found["csv"].text)))) == 2


def test_a_file_is_of_all_pages(shown: Shown, ids: dict[str, str]) -> None:
    lines = shown.get(f"/runs/{ids['e1']}/export?as=jsonl").text.splitlines()
    assert [json.loads(line)["item"] for line in lines] == list(range(1, 17))
    assert shown.get(f"/runs/{ids['e1']}/export?as=jsonl", method="HEAD").body == b""


def test_filters_that_need_an_index_are_not_left_out_of_a_file(folder: Path, tmp_path: Path) -> None:
    with shown_runs(folder, tmp_path, with_index=False) as found:
        run = found.ids()["b1"]
        assert found.get(f"/runs/{run}/export?as=keys&text=count").status == 400
        assert found.get(f"/runs/{run}/export?as=keys&state=completed").status == 200
        assert found.get(f"/runs/{run}/export?as=pdf").status == 404


# --- With scripts off


@pytest.fixture(scope="module")
def browser(shown: Shown) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def plain(browser: Browser, shown: Shown) -> Iterator[Page]:
    """The list of runs, in a browser whose scripts are off."""
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(10_000)
    found = context.new_page()
    said: list[str] = []
    found.on("console", lambda message: said.append(message.text))
    found.goto(f"http://{shown.address.host}:{shown.address.port}/")
    yield found
    context.close()
    assert said == []


def test_without_scripts_runs_are_filtered_and_sorted(plain: Page) -> None:
    plain.select_option("select[name=workload]", "evals")
    plain.click("form.filters button[type=submit]")
    assert sorted(plain.locator("table.runs tbody th a").all_inner_texts()) == ["e1", "e2"]
    plain.click("table.runs thead a:has-text('Run')")
    assert plain.locator("table.runs tbody th a").all_inner_texts() == ["e1", "e2"]
    assert plain.locator("button:visible:text('Compare the chosen runs')").count() == 0, "it needs scripts"


def test_without_scripts_items_are_found_and_read(plain: Page) -> None:
    plain.click("text=b1")
    plain.click("nav.tabs >> text=Items")
    every = plain.locator("table.item-list tbody tr").count()
    plain.click("aside.facets a:has-text('completed')")
    assert 0 < plain.locator("table.item-list tbody tr").count() <= every
    assert plain.locator("a.chip").is_visible()
    plain.fill("input[name=text]", "nothing-has-this-word")
    plain.click("form.ranges button[type=submit]")
    assert plain.locator("table.item-list tbody tr").count() == 0
    plain.click("text=Show all")
    plain.fill("form.jump input", "3")
    plain.press("form.jump input", "Enter")
    assert plain.locator("table.item-list tbody tr").first.get_attribute("id") == "item-3"
    plain.locator("table.item-list tbody tr a").first.click()
    assert plain.locator(".conversation .message:visible").count() > 1
    tabs = plain.locator("nav.tabs.small a").all_inner_texts()
    assert {"Timeline", "Attempts", "Raw"} < set(tabs)
    for tab in tabs[1:]:
        plain.click(f"nav.tabs.small >> text={tab}")
        assert plain.locator("main").inner_text().strip()
    plain.click("a[rel=next]")


def test_without_scripts_charts_are_tables_and_evaluations_are_compared(plain: Page, ids: dict[str, str]) -> None:
    plain.click("text=e1")
    for link in plain.locator("nav.tabs a").all_inner_texts():
        plain.click(f'nav.tabs >> text="{link}"')
        assert plain.locator("main table:visible, main dl:visible, main form:visible, main p:visible").count() > 0
        for chart in plain.locator("figure.chart").all():
            chart.locator("summary").click()
            assert chart.locator("table").is_visible()
    plain.click('nav.tabs >> text="Compare"')
    plain.check("input[name=runs][type=checkbox] >> nth=0")
    plain.click("form.choices button[type=submit]")
    assert "mean difference" in plain.locator("main").inner_text().lower()
    plain.goto(f"{plain.url.partition('/compare')[0]}/difference?a={ids['b1']}:1&b={ids['b2']}:1")
    assert plain.locator("ins:visible").count() > 0
    plain.fill("input[name=q]", "t1")
    plain.press("input[name=q]", "Enter")
    assert "e1" in plain.locator("main").inner_text()


@pytest.mark.parametrize("names", [("b1", "e1", "j"), pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"])
def test_without_scripts_every_page_can_be_read(plain: Page, ids: dict[str, str], names: tuple[str, ...]) -> None:
    base = plain.url.rstrip("/")
    for name in names or ids:
        plain.goto(f"{base}/runs/{ids[name]}")
        for address in plain.locator("nav.tabs a").evaluate_all("(links) => links.map((each) => each.href)"):
            plain.goto(address)
            assert plain.locator("h1:visible").count() > 0
            assert len(plain.locator("main").inner_text()) > 20
