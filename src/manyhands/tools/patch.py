"""Changing files: one replacement, or a patch over several files at once."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from manyhands.core.errors import ManyhandsError, ToolError
from manyhands.sandboxes.project import read_only
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.edits import replaced, unified_diff
from manyhands.tools.files import exists, file_lock, read_text, write_text
from manyhands.tools.patches import FileChange, apply_hunks, parse_patch
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.text import decode

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
            await _perform(sandbox, change, before, after, undo)
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


async def _perform(
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
