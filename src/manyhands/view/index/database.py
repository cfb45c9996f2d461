"""Where indexes are, how they are opened, and which ones are removed: one file for each run, in a folder of the user's own."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from manyhands.core.errors import ManyhandsError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.engine.journal.reader import JOURNAL

VERSION = 2
"""Of the schema and of what is put in: an index of another version is not read."""
COMPLETE, BUILDING, LOCK = ".index.db", ".building", ".lock"
_SIDE_FILES = ("-wal", "-shm", "-journal")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_CACHE_KIB = 8_192
_BUSY_SECONDS = 5.0


class NoIndex(ManyhandsError):
    """An index can't be made or used. Its text says why, in one line."""


def stem_of(run_folder: Path, run_id: str, folder: Path) -> Path:
    """The path of a run's index without its suffix.

    ``folder``: where indexes are kept. The journal's inode is part of it, so that a copy of a run that went on by itself has an index of
    its own, while a run whose folder was renamed keeps what it has.

    Raises NoIndex if the journal can't be looked at.
    """
    try:
        inode = (run_folder / JOURNAL).stat().st_ino
    except OSError as error:
        raise NoIndex(f"{run_folder / JOURNAL}: can't be looked at ({error.strerror})") from error
    plain = (
        run_id if _PLAIN.fullmatch(run_id) else blake2b(run_id.encode("utf-8", "replace"), digest_size=16).hexdigest()
    )
    return folder / f"{plain}.{inode:x}.{VERSION}"


def with_suffix(stem: Path, suffix: str) -> Path:
    """One of the files of an index."""
    return stem.with_name(stem.name + suffix)


def make_folder(folder: Path) -> None:
    """Make the folder of indexes if it is not there. Raises NoIndex if it can't be made or written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NoIndex(f"{folder}: can't be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NoIndex(f"{folder}: can't be written")


@contextmanager
def locked(stem: Path) -> Iterator[bool]:
    """Whether this process is the one that may write an index, while it is inside. Raises NoIndex if the lock can't be made."""
    try:
        descriptor = os.open(with_suffix(stem, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NoIndex(f"{stem.parent}: can't be written ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = True
    except BlockingIOError:
        mine = False
    try:
        yield mine
    finally:
        os.close(descriptor)


def remove(stem: Path, *suffixes: str) -> None:
    """Remove files of an index, those that SQLite puts beside them first."""
    for suffix in suffixes:
        for side in (*_SIDE_FILES, ""):
            with suppress(OSError):
                with_suffix(stem, suffix + side).unlink()


def open_to_read(path: Path) -> sqlite3.Connection:
    """An index that is only read, by one thread at a time. Raises ``sqlite3.Error`` if it can't be opened."""
    return _connect(path, "?mode=ro" if os.access(path.parent, os.W_OK) else "?mode=ro&immutable=1")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    """``options``: as in SQLite's addresses of files; in a folder that can't be written it can't make its files beside it."""
    return sqlite3.connect(
        path.absolute().as_uri() + options,
        uri=True,
        isolation_level=None,
        timeout=_BUSY_SECONDS,
        check_same_thread=False,
    )


def new_database(stem: Path) -> sqlite3.Connection:
    """An index to be built, empty: what was being built before is thrown away. What is written is in the file at each commit, so that
    others can see how far it is, but nothing of it outlasts a process that is killed."""
    remove(stem, BUILDING)
    path = with_suffix(stem, BUILDING)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    connection = _connect(path, "?mode=rw")
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    run_script(connection, "schema.sql")
    return connection


def publish(connection: sqlite3.Connection, stem: Path) -> None:
    """Close an index that was built and put it in place of the one that was there."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    synced(with_suffix(stem, BUILDING))
    remove(stem, COMPLETE)
    with_suffix(stem, BUILDING).rename(with_suffix(stem, COMPLETE))


def synced(path: Path) -> None:
    """Have a file's content on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_to_write(stem: Path) -> sqlite3.Connection:
    """A complete index, to be kept up. Raises ``sqlite3.Error`` for one that can't be used."""
    connection = _connect(with_suffix(stem, COMPLETE), "?mode=rw")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def run_script(connection: sqlite3.Connection, name: str) -> None:
    """Run the statements of one of the SQL files beside this module."""
    for statement in Path(__file__).with_name(name).read_text(encoding="utf-8").split(";\n"):
        if statement.strip():
            connection.execute(statement)


def get_state(connection: sqlite3.Connection, name: str, default: Json = None) -> Json:
    """A fact about an index."""
    row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return default if row is None else loads(row[0])


def set_state(connection: sqlite3.Connection, **facts: Json) -> None:
    """Record facts about an index."""
    rows = [(name, dumps(value).decode()) for name, value in facts.items()]
    connection.executemany("INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", rows)


def note_use(stem: Path) -> None:
    """Note that an index is used now: those whose last use is longest ago are removed first."""
    with suppress(OSError):
        os.utime(with_suffix(stem, LOCK))


def size_of(stem: Path) -> int:
    """Bytes of all files of an index."""
    return sum(
        _size(with_suffix(stem, suffix + side)) for suffix in (COMPLETE, BUILDING) for side in ("", *_SIDE_FILES)
    )


def make_room(stem: Path, max_bytes: int) -> None:
    """Remove the indexes of other runs, the longest unused first, until all files together are within a bound. Those that a process is
    building or keeping up stay. Raises NoIndex, and removes this one, if it alone is beyond the bound."""
    own = size_of(stem)
    if own > max_bytes:
        remove(stem, COMPLETE, BUILDING)
        raise NoIndex(f"the index is larger than the {max_bytes / 2**30:.3g} GiB that indexes may take")
    others = {path.with_name(path.name.removesuffix(LOCK)) for path in stem.parent.glob(f"*{LOCK}")} - {stem}
    sizes = {other: size_of(other) for other in others}
    total = own + sum(sizes.values())
    for other in sorted(others, key=_last_use):
        if total <= max_bytes:
            return
        with locked(other) as mine:
            if mine:
                remove(other, COMPLETE, BUILDING)
                with_suffix(other, LOCK).unlink(missing_ok=True)
                total -= sizes[other]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_use(stem: Path) -> float:
    try:
        return with_suffix(stem, LOCK).stat().st_mtime
    except OSError:
        return 0.0


def discard(stem: Path) -> None:
    """Throw a damaged index away, so that it is made again."""
    remove(stem, COMPLETE)
