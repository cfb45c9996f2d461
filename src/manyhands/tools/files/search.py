"""Searching files in the sandbox, with ripgrep where it is installed, else with grep and find."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.core.text import decode, shorten
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.terminal import seconds_allowed, without_nul

_STATE = "search_program"
_MAX_OUTPUT = 4_000_000
_MAX_LINE = 500
_END = "\x00\x00exit "

_DETECT = r"""
if command -v rg >/dev/null 2>&1; then echo rg
elif printf 'a\n' | grep -qPZI a 2>/dev/null; then echo grep -P
elif printf 'a\n' | grep -qEZI a 2>/dev/null; then echo grep -E
else echo plain; fi
"""

_BOUNDED = r"""limit=$1; shift; { "$@" 2>&1; printf '\0\0exit %d' "$?"; } | head -c "$limit" """
"""Runs a program, and tells its exit code unless the output is longer than the limit."""

_PLAIN_MATCH = re.compile(r"(?P<path>.+?)(?P<mark>[:-])(?P<line>\d{1,18})(?P=mark)(?P<text>.*)", re.DOTALL)
_NUMBERED = re.compile(r"(?P<line>\d{1,18})(?P<mark>[:-])(?P<text>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """A line found: of the match itself, or of its context."""

    path: str
    line: int
    text: str
    matches: bool

    def __str__(self) -> str:
        mark = ":" if self.matches else "-"
        return f"{self.path}{mark}{self.line}{mark}{shorten(self.text, _MAX_LINE)}"


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for; see ``search_files``."""

    pattern: str
    path: str
    file_glob: str | None
    context: int


@tool(changes_world=True, reads_world=True)
async def search_files(
    environment: ToolEnvironment,
    pattern: Annotated[
        str,
        "For content: a regular expression. For files: a glob such as '*.py' or a part of the name.",
        Field(min_length=1),
    ],
    target: Annotated[Literal["content", "files"], "content: lines in files; files: names of files."] = "content",
    path: Annotated[
        str,
        "Folder (or, for content, also one file) to search; relative ones start where the shell starts.",
        Field(min_length=1),
    ] = ".",
    file_glob: Annotated[str | None, "For content: only files that fit this glob, such as '*.py'."] = None,
    limit: Annotated[int, "Results at most.", Field(ge=1, le=1000)] = 50,
    offset: Annotated[int, "Results to pass over, for the next page.", Field(ge=0)] = 0,
    output_mode: Annotated[
        Literal["content", "files_only", "count"],
        "For content: the lines (path:line:text), only the paths, or the number of lines in each file.",
    ] = "content",
    context: Annotated[int, "For content: lines to show around each (path-line-text).", Field(ge=0, le=20)] = 0,
) -> dict[str, Any]:
    """Search file contents by regular expression, or find files by name.

    Follows ripgrep: hidden files, binary files, and what .gitignore names are left out. Results are sorted by path.
    """
    for name, value in (("pattern", pattern), ("path", path), ("file_glob", file_glob or "")):
        without_nul(name, value)
    sandbox = await environment.sandbox()
    program = await _program(sandbox, environment)
    query = Query(pattern, path, file_glob, context if output_mode == "content" else 0)
    limit_seconds = seconds_allowed(environment, None)
    if target == "files":
        return _page("files", await _files(sandbox, program, query, limit_seconds), offset, limit)
    found, complete = await _lines(sandbox, program, query, limit_seconds)
    if output_mode == "content":
        return _matches(found, complete, offset, limit)
    counts: dict[str, int] = {}
    for each in found:
        counts[each.path] = counts.get(each.path, 0) + 1
    if output_mode == "files_only":
        return _page("files", list(counts), offset, limit, complete)
    shown = dict(list(counts.items())[offset : offset + limit])
    total = {"total_files": len(counts), "total_matches": len(found)}
    return {"counts": shown, **total, **_more(len(counts), offset + len(shown), complete)}


async def _program(sandbox: Sandbox, environment: ToolEnvironment) -> list[str]:
    """``rg``, ``grep -P``, ``grep -E`` or ``plain`` (a grep without GNU's options), found out once."""
    if _STATE not in environment.state:
        result = await sandbox.run(["/bin/sh", "-c", _DETECT], timeout=20.0)
        environment.state[_STATE] = decode(result.output).split() or ["plain"]
    known: list[str] = environment.state[_STATE]
    return known


async def _lines(sandbox: Sandbox, program: list[str], query: Query, seconds: float) -> tuple[list[Found], bool]:
    """Found lines sorted by path, and whether they are all."""
    output, code, complete = await _run(sandbox, _line_command(program, query), seconds)
    found, others = _parsed(output, complete)
    if not found and (code or 0) > 1:
        raise ToolError(f"the search failed: {shorten(' '.join(others) or output, 500).strip()}")
    if query.file_glob is not None and program[0] != "rg":
        found = [each for each in found if _fits(each.path, query.file_glob)]
    if program[0] != "rg":
        found.sort(key=lambda each: each.path)
    return found, complete


