"""Whose rights sandboxed commands have on the host: never those of root.

An ordinary person's commands have that person's user id. Where root starts a run, they get an id that belongs to nobody, and the
folders that they may write to are given to it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    uids = _ranges(Path("/proc/self/uid_map"))
    if os.geteuid() != 0 or _is_somebody_outside(uids):
        return None
    return User(_chosen(uids), _chosen(_ranges(Path("/proc/self/gid_map"))))


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


def _ranges(map_file: Path) -> list[tuple[int, int, int]]:
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
