"""Noticing that files changed, for runs that are repeated while somebody works on them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

LOOK_SECONDS = 1.0
Stamps = Mapping[Path, tuple[int, int] | None]


def stamps(paths: Collection[Path]) -> Stamps:
    """Of each file what changes when it is written: time and size; None for one that is not there."""
    return {path: _stamp(path) for path in paths}


def wait_for_change(before: Stamps, *, pause: float = LOOK_SECONDS) -> list[Path]:
    """Wait until files are not as they were; those that changed. A file that is gone counts when it is back: editors that write a new
    file in place of an old one leave none for a moment."""
    while True:
        now = stamps(before.keys())
        changed = [path for path, stamp in now.items() if stamp is not None and stamp != before[path]]
        if changed:
            return changed
        time.sleep(pause)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
