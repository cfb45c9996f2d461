"""Texts of models, tools, files and people as HTML that shows them and does nothing else.

Every text is hostile. What comes out holds no element but ``span``, ``div``, ``a`` and those that Markdown makes, no attribute but
``class``, ``title``, ``href``, ``rel``, ``dir`` and ``start``, and no character that a reader can't see or that changes how others are
read: those stand as marks, ``<span class="mark" title="U+202E RIGHT-TO-LEFT OVERRIDE">``. The time that any of it takes grows with the
length of the text alone, and so does the size of what comes out. The colours are in ``assets/code.css``.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from html import escape
from importlib.util import find_spec
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup
from markupsafe import escape as as_html
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token as Kinds

from manyhands.core.jsonio import Json, dumps, loads_outside, without_surrogates
from manyhands.core.text import JOINED

MAX_MARKDOWN = 65_536
"""Characters of a text that is rendered as Markdown; longer ones are shown as they are."""
MAX_CODE = 200_000
"""Characters of a text that is coloured."""
MAX_SLOW_CODE = 8_000
"""The same for all code of one text in languages whose lexers may take long."""
MAX_PAGE_CODE, MAX_SLOW_PAGE_CODE = 1_000_000, 10 * MAX_SLOW_CODE
"""The same for all texts of a page: a page may show very many of them."""
MAX_PAGE_TEXT, _MIN_TEXT = 2_000_000, 2_000
"""Characters of all long texts and JSON values of a page, and what is shown of each at least."""
MAX_PRETTY = 400_000
"""Characters of JSON that is indented."""
MAX_IMAGE = 4_000_000
"""Bytes of an image that stands in a conversation."""
MAX_PIXELS = 25_000_000
"""Of such an image. A few bytes may be very many of them, and a browser holds four bytes for each."""
MAX_SPANS = 5_000
"""Marks and coloured stretches of one text; what comes after them is spelled out, or not coloured."""
_MAX_NESTING = 40
"""Lists, quotations and emphases of Markdown within each other."""
_MAX_BRACKETS = 1_000
"""Opening brackets in Markdown: each may begin a link whose end is looked for."""
_MAX_INDENT = 20
"""Levels of JSON that are indented; what is deeper stands as far to the right as these."""
_MAX_SEQUENCE = 200
"""Characters of a terminal's sequence that its mark names."""
_MAX_ADDRESS = 500
"""Characters of a link's address that are shown beside it; all of it is in its title."""
REL = "noopener noreferrer nofollow"


# --- Marks

_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # control characters of both sets, but for line ends and tabs; the soft hyphen
    "\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"  # no width, direction, fillers
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # variants, tags
    "\ud800-\udfff"  # halves of characters, which no encoding has
)
_SPECIAL = re.compile(
    f"([{_UNSEEN}])\\1*+|(?<![{JOINED}])[\u200c\u200d]|[\u200c\u200d](?![{JOINED}])|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]"
)
"""A run of one character that is not seen, a joiner that joins nothing, a variant of a variant."""
_CONTROL_NAMES: list[str] = re.findall(
    r"\w+",
    "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US",
)
_SHORT_NAMES = {
    0x007F: "DEL",
    0x00AD: "SHY",
    0x061C: "ALM",
    0x200B: "ZWSP",
    0x200C: "ZWNJ",
    0x200D: "ZWJ",
    0x200E: "LRM",
    0x200F: "RLM",
    0x2028: "LS",
    0x2029: "PS",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xFEFF: "BOM",
}


def _label(code: int) -> str:
    """What stands in the text in the place of a character that is not seen."""
    if code < len(_CONTROL_NAMES):
        return _CONTROL_NAMES[code]
    return "\ufffd" if 0xD800 <= code < 0xE000 else _SHORT_NAMES.get(code, f"U+{code:04X}")


@cache
def _title(code: int) -> str:
    if code < len(_CONTROL_NAMES):
        name = _CONTROL_NAMES[code]
    elif 0xD800 <= code < 0xE000:
        name = "LONE SURROGATE"
    else:
        name = unicodedata.name(chr(code), "CONTROL CHARACTER" if 0x7F <= code < 0xA0 else "")
    return f"U+{code:04X} {name}".rstrip()


