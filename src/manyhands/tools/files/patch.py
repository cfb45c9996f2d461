"""Tools that change files: one replacement, or a patch over several files at once.

A patch is in the V4A format, which names files and gives changes with context instead of line numbers::

    *** Begin Patch
    *** Update File: src/a.py
    *** Move to: src/b.py                (optional)
    @@ class Greeter:                    (optional; where to start looking)
     unchanged line
    -line that goes
    +line that comes
    *** Add File: notes.txt
    +its only line
    *** Delete File: old.txt
    *** End Patch

Format: OpenAI's ``apply_patch`` tool, as described in the guide to prompting GPT-4.1 (2025).
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from manyhands.core.errors import ManyhandsError, ToolError
from manyhands.core.text import decode
from manyhands.sandboxes.project import read_only
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.files.content import exists, file_lock, read_text, write_text
from manyhands.tools.files.edits import MAX_FOUND, Lines, fitted, line_count, nearest_lines, replaced, unified_diff
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool

_FILE = re.compile(r"\*\*\* (Update|Add|Delete) File:(.*)")
_MOVE = re.compile(r"\*\*\* Move to:(.*)")
_RANGES = re.compile(r"@@ -\d+(,\d+)? \+\d+(,\d+)? @@")
_END_OF_FILE = "*** End of File"
_NO_NEWLINE = "\\ No newline"


@dataclass(slots=True)
class Hunk:
    """One change of a file."""

    number: int
    """Its line in the patch, from 1."""
    anchors: list[str] = field(default_factory=list)
    """Lines after which to look, in turn."""
    old: list[str] = field(default_factory=list)
    """The lines as they are."""
    new: list[str] = field(default_factory=list)
    """The lines as they shall be."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of positions (in ``old``, in ``new``) of unchanged lines."""
    at_end: bool = False
    """Whether ``old`` are the file's last lines."""
    blank: int = 0
    """Empty lines read that count only if more of the hunk follows."""

    def keep(self, line: str) -> None:
        self.kept.append((len(self.old), len(self.new)))
        self.old.append(line)
        self.new.append(line)

    def add(self, line: str) -> None:
        """Take a line that starts with a space, ``-`` or ``+``."""
        for _ in range(self.blank):
            self.keep("")
        self.blank = 0
        if line[0] == " ":
            self.keep(line[1:])
        elif line[0] == "-":
            self.old.append(line[1:])
        else:
            self.new.append(line[1:])


@dataclass(slots=True)
class FileChange:
    """What a patch does to one file."""

    action: Literal["update", "add", "delete"]
    path: str
    move_to: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def parse_patch(text: str) -> list[FileChange]:
    """The changes that a patch asks for.

    Raises ToolError that names the line of the patch that can't be read.
    """
    changes: list[FileChange] = []
    lines = _body(text)
    for number, line in lines:
        header = _FILE.match(line)
        path = header[2].strip() if header else ""
        if header and path:
            action = header[1].lower()
            changes.append(FileChange(action, path))  # type: ignore[arg-type]
        elif not changes:
            if line.strip():
                raise _wrong(
                    number, line, "a file header ('*** Update File: path', '*** Add File:', '*** Delete File:')"
                )
        else:
            _take(changes[-1], number, line)
    _check(changes)
    return changes


def apply_hunks(change: FileChange, text: str) -> str:
    """The file's text with the change's hunks applied, in their order.

    Raises ToolError if a hunk's lines are not in the file, or in more than one place after the previous hunk.
    """
    lines = text.split("\n")
    real = Lines(lines[: line_count(lines)])
    changed: list[str] = []
    cursor = 0  # lines before this one have been dealt with, so that no hunk looks at another one's
    for hunk in change.hunks:
        start = _after_anchors(change, hunk, real, cursor)
        if not hunk.old:
            position = start if hunk.anchors else len(real.lines)
            ending = "\r" if lines[0].endswith("\r") else ""
            fresh = [line + ending for line in hunk.new]
        else:
            position = _position(change, hunk, real, start)
            fresh = _merged(hunk, lines[position : position + len(hunk.old)])
        changed += [*lines[cursor:position], *fresh]
        cursor = position + len(hunk.old)
    return "\n".join(changed + lines[cursor:])


def _body(text: str) -> list[tuple[int, str]]:
    """The patch's lines with their numbers, without its begin and end marks and what is around them."""
    lines = list(enumerate(text.replace("\r\n", "\n").split("\n"), start=1))
    begin = next((at for at, (_, line) in enumerate(lines) if line.strip() == "*** Begin Patch"), -1)
    end = next((at for at, (_, line) in enumerate(lines) if line.strip() == "*** End Patch"), len(lines))
    body = lines[begin + 1 : end]
    while end == len(lines) and body and not body[-1][1]:
        body.pop()
    return body


