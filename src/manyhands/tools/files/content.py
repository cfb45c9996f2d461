"""Reading and writing files in the sandbox."""

from __future__ import annotations

import asyncio
import posixpath
from typing import Annotated, Any

from pydantic import Field

from manyhands.core.errors import ToolError
from manyhands.core.redaction import KNOWN
from manyhands.core.text import clean, decode, nearest
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import tool
from manyhands.tools.terminal import output_limit, without_nul

MAX_LINE = 2000
"""Characters of a line that are shown."""
_SNIFFED = 8192
_MAX_BYTES = 50_000_000
_LOCK = "file_lock"

_PROBE = r"""
if [ -d "$1" ]; then echo directory; cd -- "$1" && ls -1Ap | head -n 500
elif [ -e "$1" ]; then echo other
else echo missing; cd -- "$2" 2>/dev/null && ls -1Ap | head -n 2000; fi
"""

Path = Annotated[str, "Path of the file; relative ones start where the shell starts.", Field(min_length=1)]


def file_lock(environment: ToolEnvironment) -> asyncio.Lock:
    """Held while a file is read, changed and written, so that calls of one turn follow each other in their order."""
    lock: asyncio.Lock = environment.state.setdefault(_LOCK, asyncio.Lock())
    return lock


@tool(changes_world=True, reads_world=True)
async def read_file(
    environment: ToolEnvironment,
    path: Path,
    offset: Annotated[int, "First line to read, counted from 1.", Field(ge=1)] = 1,
    limit: Annotated[int, "Number of lines to read.", Field(ge=1, le=2000)] = 500,
) -> dict[str, Any]:
    """Read a text file, with line numbers: each line is shown as NUMBER|TEXT.

    Large files are read in parts: the result says which line comes next. For a directory, its entries are listed.
    """
    without_nul("path", path)
    sandbox = await environment.sandbox()
    try:
        data = await sandbox.read_file(path, max_bytes=_MAX_BYTES)
    except ToolError as error:
        return await _instead(sandbox, path, error, environment)
    if is_binary(data):
        raise ToolError(
            f"{path} is a binary file of {len(data)} bytes; look at it with the terminal tool (file, xxd …)"
        )
    return _page(path, data, offset, limit, output_limit(environment))


@tool(changes_world=True)
async def write_file(
    environment: ToolEnvironment,
    path: Path,
    content: Annotated[str, "The whole new content."],
) -> dict[str, Any]:
    """Write a file: the content replaces what was there. Missing folders are made.

    To change a part of a file, use patch.
    """
    without_nul("path", path)
    sandbox = await environment.sandbox()
    data = content.encode()
    async with file_lock(environment):
        await sandbox.write_file(path, data)
    return {"path": path, "bytes_written": len(data), "lines": len(content.splitlines())}


def is_binary(data: bytes) -> bool:
    """Whether the start of the data holds a NUL byte, or control characters beyond what text has."""
    start = data[:_SNIFFED]
    if b"\x00" in start:
        return True
    odd = sum(byte < 32 and byte not in b"\t\n\r\x0b\x0c\x08\x1b" for byte in start)
    return odd > len(start) // 20


async def read_text(sandbox: Sandbox, path: str) -> str:
    """A text file's content; bytes that are not UTF-8 survive a round trip to ``write_text``.

    Raises ToolError, with a suggestion where a file of that name is missing but one of a like name is there.
    """
    try:
        data = await sandbox.read_file(without_nul("path", path), max_bytes=_MAX_BYTES)
    except ToolError as error:
        kind, entries = await _probe(sandbox, path)
        if kind == "missing":
            raise ToolError(_missing(path, entries)) from error
        if kind == "directory":
            raise ToolError(f"{path} is a directory, not a file") from error
        raise
    if is_binary(data):
        raise ToolError(f"{path} is a binary file; it can't be changed as text")
    return data.decode("utf-8", "surrogateescape")


async def write_text(sandbox: Sandbox, path: str, text: str) -> None:
    """Write what ``read_text`` gave, or a changed version of it."""
    await sandbox.write_file(path, text.encode("utf-8", "surrogateescape"))


async def exists(sandbox: Sandbox, path: str) -> bool:
    """Whether there is anything at that path."""
    return (await _probe(sandbox, without_nul("path", path)))[0] != "missing"


def _page(path: str, data: bytes, offset: int, limit: int, max_output: int) -> dict[str, Any]:
    lines = clean(data.decode("utf-8", "replace")).split("\n")
    if lines[-1] == "":
        lines.pop()
    if offset > len(lines) > 0:
        raise ToolError(f"{path} has {len(lines)} lines; line {offset} is beyond its end")
    shown: list[str] = []
    size = 0
    for number in range(offset, min(offset + limit, len(lines) + 1)):
        text = f"{number}|{_cut(lines[number - 1].removesuffix(chr(13)))}"
        size += len(text) + 1
        if size > max_output and shown:
            break
        shown.append(text)
    page: dict[str, Any] = {"content": "\n".join(shown), "total_lines": len(lines), "file_size": len(data)}
    following = offset + len(shown)
    if following <= len(lines):
        page |= {"truncated": True, "next_offset": following}
    return page


def _cut(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    line = KNOWN.text(line)
    return f"{line[:MAX_LINE]}[… {len(line) - MAX_LINE} characters left out …]"


async def _probe(sandbox: Sandbox, path: str) -> tuple[str, list[str]]:
    """``directory`` with its entries, ``other``, or ``missing`` with the entries of the folder it would be in."""
    folder = posixpath.dirname(path.rstrip("/")) or "."
    result = await sandbox.run(["/bin/sh", "-c", _PROBE, "probe", path, folder], timeout=20.0, max_output=100_000)
    kind, *entries = decode(result.output).splitlines() or ["other"]
    return kind, entries


async def _instead(sandbox: Sandbox, path: str, error: ToolError, environment: ToolEnvironment) -> dict[str, Any]:
    kind, entries = await _probe(sandbox, path)
    if kind == "directory":
        return {"path": path, "directory": True, "entries": entries}
    if kind == "missing":
        raise ToolError(_missing(path, entries)) from error
    raise error


def _missing(path: str, entries: list[str]) -> str:
    name = posixpath.basename(path.rstrip("/"))
    like = nearest(name, [entry.rstrip("/") for entry in entries])
    if like is not None:
        return f"there is no file {path}; did you mean {posixpath.join(posixpath.dirname(path), like)}?"
    if entries:
        return f"there is no file {path}; its folder holds: {', '.join(entries[:20])}" + (
            " …" if len(entries) > 20 else ""
        )
    return (
        f"there is no file {path}, and its folder is empty or missing; search_files(target='files') finds files by name"
    )