class _Colouring:
    """How many characters of code may still be coloured."""

    def __init__(self, code: float, slow: float) -> None:
        self._left = {False: code, True: slow}

    def takes(self, length: int, *, is_slow: bool) -> bool:
        """Whether so many more may be."""
        self._left[is_slow] -= length
        return self._left[is_slow] >= 0


class _Page:
    """What there is still room for on a page."""

    def __init__(self, *, has_colours: bool) -> None:
        self.colouring = _Colouring(MAX_PAGE_CODE, MAX_SLOW_PAGE_CODE) if has_colours else _Colouring(0, 0)
        self.text = MAX_PAGE_TEXT

    def limit(self, limit: int) -> int:
        """How many characters of a text that may have so many are shown."""
        return min(limit, max(_MIN_TEXT, self.text))


_page: ContextVar[_Page | None] = ContextVar("page", default=None)


@contextmanager
def one_page(*, has_colours: bool = True) -> Iterator[None]:
    """Within it, no more code is coloured and no more of long texts is shown than what a page may take, whatever their number.
    ``has_colours``: whether any code is coloured."""
    before = _page.set(_Page(has_colours=has_colours))
    try:
        yield
    finally:
        _page.reset(before)


class _Escaper:
    """Escapes the parts of one text, and sees to it that they do not become many times as long by marks and colours."""

    def __init__(self) -> None:
        self._spans_left = MAX_SPANS
        self._colouring = _Colouring(math.inf, MAX_SLOW_CODE)
        self._page = _page.get()

    def escaped(self, text: str) -> str:
        return _SPECIAL.sub(self._marked, escape(text.replace("\r\n", "\n")))

    def span(self, class_: str, html: str) -> str:
        """Some HTML in an element of a class; as it is, if there are too many of them."""
        if not class_ or not html or self._spans_left <= 0:
            return html
        self._spans_left -= 1
        return f'<span class="{class_}">{html}</span>'

    def mark(self, label: str, title: str) -> str:
        if self._spans_left <= 0:
            return f"[{escape(label)}]"
        self._spans_left -= 1
        return f'<span class="mark" title="{_spelled(title)}">{escape(label)}</span>'

    def may_colour(self, length: int, max_length: int) -> bool:
        """Whether so many characters of code may be coloured, where ``max_length`` is the most of their language."""
        is_slow = max_length <= MAX_SLOW_CODE
        return (
            length <= max_length
            and self._colouring.takes(length, is_slow=is_slow)
            and (self._page is None or self._page.colouring.takes(length, is_slow=is_slow))
        )

    def _marked(self, found: re.Match[str]) -> str:
        count, code = len(found[0]), ord(found[0][0])
        if count == 1:
            return self.mark(_label(code), _title(code))
        return self.mark(f"{_label(code)}×{count:,}", f"{_title(code)} ×{count:,}")


def _spelled(text: str) -> str:
    """A text for an attribute: escaped, with ``U+FFFD`` for whatever is not seen."""
    return _SPECIAL.sub("\ufffd", escape(text)).replace("\n", " ")


# --- Plain text, and what terminals obey

_SEQUENCES = re.compile(
    "\r\n"
    "|(?:\x1b\\[|\x9b)(?:(?P<style>[0-9:;]*+)m|[0-?]*+[ -/]*+[@-~])"  # CSI: of these, SGR styles what follows
    "|(?:\x1b[P\\]X^_]|[\x90\x98\x9d-\x9f])(?P<string>[^\x07\x1b\x9c]*+)(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS and their like
    "|\x1b(?:[ -/]++[0-~]|[78=>cDEHMNOZ])"
)
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MAX_CODES = 32
_LOOKS = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "filled", 9: "struck", 21: "underline"}
_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("filled",), 29: ("struck",)}


