"""Opening run databases: pragmas, numbered migrations, named queries."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from time import monotonic

from manyhands.core.errors import RunError, StorageError
from manyhands.core.jsonio import dumps
from manyhands.processes.system import mounts

BUSY_SECONDS = 30.0
_SCHEMA_SECONDS = 3.0
"""That it may take to find out which tables a file has."""
_INSTRUCTIONS = 2000
"""Of SQLite's virtual machine, between two looks at the time."""
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_AS = re.compile(r"\bAS\b", re.ASCII | re.IGNORECASE)
_MIGRATIONS = Path(__file__).with_name("migrations")
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "fuse.sshfs",
        "fuse.gcsfuse",
        "fuse.s3fs",
    }
)


@cache
def queries() -> dict[str, str]:
    """The texts of ``queries.sql`` by name."""
    text = Path(__file__).with_name("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def expanded(name: str, columns: int, rows: int) -> str:
    """A query whose ``:rows`` is filled with placeholders for that many rows."""
    row = "(" + ",".join("?" * columns) + ")"
    return queries()[name].replace(":rows", ",".join([row] * rows))


def connect(path: Path, *, read_only: bool = False, any_thread: bool = False) -> sqlite3.Connection:
    """Open a database file; every statement commits by itself unless a transaction is begun.

    Raises RunError if it can't be opened to be read, StorageError if it can't be made.
    """
    try:
        return sqlite3.connect(
            path.absolute().as_uri() + (_read_only(path) if read_only else ""),
            uri=True,
            isolation_level=None,
            timeout=BUSY_SECONDS,
            check_same_thread=not any_thread,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        if not read_only and not path.exists():
            raise storage_error(path, error) from error
        raise RunError(f"{path}: can't be opened: {error}") from error


def _read_only(path: Path) -> str:
    """How to open a file only to read it. In a folder that can't be written, a file that nobody has open is taken as it is: SQLite would
    otherwise want to make its auxiliary files there."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    return "?mode=ro" if in_use or os.access(path.parent, os.W_OK) else "?mode=ro&immutable=1"


def prepare(connection: sqlite3.Connection, path: Path, notice: Callable[[str], None]) -> None:
    """Make a connection durable: write-ahead log where the file system allows it, every commit on disk before it returns."""
    kind = file_system(path.parent)
    with storage_errors(path):
        if kind in NETWORK_FILE_SYSTEMS:
            notice(f"{path.parent} is on a network file system ({kind}): using a slower journal that works there")
            connection.execute("PRAGMA journal_mode = TRUNCATE")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -8000")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date by all numbered steps that are missing, in one transaction, and record the last in ``user_version``.

    Raises RunError for a file that a newer version wrote, or that is no run database.
    """
    version, steps = schema_version(connection, path), _migrations()
    if version == len(steps):
        return
    with storage_errors(path), transaction(connection):
        for statement in chain.from_iterable(map(_statements, steps[version:])):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The number of the last migration that a file has had.

    Raises RunError for a file that a newer version wrote, or that is no run database.
    """
    with storage_errors(path):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    known = len(_migrations())
    if version > known:
        raise RunError(f"{path}: written by a newer version of manyhands (schema {version}, this one knows {known})")
    return version


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """See that all that is read by the name of a table is one, and holds what it shows.

    Whoever made the file may have put views, virtual tables and computed columns in their places, which have SQLite work out whatever they
    like: one function can take all memory, and no limit of time ends it. Raises RunError, and StorageError if the file can't be read.
    """
    end = monotonic() + _SCHEMA_SECONDS
    connection.set_progress_handler(lambda: monotonic() > end, _INSTRUCTIONS)
    try:
        with storage_errors(path):
            found = connection.execute(queries()["tables_read"], (_tables(),)).fetchall()
            odd = next(
                (name for name, is_table, sql in found if not is_table or _computes(connection, name, sql)), None
            )
    except UnicodeDecodeError as error:  # in what SQLite has to say
        raise RunError(f"{path}: damaged: {error}") from error
    finally:
        connection.set_progress_handler(None, 0)
    if odd is not None:
        raise RunError(f"{path}: not a run database, or changed by another program: {odd} is no plain table")


def _computes(connection: sqlite3.Connection, table: str, definition: str) -> bool:
    """Whether a table has columns that are computed when they are read. SQLite is asked only where the definition leaves that open, as most
    readers are open for no longer than it takes to answer."""
    if not _AS.search(definition):
        return False
    return any(hidden for *_, hidden in connection.execute(f'PRAGMA table_xinfo("{table}")'))


@cache
def _tables() -> str:
    """The names of all tables that migrations make, as a JSON list."""
    return dumps(_TABLE.findall("".join(_migrations()))).decode()


def is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether a file has had all migrations. Raises as ``schema_version`` does."""
    return schema_version(connection, path) == len(_migrations())


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, with the transaction around it if there is one."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # the first error is the one to know of
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into StorageError, and a file that is no database into RunError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: Exception) -> Exception:
    """The error to show for a failure of SQLite or the file system."""
    text = str(error)
    if "not a database" in text or "malformed" in text:
        return RunError(f"{path}: not a run database, or damaged: {text}")
    if "full" in text:
        text = f"the disk is full ({text})"
    elif "readonly" in text or "unable to open" in text:
        text = f"the folder can't be written ({text})"
    return StorageError(f"{path}: {text}")


def file_system(folder: Path) -> str:
    """The type of the file system that holds a folder (``ext4``, ``nfs`` …); empty where that is not known."""
    return file_system_of(str(folder.resolve()), mounts())


def file_system_of(target: str, mountinfo: str) -> str:
    """The type of the file system that holds an absolute path, by the text of a ``mountinfo`` file (see proc(5))."""
    best, kind = "", ""
    for mount in mountinfo.splitlines():
        left, _, right = mount.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


@cache
def _migrations() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(_MIGRATIONS.glob("*.sql")))


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
