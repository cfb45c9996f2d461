"""What the person who serves the tools decides: the options of ``manyhands mcp``, the paths that calls may name, and their limits.

Whoever calls a tool over HTTP is somebody who knows a token, not somebody with an account on this machine: there the paths that
a call names are confined to folders given at the start. Over standard streams the client started the server and is the same
user, so that nothing is confined unless folders are given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from manyhands.core.errors import ToolError, UserError
from manyhands.core.settings import Flag, OptionalList, OptionalSecret, Text, number, optional_whole, setting
from manyhands.core.text import expand_home
from manyhands.workloads.csv_jobs.spec import JobSpec, RowSettings, WorkerSettings
from manyhands.workloads.csv_jobs.workers.reports import SECRET

TOKEN_VARIABLE = "MANYHANDS_MCP_TOKEN"
DEFAULT_WAIT_LIMIT = 280.0
"""Seconds that a call is answered within. Common clients give up on one after 300."""
DEFAULT_CONCURRENCY_LIMIT = 64
_DATA_DIR_VARIABLE = "MANYHANDS_DATA_DIR"
_SERVER = "Server"
_MIN_TOKEN_CHARS = 16


class McpSettings(RowSettings, WorkerSettings):
    """The options of ``manyhands mcp``: those of the server, and the settings of all jobs that its clients create."""

    headings: ClassVar[tuple[str, ...]] = (_SERVER, *JobSpec.headings)

    http: Annotated[int | None, optional_whole(0, 65535)] = setting(
        None, "Serve streamable HTTP on this port of this machine; 0 selects a free port.", group=_SERVER, value="PORT"
    )
    host: Text = setting(
        "127.0.0.1", "Loopback address to listen on, with --http.", group=_SERVER, value="127.0.0.1|::1|localhost"
    )
    token: OptionalSecret = setting(
        None,
        f"Bearer token that HTTP clients must send; prefer {TOKEN_VARIABLE}, because other users see command lines. "
        "Without either, a token is generated and printed.",
        group=_SERVER,
        secret=True,
        recorded=False,
    )
    roots: OptionalList = setting(
        None,
        "Folders that paths in calls must be in (default: with --http the current folder, otherwise any path).",
        group=_SERVER,
    )
    own_exports: Flag = setting(
        False,
        "Let the export tool write only into the jobs' own folders, and list it as read-only.",
        group=_SERVER,
    )
    wait_limit: Annotated[float, number(1, 100_000)] = setting(
        DEFAULT_WAIT_LIMIT,
        "Maximum seconds that a call waits; most clients give up after 300.",
        group=_SERVER,
    )
    run_interrupted: Flag = setting(
        True, "Continue jobs whose runner was killed, when the server starts.", group=_SERVER
    )

    @property
    def checked_token(self) -> str | None:
        """The token, if one is given. Raises UserError for one that is easily guessed, or can't stand in a header."""
        if self.token is None:
            return None
        token = self.token.text
        if len(token) < _MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
            raise UserError(f"--token must be {_MIN_TOKEN_CHARS} or more visible ASCII characters")
        return token


def with_environment(typed: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The options as they were typed, and those that the environment has: the token where none is typed, and the data folder of the job
    that a worker works on, whatever the server's configuration calls the data folder."""
    values = dict(typed)
    if environ.get(TOKEN_VARIABLE):
        values.setdefault("token", environ[TOKEN_VARIABLE])
    if environ.get(_DATA_DIR_VARIABLE) and environ.get(SECRET):
        values["data_dir"] = environ[_DATA_DIR_VARIABLE]
    return values


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """How paths in tool calls are understood."""

    base: Path
    """What relative paths begin at."""
    roots: tuple[Path, ...] | None = None
    """The folders that they must be in, with all symbolic links followed; None: anywhere."""
    own_exports: bool = False
    """Exports go into the folders of their jobs and nowhere else."""

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
    path = (base / expand_home(root)).resolve()
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


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What the person who serves the tools has decided."""

    paths: ToolPaths
    """The paths that calls may name."""
    worker: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``JobSpec`` for all jobs that are created: model, sandbox, worker command and so on, none of which a call can change."""
    max_concurrency: int = DEFAULT_CONCURRENCY_LIMIT
    """The largest number that a call may request."""
    wait_limit: float = DEFAULT_WAIT_LIMIT
    """Seconds within which a call is answered."""
    max_depth: int = 1
    """Callers that work in so many nested jobs may start none."""
