"""Which files differ between two folders.

Files are compared byte by byte, and symbolic links by what they say; times and owners do not count, and of a file's mode only whether it
can be executed. Folders called ``.git`` are left out, as are sockets, pipes and devices. Nothing is reached by following links.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from manyhands.sandboxes.trees import Tree, read_at_most

LEFT_OUT = ".git"
FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Modes as git writes them."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or link of the tree ``root``. ``mode``: as git writes it."""

    root: Path
    name: str
    mode: str
    size: int

    def data(self) -> bytes:
        """What is in it, as far as it was when its size was taken; of a link, what it says. Raises OSError."""
        with Tree(self.root) as tree:
            return tree.link(self.name) if self.mode == LINK else tree.read(self.name, self.size)


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
    with Tree(before) as old_tree, Tree(after) as new_tree:
        old, new = dict(_entries(old_tree, before)), dict(_entries(new_tree, after))
        for name in sorted(old.keys() | new.keys()):
            change = Change(name, old.get(name), new.get(name))
            if not _same(old_tree, change.old, new_tree, change.new):
                yield change


def _entries(tree: Tree, root: Path) -> Iterator[tuple[str, Entry]]:
    """Files and links of a tree. Raises OSError for a folder that can't be read: what is in it must not count as gone."""
    for found in tree.walk(lambda each: each.name != LEFT_OUT):
        if found.name == LEFT_OUT:
            continue
        if found.is_link:
            yield found.path, Entry(root, found.path, LINK, found.status.st_size)
        elif found.is_file:
            mode = PROGRAM if found.status.st_mode & stat.S_IXUSR else FILE
            yield found.path, Entry(root, found.path, mode, found.status.st_size)


def _same(old_tree: Tree, old: Entry | None, new_tree: Tree, new: Entry | None) -> bool:
    if old is None or new is None or (old.mode, old.size) != (new.mode, new.size):
        return False
    if old.mode == LINK:
        return old_tree.link(old.name) == new_tree.link(new.name)
    try:
        return _same_bytes(old_tree.open(old.name), lambda: new_tree.open(new.name))
    except OSError:  # the target took our rights away
        return False


def _same_bytes(one: int, opened: Callable[[], int]) -> bool:
    with os.fdopen(one, "rb", buffering=0) as old, os.fdopen(opened(), "rb", buffering=0) as new:
        while data := read_at_most(old.fileno(), _CHUNK):
            if data != read_at_most(new.fileno(), _CHUNK):
                return False
        return not new.read(1)
