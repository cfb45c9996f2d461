"""Files done safely: written aside and renamed, removed whatever they contain."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from manyhands.core.errors import StorageError

BLOCK = 1 << 18
"""Bytes that are written to such a file at once."""
_ASIDE = re.compile(r"\..+\.(\d+)\.new")


@contextmanager
def written_aside(path: Path) -> Iterator[TextIO]:
    """A text file to write; it takes the place of ``path`` only when all of it is on disk.

    Raises StorageError if that fails, and then ``path`` is as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with aside.open("w", encoding="utf-8", newline="\n", buffering=BLOCK) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        aside.unlink(missing_ok=True)


def remove_asides(folder: Path) -> None:
    """Remove what processes that are gone were writing aside in a folder when they were killed."""
    for path in folder.iterdir():
        writer = _ASIDE.fullmatch(path.name)
        if writer is not None and not Path("/proc", writer[1]).exists():
            path.unlink(missing_ok=True)


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

    shutil.rmtree(folder, onerror=unlock)
