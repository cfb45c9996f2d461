"""Texts as HTML: nothing in them does anything, nothing of them is lost, and it takes no longer than they are long."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from manyhands.runs.shown.blocks import Text
from manyhands.view import text as view_text
from manyhands.view.links import Links
from manyhands.view.rendering import Renderer
from manyhands.view.text import (
    MAX_CODE,
    MAX_MARKDOWN,
    MAX_SLOW_CODE,
    MAX_SLOW_PAGE_CODE,
    MAX_SPANS,
    code,
    markdown,
    plain,
    pretty_json,
    safe_data_image,
)
from tests.support.hostile_texts import HOSTILE_TEXTS

CSS = Path(view_text.__file__).parent / "assets" / "code.css"
MARKDOWN_ELEMENTS = frozenset(
    re.findall(
        r"\w+", "div p br hr h4 h5 h6 blockquote ul ol li pre code em strong s a span table thead tbody tr th td"
    )
)
ATTRIBUTES = frozenset({"class", "title", "href", "rel", "dir", "start"})
CLASSES = re.compile(r"(?:mark|target|plain|markdown|align-\w+|(?:ansi|tok)-[a-z-]+)(?: ansi-[a-z-]+)*")
LANGUAGES = (
    "json",
    "diff",
    "python",
    "bash",
    "sql",
    "toml",
    "rust",
    "html",
    "javascript",
    "yaml",
    "css",
    "xml",
    "go",
    "ts",
)
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_short = sorted(HOSTILE_TEXTS.values(), key=len)[: len(HOSTILE_TEXTS) * 9 // 10]
hostile = st.integers(0, len(_short) - 1).map(_short.__getitem__)
characters = st.characters(codec=None) | st.sampled_from(
    "\0\r\n\t\x1b[];m0319<>&\"'`*_[]()!|#-\u202e\u200b\u200d\ud800\udfff\u2028\ufe0f😀"
)
texts = (
    st.text(characters, max_size=200)
    | hostile
    | st.lists(hostile | st.text(characters, max_size=20), max_size=3).map("".join)
)


class Reader(HTMLParser):
    """What HTML says, and of what it is made."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        """With each mark as the characters that it stands for."""
        self._marked = ""
        self._open: list[str] = []
        self.feed(str(html))
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given_attributes = {name: value or "" for name, value in attrs}
        assert len(given_attributes) == len(attrs)
        self.elements.add(tag)
        self.attributes += [(tag, name, value) for name, value in given_attributes.items()]
        if tag not in {"br", "hr"}:
            self._open.append(tag)
        mark = re.match(r"U\+([0-9A-F]+).*?(?: ×([0-9,]+))?$", given_attributes.get("title", ""))
        if given_attributes.get("class") == "mark" and mark:
            self._marked = chr(int(mark[1], 16)) * int((mark[2] or "1").replace(",", ""))
            self.text += self._marked

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._marked = ""

    def handle_data(self, data: str) -> None:
        if not self._marked:
            self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"instruction: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"declaration: {data}")


def check(html: str, elements: frozenset[str] = frozenset({"span"})) -> Reader:
    """Holds HTML against what may be in it."""
    html.encode()
    assert not UNSEEN.search(html)
    reader = Reader(html)
    assert reader.elements <= elements
    for tag, name, value in reader.attributes:
        assert name in ATTRIBUTES
        if name == "class":
            assert CLASSES.fullmatch(value)
        elif name == "href":
            assert tag == "a"
            assert re.match(r"https?://[^/?#@\\]+(?:[/?#]|$)", value, re.IGNORECASE)
        elif name == "rel":
            assert value == "noopener noreferrer nofollow"
        elif name == "start":
            assert value.isdecimal()
    return reader


# --- plain


@given(texts)
def test_plain_text_is_nothing_but_marked_text(text: str) -> None:
    check(plain(text))


@given(texts.filter(lambda text: not re.search("[\x1b\x90\x98\x9b\x9d-\x9f]", text)))
def test_plain_text_is_kept(text: str) -> None:
    expected = text.replace("\r\n", "\n")
    reader = check(plain(text))
    if len(reader.attributes) < 2 * MAX_SPANS:
        assert reader.text == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["\x1b[31m", "\x1b[1;44m", "\x1b[0m", "\x1b[2K", "\x1b[?25l", "\x1b(B", "\x9b4m"]),
            st.text("ab <&\n"),
        )
    )
)
def test_text_between_sequences_is_kept(pieces: list[tuple[str, str]]) -> None:
    assert check(plain("".join(sequence + text for sequence, text in pieces))).text == "".join(
        text for _, text in pieces
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a <b> & \"c\" 'd'", "a &lt;b&gt; &amp; &quot;c&quot; &#x27;d&#x27;"),
        ("a\u202eb", 'a<span class="mark" title="U+202E RIGHT-TO-LEFT OVERRIDE">RLO</span>b'),
        ("a\0", 'a<span class="mark" title="U+0000 NUL">NUL</span>'),
        ("\ud800", '<span class="mark" title="U+D800 LONE SURROGATE">\ufffd</span>'),
        ("\0" * 1234, '<span class="mark" title="U+0000 NUL ×1,234">NUL×1,234</span>'),
        ("a\r\nb\tc\n", "a\nb\tc\n"),
        ("a\rb", 'a<span class="mark" title="U+000D CR">CR</span>b'),
        (
            "\x1b[31mred\x1b[1m bold\x1b[0m.",
            '<span class="ansi-red">red</span><span class="ansi-red ansi-bold"> bold</span>.',
        ),
        ("\x1b[91;4mx\x1b[24;39my", '<span class="ansi-bright-red ansi-underline">x</span>y'),
        ("\x1b[30;40mx", '<span class="ansi-black ansi-filled">x</span>'),
        ("\x1b[8mhidden", "hidden"),
        ("\x1b[38;5;9mx", '<span class="ansi-bright-red">x</span>'),
        ("\x1b[38;5;28mx\x1b[38;5;240my", '<span class="ansi-green">x</span><span class="ansi-bright-black">y</span>'),
        ("\x1b[38;2;250;10;10;1mx", '<span class="ansi-bright-red ansi-bold">x</span>'),
        ("\x1b[mx\x1b[2J\x1b[Hy\x1b(Bz", "xyz"),
        ("\x1b]0;title\x07x", '<span class="mark" title="terminal sequence: 0;title">ESC</span>x'),
        ('\x1b]0;"><b>\x1b\\x', '<span class="mark" title="terminal sequence: 0;&quot;&gt;&lt;b&gt;">ESC</span>x'),
        ("\x1b]0;never", '<span class="mark" title="U+001B ESC">ESC</span>]0;never'),
        ("👨\u200d👩 a\u200db", '👨\u200d👩 a<span class="mark" title="U+200D ZERO WIDTH JOINER">ZWJ</span>b'),
        ("❤\ufe0f", "❤\ufe0f"),
    ],
)
def test_plain_text_of(text: str, html: str) -> None:
    assert plain(text) == html


def test_marks_are_bounded() -> None:
    html = plain("\0\1" * 100_000)
    assert html.count("<span") == MAX_SPANS
    assert len(html) < 1_500_000
    assert html.endswith("[SOH]")


# --- Markdown


@given(texts)
def test_markdown_is_of_harmless_elements(text: str) -> None:
    check(markdown(text), MARKDOWN_ELEMENTS)


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_hostile_text(name: str) -> None:
    text = HOSTILE_TEXTS[name]
    assert len(text) <= MAX_MARKDOWN
    start = perf_counter()
    check(markdown(text), MARKDOWN_ELEMENTS)
    check(plain(text))
    for language in ("json", "html"):
        check(code(text, language))
    check(pretty_json_html(text))
    assert perf_counter() - start < 5


def pretty_json_html(text: str) -> Markup:
    return plain(pretty_json(text) + pretty_json({text: [text]}))


def test_there_are_many_hostile_texts_and_each_is_another_one() -> None:
    assert len(HOSTILE_TEXTS) >= 300
    assert len(set(HOSTILE_TEXTS.values())) >= 0.97 * len(HOSTILE_TEXTS)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** _b_ ~~c~~ `d`", "<p><strong>a</strong> <em>b</em> <s>c</s> <code>d</code></p>"),
        ("# a", "<h4>a</h4>"),
        ("3. a\n4. b", '<ol start="3">\n<li>a</li>\n<li>b</li>\n</ol>'),
        ("<b onclick=x>a</b>", "<p>&lt;b onclick=x&gt;a&lt;/b&gt;</p>"),
        ("[a](javascript:x)", "<p>[a](javascript:x)</p>"),
        ("[a](https://b@c/)", "<p>[a](https://b@c/)</p>"),
        ("a\u202eb &#x202e;", None),
        ("a\0b", "<p>a\ufffdb</p>"),
    ],
)
def test_markdown_of(text: str, html: str | None) -> None:
    made = markdown(text)
    assert made.startswith('<div class="markdown" dir="auto">')
    if html is None:
        assert made.count("U+202E RIGHT-TO-LEFT OVERRIDE") == 2
    else:
        assert html in made


def test_the_target_of_a_link_is_shown() -> None:
    made = markdown("[your bank](https://аррӏе.com/x) <https://a.example/b>")
    assert '<span class="target">https://xn--80ak6aa92e.com/x</span>' in made
    assert made.count('class="target"') == 1
    assert made.count('rel="noopener noreferrer nofollow"') == 2


def test_an_image_is_a_link() -> None:
    made = markdown("![a *cat*](https://a.example/b.png)")
    assert "<img" not in made
    assert 'a cat <a href="https://a.example/b.png"' in made
    assert ">https://a.example/b.png</a>" in made


def test_a_fence_is_coloured() -> None:
    assert '<pre><code><span class="tok-k">def</span>' in markdown("```python\ndef f(): ...\n```")


@pytest.mark.parametrize("text", ["a\n" * MAX_MARKDOWN, ">" * 100 + "*a*", "[" * 5000, "*a _b " * 200 + "c_ d*" * 200])
def test_markdown_without_bounds_is_plain(text: str) -> None:
    assert markdown(text) == f'<div class="plain" dir="auto">{plain(text)}</div>'


def test_nothing_of_deep_markdown_is_lost() -> None:
    for depth in range(1, 60):
        assert "inner" in markdown(">" * depth + " inner")
        assert "inner" in markdown("\n".join("  " * level + "- inner" for level in range(depth))).split("<li>")[-1]


def test_without_the_second_wall_markdown_is_plain(tmp_path: Path) -> None:
    """Where the library is not installed: an interpreter whose search for modules does not find it."""
    (tmp_path / "without.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Finder(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name == 'nh3' else super().find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Finder\n"
        "from manyhands.view.text import markdown\n"
        "print(markdown('**a**'))\n"
    )
    environ = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, tmp_path / "without.py"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.strip() == '<div class="plain" dir="auto">**a**</div>', ended.stderr


# --- Code and JSON


@given(texts.filter(lambda text: not re.search("[\x1b\x90\x98\x9b\x9d-\x9f]", text)), st.sampled_from(LANGUAGES))
def test_code_is_kept(text: str, language: str) -> None:
    reader = check(code(text, language))
    if len(reader.attributes) < MAX_SPANS:
        assert reader.text == text.replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.timeout(30)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "part",
    [
        "a",
        " ",
        "\n",
        '\\"',
        "a.b",
        "=",
        "<!--",
        "#if ",
        'R"(',
        "a<",
        "template<",
        "{",
        '"a":',
        "${",
        "`",
        "&a",
        "/*",
        "((",
        "a: |\n ",
        "<a b=",
        'r#"',
        "<<E1\n<<E2\n<<E3\n",
    ],
)
def test_code_that_is_hard_to_colour_ends(language: str, part: str) -> None:
    for length in (MAX_SLOW_CODE, MAX_MARKDOWN):
        assert code(part * (length // len(part)), language)


def test_code_that_is_too_long_is_plain() -> None:
    assert "<span" in code("1 " * 10, "json")
    assert "<span" not in code("1 " * MAX_CODE, "json")
    assert "<span" not in code("1;" * MAX_SLOW_CODE, "js")
    assert "<span" not in code("1 ", "brainfuck")
    fence = f"```js\n{'1 ' * (MAX_SLOW_CODE // 3)}\n```\n"
    assert markdown(fence * 5).count("</pre>") == 5
    assert markdown(fence * 5).count("<code><span") == 1


@pytest.mark.parametrize(("language", "line"), [("rust", 'r#"'), ("bash", "<<E{}\n")])
def test_a_long_text_is_not_coloured_by_a_lexer_that_would_take_long(language: str, line: str) -> None:
    text = "".join(line.format(number) for number in range(9000))
    start = perf_counter()
    assert "<span" not in code(text, language)
    assert "<span" in code(text[:MAX_SLOW_CODE], language)
    assert perf_counter() - start < 10


def test_a_page_colours_no_more_code_than_one_text_may_hold_several_times() -> None:
    renderer = Renderer(Links())
    fence = Text(f"```js\n{'1 ' * (MAX_SLOW_CODE // 2 - 1)}\n```\n", form="markdown")
    for _ in range(2):
        html = renderer.part("blocks.html", "blocks", "run", [fence] * 30)
        assert html.count('<code><span class="tok-') == MAX_SLOW_PAGE_CODE // MAX_SLOW_CODE
    assert '<code><span class="tok-' in markdown(fence.text), "the limit is that of a page"


def test_an_unknown_language_shows_terminal_colours() -> None:
    assert code("\x1b[31mx", "text") == '<span class="ansi-red">x</span>'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_pretty_json_is_the_same_value(value: object) -> None:
    if not isinstance(value, str):
        assert json.loads(pretty_json(value)) == value
    if isinstance(value, (list, dict)):
        assert pretty_json(json.dumps(value)) == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    "text", ["", "x", '{"a": ', '"text"', "12", "[1,]", "{'a': 1}", "[NaN]", "[" * 5000 + "]" * 5000]
)
def test_pretty_json_leaves_what_is_no_json(text: str) -> None:
    assert pretty_json(text) == text


def test_pretty_json_keeps_what_is_written() -> None:
    assert pretty_json('{"a":1.50,"a":1e3,"b":[ ],"c":"\\u0041 { "}') == (
        '{\n  "a": 1.50,\n  "a": 1e3,\n  "b": [],\n  "c": "\\u0041 { "\n}'
    )


@pytest.mark.parametrize("value", ['[0, {"a": "x,y"}, "\\"[,"]', '{"a": {"b": [1, 2.50, null, []]}, "c": "z"}'])
def test_of_long_json_the_beginning_is_indented(value: str) -> None:
    compact = json.dumps(json.loads(value), separators=(",", ":"))
    for limit in range(1, 80):
        shown, mark, missing = pretty_json(json.loads(value), limit).partition("\n… (")
        assert json.dumps(json.loads(value), indent=2).startswith(shown.rstrip())
        count = int(missing.partition(" ")[0]) if mark else 0
        assert "".join(shown.split()) == "".join(compact[: len(compact) - count].split())
    assert pretty_json(json.loads(value), 200) == json.dumps(json.loads(value), indent=2)


def test_large_json_takes_no_longer_than_what_is_shown_of_it() -> None:
    large = [0] * 3_000_000
    start = perf_counter()
    for value in (large, {"a": large}, json.dumps(large)):
        shown = pretty_json(value)
        assert shown.endswith(" more characters)")
        assert len(shown) < 1_000_000
    assert perf_counter() - start < 10


def test_deep_json_stays_small() -> None:
    assert len(pretty_json("[" * 150 + "1," * 20_000 + "1" + "]" * 150)) < 1_000_000
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]
    assert pretty_json(deep) == "JSON that is nested too deeply"


# --- Images

GIF = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def test_images_are_known_by_their_first_bytes() -> None:
    assert safe_data_image(GIF) == GIF
    assert safe_data_image(GIF.replace("image/gif", "IMAGE/PNG")) == GIF
    assert safe_data_image(GIF[:40] + "\n " + GIF[40:]) == GIF


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://evil.invalid/x.png",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/png;base64,PHN2Zz4=",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,",
        "data:image/png,R0lGODlh",
        "data:text/html;base64,R0lGODlh",
        "data:image/webp;base64,UklGRgAAAABXQVZF",
        " " + GIF,
        "data:image/gif;base64," + "R0lG" * 1_500_000,
    ],
)
def test_other_images_are_refused(url: str) -> None:
    assert safe_data_image(url) is None


def test_no_hostile_text_is_an_image_but_gifs() -> None:
    shown = {name for name, text in HOSTILE_TEXTS.items() if safe_data_image(text)}
    assert shown == {"addresses: address data gif"}


def _image(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _sized(width: int, height: int) -> dict[str, str]:
    """Images of all kinds of a size, as far as their headers go; two GIFs, of which one has a small screen."""
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    comment = b"!\xfe\x02hi\x01!\0"
    frame = b"," + struct.pack("<HHHH", 0, 0, width, height)
    jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc2\0\x0b\x08" + struct.pack(">HH", height, width)
    bits = struct.pack("<I", width - 1 | height - 1 << 14)
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    webp = b"RIFF\0\0\0\0WEBP"
    return {
        "png": _image("png", png),
        "gif screen": _image(
            "gif", b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + comment + b",\0\0\0\0\x01\0\x01\0"
        ),
        "gif picture": _image("gif", b"GIF89a\x01\0\x01\0\x80\0\0abcdef" + comment + frame),
        "jpeg": _image("jpeg", jpeg),
        "webp lossless": _image("webp", webp + b"VP8L\0\0\0\0/" + bits),
        "webp canvas": _image("webp", webp + b"VP8X\0\0\0\0\0\0\0\0" + sides),
        "webp": _image("webp", webp + b"VP8 \0\0\0\0abc\x9d\x01*" + struct.pack("<HH", width, height)),
    }


def test_an_image_of_too_many_pixels_is_not_shown() -> None:
    for name, url in _sized(5000, 5000).items():
        assert safe_data_image(url), name
    for size in ((5000, 5001), (16000, 16000)):
        assert [name for name, url in _sized(*size).items() if safe_data_image(url)] == []
    for name, url in _sized(3, 3).items():
        data = base64.b64decode(url.partition(",")[2])
        kind = url[len("data:image/") :].partition(";")[0]
        assert not any(safe_data_image(_image(kind, data[:end])) for end in range(len(data) - 2)), name


# --- Colours


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", block))


def schemes() -> Iterator[tuple[str, dict[str, str], str]]:
    """Each scheme with the worst of the backgrounds that a page has in it."""
    light, media, dark = re.findall(r":root[^{]*\{([^}]*)\}", CSS.read_text())
    assert variables(media) == variables(dark)
    assert variables(light).keys() == variables(dark).keys()
    yield "light", variables(light), "#f2f4f6"
    yield "dark", variables(dark), "#242a31"


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_readable_in_both_schemes() -> None:
    for scheme, colours, page in schemes():
        for name, colour in colours.items():
            if name.endswith("-back") or name in {"--code-fill", "--code-panel"}:
                continue
            own = name.replace("-text", "") + "-back"
            backgrounds = [colours[own]] if own in colours else [page, colours["--code-fill"]]
            for background in backgrounds:
                assert contrast(colour, background) >= 4.5, (scheme, name, background, contrast(colour, background))


@pytest.mark.parametrize(
    "render",
    [
        lambda: "".join(
            code(text, language) for text in HOSTILE_TEXTS.values() if len(text) < 5000 for language in LANGUAGES
        ),
        lambda: plain("".join(f"\x1b[0;{number}mx" for number in range(110))),
        lambda: markdown("|a|b|c|\n|:-|:-:|-:|\n|1|2|3|\n\n[x](https://a.example/)\0"),
    ],
)
def test_every_class_has_its_style(render: Callable[[], str]) -> None:
    styled = set(re.findall(r"\.([a-z][\w-]*)", CSS.read_text()))
    used = {each for found in re.findall(r'class="([^"]*)"', render()) for each in found.split()}
    assert used <= styled
