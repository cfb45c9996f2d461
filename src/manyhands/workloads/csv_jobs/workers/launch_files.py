"""The files that a command finds when it is launched for a row: its prompt, the row and the schema."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps
from manyhands.workloads.csv_jobs.workers.reports import Assignment

_NAMES = ("prompt.txt", "row.json", "schema.json")
_SPARE = "spare-"
_ITSELF = "."


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """What a launch finds in its attempt's folder."""

    folder: str
    made: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What the system says of the folder and of each file in it, once they were written."""

    @property
    def prompt(self) -> str:
        return f"{self.folder}/{_NAMES[0]}"

    @property
    def row(self) -> str:
        return f"{self.folder}/{_NAMES[1]}"

    @property
    def schema(self) -> str:
        return f"{self.folder}/{_NAMES[2]}"


class LaunchFolders:
    """Makes the folders of launches. To make files and to remove them takes as long as a small command does, so the folder of a row that
    ended well becomes that of another row, if the command left nothing there and did nothing to it."""

    def __init__(self, *, reused: bool = True) -> None:
        """``reused``: False if the folders of all rows are to be kept."""
        self._reused = reused
        self._spare: list[str] = []
        self._numbers = count()

    def written(self, folder: str, prompt: str, assignment: Assignment) -> LaunchFiles:
        """Raises ItemError(SANDBOX_LOST) if they can't be written."""
        files = LaunchFiles(folder)
        try:
            self._make(folder)
            _write(files.prompt, prompt.encode())
            _write(files.row, dumps(assignment.columns))
            _write(files.schema, assignment.schema.text.encode())
            return LaunchFiles(folder, _seen(folder))
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't write the worker's files: {error}") from error

    def give_back(self, files: LaunchFiles) -> None:
        """The row's result is on disk, and nothing of its command runs any more."""
        with suppress(OSError):  # then the engine removes it like any other
            if self._reused and files.made.keys() == {_ITSELF, *_NAMES} and _seen(files.folder) == files.made:
                spare = f"{os.path.dirname(files.folder)}/{_SPARE}{next(self._numbers)}"
                os.rename(files.folder, spare)
                self._spare.append(spare)

    def _make(self, folder: str) -> None:
        if self._spare:
            # An earlier launch of the attempt may have left something there, and somebody may have removed the spare one.
            with suppress(OSError):
                os.rename(self._spare.pop(), folder)
                return
        os.makedirs(folder, exist_ok=True)


def _write(path: str, data: bytes) -> None:
    """Write a file, or one that is there anew. That is not emptied first: then it would be sent to the disk as soon as it is closed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _seen(folder: str) -> dict[str, tuple[int, ...]]:
    """What tells whether a folder, or a file in it, was replaced or got another mode, owner or name. Their content may be another.
    Raises OSError, also for what is no folder but a link to one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = {_ITSELF: _identity(os.fstat(descriptor))}
        with os.scandir(descriptor) as entries:
            found.update((entry.name, _identity(entry.stat(follow_symlinks=False))) for entry in entries)
        return found
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink
