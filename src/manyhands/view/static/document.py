"""A document: sections as one HTML file that asks for nothing, neither the network nor other files, and is readable with scripts off.

Its style and scripts stand in it; its content security policy names them by their hashes, so that nothing else can run or style anything.
The same sections give the same bytes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, BinaryIO

from markupsafe import Markup

from manyhands.core.text import printable
from manyhands.runs.shown.blocks import Fold, Section
from manyhands.view import charts
from manyhands.view.rendering import Renderer
from manyhands.view.static.static_links import StaticLinks

STYLES = ("app.css", "code.css", *charts.STYLES, "static.css")
SCRIPTS = (*charts.SCRIPTS, "static.js")
_NOTHING_ELSE = (
    "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def write_document(
    handle: BinaryIO, title: str, sections: Iterable[Section], *, about: Sequence[str] = (), plain: bool = False
) -> None:
    """Write sections as one HTML file, streamed: each is written before the next one is asked for.

    ``about``: lines below the title. ``plain``: texts of models are never taken for markdown, and no images are shown. Links lead to folds
    and sections of the document; all others are plain text. Folds that have ``filters`` are one list, whichever sections they are in: a bar
    above the first of them filters and searches it.
    """
    renderer = Renderer(StaticLinks(), plain=plain)
    values = {
        "title": printable(title),
        "about": about,
        "run": "",
        "sections": with_filter_bar(sections),
        **inline_parts(),
    }
    for part in renderer.streamed("static.html", values):
        handle.write(part.encode())


@cache
def resource(name: str) -> str:
    """The text of a file that pages need. Raises ValueError if it could not stand in a page."""
    text = files("manyhands.view").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
    if "\r" in text or "</" in text or "<!--" in text:
        raise ValueError(f"{name} can't stand inside of a page")
    return text


@cache
def inline_parts() -> Mapping[str, Any]:
    """What the template of a page that stands alone is given: the policy, the style, the scripts."""
    sheet = "".join(map(resource, STYLES))
    scripts = [resource(name) for name in SCRIPTS]
    hashes = " ".join(map(_hash, scripts))
    return {
        "policy": f"style-src {_hash(sheet)}; script-src {hashes}; {_NOTHING_ELSE}",
        "style": as_part(sheet),
        "style_files": (),
        "scripts": [as_part(script) for script in scripts],
        "script_files": (),
        "crumbs": (),
        "base": "",
    }


_BETWEEN = re.compile(
    r"(?<=>)\n+(?=</?(?:article|d[dlt]|details|div|fig\w+|h\d|header|li|nav|ol|p|pre|section|summary|t(?:able|body|head|[dhr])|ul)\b)"
)
_PRE = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)


def as_part(text: str) -> Markup:
    """A style or script of ours, or what templates made, to be put into a page as it is."""
    return Markup(text)


def without_blanks(text: str) -> str:
    """HTML of ours without the line breaks between elements, each of which a browser would keep as a text."""
    parts = _PRE.split(text)
    parts[::2] = (_BETWEEN.sub("", part) for part in parts[::2])
    return "".join(parts)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def with_filter_bar(sections: Iterable[Section]) -> Iterator[tuple[Section, bool]]:
    """Sections, each with whether the bar of filters stands above it: above the first one with folds that have filters."""
    is_placed = False
    for section in sections:
        is_first = not is_placed and any(isinstance(block, Fold) and block.filters for block in section.blocks)
        is_placed = is_placed or is_first
        yield section, is_first
