"""Tools with which a judge looks at a workspace. They read only, and nothing outside it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import regex

from manyhands.core.errors import ToolError
from manyhands.graders.regex_rule import compiled
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool

WORKSPACE = "workspace"
"""The key of the workspace's folder (a Path) in ``ToolEnvironment.state``."""
MOST_ENTRIES = 100
LARGEST = 50 << 10
"""Bytes of a file that are shown."""
MOST_MATCHES = 20
_SEARCHED = 5000
"""Files that are searched at most, and bytes of each."""
_SEARCHED_BYTES = 1 << 20
_LONGEST_LINE = 300
_SEARCH_SECONDS = 10.0
"""For one search, all files together."""
_LEFT_OUT = frozenset((".git", "node_modules", "__pycache__", ".venv"))


@tool(changes_world=False)
def list_files(
    environment: ToolEnvironment,
    path: Annotated[str, "A folder of the workspace; the workspace itself by default."] = ".",
) -> dict[str, object]:
    """List a folder of the workspace: files with their sizes, folders with a slash behind the name."""
    with _reading(path):
        folder = _within(environment, path)
        if not folder.is_dir():
            raise ToolError(f"{path} is no folder of the workspace")
        names = sorted(os.listdir(folder))
        shown = [_entry(folder / name) for name in names[:MOST_ENTRIES]]
    return {"entries": shown, "left_out": max(0, len(names) - MOST_ENTRIES)}


@tool(changes_world=False)
def read_file(environment: ToolEnvironment, path: Annotated[str, "A file of the workspace."]) -> dict[str, object]:
    """Read a text file of the workspace, up to its first 50 KB."""
    with _reading(path):
        file = _within(environment, path)
        if not file.is_file():
            raise ToolError(f"{path} is no file of the workspace; list_files shows what there is")
        with file.open("rb") as handle:
            data = handle.read(LARGEST)
            rest = max(0, os.fstat(handle.fileno()).st_size - len(data))
    if b"\0" in data:
        raise ToolError(f"{path} is no text file")
    return {"content": data.decode("utf-8", "replace"), "bytes_left_out": rest}


@tool(changes_world=False)
def search_files(
    environment: ToolEnvironment,
    pattern: Annotated[str, "A regular expression, matched against each line."],
    files: Annotated[str, "Names of files to look in, as in *.py."] = "*",
) -> dict[str, object]:
    """Search the workspace's text files for lines that match, 20 at most."""
    root = _root(environment)
    try:
        wanted = compiled(pattern)
    except ValueError as error:
        raise ToolError(f"{pattern[:200]!r} can't be used: {error}") from None
    found: list[str] = []
    end = time.monotonic() + _SEARCH_SECONDS
    try:
        for file in _files(root, files):
            found += _matches(file, root, wanted, MOST_MATCHES - len(found), end)
            if len(found) >= MOST_MATCHES:
                break
    except TimeoutError:
        raise ToolError("the search took too long; use a simpler expression") from None
    return {"matches": found, "complete": len(found) < MOST_MATCHES}


TOOLS = (list_files, read_file, search_files)


def _root(environment: ToolEnvironment) -> Path:
    root: Path = environment.state[WORKSPACE]
    return root.resolve()


def _within(environment: ToolEnvironment, path: str) -> Path:
    root = _root(environment)
    try:
        found = (root / path.lstrip("/")).resolve() if not path.startswith(f"{root}") else Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise ToolError(f"{path!r} is no path") from None
    if not found.is_relative_to(root):
        raise ToolError(f"{path} is outside the workspace")
    return found


def _entry(path: Path) -> str:
    if path.is_symlink():
        return f"{path.name} (a link)"  # where it leads to may be outside
    return f"{path.name}/" if path.is_dir() else f"{path.name} ({path.lstat().st_size} bytes)"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path[:200]} can't be read: {error.strerror}") from error


def _files(root: Path, names: str) -> Iterator[Path]:
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(files):
            path = Path(folder, name)
            if fnmatch(name, names) and path.is_file() and not path.is_symlink():
                count += 1
                yield path
            if count >= _SEARCHED:
                return


def _matches(file: Path, root: Path, wanted: regex.Pattern[str], most: int, end: float) -> list[str]:
    """``end``: when to give up, of ``time.monotonic``. Raises TimeoutError."""
    try:
        with file.open("rb") as handle:
            data = handle.read(_SEARCHED_BYTES)
    except OSError:
        return []
    if b"\0" in data:
        return []
    found: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if len(found) < most and wanted.search(line, timeout=left, concurrent=True):
            found.append(f"{file.relative_to(root)}:{number}: {line[:_LONGEST_LINE]}")
    return found
