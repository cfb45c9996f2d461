"""The report of an evaluation as a browser shows it. Only where Chromium is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.batches import run_command
from tests.support.browsers import ARGUMENTS, CHROMIUM, needs_chromium

pytestmark = needs_chromium
EVAL = """\
tests:
  - {id: "<b>one</b>", input: q, criteria: c, assert: [{type: contains, value: made}]}
  - {id: two, input: a word like zebra, criteria: c, assert: [{type: contains, value: "no"}]}
  - {id: three, input: q, criteria: c, assert: [{type: code_judge, name: g, script: exit 1}]}
targets: {t: {provider: mock, response: "made up </script><img src=x onerror='document.title = 1'>"}}
"""
VISIBLE = "details.fold[data-filter-status]:visible > summary > .title"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "e.yaml").write_text(EVAL)
    run_command(folder, "eval", "e.yaml", "--quiet", "--output=r.html")
    return folder / "r.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def page(report: Path, browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text))
    opened.on("request", lambda request: problems.append(request.url) if request.url != report.as_uri() else None)
    opened.goto(report.as_uri())
    yield opened
    assert problems == []
    opened.close()


def test_filters(page: Page) -> None:
    assert page.locator(VISIBLE).all_inner_texts() == ["two", "three", "<b>one</b>"]
    assert page.locator(".shown").inner_text() == "3 of 3 shown"
    for box in page.locator("#filters input[data-filter=status]:not([value=failed])").all():
        box.uncheck()
    assert page.locator(VISIBLE).all_inner_texts() == ["two"]
    for box in page.locator("#filters input[data-filter=status]").all():
        box.check()
    page.locator("#filters input[type=search]").fill("ZEBRA word")
    page.get_by_text("1 of 3 shown").wait_for()
    assert page.locator(VISIBLE).all_inner_texts() == ["two"]


def test_the_plot_is_there_and_no_text_of_a_test_does_anything(page: Page) -> None:
    assert page.locator("#distribution figure.chart canvas").count() >= 1
    assert page.locator("main img, main script, main iframe").count() == 0
    assert page.title().startswith("eval-e-")


def test_a_test_opens_and_shows_what_was_said(page: Page) -> None:
    fold = page.locator("details.fold[data-filter-status=failed]")
    assert not fold.get_by_text("the answer does not contain").first.is_visible()
    fold.locator("> summary").click()
    assert fold.get_by_text("the answer does not contain").first.is_visible()


def test_without_scripts_everything_is_there(report: Path, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(report.as_uri())
    assert opened.locator(VISIBLE).count() == 3
    fold = opened.locator("details.fold[data-filter-status=failed]")
    fold.locator("> summary").click()
    assert fold.get_by_text("the answer does not contain").first.is_visible()
    assert opened.locator("#filters").is_hidden()
    context.close()
