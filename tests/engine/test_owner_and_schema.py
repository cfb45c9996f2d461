"""Who may write a run, who may look at it, and journals of other versions."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sqlite3
import threading
import time
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError
from manyhands.core.jsonio import dumps
from manyhands.engine.journal.database import file_system, file_system_of, queries
from manyhands.engine.journal.lock import RunLock, is_owned
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import pack
from manyhands.engine.journal.store import Store
from manyhands.runs.folders import find_runs, open_reader
from manyhands.runs.ledger import summarise
from manyhands.runs.making import create_run
from manyhands.testing.steps_workload import StepsWorkload
from tests.support.engine_runs import make_steps_run, perform_steps_run, start_steps_run

SPEC = {"items": 5, "steps": 2, "execution": {"executor": "local", "concurrency": 5}}


def wait_for(path: Path) -> None:
    for _ in range(1000):
        if path.exists() and path.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def test_a_second_owner_is_refused_while_the_first_lives_and_readers_are_not(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    spec = {**SPEC, "delay": 30.0, "log": str(log)}
    make_steps_run(folder, spec)
    assert not is_owned(folder)
    child = start_steps_run(folder, spec)
    try:
        wait_for(log)
        with pytest.raises(RunError, match=f"process {child.pid} on ") as caught:
            perform_steps_run(folder, spec)
        assert "\n" not in str(caught.value)
        assert is_owned(folder)
        reader = open_reader(folder)
        assert sum(reader.counts().values()) == 5
        assert summarise(reader)["ledger"]["pending"] == 5
        reader.close()
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=20)
    assert not is_owned(folder)
    assert perform_steps_run(folder, {**spec, "delay": 0}).ledger["completed"] == 5


def test_looking_whether_a_run_is_owned_never_keeps_an_owner_out(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    descriptor = os.open(tmp_path / "run.lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, (descriptor,)).start()
    RunLock(tmp_path).release()


def test_a_failed_opening_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"this is not a database" * 100)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(RunError, match="not a run database"):
            Store(tmp_path, SystemClock(), print)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_journal_of_the_first_schema_is_brought_up_to_date_and_goes_on(tmp_path: Path) -> None:
    """Made with nothing but the first migration, as an early version left it, with an unfinished item that has one recorded step."""
    folder, log = tmp_path / "run", tmp_path / "log"
    spec = {**SPEC, "log": str(log)}
    perform_steps_run(tmp_path / "other", {**SPEC, "log": None})
    reader = JournalReader(tmp_path / "other")
    request = pack(reader.steps(1, 1)[0].request)
    ((digest, output),) = [row[3:] for row in reader.recorded_outputs(1, 1) if row[1] == 0]
    reader.close()
    folder.mkdir()
    connection = sqlite3.connect(folder / JOURNAL)
    connection.executescript(files("manyhands.engine.journal").joinpath("migrations/0001_journal.sql").read_text())
    connection.execute("PRAGMA user_version = 1")
    identity = StepsWorkload(spec, folder).input_identity()
    facts = {"run_id": '"r1"', "workload": '"steps"', "spec": "{}", "seed": "0", "created_at": "1.0", "version": '"0"'}
    facts["planned"] = f'{{"identity": {dumps(identity).decode()}, "generation": 1}}'
    connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
    for number in range(5):
        values = (
            number + 1,
            f"item-{number}",
            number,
            1,
            pack({"position": number}),
            "running" if number == 0 else "pending",
        )
        connection.execute(
            "INSERT INTO items (number, key, position, generation, payload, state, performances) VALUES (?,?,?,?,?,?,1)",
            values,
        )
    connection.execute(
        "INSERT INTO steps VALUES (NULL, 1, 1, '', 0, 'count', ?, ?, ?, NULL, 1.0, 2.0)",
        (digest, request, output),
    )
    connection.commit()
    connection.close()
    reader = open_reader(folder)  # looking at it is enough to bring it up to date
    assert summarise(reader)["ledger"]["pending"] == 5
    reader.close()
    result = perform_steps_run(folder, spec)
    assert result.ledger["completed"] == 5
    assert "item-0/0" not in log.read_text().split()
    assert "item-0/1" in log.read_text().split()


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    make_steps_run(tmp_path / "run", SPEC)
    connection = sqlite3.connect(tmp_path / "run" / JOURNAL)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(RunError, match="newer version"):
        perform_steps_run(tmp_path / "run", SPEC)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("hello " * 1000)
    with pytest.raises(RunError, match="not a run database"):
        perform_steps_run(tmp_path, SPEC)
    with pytest.raises(RunError, match="not a run database"):
        open_reader(tmp_path).counts()


NO_PLAIN_TABLES = {
    "meta": "ALTER TABLE meta RENAME TO m; CREATE VIEW meta AS SELECT name, value FROM m",
    "steps": "ALTER TABLE steps RENAME TO s; CREATE VIEW STEPS AS SELECT * FROM s",
    "sessions": "ALTER TABLE sessions ADD COLUMN more AS (zeroblob(1000))",
    "earlier_outcomes": "DROP TABLE earlier_outcomes; CREATE VIRTUAL TABLE earlier_outcomes USING rtree(item, a, b)",
    "json_each": "CREATE VIRTUAL TABLE json_each USING rtree(item, a, b)",
    "outputs": "ALTER TABLE outputs ADD COLUMN more generated always\nas(printf('%s', file))",
}


@pytest.mark.parametrize(("name", "script"), NO_PLAIN_TABLES.items())
def test_a_journal_that_computes_what_is_read_of_it_is_refused(tmp_path: Path, name: str, script: str) -> None:
    make_steps_run(tmp_path, SPEC)
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as connection:
        connection.executescript(script)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(
            RunError, match=f"(?i)^{tmp_path}/run.db: [^\n]*changed by another program: {name} is no plain table$"
        ):
            JournalReader(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_journal_with_tables_and_views_of_somebodys_own_is_read(tmp_path: Path) -> None:
    make_steps_run(tmp_path, SPEC)
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as connection:
        connection.executescript("CREATE VIEW failed AS SELECT key FROM items; CREATE INDEX own ON items (lower(key))")
    with closing(JournalReader(tmp_path)) as reader:
        assert sum(reader.counts().values()) == 5


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        open_reader(tmp_path)
    assert list(find_runs(tmp_path / "nowhere")) == []


def test_a_run_is_made_once(tmp_path: Path) -> None:
    make_steps_run(tmp_path / "run", SPEC)
    with pytest.raises(RunError, match="there is a run here already"):
        create_run(tmp_path / "run", "steps", StepsWorkload(SPEC, tmp_path), version="test", notice=print)


@pytest.mark.parametrize("tables", [True, False])
def test_making_a_run_that_was_killed_at_once_can_be_begun_again(tmp_path: Path, tables: bool) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if tables:
        Store(folder, SystemClock(), print).close()
        with pytest.raises(RunError, match="cut short"):
            perform_steps_run(folder, SPEC)
    else:
        (folder / JOURNAL).touch()
    create_run(folder, "steps", StepsWorkload(SPEC, folder), version="test", notice=print)
    assert perform_steps_run(folder, SPEC).ledger["completed"] == 5


def test_a_run_folder_can_be_moved(tmp_path: Path) -> None:
    perform_steps_run(tmp_path / "run", {**SPEC, "failures": {"item-1": ["model_refused"]}})
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert perform_steps_run(tmp_path / "elsewhere", SPEC).ledger["completed"] == 5


MOUNTS = """\
22 28 0:21 / /proc rw,nosuid shared:14 - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 28 0:35 / /mnt/share rw shared:20 - nfs4 server:/export rw,vers=4.2
41 40 0:36 / /mnt/share/with\\040space rw - fuse.sshfs host:/ rw
42 28 0:37 / /mnt/sharedisk rw - xfs /dev/sdb rw
43 28 0:38 / /data rw - ext4 /dev/sdc rw
44 28 0:39 / /data rw - cifs //server/data rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/run", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/run", "nfs4"),
        ("/mnt/sharedisk/run", "xfs"),
        ("/mnt/share/with space/run", "fuse.sshfs"),
        ("/data/run", "cifs"),
    ],
)
def test_the_file_system_is_told_from_the_longest_mount_point(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind
    assert file_system_of(path, "") == ""


def test_this_folder_has_a_file_system(tmp_path: Path) -> None:
    assert file_system(tmp_path)


def test_every_query_is_valid_sql(tmp_path: Path) -> None:
    store = Store(tmp_path, SystemClock(), print)
    connection = sqlite3.connect(tmp_path / JOURNAL)
    for name, text in queries().items():
        assert any(_explains(connection, text, columns) for columns in range(1, 13)), name
    connection.close()
    store.close()


def _explains(connection: sqlite3.Connection, text: str, columns: int) -> bool:
    sql = text.replace(":rows", "(" + ",".join("?" * columns) + ")")
    try:
        numbered = set(re.findall(r"\?\d+", sql))
        connection.execute("EXPLAIN " + sql, [None] * (len(numbered) or sql.count("?")))
    except sqlite3.OperationalError:
        return False
    return True
