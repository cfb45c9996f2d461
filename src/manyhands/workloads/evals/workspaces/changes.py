"""What changed in a folder, as a unified diff in git's format.

It is git's where git is installed, and is made with ``difflib`` where it is not. git sees copies of the
changed files only, outside of any repository: nothing that the folder holds (``.git/config``, ``.gitattributes``) tells it what to run.

Files are compared byte by byte, and symbolic links by what they say; times and owners do not count, and of a file's mode only whether it
can be executed. Folders called ``.git`` are left out, as are sockets, pipes and devices. Nothing is reached by following links.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.jsonio import without_surrogates
from manyhands.processes.commands import CommandRunner
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import (
    Tree,
    make_link,
    open_folder,
    open_regular,
    read_at_most,
    replace_file,
    set_mode,
)

MAX_CHARACTERS = 100_000
"""Of a diff; what is beyond is left out, and the diff's last line says so."""
MAX_FILES = 2_000
"""Changed files that are compared line by line."""
MAX_FILE_BYTES = 4 << 20
"""Bytes of a file that is compared line by line; of a larger one only that it changed is said."""
MAX_BYTES = 64 << 20
"""Bytes of changed files, before and after, that are compared line by line."""
MAX_LINES = 2_000
"""Lines that ``difflib`` compares; its time grows with their square. Where more differ, all of them count as changed."""
_TOO_MUCH = "too many files, or too large a file, to be compared line by line"
_GIT_SECONDS = 60.0
_GIT_OUTPUT = 16 * MAX_CHARACTERS
_OLD, _NEW = "a", "b"


async def file_changes(
    before: Path, after: Path, scratch: Path, runner: CommandRunner, *, left_out: str | None = None
) -> str:
    """The diff from one folder to the other; empty if nothing changed. ``scratch``: a folder that is made for it on the same file system,
    and removed; ``runner``: starts git; ``left_out``: a folder in them that is not looked at. Raises OSError."""
    changes = await asyncio.to_thread(lambda: list(changed(before, after, left_out)))
    if not changes:
        return ""
    compared = list(_compared(changes))
    text = await _with_git(compared, scratch, runner) if compared else ""
    if text is None:
        text = await asyncio.to_thread(lambda: "".join(plain_diff(each) for each in compared))
    shown = {each.name for each in compared}
    others = [each for each in changes if each.name not in shown]
    named = [f"{_heading(each)}[{_TOO_MUCH}]\n" for each in others[:MAX_FILES]]
    return cut(without_surrogates(text + "".join(named)))


def _compared(changes: Sequence[Change]) -> Iterator[Change]:
    """Those that are not too much to be compared line by line."""
    left = MAX_BYTES
    for each in changes[:MAX_FILES]:
        size = sum(entry.size for entry in (each.old, each.new) if entry is not None)
        if each.largest <= MAX_FILE_BYTES and size <= left:
            left -= size
            yield each


def plain_diff(change: Change) -> str:
    """The diff of one file, without git. Raises OSError."""
    old, new = (b"" if entry is None else entry.data() for entry in (change.old, change.new))
    heading = _heading(change)
    if old == new:
        return heading
    before = os.devnull if change.old is None else _quoted(f"{_OLD}/{change.name}")
    after = os.devnull if change.new is None else _quoted(f"{_NEW}/{change.name}")
    if b"\0" in old[:8000] or b"\0" in new[:8000]:  # as git tells
        return f"{heading}Binary files {before} and {after} differ\n"
    return f"{heading}--- {before}\n+++ {after}\n{''.join(_hunks(_lines(old), _lines(new)))}"


def cut(text: str) -> str:
    """A diff that is not too long: cut after a line, which it then says."""
    if len(text) <= MAX_CHARACTERS:
        return text
    kept = text[: text.rfind("\n", 0, MAX_CHARACTERS) + 1]
    return f"{kept}[cut after {len(kept)} characters]\n"


# --- With git


