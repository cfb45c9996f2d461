"""Run folders from outside: which there are, and opening one to look at it. Imports little, so that looking is quick.

From what a person types for a run to its folder and its workload.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError, StorageError
from manyhands.engine.contract import Workload
from manyhands.engine.journal.reader import JOURNAL, JournalReader, has_journal
from manyhands.engine.journal.store import Store
from manyhands.engine.old_contract import current
from manyhands.runs.registry import SUB_RUNS, SUBFOLDERS, load_workload


def folders_of_runs(data_dir: Path) -> tuple[Path, ...]:
    """The folders that hold run folders: the data folder, and those in it where workloads of their own accord keep theirs."""
    return (data_dir, *(data_dir / name for name in SUBFOLDERS))


def free_name(data_dir: Path, name: str) -> str:
    """A name for a new run: this one, or the first with a number from 2 behind it that no folder has."""
    number, free = 1, name
    while (data_dir / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def find_runs(data_dir: Path, *, sub_runs: bool = False) -> Iterator[Path]:
    """The run folders under a data folder, by name, with those that may be some but can't be looked into. ``sub_runs``: also those in
    the folders of others, each behind that of the run it belongs to, also if that was not made (yet).

    Raises StorageError if the data folder itself can't be.
    """
    for parent in folders_of_runs(data_dir):
        try:
            folders = sorted(parent.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError(f"{parent}: can't be looked into ({error.strerror})") from error
        for folder in folders:
            if _may_hold_run(folder):
                yield folder
            if sub_runs:
                yield from find_sub_runs(folder)


def find_sub_runs(folder: Path) -> Iterator[Path]:
    """The run folders in the folder of a run: what workloads execute for a run of another, such as judging its results again."""
    found = (each for pattern in SUB_RUNS for each in sorted(folder.glob(pattern)))
    return filter(_may_hold_run, found)


def _may_hold_run(folder: Path) -> bool:
    try:
        (folder / JOURNAL).lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def is_made(folder: Path) -> bool:
    """Whether there is a run in a folder. Where making one was cut short before it was written down what it is, there is none.

    Raises StorageError for a folder that must not be looked into, RunError if something else is where its journal would be.
    """
    try:
        if not has_journal(folder):
            return False
    except OSError as error:
        raise StorageError(f"{folder}: can't be looked into ({error.strerror})") from error
    try:
        with closing(JournalReader(folder)) as reader:
            return reader.meta("run_id") is not None
    except StorageError:
        if not os.access(folder, os.W_OK):
            raise
        return False  # killed before its tables were made


def open_reader(folder: Path) -> JournalReader:
    """Open a run to look at it; one written by an older version is brought up to date first.

    Raises RunError if it is none, or if it is being executed by an older version.
    """
    reader = JournalReader(folder)
    if not reader.is_current():
        reader.close()
        Store(folder, SystemClock(), lambda text: None).close()
        reader = JournalReader(folder)
    return reader


def find_run(name: str, data_dir: str) -> Path:
    """A run by its folder's path, or by its name under the data folder.

    Raises RunError, naming what there is.
    """
    folder = run_named(name, data_dir)
    if folder is not None:
        return folder
    known = [folder.name for folder in find_runs(Path(data_dir))]
    there = f"runs in {data_dir}: {', '.join(known[:20])}" if known else f"there are no runs in {data_dir}"
    raise RunError(f"no run {name!r} ({there})")


def run_named(name: str, data_dir: str) -> Path | None:
    """As ``find_run``, but None if there is none. Raises RunError for one whose making was cut short."""
    for folder in (Path(name), *(parent / name for parent in folders_of_runs(Path(data_dir)))):
        if is_made(folder):
            return folder
        if (folder / JOURNAL).is_file():
            raise RunError(f"{folder}: making this run was cut short before anything began; make it again")
    return None


def latest_of(folders: Iterable[Path]) -> Path | None:
    """Of run folders, the one whose journal was last written; None if there is no run in any."""
    return next(filter(is_made, sorted(folders, key=_last_written, reverse=True)), None)


def latest_run(data_dir: str) -> Path:
    """The run under a data folder that was worked on last. Raises RunError if there is none."""
    folder = latest_of(find_runs(Path(data_dir)))
    if folder is None:
        raise RunError(f"there are no runs in {data_dir}; name the folder of a run, or start one")
    return folder


def _last_written(folder: Path) -> int:
    """In nanoseconds since 1970. An empty log does not count: looking at a run makes one."""
    found = 0
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        with suppress(OSError):
            state = (folder / name).stat()
            found = max(found, state.st_mtime_ns if state.st_size else 0)
    return found


def load_recorded(reader: JournalReader) -> Workload:
    """The workload of a run, from the spec recorded with it."""
    workload = load_workload(reader.meta("workload"))
    try:
        return current(workload(reader.meta("spec"), reader.folder))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"{reader.folder / JOURNAL}: the settings recorded there can't be used ({error!r})") from error
