"""Run folders from outside: which there are, and opening one to look at it. Imports little, so that looking is quick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from manyhands.core.clock import SystemClock
from manyhands.core.errors import StorageError
from manyhands.engine.reader import JOURNAL, JournalReader, has_journal
from manyhands.engine.store import Store


def places_of_runs(data_dir: Path) -> tuple[Path, ...]:
    """The folders that hold run folders: the data folder, and the one in it where the memory benchmark has always kept its runs."""
    return (data_dir, data_dir / "tests")


def find_runs(data_dir: Path) -> Iterator[Path]:
    """The run folders under a data folder, by name, with those that may be some but can't be looked into.

    Raises StorageError if the data folder itself can't be.
    """
    for place in places_of_runs(data_dir):
        try:
            folders = sorted(place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError(f"{place}: can't be looked into ({error.strerror})") from error
        yield from filter(_may_hold_run, folders)


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
    reader = JournalReader(folder)
    try:
        return reader.meta("run_id") is not None
    except StorageError:
        if not os.access(folder, os.W_OK):
            raise
        return False  # killed before its tables were made
    finally:
        reader.close()


def open_reader(folder: Path) -> JournalReader:
    """Open a run to look at it; one written by an older version is brought up to date first.

    Raises RunError if it is none, or if it is being performed by an older version.
    """
    reader = JournalReader(folder)
    if not reader.is_current():
        reader.close()
        Store(folder, SystemClock(), lambda text: None).close()
        reader = JournalReader(folder)
    return reader