async def _with_git(changes: Sequence[Change], scratch: Path, runner: CommandRunner) -> str | None:
    """The diff that git makes of two folders in which there is only what changed; None if git can't."""
    try:
        await asyncio.to_thread(lambda: _copied(changes, scratch))
        words = "git -c core.quotePath=false diff --no-index --no-color --no-ext-diff --no-textconv --no-renames --no-prefix"
        end = await runner.run(
            [*words.split(), "--", _OLD, _NEW],
            folder=scratch,
            # No repository above the folder, and nobody's settings, may change what it says.
            additions={
                "GIT_DIR": str(scratch / "none"),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_EXTERNAL_DIFF": "",
                "LC_ALL": "C",
            },
            timeout=_GIT_SECONDS,
            max_output=_GIT_OUTPUT,
        )
    except (ItemError, OSError):
        return None
    finally:
        await asyncio.to_thread(lambda: remove_tree(scratch))
    if end.exit_code != 1:  # 1: there are differences
        return None
    output = end.output[: _GIT_OUTPUT // 2] if end.omitted else end.output  # behind that it has a gap
    return "\n".join(map(_both_sides, output.decode("utf-8", "replace").split("\n")))


def _both_sides(line: str) -> str:
    """A heading of git's for a file that is in one folder only, with that folder's name twice, as git writes it elsewhere."""
    if not line.startswith("diff --git "):
        return line
    names = line.removeprefix("diff --git ")
    one, other = names[: len(names) // 2], names[len(names) // 2 + 1 :]
    if one != other:
        return line
    start = one.index("/")
    return f"diff --git {one[: start - 1]}{_OLD}{one[start:]} {one[: start - 1]}{_NEW}{one[start:]}"


def _copied(changes: Iterable[Change], scratch: Path) -> None:
    """Copy what changed to where only we write: git follows names."""
    remove_tree(scratch)
    for prefix in (_OLD, _NEW):
        (scratch / prefix).mkdir(parents=True)
    for change in changes:
        for prefix, entry in ((_OLD, change.old), (_NEW, change.new)):
            if entry is not None:
                _copy(entry, scratch / prefix / change.name)


def _copy(entry: Entry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = entry.data()
    if entry.mode == LINK:
        os.symlink(data, os.fsencode(path))
        return
    path.write_bytes(data)
    path.chmod(0o755 if entry.mode == PROGRAM else 0o644)


# --- Without it


def _heading(change: Change) -> str:
    name = [_quoted(f"{prefix}/{change.name}") for prefix in (_OLD, _NEW)]
    lines = [f"diff --git {name[0]} {name[1]}"]
    if change.old is None and change.new is not None:
        lines.append(f"new file mode {change.new.mode}")
    elif change.new is None and change.old is not None:
        lines.append(f"deleted file mode {change.old.mode}")
    elif change.old is not None and change.new is not None and change.old.mode != change.new.mode:
        lines += [f"old mode {change.old.mode}", f"new mode {change.new.mode}"]
    return "".join(f"{line}\n" for line in lines)


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    start, end = _alike(old, new), 0
    if max(len(old), len(new)) - start > MAX_LINES:
        end = _alike(old[start:][::-1], new[start:][::-1])
    middle = max(len(old), len(new)) - start - end
    found = _replaced(old, new, start, end) if middle > MAX_LINES else list(unified_diff(old, new, n=3))[2:]
    for line in found:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _replaced(old: list[str], new: list[str], start: int, end: int) -> list[str]:
    """One hunk without context in which all lines between what both have at the start and at the end are exchanged."""
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    at = [start + 1 if lines else start for lines in (gone, come)]
    head = f"@@ -{at[0]},{len(gone)} +{at[1]},{len(come)} @@\n"
    return [head, *(f"-{line}" for line in gone), *(f"+{line}" for line in come)]


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines both have at the start."""
    return next(
        (count for count, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
        min(len(old), len(new)),
    )


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    return [f"{line}\n" for line in text.split("\n")[:-1]] + ([last] if (last := text.rpartition("\n")[2]) else [])


def _quoted(name: str) -> str:
    """A name as git writes it: in quotation marks where it holds a character that a line can't."""
    if not any(ord(mark) < 32 or mark in '"\\\x7f' for mark in name):
        return name
    plain = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    marks = (plain.get(mark) or (mark if 32 <= ord(mark) != 127 else f"\\{ord(mark):03o}") for mark in name)
    return f'"{"".join(marks)}"'


LEFT_OUT = ".git"
FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Modes as git writes them."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or link of a tree."""

    root: Path
    """The tree's."""
    name: str
    """Relative, with slashes."""
    mode: str
    """As git writes it."""
    size: int

    def data(self) -> bytes:
        """What is in it, as far as it was when its size was taken; of a link, what it says. Raises OSError."""
        with Tree(self.root) as tree:
            return tree.link(self.name) if self.mode == LINK else tree.read(self.name, self.size)


@dataclass(frozen=True, slots=True)
class Change:
    """A name whose entry is another one now."""

    name: str
    """Relative, with slashes."""
    old: Entry | None
    """None if there was none."""
    new: Entry | None
    """None if there is none."""

    @property
    def largest(self) -> int:
        return max(entry.size for entry in (self.old, self.new) if entry is not None)


def changed(before: Path, after: Path, left_out: str | None = None) -> Iterator[Change]:
    """What differs between two folders, by name. ``left_out``: a folder in them that is not looked at. Raises OSError."""
    with Tree(before) as old_tree, Tree(after) as new_tree:
        old, new = dict(_entries(old_tree, before, left_out)), dict(_entries(new_tree, after, left_out))
        for name in sorted(old.keys() | new.keys()):
            change = Change(name, old.get(name), new.get(name))
            if not _same(old_tree, change.old, new_tree, change.new):
                yield change


def put_back(before: Path, after: Path, left_out: str | None = None) -> None:
    """Undo what was changed from one folder to the other, without following links in it. Folders called ``.git`` stay as they are. Raises
    OSError."""
    changes = list(changed(before, after, left_out))
    for change in changes:
        *above, name = change.name.split("/")
        if change.old is None:
            with open_folder(after, above) as folder:
                os.unlink(name, dir_fd=folder)
    for change in changes:
        if change.old is not None:
            _write_entry(change.old, after, *change.name.rpartition("/")[::2])


def _write_entry(entry: Entry, root: Path, above: str, name: str) -> None:
    data = entry.data()
    with open_folder(root, above.split("/") if above else (), make=True) as folder:
        status = None
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status is not None and stat.S_ISDIR(status.st_mode):  # only empty ones are left
            remove_tree(root / above / name)
        elif status is not None and not (stat.S_ISREG(status.st_mode) and entry.mode != LINK):
            os.unlink(name, dir_fd=folder)
        if entry.mode == LINK:
            make_link(folder, name, data)
            return
        replace_file(folder, name, data)
        descriptor = open_regular(folder, name)
        try:
            mode = os.fstat(descriptor).st_mode
            set_mode(descriptor, mode | 0o111 if entry.mode == PROGRAM else mode & ~0o111)
        finally:
            os.close(descriptor)


def _entries(tree: Tree, root: Path, left_out: str | None) -> Iterator[tuple[str, Entry]]:
    """Files and links of a tree. Raises OSError for a folder that can't be read: what is in it must not count as gone."""
    for found in tree.walk(lambda each: each.name != LEFT_OUT and each.path != left_out):
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
