"""Reports as files: the same bytes twice, within their size, nothing asked for, nothing run, and readable with scripts off."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, sync_playwright

from manyhands.core.errors import UserError
from manyhands.engine.contract import BEHIND_INPUT
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Fact,
    Facts,
    Fold,
    Lane,
    Lanes,
    Link,
    Mark,
    Messages,
    Note,
    Section,
    Series,
    Span,
    Table,
    Text,
    Value,
)
from manyhands.runs.shown.run_view import PageInfo, RunView
from manyhands.view.static.document import write_document
from manyhands.view.static.item_choice import evenly
from manyhands.view.static.passing_on import STOPPING, PassingOn
from manyhands.view.static.run_document import write_run_report
from manyhands.view.static.run_folder import MARK, item_path, write_run_folder
from manyhands.view.static.run_pages import workload_pages
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.tokens import counter_named
from manyhands.workloads.memory.report.log_pages import log_blocks
from tests.support.batches import run_command
from tests.support.browsers import ARGUMENTS, CHROMIUM, needs_chromium
from tests.support.commands import batch_words, run, write_prompts
from tests.support.hostile_runs import hostile_runs
from tests.support.hostile_texts import HOSTILE_TEXTS
from tests.support.made_journals import MadeStep, made_journal, write
from tests.support.shown_runs import links_in, make_runs

FOLDS = "details.fold[data-filter-state]"
HANDLERS = "[...document.querySelectorAll('*')].some(e => [...e.attributes].some(a => a.name.startsWith('on') || a.name == 'style'))"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of every workload, by their names. They are made before the browser, whose driver keeps an event loop."""
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder)
    return {path.parent.name: path.parent for path in folder.rglob("run.db")}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of every workload in which all texts of others are hostile."""
    return hostile_runs(tmp_path_factory.mktemp("hostile"), 1, is_every=False)


@pytest.fixture(scope="module")
def driver(runs: dict[str, Path], hostile: list[Path]) -> Iterator[Browser]:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, path: Path, *, scripts: bool = True) -> Iterator[Page]:
    """A page from the disk. In the end it has asked for nothing but files of its folder, and nothing was reported."""
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    said: list[str] = []
    folder = path.parent.as_uri()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith(folder) else said.append(request.url[:200]))
    page.goto(path.as_uri())
    yield page
    page.wait_for_timeout(50)
    assert said == []
    context.close()


def document(*sections: Section, title: str = "Title", plain: bool = False) -> str:
    handle = BytesIO()
    write_document(handle, title, sections, about=("about",), plain=plain)
    return handle.getvalue().decode()


def report(folder: Path, **options: object) -> str:
    handle = BytesIO()
    write_run_report(handle, folder, **options)  # type: ignore[arg-type]
    return handle.getvalue().decode()


def ids(page: str) -> list[str]:
    return links_in(page)[1]


def leads(page: str) -> list[str]:
    """Where a page leads, but for what texts of others lead to by Markdown."""
    return [
        each for each in links_in(page)[0] if not each.startswith(("http://", "https://", "mailto:", "data:image/"))
    ]


# --- Documents


def every_block(text: str, number: int = 0) -> list[Block]:
    """A block of each kind with a text in all places."""
    cell = Cell(text, text, about=text, link=Link(item=3, query={"tab": text}))
    messages: list[Any] = [{"role": "user", "content": text}, {"role": "assistant", "content": text, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": text, "arguments": text}}]}]  # fmt: skip
    return [
        Facts([Fact(text, cell, text)], text),
        Table((Column("a", text, about=text), Column("b", text)), [(cell, Cell(text)), (Cell(text), Cell(text))], text, text,
              row_names=[text, "b"]),
        Chart("bars", text, [Series(text, [(text, 1.0)])], text, text, "name", marks=[Mark(0, text, "y")], about=text),
        Lanes(text, [Lane(text, [Span(0, 1, text, text, link=Link(anchor="there"))], Link(anchor="there"))], text, about=text),
        *(Text(text, text, form) for form in ("plain", "markdown", "json", "diff")),
        Note(text, "warn"),
        Messages(messages, text, [text, "b"], [text, text]),
        Value({"a": text, text: [text]}, text),
        Columns([[Note(text)], [Text(text)]]),
        Fold(text, [Note(text)], f"fold-{number}", [cell], {"state": text}),
    ]  # fmt: skip


@needs_chromium
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))])
def test_hostile_texts_in_all_places_of_a_document_do_nothing(driver: Browser, tmp_path: Path, part: int) -> None:
    all_texts = [text for text in HOSTILE_TEXTS.values() if len(text) < 3000]
    assert len(all_texts) > 300
    texts = all_texts[part::8]
    path = tmp_path / "d.html"
    sections = [Section(text, every_block(text, number), text) for number, text in enumerate(texts)]
    path.write_text(document(*sections, title=texts[0]), encoding="utf-8")
    with opened(driver, path) as page:
        assert page.evaluate("window.ran") is None
        assert page.locator("main > section").count() == len(texts)
        kinds = "main script, main iframe, main object, main form, main style, main link, main meta"
        assert page.locator(kinds).count() == 0
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.wait_for_timeout(300)
        assert page.evaluate("window.ran") is None


def test_links_of_a_document_lead_to_its_own_parts_only() -> None:
    links = [
        Link(item=1),
        Link(page="matrix"),
        Link(query={"state": "failed"}),
        Link(item=1, versus=2),
        Link(anchor="here"),
    ]
    rows = [(Cell(f"cell {number}", link=link),) for number, link in enumerate(links)]
    page = document(Section("s", [Table((Column("a", "a"),), rows), Fold("f", [], "here")]))
    assert [each for each in leads(page) if each != "#main"] == ["#here"]
    assert all(f"cell {number}" in page for number in range(len(links)))


def test_a_document_allows_nothing_but_its_own_style_and_scripts() -> None:
    page = document(Section("s", [Note("n")]))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 1 + page.count("<script>")
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")


def test_a_document_is_written_as_it_is_made() -> None:
    handle = BytesIO()
    sizes: list[int] = []

    def sections() -> Iterator[Section]:
        for number in range(3):
            sizes.append(len(handle.getvalue()))
            yield Section(f"section {number}", [Text("x" * 10_000)])

    write_document(handle, "t", sections())
    assert sizes[2] - sizes[1] > 10_000


@needs_chromium
def test_folds_of_several_sections_are_one_list(driver: Browser, tmp_path: Path) -> None:
    def fold(number: int) -> Fold:
        return Fold(f"fold {number}", [Text(f"word{number} said")], f"f{number}", filters={
            "status": "failed" if number % 3 == 0 else "passed", "target": f"t{number}"})  # fmt: skip

    rows = [(Cell(name), Cell(f"{number:,}", number)) for name, number in (("a", 2), ("b", 1_000), ("c", -3))]
    table = Table((Column("a", "a"), Column("n", "n", True)), rows)
    sections = [
        Section("above", [Note("n"), Fold("no filter", [Note("n")])]),
        Section("one", [fold(number) for number in range(10)]),
        Section("two", [Note("n"), *(fold(number) for number in range(10, 20)), Fold("f", [table], "last")]),
    ]  # fmt: skip
    path = tmp_path / "d.html"
    path.write_text(document(*sections), encoding="utf-8")
    shown = "details[data-filter-status]:visible"
    with opened(driver, path) as page:
        assert page.locator(".shown").inner_text() == "20 of 20 shown"
        page.locator("#filters input[value=passed]").uncheck()
        assert page.locator(shown).count() == 7
        page.locator("#filters select").select_option(label="t12 (1)")
        assert page.locator(f"{shown} > summary .title").all_inner_texts() == ["fold 12"]
        assert page.locator("section", has_text="one").first.is_hidden()
        page.locator("#filters select").select_option("0")
        page.locator("#filters input[type=search]").fill("WORD15  said")
        page.get_by_text("1 of 20 shown").wait_for()
        page.evaluate("location.hash = 'f3'")
        page.get_by_text("word3 said").wait_for()
        page.evaluate("location.hash = 'last'")
        head = page.locator("#last thead th.n button")
        head.click()
        assert page.locator("#last tbody th").all_inner_texts() == ["b", "a", "c"]
        head.press("Enter")
        assert page.locator("#last tbody th").all_inner_texts() == ["c", "a", "b"]
        assert page.locator("#last th.n").get_attribute("aria-sort") == "ascending"


# --- Runs


def test_a_report_of_every_workload(runs: dict[str, Path]) -> None:
    for name in ("b1", "e1", "j", "small"):
        page = report(runs[name])
        assert len(set(ids(page))) == len(ids(page))
        assert all(each.startswith("#") for each in leads(page))
        assert {each[1:] for each in leads(page)} <= set(ids(page))
        found = re.findall(r'<details class="fold" id="item-(\d+)"', page)
        assert found
        assert page.count("is not in this file") == 0
        assert {"items", "conversations"} <= set(ids(page))


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(runs: dict[str, Path], tmp_path: Path) -> None:
    program = "import sys; from manyhands.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for name in ("b1", "e1", "small"):
        made = []
        for seed in ("1", "2"):
            path = tmp_path / f"{name}-{seed}.html"
            words = [sys.executable, "-c", program, "report", str(runs[name]), "-o", str(path)]
            subprocess.run(
                words, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120, capture_output=True
            )
            made.append(path.read_bytes())
        assert made[0] == made[1]


def test_a_small_report_says_what_it_leaves_out(runs: dict[str, Path], tmp_path: Path) -> None:
    whole = report(runs["b1"])
    least = len(report(runs["b1"], select=["item=1"]).encode()) / 1e6
    page = report(runs["b1"], max_mb=least + 0.06)
    assert len(page.encode()) <= (least + 0.06) * 1e6
    shown, there = (len(re.findall(r'id="item-\d+"', each)) for each in (page, whole))
    assert 0 < shown < there
    assert f"{shown:,} of {there:,} conversations are in this file" in page
    assert "--select @FILE" in page
    assert "--max_mb" in page


def test_failed_items_come_first(runs: dict[str, Path]) -> None:
    page = report(runs["j"])
    conversations = page[page.index('id="conversations"') :]
    states = re.findall(r'data-filter-state="(\w+)"', conversations)
    assert states[0] == "failed"
    assert states == sorted(states, key=lambda state: state != "failed")


def test_lowest_scores_come_before_others(runs: dict[str, Path]) -> None:
    page = report(runs["e1"])
    scores = re.findall(
        r'<details class="fold" id="item-\d+".*?<span class="cell">(\d\.\d{3})</span></summary>', page, re.DOTALL
    )
    assert len(scores) > 4
    assert scores == sorted(scores)


def test_only_what_was_selected(runs: dict[str, Path], tmp_path: Path) -> None:
    page = report(runs["b1"], select=["item=2-3"])
    assert re.findall(r'id="item-(\d+)"', page) == ["2", "3"]
    keys = tmp_path / "keys"
    (key,) = re.findall(r'find it">([^<]*)<', report(runs["b1"], select=["item=2"]))
    keys.write_text(f"{unescape(key)}\n")
    assert re.findall(r'id="item-(\d+)"', report(runs["b1"], select=[f"@{keys}"])) == ["2"]
    with pytest.raises(UserError, match="no item"):
        report(runs["b1"], select=["key=none"])


@needs_chromium
def test_a_report_in_a_browser(runs: dict[str, Path], driver: Browser, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text(report(runs["b1"]), encoding="utf-8")
    with opened(driver, path) as page:
        count = page.locator(FOLDS).count()
        assert page.locator(f"{FOLDS}:visible").count() == count > 3
        page.locator("#items ~ section table a").first.click()
        assert page.locator(f"{FOLDS}[open]").count() == 1
        assert page.locator(f"{FOLDS}[open] .message").first.is_visible()
        assert not page.evaluate(HANDLERS.replace("'*'", "'main *:not(.u-wrap):not(.u-wrap *):not(.chart *)'"))
    with opened(driver, path, scripts=False) as page:
        assert page.locator("#filters").is_hidden()
        assert page.locator(f"{FOLDS}:visible").count() == count
        page.locator(FOLDS).first.locator("> summary").click()
        assert page.locator(f"{FOLDS}[open] .message").first.is_visible()


@needs_chromium
@pytest.mark.parametrize(
    ("number", "max_mb"),
    [
        (4, 2),
        pytest.param(2, 2, marks=pytest.mark.slow),
        *(pytest.param(number, 8, marks=[pytest.mark.slow, pytest.mark.timeout(600)]) for number in range(5)),
    ],
)
def test_runs_of_hostile_texts_do_nothing(
    driver: Browser, hostile: list[Path], tmp_path: Path, number: int, max_mb: int
) -> None:
    folder = hostile[number]
    path = tmp_path / "page.html"
    with path.open("wb") as handle:
        write_run_report(handle, folder, max_mb=max_mb)
    assert path.stat().st_size <= 1e6 * max_mb
    with opened(driver, path) as page:
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.wait_for_timeout(300)
        assert page.evaluate("window.ran") is None
        assert page.locator("main script, main iframe, main object, main form, main style, main link").count() == 0
        assert page.locator(FOLDS).count() > 0
    write_run_folder([folder], tmp_path / "folder", select=["item=1-20"])
    crawled(tmp_path / "folder")
    for each in sorted((tmp_path / "folder").rglob("*.html"))[:max_mb]:
        with opened_in(driver, each, tmp_path / "folder") as page:
            assert page.evaluate("window.ran") is None


# --- Folders


@contextmanager
def opened_in(browser: Browser, path: Path, folder: Path) -> Iterator[Page]:
    """A page of a folder, which asks for files of the folder only."""
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(folder.as_uri()) else said.append(asked.url[:200]))
    page.goto(path.as_uri())
    yield page
    assert said == []
    page.close()


def crawled(folder: Path) -> set[Path]:
    """The files that can be reached by links from the first page. Each link must lead to a place that there is."""
    reached: dict[Path, tuple[list[str], list[str]]] = {}
    waiting = [(folder / "index.html").resolve()]
    fragments: list[tuple[Path, str]] = []
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        page = path.read_text(encoding="utf-8") if path.suffix == ".html" else ""
        reached[path] = leads(page), ids(page)
        for lead in reached[path][0]:
            name, _, fragment = lead.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            assert target.is_relative_to(folder.resolve())
            assert target.is_file(), (path, lead)
            waiting.append(target)
            if fragment:
                fragments.append((target, fragment))
    assert [(path, name) for path, name in fragments if name not in reached[path][1]] == []
    return set(reached)


def test_a_folder_has_all_of_several_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "pages"
    written = write_run_folder([runs[name] for name in ("b1", "e1", "j", "small")], target)
    files = {path.resolve() for path in target.rglob("*") if path.is_file()}
    assert written.files == len(files)
    assert files - crawled(target) == {(target / MARK).resolve()}
    assert len(list(target.glob("runs/*/items/*/*.html"))) >= written.items
    assert item_path(1_234, 2) == "items/1/1234-2.html"
    before = {path.relative_to(target): path.read_bytes() for path in files and target.rglob("*") if path.is_file()}
    write_run_folder([runs[name] for name in ("b1", "e1", "j", "small")], target)
    assert {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


TOKEN = "ghp_" + "a1B2" * 9
_KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7\n" * 3 + "-----END RSA PRIVATE KEY-----"
_SAYS = [
    f"my token is {TOKEN}",
    f"```python\ntoken = '{TOKEN}'\n```",
    f'```python\nkey = """{_KEY}"""\n```',
    f"[a link](https://example.com/?token={TOKEN})",
    f'<b title="{TOKEN}">',
]


@pytest.fixture(scope="module")
def secret_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose prompts hold secrets."""
    folder = tmp_path_factory.mktemp("secrets")
    write_prompts(folder / "prompts.jsonl", _SAYS)
    ended = run(*batch_words(folder, executor="local", sandbox="local", simulated_latency=0))
    assert ended.code == 0, ended
    return folder / "r"