def _take(change: FileChange, number: int, line: str) -> None:
    move = _MOVE.match(line)
    if move and move[1].strip() and change.action == "update" and not change.hunks:
        change.move_to = move[1].strip()
    elif change.action == "add":
        _take_added(change, number, line)
    elif change.action == "delete":
        if line.strip():
            raise _wrong(number, line, f"nothing, as {change.path} is deleted")
    else:
        _take_hunk_line(change, number, line)


def _take_added(change: FileChange, number: int, line: str) -> None:
    if line.startswith("+"):
        change.added.append(line[1:])
    elif line.strip() and line.strip() != _END_OF_FILE:
        raise _wrong(number, line, "a line of the new file, which starts with '+'")


def _take_hunk_line(change: FileChange, number: int, line: str) -> None:
    hunks = change.hunks
    if not hunks or (line.startswith("@@") and (hunks[-1].old or hunks[-1].new)):
        hunks.append(Hunk(number))
    hunk = hunks[-1]
    if line.startswith("@@"):
        anchor = "" if _RANGES.match(line) else line.removeprefix("@@").strip()
        hunk.anchors += [anchor] if anchor else []
    elif line.strip() == _END_OF_FILE:
        hunk.at_end = True
    elif not line:
        hunk.blank += bool(hunk.old or hunk.new)
    elif line[0] in " +-":
        hunk.add(line)
    elif not line.startswith(_NO_NEWLINE):
        raise _wrong(number, line, "a line that starts with a space, '-' or '+', or '@@'")


def _check(changes: list[FileChange]) -> None:
    if not changes:
        raise ToolError("the patch names no file; it starts with '*** Begin Patch' and '*** Update File: path'")
    seen: set[str] = set()
    for change in changes:
        change.hunks = [hunk for hunk in change.hunks if hunk.old != hunk.new]
        if change.action == "update" and not change.hunks and change.move_to is None:
            raise ToolError(f"the patch changes nothing in {change.path}: it has no '-' or '+' line")
        for path in filter(None, (change.path, change.move_to)):
            if path in seen:
                raise ToolError(f"the patch names {path} twice; put all its changes under one header")
            seen.add(path)


def _after_anchors(change: FileChange, hunk: Hunk, real: Lines, cursor: int) -> int:
    for anchor in hunk.anchors:
        position = real.line(anchor, cursor)
        if position is None:
            raise ToolError(
                f"{change.path}: the line after '@@' in patch line {hunk.number} was not found: {anchor!r}; "
                + nearest_lines(real.lines, [anchor])
            )
        cursor = position + 1
    return cursor


def _position(change: FileChange, hunk: Hunk, real: Lines, start: int) -> int:
    """Where the hunk's old lines are. An anchor may itself be the first of them."""
    limit = 1 if hunk.anchors or hunk.at_end else MAX_FOUND
    positions, how = real.find(hunk.old, max(0, start - 1) if hunk.anchors else start, limit)
    if hunk.at_end and positions:
        last = len(real.lines) - len(hunk.old)
        positions = [last] if last >= positions[0] and real.at(hunk.old, last, how) else []
    what = f"{change.path}: the lines of the hunk at patch line {hunk.number}"
    if not positions:
        earlier = real.find(hunk.old, limit=1)[0]
        hint = " (they are there before the previous hunk: put the hunks in order)" if earlier else ""
        raise ToolError(f"{what} were not found{hint}; {nearest_lines(real.lines, hunk.old)}")
    if len(positions) > 1:
        count = f"{len(positions)}" if len(positions) < MAX_FOUND else f"more than {MAX_FOUND - 1}"
        shown = ", ".join(str(position + 1) for position in positions[: MAX_FOUND - 1])
        hint = "add more context lines, or '@@ ' with a line before them"
        raise ToolError(f"{what} are there {count} times (lines {shown}): {hint}")
    return positions[0]


def _merged(hunk: Hunk, found: list[str]) -> list[str]:
    """The new lines, with unchanged ones as they are in the file."""
    fresh = fitted(hunk.new, hunk.old, found)
    for old_at, new_at in hunk.kept:
        fresh[new_at] = found[old_at]
    return fresh


def _wrong(number: int, line: str, wanted: str) -> ToolError:
    return ToolError(f"patch line {number} can't be read: {line[:100]!r}; expected {wanted}")


_BYTE_ORDER_MARK = "\ufeff"
Undo = Callable[[], Awaitable[object]]


