"""How much memory is free: by the kernel, and by the control groups that this process is in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_KIB = 1024
_UNLIMITED = 1 << 60
"""From here on a limit is none: version 1 writes a number of that size in place of it."""


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that new processes may use without swapping, as estimated; None where that is not known.

    The smallest of ``MemAvailable`` of ``/proc/meminfo`` and of what the limit of each control group leaves, this process's own and those
    above it; what the page cache holds counts as free. ``root``: where ``proc`` and ``sys`` are.
    """
    found = [*_available(root), *_left_by_groups(root)]
    return max(0, min(found)) if found else None


def _available(root: Path) -> list[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return [int(line.split()[1]) * _KIB]
    return []


def _left_by_groups(root: Path) -> list[int]:
    groups = root / "sys/fs/cgroup"
    found: list[int] = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += _left(groups, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                found += _left(groups / "memory", path, *names)
    return found


def _left(hierarchy: Path, path: str, limit: str, usage: str, cache: str) -> list[int]:
    """What each group on the way to a path leaves. In a container the path may be of the machine's own; there the root is its group."""
    folder = hierarchy / path.lstrip("/")
    if ".." in path or not folder.is_dir():
        folder = hierarchy
    found = []
    for group in (folder, *folder.parents):
        if not group.is_relative_to(hierarchy):
            break
        with suppress(OSError, ValueError):
            bound = int((group / limit).read_text())
            if bound < _UNLIMITED:
                found.append(bound - int((group / usage).read_text()) + _cached(group, cache))
    return found


def _cached(group: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