def _reports(run_folder: Path, target: Path, passing_on: PassingOn = STOPPING) -> str:
    """All that both forms of report hold of a run, as it is written and as it is read."""
    file = BytesIO()
    write_run_report(file, run_folder, passing_on=passing_on)
    write_run_folder([run_folder], target, passing_on=passing_on)
    pages = [path for path in target.rglob("*") if path.suffix in (".html", ".txt")]
    texts = [file.getvalue().decode(), *(path.read_text(encoding="utf-8") for path in pages)]
    return "".join(each for text in texts for each in (text, unescape(re.sub(r"<[^>]*>", "", text))))


def test_secrets_are_not_passed_on(secret_run: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"r item 1 holds what looks like a GitHub token; nothing was written. --redact"
    ):
        write_run_report(BytesIO(), secret_run)
    with pytest.raises(UserError, match=r"holds what looks like .*; nothing was written"):
        write_run_folder([secret_run], tmp_path / "pages")
    assert list(tmp_path.iterdir()) == []
    redacted = _reports(secret_run, tmp_path / "redacted", PassingOn(redact=True))
    assert TOKEN not in redacted
    assert "MIIEpAIBAAKCAQEA7" not in redacted
    assert redacted.count("[redacted]") >= 2 * len(_SAYS)
    assert TOKEN in _reports(secret_run, tmp_path / "kept", PassingOn(keep_secrets=True))


