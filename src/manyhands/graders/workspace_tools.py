"""Tools with which a judge looks at a workspace. They read only, and nothing outside it: they go by open folders and follow no link."""

from __future__ import annotations

import heapq
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Annotated

import regex

from manyhands.core.errors import ToolError
from manyhands.core.redaction import KNOWN
from manyhands.graders.regex_rule import compiled
from manyhands.sandboxes.trees import Found, NotPlain, Tree, open_regular
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
    with _reading(path), _opened(environment) as tree:
        folder = tree.folder(_within(environment, tree, path).split("/"))
        names = heapq.nsmallest(MOST_ENTRIES, _names(folder))
        count = sum(1 for _ in _names(folder))
        shown = [_entry(folder, name) for name in names]
    return {"entries": shown, "left_out": max(0, count - MOST_ENTRIES)}


@tool(changes_world=False)
def read_file(environment: ToolEnvironment, path: Annotated[str, "A file of the workspace."]) -> dict[str, object]:
    """Read a text file of the workspace, up to its first 50 KB."""
    with _reading(path), _opened(environment) as tree:
        try:
            descriptor = tree.open(_within(environment, tree, path))
        except (NotPlain, FileNotFoundError, NotADirectoryError):
            raise ToolError(f"{path[:200]} is no file of the workspace; list_files shows what there is") from None
        with os.fdopen(descriptor, "rb") as handle:
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
    try:
        wanted = compiled(pattern)
    except ValueError as error:
        raise ToolError(f"{pattern[:200]!r} can't be used: {error}") from None
    found: list[str] = []
    end = time.monotonic() + _SEARCH_SECONDS
    with _reading("the workspace"), _opened(environment) as tree:
        try:
            for each in _files(tree, files):
                found += _matches(each, wanted, MOST_MATCHES - len(found), end)
                if len(found) >= MOST_MATCHES:
                    break
        except TimeoutError:
            raise ToolError("the search took too long; use a simpler expression") from None
    return {"matches": found, "complete": len(found) < MOST_MATCHES}


TOOLS = (list_files, read_file, search_files)


def _opened(environment: ToolEnvironment) -> Tree:
    root: Path = environment.state[WORKSPACE]
    return Tree(root)


def _within(environment: ToolEnvironment, tree: Tree, path: str) -> str:
    """A path that a judge named, relative to the workspace and without links, as far as they stay in it."""
    root = os.fspath(environment.state[WORKSPACE])
    real = os.path.realpath(root)
    start = next((each for each in (root, real) if f"{path}/".startswith(f"{each}/")), "")
    try:
        return tree.resolved(path.removeprefix(start), real)
    except NotPlain:
        raise ToolError(f"{path[:200]} is outside the workspace") from None
    except ValueError:
        raise ToolError(f"{path[:200]!r} is no path") from None


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries)


def _entry(folder: int, name: str) -> str:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return f"{name} (a link)"  # where it leads to may be outside
    return f"{name}/" if stat.S_ISDIR(status.st_mode) else f"{name} ({status.st_size} bytes)"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path[:200]} can't be read: {error.strerror}") from error


def _files(tree: Tree, names: str) -> Iterator[Found]:
    files = (
        each
        for each in tree.walk(lambda each: each.name not in _LEFT_OUT)
        if each.is_file and fnmatch(each.name, names)
    )
    return islice(files, _SEARCHED)


def _matches(file: Found, wanted: regex.Pattern[str], most: int, end: float) -> list[str]:
    """``end``: when to give up, of ``time.monotonic``. Raises TimeoutError."""
    try:
        with os.fdopen(open_regular(file.folder, file.name), "rb") as handle:
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
            found.append(f"{file.path}:{number}: {KNOWN.text(line)[:_LONGEST_LINE]}")
    return found
