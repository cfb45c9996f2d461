"""Where tool calls may read and write.

Whoever calls a tool over HTTP is somebody who knows a token, not somebody with an account on this machine: there the paths that
a call names are confined to folders given at the start. Over standard streams the client started the server and is the same
user, so that nothing is confined unless folders are given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ToolError, UserError


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
