"""An index that is made and kept up by a process of its own, which runs at low priority and ends with the one that started it."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

from manyhands.core.errors import ManyhandsError
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.processes.interpreters import module_path, python_command
from manyhands.view.index.building import Keeper, Outdated, build
from manyhands.view.index.database import (
    BUILDING,
    COMPLETE,
    NoIndex,
    discard,
    locked,
    make_folder,
    make_room,
    note_use,
    remove,
    stem_of,
    with_suffix,
)

DEFAULT_GIB = 5.0
"""What all indexes together may take."""
NICENESS = 10
MAX_ADDRESSES = 1 << 30
"""Bytes of address space: many times what it needs, and what four such processes may take of any machine."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the journal has changed."""
NETWORK_SECONDS = 5.0
"""The same, and between two pages, where reading hinders the owner: the journal has no write-ahead log."""
_BUSY_SHARE = 9
"""After a look that took a while, it is waited for so many times as long."""
_LOCKED_SECONDS = 1.0
_MAX_BUILDS = 5
"""Times that an index is made from nothing before it is given up."""
_PAGES_BETWEEN_CHECKS = 100
_STOP_SECONDS = 5.0
_FAILED = 3
_MAX_PROBLEM = 500


class IndexProcess:
    """A process that makes the index of a run and keeps it up. It ends by itself when the index is complete and nobody executes the run."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._problem: str | None = None

    @classmethod
    def start(cls, run_folder: Path, index_dir: Path, max_gib: float = DEFAULT_GIB) -> IndexProcess:
        """Start it. ``index_dir``: where indexes are kept. If another process keeps up the same index it
        waits and takes over when that one ends."""
        words = [str(run_folder.absolute()), f"--index_dir={index_dir}", f"--index_gib={max_gib}"]
        return cls(
            subprocess.Popen(
                python_command("manyhands.view.index", *words),
                env={**os.environ, "PYTHONPATH": module_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        )

    @property
    def is_going_on(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def problem(self) -> str | None:
        """Why there is no index, in one line; None while it goes on, and if it ended because all was done."""
        if self._problem is None and self._process.poll() not in (None, 0):
            text = self._process.stderr.read(_MAX_PROBLEM) if self._process.stderr else ""
            lines = text.strip().splitlines()
            self._problem = lines[-1] if lines else f"the index process ended with code {self._process.returncode}"
        return self._problem

    def stop(self) -> None:
        """End it. The index is as it was at its last commit. Idempotent."""
        for stream in (self._process.stdin,):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def keep_up(run_folder: Path, index_dir: Path, max_bytes: int) -> None:
    """Make the index of a run and keep it up until the run is not being executed any more.

    Raises NoIndex if it can't be made or written, and RunError or StorageError if the journal can't be read.
    """
    make_folder(index_dir)
    stem = stem_of(run_folder, run_id_of(run_folder), index_dir)
    while True:
        with locked(stem) as mine:
            if mine:
                note_use(stem)
                _keep(run_folder, stem, max_bytes)
                return
        time.sleep(_LOCKED_SECONDS)


def _keep(run_folder: Path, stem: Path, max_bytes: int) -> None:
    for _ in range(_MAX_BUILDS):
        with closing(JournalReader(run_folder)) as reader:
            if not reader.is_current():
                raise NoIndex(
                    f"{run_folder}: written by an older version of manyhands; resume it, or open it with `manyhands show`"
                )
            pace = _Pace(reader, stem, max_bytes)
            try:
                if not with_suffix(stem, COMPLETE).is_file():
                    build(reader, stem, pace.page_done)
                    make_room(stem, max_bytes)
                _follow(reader, stem, pace)
                return
            except Outdated:
                discard(stem)
            except sqlite3.Error as error:
                remove(stem, COMPLETE, BUILDING)
                if _is_about_storage(error):
                    raise NoIndex(f"{stem.parent}: an index can't be written ({error})") from error
    raise NoIndex(f"{run_folder}: the journal changes faster than an index can be made")


def _follow(reader: JournalReader, stem: Path, pace: _Pace) -> None:
    """Look at the journal whenever it has changed, until the run is not being executed."""
    inode = with_suffix(stem, COMPLETE).stat().st_ino
    with closing(Keeper(reader, stem)) as keeper:
        difference = keeper.look(thorough=keeper.is_behind)
        version = reader.data_version()
        while is_owned(reader.folder):
            if not _is_there(stem, inode):
                raise Outdated
            began = time.monotonic()
            if (now := reader.data_version()) != version:
                version = now
                difference = keeper.look()
                make_room(stem, pace.max_bytes)
            pace.after_look(time.monotonic() - began)
        if difference or keeper.is_behind:
            keeper.look(thorough=True)


class _Pace:
    """How fast the journal is read: where reading hinders the owner, seldom."""

    def __init__(self, reader: JournalReader, stem: Path, max_bytes: int) -> None:
        self._reader = reader
        self._stem = stem
        self.max_bytes = max_bytes
        self._hinders = not reader.hinders_nobody()
        self._pages = 0

    def page_done(self) -> None:
        self._pages += 1
        if self._hinders and is_owned(self._reader.folder):
            time.sleep(NETWORK_SECONDS)
        if self._pages % _PAGES_BETWEEN_CHECKS == 0:
            make_room(self._stem, self.max_bytes)

    def after_look(self, took: float) -> None:
        time.sleep(max(NETWORK_SECONDS if self._hinders else LOOK_SECONDS, _BUSY_SHARE * took))


def _is_there(stem: Path, inode: int) -> bool:
    try:
        return with_suffix(stem, COMPLETE).stat().st_ino == inode
    except OSError:
        return False


def _is_about_storage(error: sqlite3.Error) -> bool:
    """Whether the disk or the folder is the reason, and not the file."""
    text = str(error)
    return any(part in text for part in ("full", "disk I/O", "readonly", "unable to open"))


def main() -> int:
    """The program: 0 when nothing is left to do, 3 with one line on standard error if there can be no index."""
    given = _arguments()
    with suppress(OSError):
        os.nice(NICENESS)
    gc.disable()  # what is read of items has no circles, and looking for some takes a quarter of the time
    _bound_memory()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        keep_up(given.run_folder, given.index_dir, int(given.index_gib * 2**30))
    except (MemoryError, SystemError):  # the latter if memory runs out while JSON is parsed
        print(f"{given.run_folder}: it holds too much to be indexed", file=sys.stderr)
        return _FAILED
    except (ManyhandsError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return _FAILED
    return 0


def _bound_memory() -> None:
    """Have this process fail, and not the machine, where a few bytes of a journal are unpacked to very many."""
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, hard))


def _end_with_starter() -> None:
    """The process that started this one holds the other end of standard input for as long as it lives."""
    with suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m manyhands.view.index", description="Make the index of a run and keep it up."
    )
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--index_dir", type=Path, required=True, help="where indexes are kept")
    parser.add_argument("--index_gib", type=float, default=DEFAULT_GIB)
    return parser.parse_args()