class _Style:
    """How a terminal would show what comes next. Backgrounds are all alike, so that no text is hidden by its colours."""

    def __init__(self) -> None:
        self._looks: dict[str, None] = {}
        self._colour = ""
        self._background = False

    def classes(self) -> str:
        filled = ["filled"] if self._background and "filled" not in self._looks else []
        return " ".join(f"ansi-{name}" for name in (self._colour, *self._looks, *filled) if name)

    def obey(self, parameters: str) -> None:
        """Take the parameters of an SGR sequence (ECMA-48, section 8.3.117; 38 and 48 as xterm has them)."""
        codes = [int(each[:4] or 0) for each in re.split("[:;]", parameters, maxsplit=_MAX_CODES)[:_MAX_CODES]]
        position = 0
        while position < len(codes):
            code = codes[position]
            position += 1
            if code in (38, 48):
                name, taken = _extended(codes[position:])
                position += taken
                self._set_colour(code == 38, name)
            else:
                self._obey_code(code)

    def _obey_code(self, code: int) -> None:
        if code == 0:
            self.__init__()  # type: ignore[misc]
        elif code in _LOOKS:
            self._looks[_LOOKS[code]] = None
        elif code in _ENDS:
            for name in _ENDS[code]:
                self._looks.pop(name, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            self._set_colour(True, ("" if code < 90 else "bright-") + _COLOURS[code % 10])
        elif 40 <= code <= 47 or 100 <= code <= 107:
            self._background = True
        elif code == 39:
            self._colour = ""
        elif code == 49:
            self._background = False

    def _set_colour(self, is_foreground: bool, name: str) -> None:
        if is_foreground:
            self._colour = name
        else:
            self._background = True


def _extended(codes: Sequence[int]) -> tuple[str, int]:
    """The nearest named colour to one of 256 or of all, and how many codes name it."""
    if len(codes) >= 2 and codes[0] == 5:
        number = codes[1]
        if number < 16:
            return ("bright-" if number > 7 else "") + _COLOURS[number % 8], 2
        if number >= 232:
            return ("black", "bright-black", "white", "bright-white")[min(3, (number - 232) // 6)], 2
        cube = number - 16
        return _nearest([cube // 36 % 6 * 51, cube // 6 % 6 * 51, cube % 6 * 51]), 2
    if len(codes) >= 4 and codes[0] == 2:
        return _nearest(codes[1:4]), 4
    return "", len(codes)


def _nearest(rgb: Sequence[int]) -> str:
    bright = "bright-" if max(rgb) > 200 else ""
    threshold = max(64, max(rgb) // 2)
    return bright + _COLOURS[sum(1 << index for index, each in enumerate(rgb) if each > threshold)]


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """An element of HTML. Children that are not made by this module are texts. An attribute's name has ``_`` for ``-``, and one at its end
    if it is a word of Python; those that are None are left out."""
    given = ""
    for each, value in attributes.items():
        if value is not None:
            given += f' {_attribute_name(each)}="{as_html(value)}"'
    return Markup(f"<{name}{given}>{''.join(map(as_html, children))}</{name}>")


@cache
def _attribute_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def plain(text: str) -> Markup:
    """A text as it is, for an element that keeps line breaks.

    What styles text on a terminal becomes classes (``ansi-red``, ``ansi-bold``). What moves or clears there is dropped. What a terminal
    takes out of sight (titles, addresses of links, the clipboard) is a mark that names it.
    """
    return Markup(_plain(text, _Escaper()))


def _plain(text: str, escaper: _Escaper) -> str:
    if "\x1b" not in text and not _has_c1(text):
        return escaper.escaped(text)
    style, out, start = _Style(), [], 0
    for found in _SEQUENCES.finditer(text):
        if found[0] == "\r\n":
            continue
        out.append(escaper.span(style.classes(), escaper.escaped(text[start : found.start()])))
        start = found.end()
        if found["style"] is not None:
            style.obey(found["style"])
        elif found["string"] is not None:
            out.append(escaper.mark("ESC", f"terminal sequence: {_shortened(found['string'], _MAX_SEQUENCE)}"))
    out.append(escaper.span(style.classes(), escaper.escaped(text[start:])))
    return "".join(out)


def _has_c1(text: str) -> bool:
    return not text.isascii() and any(mark in text for mark in "\x90\x98\x9b\x9d\x9e\x9f")


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-(limit // 2) :]}"


# --- Markdown

_ADDRESS = re.compile(r"https?://[^/?#@\\]+(?:[/?#].*)?", re.IGNORECASE | re.DOTALL)
"""Nothing that could be taken for the host stands before it, as in ``https://bank.example@other.example``."""
_HEADINGS = {"h1": "h4", "h2": "h5", "h3": "h6"}
_ELEMENTS = set(
    re.findall(
        r"\w+", "div p br hr h4 h5 h6 blockquote ul ol li pre code em strong s a span table thead tbody tr th td"
    )
)
_ALIGNMENT = re.compile(r"text-align:(left|center|right)")


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:
        return _ADDRESS.fullmatch(url) is not None


@cache
def _parser() -> _Parser:
    parser = _Parser("commonmark", {"html": False, "maxNesting": _MAX_NESTING + 2})
    parser.enable(["table", "strikethrough"])
    return parser


class _Renderer(RendererHTML):
    """Makes HTML of Markdown's parts: its public methods are called by the names of the parts."""

    def __init__(self, escaper: _Escaper) -> None:
        super().__init__()
        self._escaper = escaper
        self._address = ""
        self.rules.pop("html_block")
        self.rules.pop("html_inline")

    @staticmethod
    def renderAttrs(token: Token) -> str:
        if token.type == "ordered_list_open":
            return f' start="{int(token.attrs["start"])}"' if "start" in token.attrs else ""
        aligned = _ALIGNMENT.fullmatch(str(token.attrs.get("style", "")))
        return f' class="align-{aligned[1]}"' if aligned else ""

    def text(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return self._escaper.escaped(tokens[idx].content)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f"<code>{self._escaper.escaped(tokens[idx].content)}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f"<pre><code>{_plain(tokens[idx].content, self._escaper)}</code></pre>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        language = tokens[idx].info.split(maxsplit=1)[:1]
        return f"<pre><code>{_code(tokens[idx].content, ''.join(language), self._escaper)}</code></pre>\n"

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        token = tokens[idx]
        text = self._escaper.escaped(self.renderInlineAsText(token.children, options, env))
        address = str(token.attrs.get("src", ""))
        return f"{self._escaper.mark('image', 'An image that is not loaded')} {text} {_link_open(address)}{self._shown(address)}</a>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        address = str(tokens[idx].attrs.get("href", ""))
        is_same = len(tokens) > idx + 2 and tokens[idx + 1].content == address and tokens[idx + 2].type == "link_close"
        self._address = "" if is_same else address
        return _link_open(address)

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        target = f' <span class="target">{self._shown(self._address)}</span>' if self._address else ""
        return f"</a>{target}"

    def _shown(self, address: str) -> str:
        return self._escaper.escaped(_shortened(address, _MAX_ADDRESS))


def _link_open(address: str) -> str:
    target = _spelled(address)
    return f'<a href="{target}" rel="{REL}" title="{target}">'


@cache
def _second_wall() -> Callable[[str], str] | None:
    """What takes everything out of HTML that Markdown does not make; None where it is not installed."""
    if find_spec("nh3") is None:
        return None
    import nh3

    cleaner = nh3.Cleaner(
        tags=_ELEMENTS,
        attributes={
            "a": {"href", "title"},
            "div": {"class", "dir"},
            "ol": {"start"},
            "span": {"class", "title"},
            "td": {"class"},
            "th": {"class"},
        },
        url_schemes={"http", "https"},
        link_rel=REL,
    )
    return cleaner.clean


def markdown(text: str) -> Markup:
    """A text in Markdown as a ``div`` of the class ``markdown``: CommonMark with tables, without HTML and images. An image is a link.

    A link leads to ``http`` and ``https`` only, and its target stands behind it; others stay as they are written. Without the library
    ``nh3``, which looks through what was made once more, and for texts that are too long or nested too deeply, it is the plain text in
    a ``div`` of the class ``plain``.
    """
    clean = _second_wall()
    tokens = _parsed(text) if clean is not None else None
    if clean is None or tokens is None:
        return Markup(f'<div class="plain" dir="auto">{plain(text)}</div>')
    html = _Renderer(_Escaper()).render(tokens, _parser().options, {})
    return Markup(clean(f'<div class="markdown" dir="auto">{html}</div>'))


def _parsed(text: str) -> list[Token] | None:
    if len(text) > MAX_MARKDOWN or text.count("[") > _MAX_BRACKETS:
        return None
    tokens = _parser().parse(without_surrogates(text))
    for token in tokens:
        if max(token.level, *(child.level for child in token.children or ()), 0) >= _MAX_NESTING:
            return None
        token.tag = _HEADINGS.get(token.tag, "h6" if token.type.startswith("heading") else token.tag)
    return tokens


# --- Code

_LEXERS = {
    "diff": ("diff", "patch"),
    "json": ("json", "jsonl"),
    "python": ("python", "py", "python3"),
    "sql": ("sql",),
    "toml": ("toml",),
}
"""Lexers that take linear time on any text, and the names of their languages."""
_SLOW_LEXERS = {
    "bash": ("bash", "sh", "shell", "zsh"),
    "css": ("css",),
    "go": ("go", "golang"),
    "html": ("html",),
    "javascript": ("javascript", "js"),
    "rust": ("rust", "rs"),
    "typescript": ("typescript", "ts"),
    "xml": ("xml",),
    "yaml": ("yaml", "yml"),
}
"""Those that take quadratic time on some texts."""
_LANGUAGES = {name: (lexer, MAX_CODE) for lexer, names in _LEXERS.items() for name in names} | {
    name: (lexer, MAX_SLOW_CODE) for lexer, names in _SLOW_LEXERS.items() for name in names
}
_CLASSES = {
    Kinds.Comment: "c",
    Kinds.Generic.Deleted: "gd",
    Kinds.Generic.Heading: "gh",
    Kinds.Generic.Inserted: "gi",
    Kinds.Generic.Subheading: "gu",
    Kinds.Keyword: "k",
    Kinds.Literal.Number: "m",
    Kinds.Literal.String: "s",
    Kinds.Name.Attribute: "na",
    Kinds.Name.Builtin: "nb",
    Kinds.Name.Class: "nc",
    Kinds.Name.Decorator: "nd",
    Kinds.Name.Function: "nf",
    Kinds.Name.Tag: "nt",
    Kinds.Operator.Word: "k",
}


def code(text: str, language: str) -> Markup:
    """A text in a language (``json``, ``diff``, ``python``, ``bash`` and others by their usual names) with the classes of its parts
    (``tok-s``), for a ``pre``; as ``plain`` if the language is another one or the text is too long: beyond 200,000 characters, or 8,000 of
    languages on whose texts that may take long."""
    return Markup(_code(text, language, _Escaper()))


def _code(text: str, language: str, escaper: _Escaper) -> str:
    name, max_length = _LANGUAGES.get(language.lower(), ("", 0))
    if not name or not escaper.may_colour(len(text), max_length):
        return _plain(text, escaper)
    return "".join(escaper.span(class_, escaper.escaped(part)) for class_, part in _parts(text, name))


@cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


def _parts(text: str, name: str) -> Iterable[tuple[str, str]]:
    """The text in parts of one class each. Lexers get it with a line break at its end: some look for one from every character on."""
    text = text.replace("\r\n", "\n")
    left, class_ = len(text), ""
    part: list[str] = []
    for _, kind, value in _lexer(name).get_tokens_unprocessed(f"{text}\n"):
        own = _class_of(kind)
        if own != class_ and part:
            yield class_, "".join(part)
            part = []
        class_ = own
        part.append(value[:left])
        left -= len(part[-1])
    yield class_, "".join(part)


@cache
def _class_of(kind: Any) -> str:
    found: Any = kind
    while found is not None and found not in _CLASSES:
        found = found.parent
    return "" if found is None else f"tok-{_CLASSES[found]}"


# --- JSON

_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]\s*[\]}]|[][{},:]|[^][{},:"\s]++', re.DOTALL)


def pretty_here(value: Json) -> str:
    """As ``pretty_json``, and as much as there is room for on the page."""
    page = _page.get()
    if page is None:
        return pretty_json(value)
    shown = pretty_json(value, page.limit(MAX_PRETTY))
    page.text -= len(shown)
    return shown


def pretty_json(value: Json, limit: int = MAX_PRETTY) -> str:
    """JSON with line breaks and indentation. A text is taken for JSON text and stays what it is but for its blanks: numbers as they are
    written, names that come twice. One that is no JSON object or list, or a broken one, is given back unchanged. Of what would become
    longer than ``limit`` the beginning, with how much of the JSON is left out."""
    if not isinstance(value, str):
        try:
            return _indented(dumps(value).decode(), limit)
        except RecursionError:
            return "JSON that is nested too deeply"
    if value.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return beginning(value, limit)
    if len(value) > MAX_PRETTY:
        return beginning(
            value, limit
        )  # to look whether all of it is JSON may take as much memory as 30 times its length
    try:
        loads_outside(value)
    except (ValueError, RecursionError):
        return beginning(value, limit)
    return _indented(value, limit)


def _indented(document: str, limit: int) -> str:
    out: list[str] = []
    depth = size = place = 0
    for found in _JSON_PARTS.finditer(document, 0, limit):
        if size > limit or document[place : found.start()].strip():
            break  # the latter before a text that goes on behind the limit
        place, part, before = found.end(), found[0], len(out)
        if part in ("{", "["):
            depth += 1
            out += (part, _line(depth))
        elif part in ("}", "]"):
            depth -= 1
            out += (_line(depth), part)
        elif part == ",":
            out += (part, _line(depth))
        elif part == ":":
            out.append(": ")
        else:
            out.append("".join(part.split()) if part[0] in "{[" else part)
        size += sum(map(len, out[before:]))
    if size <= limit:
        out.append(document[place:limit].rstrip())
        place = max(place, limit)
    return f"{''.join(out)}{left_out(len(document) - place)}"


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_INDENT)


# --- Images

_DATA_IMAGE = re.compile(r"data:image/(?:png|jpe?g|gif|webp);base64,", re.IGNORECASE)
_MAX_PARTS = 2_000
"""Of an image, in front of what says its size."""
_SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}


def safe_data_image(url: str) -> str | None:
    """The ``data:`` address of a PNG, JPEG, GIF or WebP image of at most 4 MB and 25 million pixels, with the type that its first bytes
    say; None for any other address, SVG among them, and for an image whose size can't be told."""
    start = _DATA_IMAGE.match(url[:40])
    if start is None or len(url) > MAX_IMAGE * 3 // 2:
        return None
    try:
        data = base64.b64decode("".join(url[start.end() :].split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = next((kind for kind, signature in _SIGNATURES.items() if data.startswith(signature)), None)
    if kind is None or (kind == "webp" and data[8:12] != b"WEBP") or len(data) > MAX_IMAGE:
        return None
    try:
        width, height = _SIZES[kind](data)
    except (struct.error, IndexError, ValueError):
        return None
    if not 0 < width * height <= MAX_PIXELS:
        return None
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _png_size(data: bytes) -> tuple[int, int]:
    """Width and height (PNG, third edition, section 11.2.1)."""
    if data[12:16] != b"IHDR":
        raise ValueError("its first chunk is no header")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif_size(data: bytes) -> tuple[int, int]:
    """Of the screen, or of the first picture where that is larger: browsers make room for it (GIF89a, sections 18 to 26)."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + (6 << (flags & 7) if flags & 0x80 else 0)
    for _ in range(_MAX_PARTS):
        if data[place] == 0x2C:
            left, top, own_width, own_height = struct.unpack_from("<HHHH", data, place + 1)
            return max(width, left + own_width), max(height, top + own_height)
        if data[place] != 0x21:
            break
        place += 2
        for _ in range(_MAX_PARTS):  # the parts of an extension, each behind its length
            length = data[place]
            place += 1 + length
            if not length:
                break
    raise ValueError("it holds no picture")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Of the frame header, behind any number of other segments (ITU T.81, annex B)."""
    place = 2
    for _ in range(_MAX_PARTS):
        mark, kind, length = struct.unpack_from(">BBH", data, place)
        if mark != 0xFF:
            break
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        place += 1 if kind == 0xFF else 2 + length
    raise ValueError("it has no frame header")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Of the canvas, or of the only picture (RFC 9649, sections 2.5 to 2.7)."""
    kind = data[12:16]
    if kind == b"VP8X":
        width, more_width, height, more_height = struct.unpack_from("<HBHB", data, 24)
        return 1 + (width | more_width << 16), 1 + (height | more_height << 16)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind != b"VP8 ":
        raise ValueError("it holds no picture")
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


_SIZES: Mapping[str, Callable[[bytes], tuple[int, int]]] = {
    "png": _png_size,
    "jpeg": _jpeg_size,
    "gif": _gif_size,
    "webp": _webp_size,
}


# --- Lengths and names


def left_out(count: int) -> str:
    """What stands behind the beginning of a text: how many characters are missing."""
    return f"\n… ({count:,} more characters)" if count > 0 else ""


def beginning_here(text: str, limit: int) -> str:
    """As ``beginning``, and as much as there is room for on the page."""
    page = _page.get()
    if page is not None:
        limit = page.limit(limit)
        page.text -= min(len(text), limit)
    return beginning(text, limit)


def beginning(text: str, limit: int) -> str:
    """A text, or of one that is longer than ``limit`` the beginning, which says so."""
    return f"{text[:limit]}{left_out(len(text) - limit)}"
