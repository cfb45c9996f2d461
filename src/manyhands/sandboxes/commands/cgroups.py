"""Control groups: bounds on the memory and the processes of a sandbox as a whole.

Used where this machine lets us make groups (cgroups version 1 with the ``pids`` and ``memory`` hierarchies, or version 2 with
these controllers delegated to the root group), which usually means as root. Elsewhere per-process limits must do, see
``launch.py``. Formats: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from manyhands.processes.strays import oldest_first, send
from manyhands.processes.system.linux import read_all

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "manyhands-"
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: parent folders, and the names of the files that hold the two limits."""

    parents: tuple[Path, ...]
    memory_file: str
    processes_file: str = "pids.max"


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one sandbox: one folder in each hierarchy."""

    folders: tuple[Path, ...]

    @property
    def entrances(self) -> list[str]:
        """Files to write ``0`` into, by a process that wants to join."""
        return [f"{folder}/cgroup.procs" for folder in self.folders]

    def members(self) -> set[int]:
        """The ids of all processes inside."""
        return {pid for folder in self.folders for pid in _members(folder)}

    def kill(self) -> None:
        """Kill every process inside, until none is left or a second is over."""
        _kill(self.folders)

    def remove(self) -> bool:
        """Remove the group, whose processes have been killed. Waits a second at most for the last of them to be gone.
        Returns whether the group is gone."""
        deadline = time.monotonic() + 1.0
        while not _gone(self.folders):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True


def make_group(*, memory: int, processes: int) -> Group | None:
    """A new group for a sandbox, or None where this machine has no use of them."""
    hierarchies = usable_hierarchies()
    if hierarchies is None:
        return None
    name = f"{_PREFIX}{_process_numbers()}-{os.getpid()}-{secrets.token_hex(6)}"
    group = Group(tuple(parent / name for parent in hierarchies.parents))
    try:
        for folder in group.folders:
            folder.mkdir()
            _limit(folder / hierarchies.memory_file, memory)
            _limit(folder / hierarchies.processes_file, processes)
    except OSError:
        group.remove()
        return None
    return group


@cache
def usable_hierarchies() -> Hierarchies | None:
    """Where groups can be made on this machine; found out once, by making one."""
    for hierarchies in (_version_1(), _version_2()):
        if hierarchies is not None and all(_can_make(parent) for parent in hierarchies.parents):
            sweep()
            return hierarchies
    return None


def sweep() -> int:
    """Kill what runs in groups whose makers are dead, and remove these groups. Returns how many processes there were.

    Done once by each process that makes groups: nothing else would ever remove the groups of a process that was killed.
    """
    count = 0
    for hierarchy in _hierarchy_roots():
        for folder in _groups_below(hierarchy, _DEPTH):
            if not _leftover(folder.name):
                continue
            group = Group((folder,))
            count += len(group.members())
            group.kill()
            group.remove()
    return count


@cache
def _process_numbers() -> int:
    """Which numbering of processes we are in: that of the machine, or of some container."""
    return os.stat("/proc/self/ns/pid").st_ino


def _leftover(name: str) -> bool:
    """Whether the maker of a group, who is named in the group's name, is known to be dead."""
    fields = name.removeprefix(_PREFIX).split("-")
    return fields[0] == str(_process_numbers()) and fields[1].isdigit() and not Path(f"/proc/{fields[1]}").exists()


def _version_1() -> Hierarchies | None:
    own = _own_groups()
    parents = tuple(_parent(_ROOT / name, own.get(name, "/")) for name in ("pids", "memory"))
    if not all((parent / "cgroup.procs").exists() for parent in parents):
        return None
    return Hierarchies(parents, "memory.limit_in_bytes")


def _version_2() -> Hierarchies | None:
    with suppress(OSError):
        if {"memory", "pids"} <= set((_ROOT / "cgroup.subtree_control").read_text().split()):
            parent = _ROOT / "manyhands"
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text("+memory +pids")
            return Hierarchies((parent,), "memory.max")
    return None


def _own_groups() -> dict[str, str]:
    """Our own group in each version 1 hierarchy, from ``/proc/self/cgroup``."""
    groups = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _parent(hierarchy: Path, own: str) -> Path:
    """Our own group if it can be seen here, so that limits above us keep holding; else the hierarchy's root."""
    folder = hierarchy / own.lstrip("/")
    return folder if ".." not in own and folder.is_dir() else hierarchy


def _can_make(parent: Path) -> bool:
    trial = parent / f"{_PREFIX}{_process_numbers()}-{os.getpid()}-{secrets.token_hex(6)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _gone(folders: tuple[Path, ...]) -> bool:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
    return not any(folder.exists() for folder in folders)


def _limit(file: Path, value: int) -> None:
    if file.exists():
        file.write_text(str(value))


def _kill(folders: tuple[Path, ...]) -> None:
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        members = {pid for folder in folders for pid in _members(folder)}
        if not members:
            return
        send(oldest_first(members), signal.SIGKILL)
        time.sleep(0.002)


def _members(folder: Path) -> Iterator[int]:
    with suppress(OSError):
        yield from (int(pid) for pid in read_all(f"{folder}/cgroup.procs").split() if pid != b"0")


def _hierarchy_roots() -> list[Path]:
    return [folder for folder in (_ROOT / "pids", _ROOT / "memory", _ROOT / "manyhands") if folder.is_dir()]


def _groups_below(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name.startswith(_PREFIX):
                yield Path(entry.path)
            elif depth > 0:
                yield from _groups_below(Path(entry.path), depth - 1)