def _line_command(program: list[str], query: Query) -> list[str]:
    context = ["-C", str(query.context)] if query.context else []
    if program[0] == "rg":
        glob = ["-g", query.file_glob] if query.file_glob is not None else []
        plain = ["--no-config", "--no-heading", "--color=never", "--no-context-separator", "--sort=path"]
        return ["rg", *plain, "-nH0", *context, *glob, "-e", query.pattern, "--", query.path]
    if program[0] == "plain":
        return ["grep", "-rnHE", *context, "-e", query.pattern, "--", query.path]
    hidden = ["--exclude-dir=.?*", "--exclude=.?*"]
    return [*program, "-rnHIZ", "--no-group-separator", *hidden, *context, "-e", query.pattern, "--", query.path]


def _parsed(output: str, complete: bool) -> tuple[list[Found], list[str]]:
    """Found lines, and the lines that are none: a program's complaints."""
    lines = output.split("\n")
    if not complete:
        lines.pop()
    found: list[Found] = []
    others: list[str] = []
    for line in lines:
        path, null, rest = line.partition("\x00")
        match = _NUMBERED.fullmatch(rest) if null else _PLAIN_MATCH.fullmatch(line)
        if match is None:
            others += [line] if line.strip() and line != "--" else []
        else:
            name = path if null else match["path"]
            text = match["text"].removesuffix("\r")
            found.append(Found(posixpath.normpath(name), int(match["line"]), text, match["mark"] == ":"))
    return found, others


async def _files(sandbox: Sandbox, program: list[str], query: Query, seconds: float) -> list[str]:
    pattern = query.pattern if re.search(r"[*?\[]", query.pattern) else f"*{query.pattern}*"
    if program[0] == "rg":
        command = ["rg", "--no-config", "--files", "--sort=path", "-0", "-g", pattern, "--", query.path]
    else:
        hidden = ["-name", ".?*", "-prune", "-o"]
        command = ["find", query.path, *hidden, "-type", "f", "-print0"]
    output, code, _ = await _run(sandbox, command, seconds)
    *names, rest = output.split("\x00")
    complaint = re.compile(rf"^(?:{command[0]}: [^\n]*\n)+", re.MULTILINE)
    if not names and (code or 0) > (1 if program[0] == "rg" else 0):
        raise ToolError(f"the search failed: {shorten(rest, 500).strip()}")
    paths = [posixpath.normpath(complaint.sub("", name, count=1)) for name in names]
    return paths if program[0] == "rg" else sorted(path for path in paths if _fits(path, pattern))


async def _run(sandbox: Sandbox, command: Sequence[str], seconds: float) -> tuple[str, int | None, bool]:
    """Output, exit code (None if unknown), and whether the output is complete."""
    bounded = ["/bin/sh", "-c", _BOUNDED, "search", str(_MAX_OUTPUT), *command]
    max_output = _MAX_OUTPUT + 1000
    result = await sandbox.run(bounded, timeout=seconds, max_output=max_output)
    if result.timed_out:
        raise ToolError(f"the search took more than {seconds:g} s; search a smaller folder or give a file_glob")
    text = result.output.decode("utf-8", "replace")
    body, mark, code = text.rpartition(_END)
    if not mark or not code.isdecimal():  # the limit came before it, or in the middle of the mark
        return body or text, None, False
    return body, int(code), True


def _matches(found: list[Found], complete: bool, offset: int, limit: int) -> dict[str, Any]:
    matching = [at for at, each in enumerate(found) if each.matches]
    shown = matching[offset : offset + limit]
    text = ""
    if shown:
        first = matching[offset - 1] + 1 if offset else 0
        last = matching[offset + limit] if offset + limit < len(matching) else len(found)
        text = "\n".join(str(each) for each in found[first:last])
    result: dict[str, Any] = {"total": len(matching), "shown": len(shown), "matches": text}
    return result | _more(len(matching), offset + len(shown), complete)


def _page(name: str, items: list[str], offset: int, limit: int, complete: bool = True) -> dict[str, Any]:
    shown = items[offset : offset + limit]
    return {"total": len(items), name: shown} | _more(len(items), offset + len(shown), complete)


def _more(total: int, shown: int, complete: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"next_offset": shown} if shown < total else {}
    return more if complete else {**more, "note": "there are more matches than can be counted; narrow the search"}


def _fits(path: str, glob: str) -> bool:
    """Whether a path fits a glob as ripgrep sees it: without a slash in it, the file's name alone counts."""
    if "/" not in glob:
        return fnmatchcase(posixpath.basename(path), glob)
    return fnmatchcase(path, glob.removeprefix("/")) or fnmatchcase(path, f"*/{glob.removeprefix('/')}")
