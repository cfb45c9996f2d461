"""HTML is made by templates that escape everything, and by the two modules that are meant for it; scripts put it into the page at one
place, through the policy of Trusted Types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

VIEW = Path(__file__).resolve().parents[2] / "src" / "manyhands" / "view"
MAY_MAKE_MARKUP = ("text.py", "charts.py", "static/document.py")
"""``static/document.py``: of our own style and scripts, which a page that stands alone holds."""
MAY_HOLD_SCRIPTS = "templates/static.html"
MAY_INSERT_HTML = "assets/app.js"
FORBIDDEN = {
    "text that is trusted to be HTML": re.compile(
        r"\bMarkup\s*[(.]|\|\s*safe\b|\bautoescape\s+false\b|\bautoescape\s*=\s*False\b"
    ),
    "HTML put into the page": re.compile(
        r"\b(?:inner|outer)HTML\s*(?:[+|&?]*)=(?!=)|\binsertAdjacentHTML\b|\bsrcdoc\b|\bdocument\.write|\bsetHTMLUnsafe\b"
    ),
    "text made a program": re.compile(r"\beval\s*\(|\bnew Function\b|\bset(?:Timeout|Interval)\s*\(\s*[\"'`]"),
    "a style in an element": re.compile(r"\bstyle\s*=\s*\\?[\"'{]|setAttribute\(\s*[\"']style"),
    "a handler in an element": re.compile(r"(?<![.\w])on[a-z]{3,}\s*=\s*\\?[\"'{]"),
    "a script in the page": re.compile(
        r"<script(?![^>]*\bsrc=)(?![^>]*\btype=\\?[\"']application/json)", re.IGNORECASE
    ),
    "an address of scripts": re.compile(r"javascript:", re.IGNORECASE),
}


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(VIEW.rglob("*")):
        name = path.relative_to(VIEW).as_posix()
        if (
            path.is_file()
            and path.suffix in {".py", ".html", ".j2", ".js", ".css", ".svg"}
            and "/vendor/" not in f"/{name}"
        ):
            yield name, path.read_text(encoding="utf-8")


def found(name: str, text: str) -> Iterator[str]:
    for what, pattern in FORBIDDEN.items():
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {line.strip()[:120]}"


def is_allowed(message: str) -> bool:
    name, _, what = message.partition(":")
    return (
        (name in MAY_MAKE_MARKUP and "trusted to be HTML" in what)
        or (name == MAY_INSERT_HTML and "HTML put into" in what)
        or (name == MAY_HOLD_SCRIPTS and "a script in the page" in what)
    )


def test_html_is_made_in_no_other_way() -> None:
    assert not [message for name, text in sources() for message in found(name, text) if not is_allowed(message)]


def test_scripts_insert_html_at_one_place_at_most() -> None:
    inserted = [
        message for name, text in sources() for message in found(name, text) if "HTML put into the page" in message
    ]
    assert len(inserted) <= 1


@pytest.mark.parametrize(
    "line",
    [
        "Markup(text)",
        "{{ text|safe }}",
        "{{ text | safe }}",
        "{% autoescape false %}",
        "element.innerHTML = text",
        "element.insertAdjacentHTML('beforeend', text)",
        "eval(text)",
        "setTimeout('x', 1)",
        '<p style="color: red">',
        "f'<p style=\"{x}\">'",
        '<a onclick="x()">',
        "<script>x()</script>",
        '<a href="javascript:x()">',
    ],
)
def test_each_other_way_is_found(line: str) -> None:
    assert list(found("templates/page.html", line))


@pytest.mark.parametrize(
    "line",
    [
        '<script src="/assets/app.js" defer></script>',
        '<script type="application/json" id="points">{{ points }}</script>',
        "element.style.height = `${height}px`",
        "def view(text: str) -> Markup:",
        'element.addEventListener("click", open)',
    ],
)
def test_what_is_right_is_not_found(line: str) -> None:
    assert not list(found("templates/page.html", line))