def test_a_report_does_not_say_on_which_machine_and_where_a_run_was(secret_run: Path, tmp_path: Path) -> None:
    kept = _reports(secret_run, tmp_path / "pages", PassingOn(keep_secrets=True))
    assert "process " in kept
    assert f"{socket.gethostname()}, process" not in kept
    assert str(secret_run.parent) not in kept
    assert "…/prompts.jsonl" in kept


def test_the_command_stops_at_a_secret(secret_run: Path, tmp_path: Path) -> None:
    words = ("report", str(secret_run), "-o", str(tmp_path / "r.html"))
    stopped = run(*words)
    assert (stopped.code, list(tmp_path.iterdir())) == (2, [])
    assert "holds what looks like a GitHub token" in stopped.err
    assert run(*words, "--redact").code == 0
    assert TOKEN not in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("name", ["thesis.txt", "runs/1/notes.html", "assets/link", "manyhands-report.txt.bak"])
def test_a_folder_to_which_something_was_added_is_not_replaced(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    target = tmp_path / "pages"
    write_run_folder([runs["small"]], target)
    added = target / name
    added.symlink_to(tmp_path) if name == "assets/link" else added.write_text("mine")
    with pytest.raises(UserError, match=f"holds {name}, which is no file of the report"):
        write_run_folder([runs["small"]], target)
    assert os.path.lexists(added)
    added.unlink()
    (target / "index.html").write_text("changed")
    write_run_folder([runs["small"]], target)
    assert (target / "index.html").read_text() != "changed"
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


@needs_chromium
def test_a_folder_in_a_browser(runs: dict[str, Path], driver: Browser, tmp_path: Path) -> None:
    target = tmp_path / "pages"
    write_run_folder([runs["b1"], runs["e1"]], target)
    with opened_in(driver, target / "index.html", target) as page:
        page.get_by_role("link", name="e1").click()
        page.get_by_role("link", name="Matrix").click()
        page.locator("td a").first.click()
        assert page.locator("h1").first.is_visible()
        page.get_by_role("link", name="Runs").click()
        assert page.url == (target / "index.html").as_uri()
        assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex"


def test_a_folder_of_others_is_left_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "file").write_text("x")
    with pytest.raises(UserError, match="no earlier report"):
        write_run_folder([runs["b1"]], tmp_path / "own")
    assert (tmp_path / "own" / "file").read_text() == "x"
    shutil.copytree(runs["b1"], tmp_path / "copy")
    with pytest.raises(UserError, match="is a copy of"):
        write_run_folder([runs["b1"], tmp_path / "copy"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- Parts


@given(st.lists(st.integers(), max_size=300, unique=True))
def test_an_even_choice_has_all_of_them(numbers: list[int]) -> None:
    assert sorted(evenly(numbers)) == sorted(numbers)


def test_an_even_choice_is_spread_from_the_beginning() -> None:
    for count in (4, 16, 50):
        chosen = sorted(list(evenly(range(1000)))[:count])
        gaps = [later - earlier for earlier, later in zip([0, *chosen], [*chosen, 999], strict=True)]
        assert max(gaps) <= 3 * 1000 / count


# --- The command


def test_the_command(runs: dict[str, Path], tmp_path: Path) -> None:
    ran = run_command(tmp_path, "report", str(runs["b1"]), "-o", "r.html")
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"r\.html: 0\.\d MB, \d+ items with conversations\n", ran.out)
    ran = run_command(tmp_path, "report", str(runs["b1"]), str(runs["e1"]), "--folder=f")
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"f/index\.html: 2 runs, \d+ items, \d+ files\n", ran.out)
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([str(runs["b1"])], "one of the arguments -o/--output --folder is required"),
        ([str(runs["b1"]), "-o", "r.txt"], "must end in .html"),
        ([str(runs["b1"]), str(runs["e1"]), "-o", "r.html"], "several runs"),
        ([str(runs["b1"]), "--folder=f", "--max_mb=3"], "--max_mb"),
        ([str(runs["b1"]), "-o", "r.html", "--max_mb=0"], "must be a number from 1"),
        (["none", "-o", "n.html"], "no run 'none'"),
        ([str(tmp_path / "empty"), "-o", "n.html"], "empty"),
        ([str(runs["b1"]), "-o", "n.html", "--select=key=none"], "no item is called"),
    ):
        ran = run_command(tmp_path, "report", *words)
        assert ran.code == 2, (words, ran)
        assert message in ran.err
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "n.html").exists()


