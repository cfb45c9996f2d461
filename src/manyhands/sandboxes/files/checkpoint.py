"""The world before the open step, kept so that a step that was cut off can be undone.

In the sandbox's folder::

    open_step     JSON {place, complete, modes, live, end}: the last step begun, whether ``checkpoint/`` holds the world from before it, and
                  whether processes ran in the background then
    checkpoint/   a mirror of the world's trees
    live          there while processes run in the background: they die with their owner, and no mirror brings them back

``begin`` brings the mirror up to date, changed entries only, then writes the new ``open_step`` over the old one. Before the
first change to the mirror, the old ``open_step`` is overwritten by one that calls the mirror incomplete. So at every instant
a mirror that is called complete is the world before the step named. While a mirror is half updated, the step named is
that of the earlier step, which is recorded by then, so that its mirror is not needed.

Named pipes are kept as such, files that are linked with each other stay so, also across trees. Sockets and devices are left out, and so
are set-user-id and set-group-id bits. What root restores gets the owner of the tree that it is in, but for upper folders of overlays, whose
entries keep their own.

This guards against the death of processes, at any instant. What the kernel was given survives that; nothing is synced to
the disk, so the death of the machine may leave a world that can't be trusted.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.sandboxes.files.mirror import Budget, Entry, Identity, Links, Mirror, TooLarge

MAX_ENTRIES = 5_000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Marker:
    """What ``open_step`` says."""

    address: str
    """Of the step; in the file ``address``."""
    complete: bool
    modes: dict[str, dict[str, int]] = field(default_factory=dict)
    live: bool = True
    """Whether processes ran in the background when the step began."""


class Checkpoint:
    """The undoing of open steps, for one sandbox's folder. ``trees``: names of the folders in it that make up the world; ``overlays``:
    those of them that are the upper folders of overlays.

    The methods read and write files: not for the event loop's thread.
    """

    def __init__(
        self,
        folder: Path,
        trees: Sequence[str],
        *,
        overlays: Sequence[str] = (),
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._bounds = (max_entries, max_bytes)
        self._folder = folder
        self._mirrors = [
            Mirror(folder / name, folder / "checkpoint" / name, overlay=name in overlays) for name in trees
        ]
        self._marker = folder / "open_step"
        self._live = folder / "live"

    @property
    def open_step(self) -> str | None:
        marker = self._read()
        return None if marker is None else marker.address

    def begin(self, address: str, *, whole: bool = True) -> bool:
        """Remember the world for the step at ``address``. Returns whether it could be copied. ``whole``: False if the world
        reaches beyond the trees."""
        before = self._read()
        if not whole:
            self._write(_Marker(address, complete=False))
            return False
        touched = False

        def before_change() -> None:
            nonlocal touched
            if not touched and before is not None:
                self._write(replace(before, complete=False))
            touched = True

        try:
            budget = Budget(*self._bounds)
            links = Links()
            modes = {mirror.copy.name: mirror.update(budget, before_change, links) for mirror in self._mirrors}
        except TooLarge:
            self._write(_Marker(address, complete=False))
            for mirror in self._mirrors:
                mirror.forget()
            return False
        self._write(_Marker(address, complete=True, modes=modes, live=self._live.exists()))
        return True

    def reattach(self, recorded: bool, address: str) -> bool:
        """See ``Sandbox.reattach``."""
        marker = self._read()
        if self._live.exists() and (recorded or marker is None or marker.live):
            return False
        if marker is None:
            return not self._marker.exists()
        if marker.address != address:
            return False
        if recorded:
            return True
        if not marker.complete:
            return False
        linked: dict[Identity, Entry] = {}
        try:
            for mirror in self._mirrors:
                mirror.restore(marker.modes.get(mirror.copy.name, {}), linked)
        except OSError:
            return False
        self.set_live(False)
        return True

    @property
    def can_undo(self) -> bool:
        """See ``Sandbox.can_undo``."""
        marker = self._read()
        return marker is not None and marker.complete and not marker.live

    def forget(self) -> None:
        """The world is gone: whatever was begun in it can't go on."""
        for mirror in self._mirrors:
            mirror.forget()
        self._marker.unlink(missing_ok=True)

    def set_live(self, live: bool) -> None:
        """Note whether processes run in the background."""
        if live:
            self._live.touch()
        else:
            self._live.unlink(missing_ok=True)

    def _read(self) -> _Marker | None:
        try:
            value = json.loads(self._marker.read_bytes())
            if value["place"] != value.get("end", value["place"]):
                return None
            live = bool(value.get("live", True))  # earlier versions did not say
            return _Marker(str(value["place"]), bool(value["complete"]), value["modes"], live)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, marker: _Marker) -> None:
        """In one write over what is there, and no shorter than that: a new file for each step would cost several times as much. Only a
        marker of many modes, which is more than a page, can be cut off by the death of this process; its end tells."""
        text = {
            "place": marker.address,
            "complete": marker.complete,
            "modes": marker.modes,
            "live": marker.live,
            "end": marker.address,
        }
        descriptor = os.open(self._marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            data = json.dumps(text).encode().ljust(os.fstat(descriptor).st_size)
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
