"""YAML 1.2 files as plain data, with the line of everything in them.

Two keys of one mapping that are the same are refused, whatever they hold. Anchors, aliases and merge keys (``<<``) work; what they multiply
is bounded. Keys are text as it is written, since data ends up as JSON. Plain scalars mean what the core schema says (YAML 1.2.2, section
10.3.2): dates, ``yes``, ``no``, ``on``, ``off`` and ``1:30`` are text; ``012`` is twelve and ``0o14`` is too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import wide_encoding
from manyhands.io.files import read_inside
from manyhands.io.locations import MAX_DEPTH, Location, Source
from manyhands.io.locations import Path as FieldPath

_MAX_READ = 1 << 20
"""Bytes of a file that nobody knows who wrote: more would take long."""
_TAG = "tag:yaml.org,2002:"
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 4000
_BASES = ("0o", "0x")
_FITS: dict[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, float),
}
MAX_COPIES = 1_000_000
"""Values that aliases and merge keys may stand for, in all."""
_MERGE = "<<"
_COLLECTION_TAGS = {True: ("tag:yaml.org,2002:map",), False: ("tag:yaml.org,2002:seq",)}


def plain_value(text: str) -> Json:
    """The value of a scalar without quotes and tag. Raises ValueError for a number that JSON can't hold."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        for pattern, value in ((_WHOLE, _whole), (_NUMBER, _number), (_NO_NUMBER, _number)):
            if pattern.fullmatch(text):
                return value(text)
    return text


def tagged_value(tag: str, text: str) -> Json:
    """The value of a scalar with a tag (``!!str 012``). Raises ValueError for an unknown tag, or text that does not fit it."""
    if tag in ("!", f"{_TAG}str"):
        return text
    fits = _FITS.get(tag.removeprefix(_TAG))
    if fits is None:
        raise ValueError(f"the tag {short(tag)} is not known here")
    value = plain_value(text)
    if isinstance(value, int) and not isinstance(value, bool) and tag.endswith("float"):
        return float(value)
    if not fits(value):
        raise ValueError(f"{text!r} does not fit the tag {short(tag)}")
    return value


def short(tag: str) -> str:
    """A tag as it is written: ``!!str``."""
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long")
    return (
        int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)
        if text[:2] in _BASES
        else int(text)
    )


