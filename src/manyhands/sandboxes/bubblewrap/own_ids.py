"""The user and group ids of worlds made of images, and the user namespace in which they hold.

Root inside is nobody on the host. Where root starts a run, ids inside are a range of the host's that belongs to nobody; where an ordinary
person does, there is one id inside, that of root, which is the person's own.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.bubblewrap.as_root import id_ranges, stand_in_for_root
from manyhands.sandboxes.images.extraction import Owners

_RANGE = 65_536
_FIRST = 1_879_048_192
"""From here on, systems have no use for ids (systemd's UIDS-GIDS)."""
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class OwnIds:
    """The ids inside, and what they are on the host."""

    owners: Owners
    as_root: bool
    """Whether root made them, so that files can be given to any of them, and groups be set."""

    @property
    def giving(self) -> Owners | None:
        """To whom files are given; None where they belong to who makes them anyway."""
        return self.owners if self.as_root else None

    def has(self, identity: int) -> bool:
        """Whether there is an id of this number inside."""
        return 0 <= identity < self.owners.count


@cache
def own_ids() -> OwnIds:
    """Those of worlds that this process makes. Raises OSError if root has none to give."""
    user = stand_in_for_root()
    if user is None:
        return OwnIds(Owners(os.geteuid(), os.getegid()), as_root=False)
    first = [_free_range(Path(f"/proc/self/{name}")) for name in ("uid_map", "gid_map")]
    if None in first:
        return OwnIds(Owners(user.uid, user.gid), as_root=True)
    return OwnIds(Owners(first[0] or 0, first[1] or 0, _RANGE), as_root=True)


def user_namespace() -> int:
    """A descriptor of the user namespace of this process's worlds. Raises ItemError(SANDBOX_LOST)."""
    try:
        return _namespace(os.getpid())
    except (OSError, subprocess.SubprocessError) as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't make a user namespace: {error}") from error


def _free_range(map_file: Path) -> int | None:
    """Where a range of ids begins that this process may give away; None if it has not that many."""
    ranges = id_ranges(map_file)
    if any(first <= _FIRST and first + count >= _FIRST + _RANGE for first, _, count in ranges):
        return _FIRST
    largest = max(ranges, key=lambda each: each[2])
    return largest[0] + largest[2] - _RANGE if largest[2] >= 2 * _RANGE else None


@cache
def _namespace(process: int) -> int:
    """Kept open for good, one for each process of ours."""
    ids, ours = own_ids(), os.readlink("/proc/self/ns/user")
    command = ["unshare", "--user", "sh", "-c", "read -r _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/") as holder:
        try:
            deadline = time.monotonic() + _SECONDS
            while _user_namespace(holder.pid) in (ours, ""):
                if holder.poll() is not None or time.monotonic() > deadline:
                    raise OSError("unshare does not make one")
                time.sleep(0.001)
            folder = Path(f"/proc/{holder.pid}")
            if not ids.as_root:
                (folder / "setgroups").write_text("deny")
            (folder / "uid_map").write_text(f"0 {ids.owners.uid} {ids.owners.count}\n")
            (folder / "gid_map").write_text(f"0 {ids.owners.gid} {ids.owners.count}\n")
            return os.open(folder / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()


def _user_namespace(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/user")
    return ""