def test_a_damaged_item_disturbs_no_other(runs: dict[str, Path], tmp_path: Path) -> None:
    import sqlite3

    shutil.copytree(runs["b1"], tmp_path / "b")
    with sqlite3.connect(tmp_path / "b" / "run.db") as connection:
        connection.execute("UPDATE items SET payload = x'00ff' WHERE number = 2")
    connection.close()
    page = report(tmp_path / "b")
    assert 'id="item-2"' in page
    assert page.count('id="item-') == report(runs["b1"]).count('id="item-')
    assert write_run_folder([tmp_path / "b"], tmp_path / "f").items > 2


# --- Pages of a workload that go on


class LogView(RunView):
    """A view whose one page is the log of a conversation of so many events."""

    def __init__(self, reader: JournalBrowser, count: int) -> None:
        super().__init__(reader)
        self._events = [Event(EventType.SEND_MESSAGE, float(n), "t", {"message": f"m{n}"}) for n in range(count)]

    def pages(self) -> list[PageInfo]:
        return [PageInfo("conversation", "Conversation", "")]

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        after = int(query.get("after", 0))
        yield Section("Conversation", log_blocks(self._events, counter_named("estimate"), after, {"item": "1"}))


def test_the_pages_of_a_log_are_joined_in_order(tmp_path: Path) -> None:
    with closing(JournalBrowser(made_journal(tmp_path / "run"))) as reader:
        for count in (0, 1, 100, 101, 250, 450, 1999):
            (page,) = workload_pages(LogView(reader, count), 100)
            blocks = [block for section in page.sections for block in section.blocks]
            said = [message["content"] for block in blocks if isinstance(block, Messages) for message in block.messages]
            assert said == [f"m{number}" for number in range(count)]


