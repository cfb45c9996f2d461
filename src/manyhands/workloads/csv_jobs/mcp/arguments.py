"""The arguments of a tool call, and the paths that they may name.

Arguments are read as Codex reads them: unknown names are passed over, null is the same as nothing, and types are strict (a number as
text, half a row or a negative count is an error).

Whoever calls a tool over HTTP is somebody who knows a token, not somebody with an account on this machine: there the paths that
a call names are confined to folders given at the start. Over standard streams the client started the server and is the same
user, so that nothing is confined unless folders are given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import ToolError, UserError
from manyhands.core.jsonio import line

PROBLEM = "failed to parse function arguments: "
"""What the original puts before every complaint about arguments."""
_MAX_INT = 2**63 - 1
_MAX_SHOWN_CHARS = 60


class Arguments:
    """Reads the arguments of one call by name. Every method raises ToolError for a value of another type."""

    def __init__(self, values: Any) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise ToolError(f"{PROBLEM}they must be a JSON object, not {shown(values)}")
        self._values: Mapping[str, Any] = values or {}

    @property
    def names(self) -> list[str]:
        """What the call names, null apart."""
        return [name for name, value in self._values.items() if isinstance(name, str) and value is not None]

    def required_text(self, name: str) -> str:
        """Text that must be there (it may be empty)."""
        text = self.text(name)
        if text is None:
            raise ToolError(f"{PROBLEM}missing field `{name}`")
        return text

    def text(self, name: str, *aliases: str) -> str | None:
        """Text, under its name or another one."""
        value = self._first((name, *aliases))
        return None if value is None else _text(name, value)

    def count(self, name: str, *aliases: str) -> int | None:
        """A whole number from 0 up."""
        value = self._first((name, *aliases))
        number = None if value is None else _whole(name, value)
        if number is not None and number < 0:
            raise ToolError(f"{PROBLEM}{name} must not be negative, as {number} is")
        return number

    def whole(self, name: str) -> int | None:
        """A whole number, which may be negative."""
        value = self._values.get(name)
        return None if value is None else _whole(name, value)

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = self._values.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise _wrong(name, "true or false", value)

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A JSON object."""
        value = self._values.get(name)
        if value is None or isinstance(value, dict):
            return value
        raise _wrong(name, "a JSON object", value)

    def texts(self, name: str) -> list[str] | None:
        """A list of texts."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
            raise _wrong(name, "a list of texts", value)
        return [_text(name, entry) for entry in value]

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """One of several words."""
        word = self.text(name)
        if word is None or word in choices:
            return word
        raise _wrong(name, " or ".join(choices), word)

    def required(self, name: str) -> Any:
        """Any JSON value that must be there (it may be null)."""
        if name not in self._values:
            raise ToolError(f"{PROBLEM}missing field `{name}`")
        return self._values[name]

    def _first(self, names: Iterable[str]) -> Any:
        return next((value for name in names if (value := self._values.get(name)) is not None), None)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    if "\0" in value:
        raise ToolError(f"{PROBLEM}{name} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{PROBLEM}{name} holds half of a surrogate pair, which is no text") from None
    return value


def _whole(name: str, value: Any) -> int:
    # 5.0 is how some clients write 5: a JSON number has no types of its own.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    if abs(value) > _MAX_INT:
        raise ToolError(f"{PROBLEM}{name} is too large")
    return value


def _wrong(name: str, expected: str, value: Any) -> ToolError:
    return ToolError(f"{PROBLEM}{name} must be {expected}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value for a message: short, on one line."""
    text = line(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 1]}…"


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """How paths in tool calls are understood.

    ``base``: what relative ones begin at. ``roots``: the folders they must be in, with all symbolic links followed; None:
    anywhere. ``own_exports``: exports go into the folders of their jobs and nowhere else.
    """

    base: Path
    roots: tuple[Path, ...] | None = None
    own_exports: bool = False

    @classmethod
    def of(cls, base: Path, roots: Sequence[str] | None = None, *, own_exports: bool = False) -> ToolPaths:
        """From folders as they were typed. Raises UserError naming one that is not there."""
        resolved = None if roots is None else tuple(_existing(base, root) for root in roots)
        return cls(base.resolve(), resolved, own_exports)

    def path(self, name: str, text: str) -> Path:
        """The absolute path that the argument ``name`` stands for. Raises ToolError if it is outside the roots, or no path."""
        if not text.strip():
            raise ToolError(f"{name} must not be empty")
        typed = self.base / _at_home(name, text)
        if self.roots is None:
            return Path(os.path.abspath(typed))
        # The path with its links followed is the one that is used, so that a link changed meanwhile leads nowhere else.
        path = _followed(name, typed)
        self.check(name, path)
        return path

    def check(self, name: str, path: Path) -> None:
        """Raises ToolError if a path is outside the roots."""
        if self.roots is not None and not any(_followed(name, path).is_relative_to(root) for root in self.roots):
            roots = ", ".join(str(root) for root in self.roots)
            raise ToolError(f"{name} {path} is outside the folders that this server may use ({roots})")

    def export_target(self, text: str | None, folder: Path, recorded: Path) -> Path | None:
        """Where an export goes: to ``text`` if given, else where the job's own export goes (``recorded``; None is returned).

        With ``own_exports`` it goes into the job's ``folder``, under the last part of that path.
        """
        if self.own_exports:
            return self._in(folder, text, recorded)
        if text is not None:
            return self.path("output_csv_path", text)
        self.check("output_csv_path", recorded)
        return None

    def _in(self, folder: Path, text: str | None, recorded: Path) -> Path:
        exports = folder.absolute() / "exports"
        typed = recorded if text is None else Path(text)
        if not typed.name or typed.name == "..":
            raise ToolError(f"output_csv_path {typed} names no file")
        if text is None or typed == Path(typed.name) or typed.parent == exports:
            return exports / typed.name
        raise ToolError(f"this server writes exports to {exports} only; give output_csv_path as a plain file name")


def _existing(base: Path, root: str) -> Path:
    path = (base / Path(root).expanduser()).resolve()
    if not path.is_dir():
        raise UserError(f"--roots names {root!r}, which is no folder")
    return path


def _at_home(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ToolError(f"{name} {text} can't be used: {error}") from None


def _followed(name: str, path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that lead in a circle
        raise ToolError(f"{name} {path} can't be used: {error}") from None
