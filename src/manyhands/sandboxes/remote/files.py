"""Reading and writing a world's files: by a service shell where they are small, else by commands of their own, archives by the driver."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from typing import BinaryIO

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.sandboxes.files.access import (
    IN_PROJECT,
    WRITE_INPUT,
    check_archive,
    check_result,
    check_size,
    write_script,
)
from manyhands.sandboxes.project import PROJECT, read_only
from manyhands.sandboxes.remote.place import Place
from manyhands.sandboxes.remote.service import Service

_SECONDS = 60.0
_ARCHIVE_SECONDS = 600.0
# $1 path, $2 bytes.
_READ = """\
[ -e "$1" ] || exit 20; [ -d "$1" ] && exit 21; [ -f "$1" ] || exit 22; [ -r "$1" ] || exit 23
if command -v head >/dev/null 2>&1; then exec head -c "$2" -- "$1"; fi
exec dd if="$1" bs=65536 count=$(($2 / 65536 + 1))
"""


async def read_file(service: Service, path: str, max_bytes: int) -> bytes:
    """Raises ToolError, and ItemError(SANDBOX_LOST)."""
    code, data = await service.inner(_READ, path, str(max_bytes + 1), timeout=_SECONDS, max_output=max_bytes + 1)
    check_result(code, data, "read", path)
    check_size(len(data), path, max_bytes)
    return data


async def write_file(service: Service, path: str, data: bytes, *, project: str | None, workspace: str) -> None:
    """Write aside, then rename. Raises ToolError, and ItemError(SANDBOX_LOST)."""
    words = (path, secrets.token_hex(8), project or "")
    script = write_script(data)
    if script is not None:
        code, said = await service.inner(script, *words, timeout=_SECONDS)
    else:
        command = ["/bin/sh", "-c", WRITE_INPUT, "sh", *words]
        result = await service.run_alone(command, "/", timeout=_SECONDS, input=data, max_output=100_000)
        if result.timed_out:
            raise ToolError(f"can't write {path}: it took longer than {_SECONDS:.0f} seconds")
        code, said = result.exit_code or 0, result.output
    if project is not None and (code == IN_PROJECT or (code and b"Read-only file system" in said)):
        raise ToolError(read_only(path, project, workspace))
    check_result(code, said, "write", path)


async def put(service: Service, place: Place, archive: BinaryIO, path: str) -> None:
    """Unpack an archive into a folder, which is made. Raises ToolError, and ItemError(SANDBOX_LOST)."""
    check_archive(archive, path)
    if path == PROJECT or path.startswith(PROJECT + "/"):
        raise ToolError(read_only(path, PROJECT, place.world.workspace))
    code, said = await service.inner('mkdir -p -- "$1" || exit 1; command -v tar >/dev/null || echo no', path)
    check_result(code, said, "unpack into", path)
    if service.user != 0 and not said:  # so that everything belongs to who runs commands
        await _put_inside(service, archive, path)
        return
    try:
        async with asyncio.timeout(_ARCHIVE_SECONDS):
            await place.driver.put(place.world.id, archive, path)
    except TimeoutError as error:
        raise ToolError(f"can't unpack into {path}: it took longer than {_ARCHIVE_SECONDS:.0f} seconds") from error


async def _put_inside(service: Service, archive: BinaryIO, path: str) -> None:
    command = ["tar", "-x", "-C", path, "-f", "-"]
    result = await service.run_alone(command, "/", timeout=_ARCHIVE_SECONDS, input=archive, max_output=100_000)
    check_result(result.exit_code, result.output, "unpack into", path)


async def get(service: Service, place: Place, path: str, archive: BinaryIO, max_bytes: int) -> None:
    """Pack a file or folder. The archive is never unpacked here. Raises ToolError, and ItemError(SANDBOX_LOST)."""
    code, said = await service.inner('[ -e "$1" ] || [ -L "$1" ] || exit 20; [ -r "$1" ] || exit 23', path)
    check_result(code, said, "pack", path)
    with tempfile.TemporaryFile() as whole:  # so that nothing half is given
        try:
            async with asyncio.timeout(_ARCHIVE_SECONDS):
                await place.driver.get(place.world.id, path, whole, max_bytes=max_bytes)
        except FileNotFoundError as error:
            raise ToolError(f"no such file: {path}") from error
        except ValueError as error:
            raise ToolError(f"can't pack {path}: more than {max_bytes:,} bytes") from error
        except TimeoutError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't pack {path}: it took too long") from error
        whole.seek(0)
        while data := whole.read(1 << 20):
            archive.write(data)
