"""The difference of two folders, as container engines write what a container changed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path


def layer_between(image: Path, world: Path) -> bytes:
    """What ``world`` has beyond ``image``, as an archive: a layer of the OCI image specification."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, image, world, "")
    return content.getvalue()


def _add(archive: tarfile.TarFile, image: Path, world: Path, below: str) -> None:
    before = set(os.listdir(image / below)) if (image / below).is_dir() and not (image / below).is_symlink() else set()
    now = set(os.listdir(world / below))
    for name in sorted(before - now):
        archive.addfile(tarfile.TarInfo(os.path.join(below, f".wh.{name}")))
    for name in sorted(now):
        path = os.path.join(below, name)
        about = (world / path).lstat()
        if name not in before or _differs((image / path).lstat(), about):
            archive.add(world / path, path, recursive=False)
        if stat.S_ISDIR(about.st_mode):
            _add(archive, image, world, path)


def _differs(before: os.stat_result, now: os.stat_result) -> bool:
    if stat.S_ISDIR(before.st_mode) and stat.S_ISDIR(now.st_mode):
        return (before.st_mode, before.st_uid, before.st_gid) != (now.st_mode, now.st_uid, now.st_gid)
    return any(
        getattr(before, name) != getattr(now, name)
        for name in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_rdev")
    )
