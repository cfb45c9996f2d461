"""The report as a browser shows it. Only where Chromium is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.batches import run_command

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
EVAL = """\
tests:
  - {id: "<b>one</b>", input: q, criteria: c, assert: [{type: contains, value: made}]}
  - {id: two, input: a word like zebra, criteria: c, assert: [{type: contains, value: "no"}]}
  - {id: three, input: q, criteria: c, assert: [{type: code_judge, name: g, script: exit 1}]}
targets: {t: {provider: mock, response: "made up </script><img src=x onerror='document.title = 1'>"}}
"""


def dom(page: Path, script: str = "") -> str:
    """The page's elements after its scripts, and then ``script``, ran."""
    text = page.read_text().replace("</body>", f"<script>{script}</script></body>")
    changed = page.with_name("changed.html")
    changed.write_text(text)
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    done = subprocess.run([*words, "--dump-dom", changed.as_uri()], capture_output=True, timeout=100, check=True)
    return done.stdout.decode()


def shown(text: str) -> list[str]:
    """The ids of the tests that are not hidden."""
    tests = re.findall(r'<details class="test[^>]*>.*?</summary>', text, re.DOTALL)
    visible = [test for test in tests if "hidden" not in test.split(">")[0]]
    return [found[1] for test in visible if (found := re.search(r'class="id">(.*?) <span', test))]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "e.yaml").write_text(EVAL)
    run_command(folder, "eval", "e.yaml", "--quiet", "--output=r.html")
    return folder / "r.html"


def test_filters(page: Path) -> None:
    text = dom(page)
    assert shown(text) == ["&lt;b&gt;one&lt;/b&gt;", "two", "three"]
    assert "3 of 3 shown" in text
    failed_only = 'for (const box of boxes) { if (box.dataset.status !== "failed") box.click(); }'
    assert shown(dom(page, failed_only)) == ["two"]
    searched = dom(page, 'search.value = "ZEBRA word"; search.dispatchEvent(new Event("input"));')
    assert shown(searched) == ["two"]
    assert "1 of 3 shown" in searched


def test_the_plot_is_there_and_no_text_of_a_test_does_anything(page: Path) -> None:
    text = dom(page)
    assert len(re.findall(r'<rect class="bar"', text)) == 10
    assert "t: 2 scores" in text
    assert not re.search(r'(src|href)="', text)
    assert "<img" not in text
    assert re.search("<title>eval-e-.*</title>", text)


def test_a_test_opens_and_shows_what_was_said(page: Path) -> None:
    opened = """
      const test = tests.find((each) => each.dataset.status === "failed");
      const closed = test.getBoundingClientRect().height;
      test.querySelector("summary").click();
      document.title = test.open && test.getBoundingClientRect().height > closed + 100 ? "it opens" : "it does not";
    """
    text = dom(page, opened)
    assert "<title>it opens</title>" in text
    assert "the answer does not contain" in text
