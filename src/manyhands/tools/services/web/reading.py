"""From the bytes of a file of the web to text for a model: pages as Markdown without menus, PDFs, and texts as they are.

Nobody knows who made the bytes: they are taken apart in a helper process, which is ended at its limit of time and memory.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from manyhands.core.errors import ToolError
from manyhands.processes.killable import killable

if TYPE_CHECKING:
    from manyhands.tools.services.web.fetching import Fetched

MAX_TEXT = 2_000_000
"""Characters of a text; the rest is cut off."""
SECONDS = 20.0
"""For taking a file apart."""
INSTALL = "pip install 'manyhands[web]'"
_PACKAGES = ("trafilatura", "lxml_html_clean", "markdownify", "pypdf", "protego")
_PAGES = ("text/html", "application/xhtml+xml")
_PDF = "application/pdf"
_TEXT = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|x-yaml|javascript|x-ndjson|toml|csv)")
_ANYTHING = ("", "application/octet-stream", "binary/octet-stream")
"""Types that say nothing."""
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset=["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_MAX_TITLE = 300
_HEAD = 4096
_GAPS = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Document:
    """A text for a model."""

    title: str
    text: str
    media_type: str
    """Of the file."""
    cut: bool = False
    """Whether more than ``MAX_TEXT`` characters were cut off."""


def missing_packages() -> bool:
    """Whether packages that this needs are not installed."""
    return any(find_spec(name) is None for name in _PACKAGES)


async def read_file(file: Fetched) -> Document:
    """The text of a file. Raises ToolError, whose message is for a model, if it has none that can be read."""
    kind = _kind(file)
    try:
        title, text = await killable(taken_apart, file.content, kind, file.charset, file.final_url, seconds=SECONDS)
    except TimeoutError:
        raise ToolError(f"{file.final_url} can't be read: it takes too long or too much memory to take apart") from None
    return Document(title, text[:MAX_TEXT], kind, len(text) > MAX_TEXT)


def _kind(file: Fetched) -> str:
    """The type of a file by its first bytes, where the server's word is worth nothing. Raises ToolError for types that are no texts."""
    start = file.content[:_HEAD].lstrip()
    if start.startswith(b"%PDF-"):
        return _PDF
    if file.media_type in _ANYTHING:
        if start[:1] == b"<":
            return "text/html"
        if b"\0" not in start:
            return "text/plain"
    if file.media_type in (*_PAGES, _PDF) or _TEXT.fullmatch(file.media_type):
        return file.media_type
    shown = file.media_type if file.media_type not in _ANYTHING else "a file of an unknown type"
    raise ToolError(f"{file.final_url} is {shown}, which has no text that can be read here")


def taken_apart(content: bytes, kind: str, charset: str | None, url: str) -> tuple[str, str]:
    """Title and text of a file. Raises ToolError. Runs in a helper process."""
    try:
        if kind == _PDF:
            return _pdf(content)
        text = decoded(content, charset)
        return _page(text, url) if kind in _PAGES else ("", text)
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - libraries raise all kinds of things for broken files
        raise ToolError(f"{url} can't be read: it is broken ({type(error).__name__})") from None


def decoded(content: bytes, charset: str | None) -> str:
    """Bytes as text: in the charset that their mark, the server or the page names if they are that, else in UTF-8 or Windows-1252."""
    declared = _CHARSET.search(content[:_HEAD])
    marks = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    marked = next((name for mark, name in marks.items() if content.startswith(mark)), None)
    for name in (marked, charset, declared and declared[1].decode("ascii"), "utf-8"):
        try:
            if name:
                return content.decode(name)
        except (LookupError, ValueError):
            continue
    return content.decode("windows-1252", "replace")


def _page(html: str, url: str) -> tuple[str, str]:
    from html import unescape

    import trafilatura

    found = _TITLE.search(html)
    title = " ".join(unescape(found[1]).split())[:_MAX_TITLE] if found else ""
    text = trafilatura.extract(
        html, url=url, output_format="markdown", include_links=True, include_tables=True, include_formatting=True
    )
    return title, text or _whole_page(html, url)


def _whole_page(html: str, url: str) -> str:
    """All that a page shows, with its menus."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(html, "lxml")
    for part in soup(["script", "style", "noscript", "template", "head", "svg"]):
        part.decompose()
    for link in soup("a", href=True):
        with suppress(ValueError):  # what is no address stays as it is
            link["href"] = urljoin(url, str(link["href"]))
    text = MarkdownConverter(heading_style="ATX", strip=["img"]).convert_soup(soup)
    return _GAPS.sub("\n\n", str(text)).strip()


def _pdf(content: bytes) -> tuple[str, str]:
    from io import BytesIO

    from pypdf import PdfReader

    reader = PdfReader(BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolError("the PDF can't be read without its password")
    parts, length = [], 0
    for page in reader.pages:
        parts.append(page.extract_text())
        length += len(parts[-1])
        if length > MAX_TEXT:
            break
    title = str((reader.metadata and reader.metadata.title) or "")
    text = "\n\n".join(parts)
    if not text.strip():
        raise ToolError("the PDF holds no text, but only pictures")
    return title[:_MAX_TITLE], text
