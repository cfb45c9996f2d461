"""Files done safely: written aside and renamed, removed whatever they contain."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from manyhands.core.errors import StorageError

BLOCK = 1 << 18
"""Bytes that are written to such a file at once."""
_ASIDE = re.compile(r"\.(.+?)(?:\.\d+)?\.(\d+)\.new")
_serial = count()
_CLOCKS_DIFFER = 5.0
"""Seconds by which the start of a process and the time of a file may seem to be in the wrong order."""


@contextmanager
def written_aside(path: Path) -> Iterator[TextIO]:
    """A text file to write; it takes the place of ``path`` only when all of it is on disk.

    Raises StorageError if that fails, and then ``path`` is as it was.
    """
    with bytes_written_aside(path) as binary:
        handle = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
        try:
            yield handle
            handle.flush()
        finally:
            handle.detach()


@contextmanager
def bytes_written_aside(path: Path) -> Iterator[BinaryIO]:
    """The like for bytes."""
    aside = path.with_name(f".{path.name}.{next(_serial)}.{os.getpid()}.new")
    try:
        with aside.open("wb", buffering=BLOCK) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        aside.unlink(missing_ok=True)


def remove_asides(folder: Path, name: str | None = None) -> None:
    """Remove what processes that are gone were writing aside in a folder (in place of a file of that name) when they were killed."""
    for path in folder.iterdir():
        writer = _ASIDE.fullmatch(path.name)
        if writer is not None and name in (None, writer[1]) and not _may_be_writing(path, int(writer[2])):
            path.unlink(missing_ok=True)


def _may_be_writing(path: Path, process: int) -> bool:
    """Whether a process lives, and may have begun the file: its number may have been another one's before (see proc(5) for ``stat``)."""
    try:
        written = path.stat().st_mtime
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return Path("/proc", str(process)).exists()
    state, started = fields[0], int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return state not in "ZX" and time.time() - uptime + started <= written + _CLOCKS_DIFFER


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one with read-only folders in it; symbolic links are removed, not followed. What can't be removed stays."""

    def unlock(function: Callable[..., Any], path: str, _: Any) -> None:
        parent = os.path.dirname(path)
        try:
            os.chmod(parent, stat.S_IRWXU)
            if not os.path.islink(path) and os.path.isdir(path):
                os.chmod(path, stat.S_IRWXU)
                shutil.rmtree(path, ignore_errors=True)
            else:
                function(path)
        except OSError:
            return

    try:
        shutil.rmtree(folder, onerror=unlock)
    except RecursionError:  # a program that made folders within folders without end; rm follows them to any depth
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["rm", "-rf", "--", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
