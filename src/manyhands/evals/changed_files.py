"""Which files differ between two folders.

Files are compared byte by byte, and symbolic links by what they say; times and owners do not count, and of a file's mode only whether it
can be executed. Folders called ``.git`` are left out, as are sockets, pipes and devices.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = ".git"
FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Modes as git writes them."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or link. ``mode``: as git writes it."""

    path: str
    mode: str
    size: int

    def data(self) -> bytes:
        """What is in it; of a link, what it says."""
        return os.readlink(os.fsencode(self.path)) if self.mode == LINK else Path(self.path).read_bytes()


@dataclass(frozen=True, slots=True)
class Change:
    """A name whose entry is another one now; None: there is (or was) none. ``name``: relative, with slashes."""

    name: str
    old: Entry | None
    new: Entry | None

    @property
    def largest(self) -> int:
        return max(entry.size for entry in (self.old, self.new) if entry is not None)


def changed(before: Path, after: Path) -> Iterator[Change]:
    """What differs between two folders, by name. Raises OSError."""
    old, new = dict(_entries(os.fspath(before))), dict(_entries(os.fspath(after)))
    for name in sorted(old.keys() | new.keys()):
        change = Change(name, old.get(name), new.get(name))
        if not _same(change.old, change.new):
            yield change


def _entries(folder: str, above: str = "") -> Iterator[tuple[str, Entry]]:
    """Files and links below a folder. Raises OSError for a folder that can't be read: what is in it must not count as gone."""
    with os.scandir(folder) as entries:
        for each in entries:
            name = f"{above}{each.name}"
            if each.name == LEFT_OUT:
                continue
            status = each.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield from _entries(each.path, f"{name}/")
            elif stat.S_ISLNK(status.st_mode):
                yield name, Entry(each.path, LINK, status.st_size)
            elif stat.S_ISREG(status.st_mode):
                mode = PROGRAM if status.st_mode & stat.S_IXUSR else FILE
                yield name, Entry(each.path, mode, status.st_size)


def _same(old: Entry | None, new: Entry | None) -> bool:
    if old is None or new is None or (old.mode, old.size) != (new.mode, new.size):
        return False
    if old.mode == LINK:
        return old.data() == new.data()
    try:
        with open(old.path, "rb", buffering=0) as one, open(new.path, "rb", buffering=0) as other:
            while data := one.read(_CHUNK):
                if data != other.read(_CHUNK):
                    return False
    except OSError:  # the target took our rights away
        return False
    return True