# --- Earlier attempts, and items that left the input


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A run whose first item is in its second attempt, and whose last one left the input."""
    steps = [MadeStep("count", {"mark": f"ATTEMPT-{attempt}"}, 1, attempt=attempt) for attempt in (1, 2)]
    steps += [MadeStep("count", {"mark": "ITEM-3"}, 1, item=3)]
    folder = made_journal(tmp_path / "run", steps, items=("a", "b", "gone"))
    write(folder, "UPDATE items SET attempt = 2 WHERE number = ?", (1,))
    write(folder, "INSERT INTO attempts VALUES (1, 1, ?, 'the prompt changed')", (5.0,))
    removed = "UPDATE items SET position = ?, state = 'cancelled', reason = 'removed' WHERE number = 3"
    write(folder, removed, (BEHIND_INPUT + 3,))
    return folder


def test_a_folder_has_all_attempts_and_items_that_left_the_input(edited: Path, tmp_path: Path) -> None:
    assert write_run_folder([edited], tmp_path / "f").items == 3
    items = tmp_path / "f" / "runs" / "1"
    latest = (items / item_path(1)).read_text()
    assert "ATTEMPT-2" in latest
    assert "ATTEMPT-1" not in latest
    (earlier,) = [link for link in leads(latest) if "attempt" in link]
    page = (items / "items" / "0" / earlier.rpartition("/")[2]).read_text()
    assert "ATTEMPT-1" in page
    assert "attempt <b>1</b> of 2" in page
    assert "ATTEMPT-2" not in page
    assert "ITEM-3" in (items / item_path(3)).read_text()
    assert crawled(tmp_path / "f") >= {path.resolve() for path in (tmp_path / "f").rglob("*.html")}


def test_an_attempt_without_steps_has_a_page_that_says_so(edited: Path, tmp_path: Path) -> None:
    write(edited, "DELETE FROM steps WHERE attempt = ?", (1,))
    write_run_folder([edited], tmp_path / "f")
    page = (tmp_path / "f" / "runs" / "1" / item_path(1, attempt="1")).read_text()
    assert "No step is recorded of this attempt." in page


def test_a_report_counts_what_left_the_input_and_earlier_attempts(edited: Path) -> None:
    page = report(edited)
    assert "1 item that the input does not name any more is not in this file." in page
    assert "The conversations of 1 earlier attempt of these items are not in this file; --folder has them." in page
    assert "there was no room" not in page
    assert "ATTEMPT-1" not in page
    assert re.search(r'<th scope="row"[^>]*>1</th>', page), "the earlier attempt leads nowhere"
    handle = BytesIO()
    contents = write_run_report(handle, edited)
    assert (contents.items, contents.conversations) == (2, 2)
    chosen = report(edited, select=["key=gone"])
    assert "ITEM-3" in chosen
    assert "not in this file" not in chosen
