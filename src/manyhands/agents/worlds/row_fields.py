"""What a row says about its item's world, in the fields that a person named for that."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.settings import COLUMNS, RowWorldSettings, check_variable
from manyhands.core.jsonio import Json, kind_of, loads
from manyhands.core.settings import FALSE_WORDS, TRUE_WORDS
from manyhands.network.rules import NetworkRules

MAX_FILES = 1000
MAX_TEXT = 16 << 20
"""Characters of all files of a row."""
_MIN_MEMORY = 1 / 16
_GIB = 1 << 30
_FIELD = re.compile(r"(?<!\$)\{([A-Z][A-Z0-9_]*)\}|\{([a-z][a-z0-9_]*)\}")
_USER = re.compile(r"\w[\w.-]*(:\w[\w.-]*)?")
_NO_NETWORK = FALSE_WORDS | {"none", "no-network"}
_NETWORK = TRUE_WORDS | {"public", "allow"}


@dataclass(frozen=True, slots=True)
class RowFields:
    """The names of fields; None where rows say nothing."""

    files: str | None = None
    setup: str | None = None
    env: str | None = None
    user: str | None = None
    cpus: str | None = None
    memory: str | None = None
    network: str | None = None

    @classmethod
    def of(cls, options: RowWorldSettings) -> Self:
        """What a run's settings name."""
        return cls(**{name.removesuffix("_field"): getattr(options, name) for name in COLUMNS})

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(name for each in fields(self) if (name := getattr(self, each.name)) is not None)

    def lacking(self, asked: Collection[str]) -> list[tuple[str, str]]:
        """Settings and the fields they name that no row has. ``asked``: the attributes of ``ItemWorld`` that rows have."""
        named = ((kind, getattr(self, kind)) for kind in _READERS)
        return [(f"{kind}_field", name) for kind, name in named if name is not None and _READERS[kind][0] not in asked]

    def read(self, row: Mapping[str, Json]) -> ItemWorld:
        """What a row asks for. A field that is empty, or not there, asks for nothing. Raises ValueError naming the field."""
        world = ItemWorld()
        for kind, (attribute, read) in _READERS.items():
            name = getattr(self, kind)
            value = None if name is None else row.get(name)
            if value is None or value == "" or value in ([], {}):
                continue
            try:
                setattr(world, attribute, read(value))
            except ValueError as error:
                raise ValueError(f'"{name}" {error}') from None
        return world


def fields_named(*commands: str | None) -> list[str]:
    """The fields of a row that commands name."""
    return list(dict.fromkeys(upper or lower for text in commands if text for upper, lower in _FIELD.findall(text)))


def checked_file(path: str) -> str:
    """The path of a row's file, put plainly. Raises ValueError."""
    if not path or "\0" in path or path.endswith("/") or len(path) > 4000:
        raise ValueError(f"{path[:60]!r} is no path of a file")
    plain = posixpath.normpath(path)
    if plain.split("/")[0] == ".." or "/../" in f"/{path}/" or plain in (".", "/"):
        raise ValueError(f"{path!r} leads out of the workspace")
    return plain


def _object(value: Json) -> dict[str, str]:
    """An object of texts, also written as JSON text, as tables have it."""
    if isinstance(value, str):
        try:
            value = loads(value)
        except (ValueError, RecursionError):
            raise ValueError("is text, expected an object of texts, or JSON text of one") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"is {kind_of(value)}, expected an object of texts")
    for name, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"has {kind_of(text)} at {str(name)[:60]!r}, expected text")
        _encodable(text)
        _encodable(name)
    return dict(value)


def _files(value: Json) -> dict[str, str]:
    found = {checked_file(path): text for path, text in _object(value).items()}
    if len(found) > MAX_FILES or sum(map(len, found.values())) > MAX_TEXT:
        raise ValueError(f"has more than {MAX_FILES:,} files, or {MAX_TEXT >> 20} million characters of them")
    return found


def _environment(value: Json) -> dict[str, str]:
    found = _object(value)
    for name, text in found.items():
        check_variable(name, text)
    return found


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {kind_of(value)}, expected text")
    if not value.strip() or "\0" in value:
        raise ValueError("is no text that could be used")
    _encodable(value)
    return value


def _user(value: Json) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value).strip()
    if not _USER.fullmatch(text):
        raise ValueError(f"is {text[:40]!r}, expected a user's name or number")
    return text


def _encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds characters that are not text") from None


def _number(value: Json, min_value: float) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not min_value <= number < 1e9:
        raise ValueError(f"must be a number from {min_value:g} on")
    return number


def _network(value: Json) -> bool | list[str]:
    word = str(value).strip().lower() if isinstance(value, (str, bool, int)) else ""
    if word in _NO_NETWORK or word in _NETWORK:
        return word in _NETWORK
    hosts = value.split(",") if isinstance(value, str) and ("." in value or ":" in value) else value
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ValueError("must be yes or no (or true, false, none), or a list of hosts")
    return list(NetworkRules.read(host.strip() for host in hosts).words)


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "files": ("files", _files),
    "setup": ("setup", _text),
    "env": ("environment", _environment),
    "user": ("user", _user),
    "cpus": ("cpus", lambda value: _number(value, 0.01)),
    "memory": ("memory", lambda value: round(_number(value, _MIN_MEMORY) * _GIB)),
    "network": ("network", _network),
}
"""For each kind of field the attribute of an ``ItemWorld``, and what reads its value."""