@tool(changes_world=True)
async def patch(
    environment: ToolEnvironment,
    mode: Annotated[
        Literal["replace", "patch"],
        "replace: one piece of text in one file; patch: a V4A patch, also of several files.",
    ] = "replace",
    path: Annotated[str | None, "For replace: the file."] = None,
    old_string: Annotated[
        str | None, "For replace: the text as it is in the file, with enough lines around it to be there once."
    ] = None,
    new_string: Annotated[str | None, "For replace: what to put in its place; empty text removes it."] = None,
    replace_all: Annotated[bool, "For replace: change every place instead of requiring a single one."] = False,
    patch: Annotated[
        str | None,
        "For patch: '*** Begin Patch', then for each file '*** Update File: path' (and '*** Move to: path' to rename it) with "
        "hunks of ' ' context, '-' and '+' lines, '@@ line' before a hunk to say where; '*** Add File: path' with '+' lines; "
        "'*** Delete File: path'; then '*** End Patch'.",
    ] = None,
) -> dict[str, Any]:
    """Change files. Returns the change as a unified diff.

    White space need not match to the letter, but the text must be found in one place only. A patch is applied as a
    whole or not at all.
    """
    sandbox = await environment.sandbox()
    async with file_lock(environment):
        if mode == "patch" or (patch is not None and path is None):
            if not patch:
                raise ToolError("argument 'patch' is missing: mode 'patch' needs the patch text")
            return await _patch(sandbox, await asyncio.to_thread(parse_patch, patch))
        if path is None or old_string is None or new_string is None:
            raise ToolError("mode 'replace' needs the arguments path, old_string and new_string")
        return await _replace(sandbox, path, old_string, new_string, replace_all)


async def _replace(sandbox: Sandbox, path: str, old: str, new: str, every: bool) -> dict[str, Any]:
    before = await read_text(sandbox, path)
    result = await asyncio.to_thread(replaced, before, old, new, every=every)
    await write_text(sandbox, path, result.text)
    diff = await asyncio.to_thread(unified_diff, path, before, result.text)
    return {"path": path, "replacements": result.count, "matched": result.how, "diff": diff}


async def _patch(sandbox: Sandbox, changes: list[FileChange]) -> dict[str, Any]:
    planned = [(change, *await _planned(sandbox, change)) for change in changes]
    undo: list[Undo] = []
    try:
        # Deletions come last: whatever fails before them can be taken back without loss of a file's mode.
        for change, before, after in sorted(planned, key=lambda each: each[0].action == "delete"):
            await _execute(sandbox, change, before, after, undo)
    except ManyhandsError:
        for step in reversed(undo):
            with suppress(ManyhandsError):
                await step()
        raise
    diffs = [
        await asyncio.to_thread(unified_diff, change.path, before, after, change.move_to)
        for change, before, after in planned
    ]
    files = [{"action": change.action, "path": change.path} | _moved(change) for change in changes]
    return {"files": files, "diff": "".join(diffs)}


async def _planned(sandbox: Sandbox, change: FileChange) -> tuple[str | None, str | None]:
    """The file's text before and after, None for no file."""
    target = change.path if change.action == "add" else change.move_to
    if target is not None and await exists(sandbox, target):
        raise ToolError(f"{target} exists already; nothing was changed. Use '*** Update File: {target}', or write_file")
    if change.action == "add":
        return None, "".join(line + "\n" for line in change.added)
    before = await read_text(sandbox, change.path)
    if change.action == "delete":
        return before, None
    bare = before.removeprefix(_BYTE_ORDER_MARK)
    try:
        after = await asyncio.to_thread(apply_hunks, change, bare)
    except ToolError as error:
        raise ToolError(f"{error}. Nothing was changed.") from error
    return before, before[: len(before) - len(bare)] + after


async def _execute(
    sandbox: Sandbox, change: FileChange, before: str | None, after: str | None, undo: list[Undo]
) -> None:
    path = change.path
    if after is None:
        await _run(sandbox, ["rm", "-f", "--", path])
        return
    if before is None:
        undo.append(lambda: _run(sandbox, ["rm", "-f", "--", path]))
    else:
        undo.append(lambda: write_text(sandbox, path, before))
    if after != before:
        await write_text(sandbox, path, after)
    if change.move_to is not None:
        target = change.move_to
        undo.append(lambda: _run(sandbox, ["mv", "-f", "--", target, path]))
        await _run(sandbox, ["mkdir", "-p", "--", posixpath.dirname(target) or "."])
        await _run(sandbox, ["mv", "-f", "--", path, target])


async def _run(sandbox: Sandbox, command: list[str]) -> None:
    result = await sandbox.run(command, timeout=20.0)
    if result.exit_code != 0:
        said = decode(result.output).strip()[:500]
        if sandbox.project is not None and "Read-only file system" in said:
            raise ToolError(read_only(command[-1], sandbox.project, sandbox.workspace))
        raise ToolError(f"{' '.join(command)} failed: {said}. Nothing was changed.")


def _moved(change: FileChange) -> dict[str, Any]:
    return {"moved_to": change.move_to} if change.move_to is not None else {}
