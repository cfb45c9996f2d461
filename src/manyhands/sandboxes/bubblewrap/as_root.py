"""What differs where root starts a run: whose rights sandboxed commands have on the host, and how they get at folders.

An ordinary person's commands have that person's user id, never that of root. Where root starts a run, they get an id that belongs to
nobody, and the folders that they may write to are given to it. bubblewrap itself has no rights on root's folders then: these are put
into the running sandbox by descriptor, so that whoever runs there needs no way to them. That uses the calls of Linux 5.12 and later
that take mounts as descriptors: open_tree(2), mount_setattr(2), move_mount(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from manyhands.sandboxes.confinement import number_of

_NOBODYS = 1_879_000_000
"""In no range from which systems take ids for people, daemons or containers (systemd's UIDS-GIDS)."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class User:
    """A user and a group id of the host."""

    uid: int
    gid: int

    def command(self) -> list[str]:
        """What to put in front of a command so that it has these ids alone. For root to run."""
        # setpriv(1) would look the numbers up in the user database, which takes as long as the rest of it.
        return ["chroot", f"--userspec=+{self.uid}:+{self.gid}", "--groups=", "/"]


@cache
def stand_in_for_root() -> User | None:
    """The user that commands get where we are root; None where we are somebody else already, also one who is only called root in a user
    namespace without other ids. In a container whose ids are few it is the highest one there. Raises OSError if there is none."""
    uids = id_ranges(Path("/proc/self/uid_map"))
    if os.geteuid() != 0 or _is_somebody_outside(uids):
        return None
    return User(_chosen(uids), _chosen(id_ranges(Path("/proc/self/gid_map"))))


def hand_over(folder: Path, user: User) -> None:
    """Give a folder, and what is in it, to a user. Links are not followed; folders below the 64th level are left alone.
    Nobody else may be changing the tree. Raises OSError."""
    descriptor = os.open(folder, _DIRECTORY)
    try:
        if not _owns(user, os.fstat(descriptor)):
            os.fchown(descriptor, user.uid, user.gid)
        _hand_over_below(descriptor, user, 0)
    finally:
        os.close(descriptor)


def _hand_over_below(folder: int, user: User, depth: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _owns(user, entry.stat(follow_symlinks=False)):
                os.chown(entry.name, user.uid, user.gid, dir_fd=folder, follow_symlinks=False)
            if depth < _MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                inner = os.open(entry.name, _DIRECTORY, dir_fd=folder)
                try:
                    _hand_over_below(inner, user, depth + 1)
                finally:
                    os.close(inner)


def _owns(user: User, status: os.stat_result) -> bool:
    return (status.st_uid, status.st_gid) == (user.uid, user.gid)


def id_ranges(map_file: Path) -> list[tuple[int, int, int]]:
    """The ids of this process's user namespace: first id, first id outside, count."""
    with suppress(OSError):
        lines = [tuple(map(int, line.split())) for line in map_file.read_text().splitlines()]
        return [(first, outside, count) for first, outside, count in lines]
    return [(0, 0, 1 << 32)]


def _is_somebody_outside(ranges: list[tuple[int, int, int]]) -> bool:
    """Whether the one id that there is stands for an ordinary one."""
    return len(ranges) == 1 and ranges[0][2] == 1 and ranges[0][1] != 0


def _chosen(ranges: list[tuple[int, int, int]]) -> int:
    """An id that this process may take."""
    if any(first <= _NOBODYS < first + count for first, _, count in ranges):
        return _NOBODYS
    highest = max((first + count - 1 for first, _, count in ranges), default=0)
    if highest <= 0:
        raise OSError("root has no other id to give to commands (no other is mapped in this user namespace)")
    return highest


_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_READ_ONLY, _NOSUID, _NODEV, _IDMAP = 0x1, 0x2, 0x4, 0x00100000
_MOVE_FROM_EMPTY_PATH, _MOVE_TO_EMPTY_PATH = 0x4, 0x40
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_REFERENCE = os.O_PATH | os.O_CLOEXEC
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder or file of the host's that is seen inside."""

    source: Path
    """Its path on the host."""
    target: str
    """Its path inside."""
    writable: bool = False
    """Without it, it can only be read."""
    public: bool = False
    """Whether everybody may read it anyway."""


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def attach(process: int, folders: Sequence[Folder], user: User) -> None:
    """Put folders into the mount namespace of a process, at targets that exist there. What root owns in those that can only be read, and
    are not public, is shown as ``user``'s, where the file system can do that. Nothing may be running inside yet. Takes root's rights.
    Raises OSError."""
    failures: list[OSError] = []

    def work() -> None:
        try:
            _attach_all(process, folders, user)
        except OSError as error:
            failures.append(error)

    # A thread that has entered another mount namespace is of no further use.
    thread = threading.Thread(target=work, name="manyhands-attach")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _attach_all(process: int, folders: Sequence[Folder], user: User) -> None:
    trees: list[int] = []
    namespace = -1
    try:
        for folder in folders:
            trees.append(_detached(folder, user))  # noqa: PERF401 - what was opened must be known when a later one fails
        namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        _checked("unshare", _libc().unshare(_CLONE_FS))
        _checked("setns", _libc().setns(namespace, _CLONE_NEWNS))
        for tree, folder in zip(trees, folders, strict=True):
            _move(tree, folder.target)
    finally:
        for descriptor in (*trees, namespace):
            with suppress(OSError):
                os.close(descriptor)


def _detached(folder: Folder, user: User) -> int:
    """A copy of the folder's mount that is nowhere yet."""
    source = os.open(folder.source, _REFERENCE)
    try:
        flags = _AT_EMPTY_PATH | _AT_RECURSIVE | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        tree = _call("open_tree", source, b"", flags)
    finally:
        os.close(source)
    try:
        _restrict(tree, _NOSUID | _NODEV | (0 if folder.writable else _READ_ONLY))
        if not (folder.writable or folder.public):
            try:
                _restrict(tree, _IDMAP, _roots_files_as(os.getpid(), user))
            except OSError as error:
                _check_open_to_all(tree, folder, error)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _check_open_to_all(tree: int, folder: Folder, reason: OSError) -> None:
    """Raises OSError for a folder that can't be shown as the user's and that nobody but its owner could enter."""
    mode = os.fstat(tree).st_mode
    if not (mode & stat.S_IXOTH and mode & stat.S_IROTH):
        why = f"{folder.source} is open to its owner alone, and its file system can't show it as another's ({reason.strerror})"
        raise OSError(errno.EACCES, f"{why}: open it to others (chmod o+rx), or start the run as an ordinary user")


def _restrict(tree: int, attributes: int, user_namespace: int = 0) -> None:
    wanted = _MountAttributes(attributes, 0, 0, user_namespace)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _call("mount_setattr", tree, b"", flags, ctypes.byref(wanted), ctypes.sizeof(wanted))


def _move(tree: int, target: str) -> None:
    destination = os.open(target, _REFERENCE | os.O_NOFOLLOW)
    try:
        _call("move_mount", tree, b"", destination, b"", _MOVE_FROM_EMPTY_PATH | _MOVE_TO_EMPTY_PATH)
    finally:
        os.close(destination)


@cache
def _roots_files_as(process: int, user: User) -> int:
    """A descriptor of a user namespace in which root's id stands for ``user`` and every other id for itself: what an idmapped mount
    takes (mount_setattr(2)). Kept open for good, one for each process of ours. Raises OSError."""
    ours = os.readlink("/proc/self/ns/user")
    command = ["unshare", "--user", "sh", "-c", "read -r _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/") as holder:
        try:
            deadline = time.monotonic() + _SECONDS
            while os.readlink(f"/proc/{holder.pid}/ns/user") == ours:
                if holder.poll() is not None or time.monotonic() > deadline:
                    raise OSError("can't make a user namespace")
                time.sleep(0.001)
            for name, identity in (("uid_map", user.uid), ("gid_map", user.gid)):
                Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {identity} 1\n1 1 {identity - 1}\n")
            return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()


def _call(name: str, *arguments: object) -> int:
    return _checked(name, _libc().syscall(number_of(name), *arguments))


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