def _number(text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else float("inf")
    if not isfinite(number):
        raise ValueError(
            f"{text if len(text) < 30 else text[:29] + '…'} is no number that JSON can hold; quote it if it is text"
        )
    return number


def read_yaml(path: Path, name: str | None = None, *, within: Path | None = None) -> tuple[Json, Location]:
    """A file's content, None if it is empty, and the location of its top. ``name``: what messages call the file; ``within``: the folder of
    a file that nobody knows who wrote, which is read as ``read_inside`` does.

    Raises UserError with file and line if it can't be read, or is not one document of YAML.
    """
    source = read_source(path, name, within=within)
    return source.value, source.location


def read_source(path: Path, name: str | None = None, *, within: Path | None = None) -> Source:
    """The same, and how its numbers are written."""
    called = name or str(path)
    try:
        data = path.read_bytes() if within is None else read_inside(within, path, _MAX_READ)
        # YAML 1.2.2, section 5.2: UTF-16, too, has to be understood.
        wide = wide_encoding(data, marked=True)
        text = data.decode(wide or "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{called}, line {line}: not {'UTF-16' if wide else 'UTF-8'} text") from None
    except OSError as error:
        raise UserError(f"can't read {called}: {error.strerror or error}") from error
    return parse_source(text.replace("\r\n", "\n").replace("\r", "\n"), called)


def parse_source(text: str, name: str) -> Source:
    """The same for a text."""
    root = _root(text, name)
    if root is None:
        return Source(None, Location(name, (), {(): 1}))
    maker = _Maker(name)
    return Source(maker.value(root, (), root.line), Location(name, (), maker.lines), maker.written)


# --- From text to nodes


@dataclass(slots=True)
class _Node:
    """A scalar, a mapping or a list, as it stands in the text."""

    line: int
    kind: type
    tag: str | None
    plain: bool
    content: Any
    """The text of a scalar, or the nodes within: a mapping's keys and values in turn."""
    closed: bool = True
    """Whether all of it is read."""


def _root(text: str, name: str) -> _Node | None:
    try:
        return _read(text, name)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _wrong(name, mark.line + 1 if mark else None, f"not valid YAML: {_said(error)}") from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _wrong(name, line, f"not valid YAML: the character U+{error.character:04X} is not allowed") from None
    except YAMLError as error:
        raise _wrong(name, None, f"not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, OverflowError, IndexError) as error:  # what the parser lets through for escapes beyond Unicode
        raise _wrong(name, None, f"not valid YAML: {error}") from None


def _read(text: str, name: str) -> _Node | None:
    """Of the parser's events, a node for everything that stands in the file once."""
    top = _Node(1, list, None, True, [], closed=False)
    open_nodes, anchors, documents = [top], dict[str, _Node](), 0
    for event in YAML(typ="safe", pure=True).parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _wrong(name, line, "one document is expected in a file, and here a second one begins")
        elif isinstance(event, AliasEvent):
            open_nodes[-1].content.append(_aliased(anchors, event.anchor, name, line))
        elif isinstance(event, (ScalarEvent, CollectionStartEvent)):
            node = _node(event, line)
            open_nodes[-1].content.append(node)
            if event.anchor is not None:
                anchors[event.anchor] = node
            if not node.closed:
                open_nodes.append(node)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            open_nodes.pop().closed = True
        if len(open_nodes) > MAX_DEPTH:
            raise _wrong(name, line, f"nested more than {MAX_DEPTH} deep")
    return top.content[0] if top.content else None


def _node(event: ScalarEvent | CollectionStartEvent, line: int) -> _Node:
    if isinstance(event, ScalarEvent):
        return _Node(line, str, event.tag, event.implicit[0], event.value)
    return _Node(line, dict if isinstance(event, MappingStartEvent) else list, event.tag, True, [], closed=False)


def _aliased(anchors: Mapping[str, _Node], anchor: str, name: str, line: int) -> _Node:
    node = anchors.get(anchor)
    if node is None:
        raise _wrong(name, line, f"the alias *{anchor} stands for nothing: there is no anchor &{anchor} above it")
    if not node.closed:
        raise _wrong(name, line, f"the alias *{anchor} is part of what it stands for")
    return replace(node, line=line)


# --- From nodes to data


class _Maker:
    """Makes data of nodes. What is behind an alias is made again wherever the alias stands."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = 0
        self._seen: set[int] = set()
        self.lines: dict[FieldPath, int] = {}
        self.written: dict[FieldPath, str] = {}

    def value(self, node: _Node, path: FieldPath, line: int) -> Json:
        """``line``: that of the key, where there is one."""
        self._count(node)
        self.lines[path] = line
        if len(path) > MAX_DEPTH:
            raise _wrong(self._name, line, f"nested more than {MAX_DEPTH} deep")
        if node.kind is str:
            return self._scalar(node, path)
        if node.tag is not None and node.tag not in _COLLECTION_TAGS[node.kind is dict]:
            raise _wrong(self._name, node.line, f"the tag {short(node.tag)} is not known here")
        if node.kind is list:
            return [self.value(item, (*path, index), item.line) for index, item in enumerate(node.content)]
        entries = self._entries(node)
        return {key: self.value(entry, (*path, key), at) for key, (entry, at) in entries.items()}

    def _scalar(self, node: _Node, path: FieldPath) -> Json:
        text = self._text(node)
        try:
            if node.tag is None and not node.plain:
                return text
            value = plain_value(text) if node.tag is None else tagged_value(node.tag, text)
        except ValueError as error:
            raise _wrong(self._name, node.line, str(error)) from None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) != text:
            self.written[path] = text
        return value

    def _entries(self, node: _Node) -> dict[str, tuple[_Node, int]]:
        """Of each key its value and line: what is merged first, then the mapping's own."""
        merged: dict[str, tuple[_Node, int]] = {}
        own: dict[str, tuple[_Node, int]] = {}
        for key, value in _pairs(node):
            if key.kind is str and key.plain and key.tag is None and key.content == _MERGE:
                for source in self._merged(value):
                    merged = {**self._entries(source), **merged}
                continue
            name = self._key(key)
            if name in own:
                twice = f"the key {shown(name)} comes twice: in line {own[name][1]} and in line {key.line}"
                raise _wrong(self._name, key.line, twice)
            own[name] = (value, key.line)
        return {**merged, **own}

    def _merged(self, value: _Node) -> list[_Node]:
        sources = value.content if value.kind is list else [value]
        for source in sources:
            self._count(source)
            if source.kind is not dict:
                raise _wrong(self._name, value.line, "the merge key << takes a mapping or a list of mappings")
        return sources

    def _key(self, node: _Node) -> str:
        if node.kind is not str:
            raise _wrong(self._name, node.line, "a key must be text")
        return self._text(node)

    def _text(self, node: _Node) -> str:
        text: str = node.content
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _wrong(self._name, node.line, "holds half a surrogate pair, which is no character") from None

    def _count(self, node: _Node) -> None:
        """Counts what is made more than once."""
        if id(node) not in self._seen:
            self._seen.add(id(node))
            return
        self._made += 1
        if self._made > MAX_COPIES:
            raise _wrong(self._name, node.line, f"aliases stand for more than {MAX_COPIES:,} values")


def _pairs(node: _Node) -> Iterator[tuple[_Node, _Node]]:
    content = iter(node.content)
    return zip(content, content, strict=True)


# --- Messages


def _wrong(name: str, line: int | None, message: str) -> UserError:
    return Location(name, (), {} if line is None else {(): line}).error(message)


def _said(error: MarkedYAMLError) -> str:
    parts = (error.context, error.problem)
    return ", ".join(" ".join(str(part).split()) for part in parts if part) or "it can't be read"
