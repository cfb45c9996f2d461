"""The accessibility tree of a page as text, as ``page.aria_snapshot(mode="ai")`` of Playwright gives it: made shorter, and cut in parts.

A line is an element: ``- role "name" [mark] [ref=e5]: text``, with what is in it indented below. It is YAML, so a line with special
characters is quoted. What is before its ``: `` is Playwright's, but for the name, a JSON string; all the rest is the page's own text,
which may look like marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from manyhands.core.errors import ToolError
from manyhands.core.text import cut

MAX_CHARACTERS = 8_000
ACTIONABLE = frozenset(
    (
        *(
            "button",
            "checkbox",
            "combobox",
            "link",
            "listbox",
            "menuitem",
            "menuitemcheckbox",
            "menuitemradio",
            "option",
        ),
        *("radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"),
    )
)
_STRUCTURE = frozenset(("generic", "none", "presentation", "group"))
"""Roles that say nothing about an element without a name."""
_MAX_DEPTH = 100
"""What is nested deeper is shown at that depth."""
_LINE = re.compile(r"( *)- (?:'(?P<quoted>(?:[^']|'')*)')?(?P<rest>.*)")
_BODY = re.compile(
    r'(?P<role>[/\w]+)(?: (?P<name>"(?:[^"\\]|\\.)*"))?(?P<marks>(?: \[[^\]]*\])*)(?::(?: (?P<text>.*))?)?'
)
_REF = re.compile(r" \[ref=((?:f\d+)?e\d+)\]")
_BOX = re.compile(r" \[box=" + ",".join([r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"] * 4) + r"\]")
_POINTER = " [cursor=pointer]"
_GIVEN_REF = re.compile(r"[@\[]?(?:ref=)?@?((?:f\d{1,6})?e\d{1,9})\]?")


def read_ref(text: str) -> str:
    """A ref as models write it (``@e5``, ``e5``, ``ref=e5``, ``[ref=e5]``) in its one form. Raises ToolError."""
    found = _GIVEN_REF.fullmatch(text.strip())
    if found is None:
        raise ToolError(f"{cut(text, 50)!r} is no ref; take one from a snapshot, such as e5")
    return found[1]


@dataclass(slots=True)
class Part:
    """What of a snapshot the model gets."""

    text: str
    elements: int
    """Refs in the whole snapshot."""
    left: int
    """Lines behind this part."""
    following: int
    """The number of the first of them, from 0."""


def part_of(snapshot: str, *, offset: int = 0, max_characters: int = MAX_CHARACTERS) -> Part:
    """As many lines from line ``offset`` as have at most that many characters, but at least one."""
    lines = snapshot.split("\n") if snapshot else []
    shown: list[str] = []
    size = 0
    for line in lines[offset:]:
        kept = cut(line, max_characters)
        if shown and size + len(kept) + 1 > max_characters:
            break
        shown.append(kept)
        size += len(kept) + 1
    end = min(offset + len(shown), len(lines))
    return Part("\n".join(shown), len(_REF.findall(snapshot)), len(lines) - end, end)


@dataclass(slots=True)
class _Node:
    body: str
    role: str
    name: str
    text: str
    actionable: bool
    inner: list[_Node] = field(default_factory=list)


def compact(snapshot: str) -> str:
    """Only what can be acted on, with refs, and besides it headings, pictures with names, and texts that are not the name of an element
    which can be acted on. Rows of tables become one line."""
    root = _Node("", "", "", "", False)
    path: list[tuple[int, _Node]] = [(-1, root)]
    for line in snapshot.split("\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        depth, node = len(match[1]), _read(_body(match))
        while path[-1][0] >= depth or len(path) > _MAX_DEPTH:
            path.pop()
        path[-1][1].inner.append(node)
        path.append((depth, node))
    names = {node.name for node in _all(root) if node.actionable and node.name}
    return "\n".join(_lines(root.inner, 0, names))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an element is."""

    ref: str
    name: str
    """Its role, if it has none."""
    box: list[float]
    """Left, top, width and height, in CSS pixels from the window's upper left corner."""


def places(snapshot: str) -> Iterator[Place]:
    """The elements of the page itself, not of its frames, whose roles can be acted on, of a snapshot that was made with ``boxes=True``."""
    for line in snapshot.split("\n"):
        outer = _LINE.fullmatch(line)
        match = None if outer is None else _BODY.fullmatch(_body(outer))
        if match is None or match["role"] not in ACTIONABLE:
            continue
        ref, box = _REF.search(match["marks"]), _BOX.search(match["marks"])
        if ref is not None and box is not None and ref[1].startswith("e"):
            yield Place(ref[1], _unquoted(match["name"] or "") or match["role"], list(map(float, box.groups())))


def _body(line: re.Match[str]) -> str:
    """What a line says of its element, without its quotes."""
    return (line["quoted"] or "").replace("''", "'") + line["rest"]


def _read(body: str) -> _Node:
    match = _BODY.fullmatch(body)
    if match is None:
        return _Node(body, "", "", body, False)
    text = _unquoted(match["text"] or "")
    actionable = _REF.search(match["marks"]) is not None and (match["role"] in ACTIONABLE or _POINTER in match["marks"])
    return _Node(body, match["role"], _unquoted(match["name"] or ""), text, actionable)


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _all(node: _Node) -> Iterator[_Node]:
    for inner in node.inner:
        yield inner
        yield from _all(inner)


def _lines(nodes: list[_Node], depth: int, names: set[str]) -> Iterator[str]:
    for node in nodes:
        if node.role.startswith("/"):
            continue
        if node.role == "row" and (cells := _cells(node)):
            yield f"{'  ' * depth}- row: {' | '.join(cells)}"
        elif node.actionable:
            inner = [] if node.role == "option" else node.inner
            below = list(_lines(inner, depth + 1, names))
            yield f"{'  ' * depth}- {_shown(node.body, below, keep_ref=True)}"
            yield from below
        elif _says_something(node, names):
            below = list(_lines(node.inner, depth + 1, names))
            yield f"{'  ' * depth}- {_shown(node.body, below, keep_ref=False)}"
            yield from below
        else:
            yield from _lines(node.inner, depth, names)


def _cells(row: _Node) -> list[str]:
    """The texts of a row in which nothing can be acted on."""
    found = list(_all(row))
    if any(node.actionable for node in found):
        return []
    return [text for node in found if (text := node.text or node.name)]


def _says_something(node: _Node, names: set[str]) -> bool:
    if node.text:
        return node.text not in names
    return (
        bool(node.name)
        and node.role not in _STRUCTURE
        and (node.role in ("heading", "img", "option") or bool(node.inner))
    )


def _shown(body: str, below: list[str], *, keep_ref: bool) -> str:
    body = body.replace(_POINTER, "")
    if not keep_ref:
        body = _REF.sub("", body)
    return body if below else body.removesuffix(":")
