"""Reading and writing a sandbox's files on behalf of tools."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import BinaryIO, Protocol

from manyhands.core.errors import ToolError
from manyhands.processes.children import ExecResult
from manyhands.processes.output import ToFile
from manyhands.sandboxes.files.trees import NotPlain, open_folder, open_regular, read_at_most, replace_file
from manyhands.sandboxes.project import read_only

_SECONDS = 60.0
_ARCHIVE_SECONDS = 600.0
_MISSING, _IS_FOLDER, _NOT_REGULAR, _UNREADABLE, IN_PROJECT = 20, 21, 22, 23, 24
# Where there is only one user, files can be given to nobody else.
_PUT = """\
mkdir -p -- "$1" || exit 1
ours=; read -r _ _ count 2>/dev/null </proc/self/uid_map; [ "$count" != 1 ] || ours=-o
exec tar -x $ours -C "$1" -f -
"""
# What tar says must not be among the archive's bytes: it also names what it leaves out, such as sockets.
_GET = """\
[ -e "$1" ] || exit 20; [ -r "$1" ] || exit 23
exec 3>&1
said=$(tar -c -C "$(dirname -- "$1")" -f - -- "$(basename -- "$1")" 2>&1 >&3 3>&-) && exit
code=$?; printf '%s' "$said"; exit "$code"
"""
MAX_ARCHIVE = 1 << 30
"""Bytes of an archive that is unpacked inside."""
_READ = """\
[ -e "$1" ] || exit 20; [ -d "$1" ] && exit 21; [ -f "$1" ] || exit 22; [ -r "$1" ] || exit 23
exec head -c "$2" -- "$1"
"""
# $1 path, $2 a word that no file's name has, $3 the project's folder, if there is one.
_WRITE = """\
target=$1; links=0
while [ -L "$target" ]; do
  links=$((links + 1)); [ $links -gt 40 ] && { echo "too many links"; exit 1; }
  next=$(readlink -- "$target" && echo .) || exit 1
  next=${next%??}
  case $next in /*) target=$next ;; *) target=${target%/*}/$next ;; esac
done
[ -d "$target" ] && exit 21
if [ -e "$target" ] && [ ! -f "$target" ]; then exit 22; fi
folder=${target%/*}; folder=${folder:-/}
if [ "$3" ]; then
  near=$folder
  while [ ! -d "$near" ]; do [ -e "$near" ] && break; near=${near%/*}; near=${near:-/}; done
  case "$(cd -P -- "$near" 2>/dev/null && pwd -P)" in "$3"|"$3"/*) exit 24 ;; esac
fi
[ -d "$folder" ] || mkdir -p -- "$folder" || exit 1
aside="$target.$2.tmp"
trap 'rm -f -- "$aside"' EXIT
if [ ! -e "$target" ]; then :
elif [ -O "$target" ]; then
  : >"$aside" || exit 1
  chmod --reference="$target" -- "$aside" 2>/dev/null || chmod "$(stat -c %a -- "$target")" "$aside" || exit 1
else
  cp -p --attributes-only -- "$target" "$aside" 2>/dev/null || cp -p -- "$target" "$aside" || exit 1
fi
DATA >"$aside" || exit 1
mv -f -- "$aside" "$target" || exit 1
trap - EXIT
"""
WRITE_INPUT = _WRITE.replace("DATA", "cat")
"""Writes its input."""
MAX_IN_SCRIPT = 1 << 16
"""Bytes, as they are and quoted, that are written as a part of the script: one word of a command takes 128 KiB (execve(2))."""
_SPECIAL = re.compile('[^ \\n\\t!"#$&()*+,./0-9:;<=>?@A-Z[\\]^_`a-z{|}~]')
_ESCAPED = [f"\\{value:03o}" for value in range(256)]
_ESCAPED[ord("%")] = "%%"
_REASONS = {
    _MISSING: "no such file: {path}",
    _IS_FOLDER: "{path} is a folder, not a file",
    _NOT_REGULAR: "{path} is not a regular file",
    _UNREADABLE: "no permission to read {path}",
}


class RunInside(Protocol):
    """How files are reached from inside the sandbox: ``Sandbox.run``."""

    def __call__(
        self,
        command: list[str],
        *,
        timeout: float,
        input: bytes | BinaryIO | None = None,
        max_output: int = 100_000,
        sink: ToFile | None = None,
    ) -> Awaitable[ExecResult]: ...


def read_plain(root: Path, parts: list[str], shown: str, max_bytes: int) -> bytes | None:
    """The regular file ``root/parts…``; None if a link is on the way, which only the inside can follow rightly. Raises ToolError."""
    if not parts:
        raise ToolError(_REASONS[_IS_FOLDER].format(path=shown))
    try:
        with open_folder(root, parts[:-1]) as folder:
            descriptor = open_regular(folder, parts[-1])
            try:
                check_size(os.fstat(descriptor).st_size, shown, max_bytes)
                return read_at_most(descriptor, max_bytes)
            finally:
                os.close(descriptor)
    except NotPlain:
        return None
    except OSError as error:
        raise ToolError(_explained(error, "read", shown)) from error


def write_plain(root: Path, parts: list[str], shown: str, data: bytes) -> bool:
    """Write the regular file ``root/parts…``; False if a link is on the way. Raises ToolError."""
    if not parts:
        raise ToolError(_REASONS[_IS_FOLDER].format(path=shown))
    try:
        with open_folder(root, parts[:-1], make=True) as folder:
            replace_file(folder, parts[-1], data)
    except NotPlain:
        return False
    except OSError as error:
        raise ToolError(_explained(error, "write", shown)) from error
    return True


def write_script(data: bytes) -> str | None:
    """A script that writes a file aside, then renames it; None for more than a script may hold."""
    given = f"printf {printf_format(data)}" if len(data) <= MAX_IN_SCRIPT else ""
    return _WRITE.replace("DATA", given) if given and len(given) <= MAX_IN_SCRIPT else None


def printf_format(data: bytes) -> str:
    """Bytes as the quoted format of ``printf``, which every shell writes as they are. A hyphen would begin an option."""
    return "'" + _SPECIAL.sub(lambda found: _ESCAPED[ord(found[0])], data.decode("latin-1")) + "'"


async def read_inside(run: RunInside, path: str, max_bytes: int) -> bytes:
    """Read a file by a command inside. Raises ToolError."""
    result = await run(["sh", "-c", _READ, "sh", path, str(max_bytes + 1)], timeout=_SECONDS, max_output=max_bytes + 1)
    _check(result, "read", path)
    check_size(len(result.output), path, max_bytes)
    return result.output


async def write_inside(
    run: RunInside, path: str, data: bytes, aside: str, *, project: str | None, workspace: str
) -> None:
    """Write a file by a command inside, through links as they lead. ``path``: absolute; ``aside``: a word that no file's name has;
    ``project``: a folder that can't be written to; ``workspace``: the one that can. Raises ToolError."""
    words = ["sh", path, aside, project or ""]
    script = write_script(data)
    if script is not None:
        result = await run(["sh", "-c", script, *words], timeout=_SECONDS)
    else:
        result = await run(["sh", "-c", WRITE_INPUT, *words], timeout=_SECONDS, input=data)
    if project is not None and result.exit_code == IN_PROJECT:
        raise ToolError(read_only(path, project, workspace))
    _check(result, "write", path)


async def put_inside(run: RunInside, archive: BinaryIO, path: str) -> None:
    """Unpack a tar archive by a command inside. Raises ToolError."""
    check_archive(archive, path)
    result = await run(["sh", "-c", _PUT, "sh", path], timeout=_ARCHIVE_SECONDS, input=archive)
    _check(result, "unpack into", path, _ARCHIVE_SECONDS)


async def get_inside(run: RunInside, path: str, archive: BinaryIO, max_bytes: int) -> None:
    """Pack a file or folder by a command inside; nothing is written of what is too large. Raises ToolError."""
    with tempfile.TemporaryFile() as whole:
        packed = ToFile(whole, max_bytes)
        result = await run(["sh", "-c", _GET, "sh", path], timeout=_ARCHIVE_SECONDS, sink=packed)
        check_size(packed.total, path, max_bytes)  # first: a command that writes more is killed
        _check(result, "pack", path, _ARCHIVE_SECONDS)
        if packed.problem is not None:
            raise ToolError(_explained(packed.problem, "pack", path))
        whole.seek(0)
        await asyncio.to_thread(shutil.copyfileobj, whole, archive, 1 << 20)


def check_archive(archive: BinaryIO, path: str) -> None:
    """Raises ToolError for an archive, from where it stands on, with too many bytes to unpack it into ``path``."""
    start = archive.tell()
    size = archive.seek(0, os.SEEK_END) - start
    archive.seek(start)
    if size > MAX_ARCHIVE:
        raise ToolError(f"can't unpack into {path}: more than {MAX_ARCHIVE:,} bytes")


def read_on_host(path: Path, shown: str, max_bytes: int) -> bytes:
    """Read a file of the host's, links followed. Raises ToolError."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(_explained(error, "read", shown)) from error
    data = read_plain(Path(real.anchor), list(real.parts[1:]), shown, max_bytes)
    if data is None:
        raise ToolError(_REASONS[_NOT_REGULAR].format(path=shown))
    return data


def write_on_host(path: Path, shown: str, data: bytes) -> None:
    """Write a file of the host's, links followed. Raises ToolError."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(_explained(error, "write", shown)) from error
    if not write_plain(Path(real.anchor), list(real.parts[1:]), shown, data):
        raise ToolError(_REASONS[_NOT_REGULAR].format(path=shown))


def _check(result: ExecResult, doing: str, path: str, seconds: float = _SECONDS) -> None:
    if result.timed_out:
        raise ToolError(f"can't {doing} {path}: it took longer than {seconds:.0f} seconds")
    check_result(result.exit_code, result.output, doing, path)


def check_result(exit_code: int | None, output: bytes, doing: str, path: str) -> None:
    """Raises ToolError if a command that reads or writes a file failed: with what its exit code means, or with what it said."""
    if exit_code in _REASONS:
        raise ToolError(_REASONS[exit_code].format(path=path))
    if exit_code != 0:
        text = output.decode(errors="replace").strip()[-300:]
        raise ToolError(f"can't {doing} {path}: {text or f'exit code {exit_code}'}")


def check_size(size: int, shown: str, max_bytes: int) -> None:
    """Raises ToolError for a file with too many bytes."""
    if size > max_bytes:
        raise ToolError(
            f"{shown} has more than {max_bytes:,} bytes; read a part of it with a command such as head or sed"
        )


def _explained(error: Exception, doing: str, shown: str) -> str:
    if isinstance(error, FileNotFoundError) and doing == "read":
        return _REASONS[_MISSING].format(path=shown)
    if isinstance(error, IsADirectoryError):
        return _REASONS[_IS_FOLDER].format(path=shown)
    return f"can't {doing} {shown}: {getattr(error, 'strerror', None) or error}"
