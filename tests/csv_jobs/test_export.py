"""What an export says about each row, at any time, and that it is written whole or not at all."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, PlannedItem
from manyhands.engine.journal.database import queries
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.store import Store
from manyhands.io.tables.base import TableInfo
from manyhands.runs.execution import Controls, execute_run
from manyhands.runs.making import Opened, create_run
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from manyhands.workloads.csv_jobs.rows.export import ExportOptions, write_export
from manyhands.workloads.csv_jobs.rows.planning import BAD_ROW, JobRow
from tests.support.engine_runs import ProgramWorkload
from tests.support.table_runs import JOB_ID, enter_job, export_table, reported

HEADERS = ("name", "note")
TABLE = TableInfo("/nowhere/in.csv", "csv", HEADERS)
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")


def row(index: int, *cells: Any, source: str | None = None) -> dict[str, Any]:
    return JobRow(index, index + 2, source, cells or (f"n{index}", ""), None).to_json()


def export(folder: Path, target: Path, **options: Any) -> int:
    """The export of a job over TABLE, by somebody who only reads it."""
    with closing(JournalReader(folder)) as reader:
        return write_export(reader, HEADERS, None, TABLE, target, ExportOptions(**options))


def rows_of(target: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(target.read_text(encoding="utf-8"), newline="")))


def shown(folder: Path) -> dict[str, dict[str, str]]:
    """The rows of a job's export by item."""
    target = folder.parent / f"{folder.name}.csv"
    export(folder, target)
    return {found["item_id"]: found for found in rows_of(target)}


class Work:
    """A program in which the item's key says what becomes of it. ``gate``: what ``wait`` waits for."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, context: Context) -> Outcome:
        match context.item.key:
            case "fails":
                raise ItemError(
                    Cause.INVALID_OUTPUT, "not what\nwas asked", record={"last_report": 1, "violations": []}
                )
            case "again":
                if context.attempt == 1:
                    raise ItemError(Cause.WORKER_ERROR, "the first try broke", retry_after=0.0)
            case "later":
                raise ItemError(Cause.MODEL_ERROR, "unreachable", retry_after=600.0)
            case "waits":
                self.waiting.set()
                await self.gate.wait()
        return reported({"key": context.item.key, "n": None}, 5.0)


def job(folder: Path, work: Work, keys: list[str]) -> ProgramWorkload:
    """A run of one row for each key."""
    workload = ProgramWorkload(work, keys)
    workload.payloads = {key: row(index, key, "", source=key.upper()) for index, key in enumerate(keys)}
    create_run(folder, "program", workload, version="test", notice=lambda text: None, run_id=JOB_ID)
    return workload


async def test_every_row_says_what_became_of_it_also_while_the_job_runs(tmp_path: Path) -> None:
    folder, work = tmp_path / "run", Work()
    workload = job(folder, work, ["good", "fails", "later", "waits", "again"])
    before = shown(folder)
    assert [found["status"] for found in before.values()] == ["pending"] * 5
    controls = Controls()
    running = asyncio.create_task(execute_run(Opened(folder, workload), controls=controls))
    await work.waiting.wait()
    while (found := await asyncio.to_thread(shown, folder))["again"]["status"] != "completed":
        await asyncio.sleep(0.05)
    controls.stop()
    work.gate.set()
    await running

    words = {key: (each["status"], each["attempt_count"], each["last_error"]) for key, each in found.items()}
    assert words == {
        "good": ("completed", "1", ""),
        "fails": ("failed", "2", "not what\nwas asked"),
        "later": ("pending", "1", "unreachable"),
        "waits": ("running", "1", ""),
        "again": ("completed", "2", ""),
    }
    assert [each["row_index"] for each in found.values()] == ["0", "1", "2", "3", "4"]
    assert {(each["job_id"], each["source_id"] == key.upper()) for key, each in found.items()} == {(JOB_ID, True)}
    assert found["good"]["result_json"] == '{"key":"good","n":null}'
    assert found["fails"]["result_json"] == found["fails"]["reported_at"] == ""
    times = {key: [bool(RFC3339.fullmatch(each[name])) for name in OUR_COLUMNS[-2:]] for key, each in found.items()}
    assert times == {
        "good": [True, True],
        "fails": [False, True],
        "later": [False, False],
        "waits": [False, False],
        "again": [True, True],
    }
    assert shown(folder)["waits"]["status"] == "completed"


def test_a_row_that_a_dead_owner_was_performing_is_pending(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        store._execute("start_items", [(1, 5.0)])
        assert shown(tmp_path / "run")["a"]["status"] == "running"
    assert (found := shown(tmp_path / "run")["a"])["status"] == "pending"
    assert found["attempt_count"] == "1"


def test_times_are_rfc_3339_in_whole_seconds(tmp_path: Path) -> None:
    class Clock(SystemClock):
        def now(self) -> float:
            return 1_770_330_559.999

    items = [
        PlannedItem("a", row(0), reported({}, 1_770_330_555.7)),
        PlannedItem("b", row(1), Outcome(ItemState.FAILED)),
    ]
    enter_job(tmp_path / "run", items, Clock())
    found = shown(tmp_path / "run")
    assert (found["a"]["reported_at"], found["a"]["completed_at"]) == (
        "2026-02-05T22:29:15+00:00",
        "2026-02-05T22:29:19+00:00",
    )
    assert (found["b"]["reported_at"], found["b"]["completed_at"]) == ("", "2026-02-05T22:29:19+00:00")


def test_bad_rows_appear_with_the_cells_that_could_be_read(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes(b'a,b,c\n1,2,3\n4,5\n6,7,8,9\n\xff,x,y\n"z"z,1,2\n')
    assert export_table(source, tmp_path / "run", tmp_path / "out.csv", lambda index: reported({"n": index})) == 5
    names = ("a", "b", "c", "column_4", "status")
    found = [tuple(each[name] for name in names) for each in rows_of(tmp_path / "out.csv")]
    expected = [("1", "2", "3", ""), ("4", "5", "", ""), ("6", "7", "8", "9"), ("", "x", "y", ""), ("", "", "", "")]
    assert found == [(*cells, "completed" if cells[0] else "skipped") for cells in expected]
    errors = [each["last_error"] for each in rows_of(tmp_path / "out.csv")][3:]
    assert all(f"line {number}:" in error for number, error in enumerate(errors, start=5))


def test_jsonl_has_values_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"a": [1, {"b": null}], "status": 2.50}\n{"a": null}\n', encoding="utf-8")
    export_table(
        source,
        tmp_path / "run",
        tmp_path / "out.jsonl",
        lambda index: None if index else reported({"x": "ü"}),
        format="jsonl",
    )
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert list(first) == ["a", "status", *(f"stage2_{name}" for name in OUR_COLUMNS)]
    assert (first["a"], first["status"], first["stage2_row_index"]) == ([1, {"b": None}], 2.5, 0)
    assert (first["stage2_result_json"], first["stage2_reported_at"]) == ({"x": "ü"}, "2026-02-05T22:29:15+00:00")
    assert {second[name] for name in ("a", "status", "stage2_last_error", "stage2_result_json")} == {None}
    assert (second["stage2_status"], second["stage2_attempt_count"]) == ("pending", 0)


def test_what_is_written_is_of_one_moment(tmp_path: Path) -> None:
    """Rows that end while an export goes on do not end in it, not even those that it has not come to."""
    folder = tmp_path / "run"
    enter_job(folder, (PlannedItem(f"k{index}", row(index)) for index in range(3)))
    with closing(JournalReader(folder)) as reader, closing(Store(folder, SystemClock(), print)) as store:
        with reader.snapshot():
            assert reader.counts() == {("pending", ""): 3}
            store._execute("enter_outcome", [("k2", "completed", None, None, None, None, 1.0, None)])
            assert reader.counts() == {("pending", ""): 3}
            states = [item.state for item in reader.results()]
            assert states == ["pending"] * 3
        assert reader.counts() == {("pending", ""): 2, ("completed", ""): 1}


async def test_an_export_is_of_one_moment_while_another_writes(tmp_path: Path) -> None:
    """The first and the last row change together, all the time; no export shows one without the other."""
    folder, target, size = tmp_path / "run", tmp_path / "out.csv", 3000
    enter_job(folder, (PlannedItem(f"k{index}", row(index)) for index in range(size)))
    with closing(Store(folder, SystemClock(), print)) as store:
        export(folder, target)
        async with asyncio.TaskGroup() as group:
            exporting = group.create_task(asyncio.to_thread(lambda: [_ends(folder, target) for _ in range(10)]))
            while not exporting.done():
                await asyncio.to_thread(store._execute, "start_items", [(1, 5.0), (size, 5.0)])
    seen = exporting.result()
    assert all(first == last for first, last in seen)
    assert len(set(seen)) > 1


def _ends(folder: Path, target: Path) -> tuple[str, str]:
    export(folder, target)
    rows = rows_of(target)
    return rows[0]["attempt_count"], rows[-1]["attempt_count"]


def test_where_readers_and_writers_exclude_each_other_an_export_does_not_stay(tmp_path: Path) -> None:
    """On network file systems the journal has no write-ahead log."""
    enter_job(tmp_path / "run", (PlannedItem(f"k{index}", row(index)) for index in range(600)))
    with closing(sqlite3.connect(tmp_path / "run" / "run.db", timeout=0)) as other:
        other.execute("PRAGMA journal_mode = TRUNCATE")
        with closing(JournalReader(tmp_path / "run")) as reader, reader.snapshot():
            assert sum(reader.counts().values()) == 600
            other.execute("UPDATE items SET state = 'completed'")
            other.commit()
            assert reader.counts() == {("completed", ""): 600}
            assert sum(1 for _ in reader.results()) == 600
    assert export(tmp_path / "run", tmp_path / "out.csv") == 600


@pytest.mark.parametrize("size", [0, 1, 499, 500, 501, 1000, 1203])
def test_all_rows_come_once_and_in_order(tmp_path: Path, size: int) -> None:
    """Around the sizes of the pages in which the journal is read."""
    enter_job(tmp_path / "run", (PlannedItem(f"k{index}", row(index)) for index in range(size)))
    assert export(tmp_path / "run", tmp_path / "out.csv") == size
    assert [each["row_index"] for each in rows_of(tmp_path / "out.csv")] == [str(index) for index in range(size)]


def test_rows_that_left_the_table_are_not_in_it(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0)), PlannedItem("b", row(1))])
    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        store.plan([PlannedItem("b", row(0, "moved", ""))], 2)
        store.removed(2)
    assert {key: each["name"] for key, each in shown(tmp_path / "run").items()} == {"b": "moved"}


def test_the_first_failed_items_are_found_without_looking_at_all(tmp_path: Path) -> None:
    outcome = Outcome(ItemState.FAILED, cause=Cause.TIMEOUT, message="too long")
    skipped = Outcome(ItemState.DISCARDED, reason=BAD_ROW)
    ends = [None, reported({}), outcome, skipped, outcome, outcome]
    enter_job(tmp_path / "run", (PlannedItem(f"k{index}", row(index), end) for index, end in enumerate(ends)))
    with closing(JournalReader(tmp_path / "run")) as reader:
        assert [found.key for found in reader.failed_items(2)] == ["k2", "k4"]
        plan = reader._connection.execute(f"EXPLAIN QUERY PLAN {queries()['first_failed_items']}", (2,)).fetchall()
    assert [step[-1] for step in plan] == ["SCAN items USING INDEX items_failed"]


# --- Where it goes


def test_folders_are_made_and_an_old_file_is_replaced_whole(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    target = tmp_path / "new" / "folder" / "out.csv"
    export(tmp_path / "run", target)
    first = target.read_bytes()
    target.write_text("something else, and longer\n" * 1000, encoding="utf-8")
    export(tmp_path / "run", target)
    assert target.read_bytes() == first
    assert os.listdir(target.parent) == ["out.csv"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    """The file may not grow beyond 100 kB, as if the disk were full."""
    enter_job(tmp_path / "run", (PlannedItem(f"k{index}", row(index, "x" * 1000, "")) for index in range(300)))
    target = tmp_path / "out.csv"
    target.write_text("old", encoding="utf-8")
    program = (
        "import resource, sys; from pathlib import Path; from test_export import export;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY));"
        "export(Path(sys.argv[1]), Path(sys.argv[2]), format=sys.argv[3])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for format in ("csv", "jsonl"):
        command = [sys.executable, "-c", program, str(tmp_path / "run"), str(target), format]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert "StorageError" in done.stderr, done.stderr
        assert "out.csv: can't be written (File too large)" in done.stderr
    assert target.read_text(encoding="utf-8") == "old"
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "run"]


def test_what_a_killed_export_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    (tmp_path / ".out.csv.0.999999999.new").touch()
    kept = [f".out.csv.0.{os.getpid()}.new", ".other.csv.0.999999999.new", ".out.csv.new"]
    for name in kept:
        (tmp_path / name).touch()
    export(tmp_path / "run", tmp_path / "out.csv")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "out.csv", "run"])


def test_two_exports_to_one_place_do_not_disturb_each_other(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", (PlannedItem(f"k{index}", row(index)) for index in range(3000)))

    async def both() -> list[int]:
        jobs = [asyncio.to_thread(export, tmp_path / "run", tmp_path / "out.csv") for _ in range(4)]
        return await asyncio.gather(*jobs)

    assert asyncio.run(both()) == [3000] * 4
    assert len(rows_of(tmp_path / "out.csv")) == 3000


@pytest.mark.parametrize("name", ["in.csv", "link.csv", "pipe", "output", ".", "run/run.db", "run/run.lock"])
def test_targets_that_must_not_be_replaced_are_refused(tmp_path: Path, name: str) -> None:
    table = tmp_path / "in.csv"
    table.write_text("a\n1\n", encoding="utf-8")
    (tmp_path / "link.csv").symlink_to(table)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "output").symlink_to("/dev/null")
    with pytest.raises(UserError) as caught:
        export_table(table, tmp_path / "run", tmp_path / name, lambda index: None)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert table.read_text(encoding="utf-8") == "a\n1\n"
    with closing(JournalReader(tmp_path / "run")) as reader:
        assert reader.meta("run_id") == JOB_ID


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    (tmp_path / "there").mkdir()
    (tmp_path / "out.csv").symlink_to(tmp_path / "there" / "real.csv")
    export(tmp_path / "run", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").is_symlink()
    assert len(rows_of(tmp_path / "there" / "real.csv")) == 1


def test_a_folder_that_can_not_be_made_is_one_clear_line(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        export(tmp_path / "run", tmp_path / "file" / "out.csv")


def test_names_choose_tabs_and_packing(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0, "x\ty", "1,2"))])
    export(tmp_path / "run", tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()[1].startswith('"x\ty"\t1,2\t')
    export(tmp_path / "run", tmp_path / "out.csv.gz")
    export(tmp_path / "run", tmp_path / "out.csv")
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    enter_job(tmp_path / "run", [PlannedItem("a", row(0))])
    with pytest.raises(UserError, match="unknown export format 'slides': choose csv, jsonl, parquet"):
        export(tmp_path / "run", tmp_path / "out.csv", format="slides")


# --- Memory


@pytest.mark.parametrize(
    ("format", "few", "many", "megabytes"),
    [
        ("csv", 500, 5_500, 10),
        ("jsonl", 500, 5_500, 10),
        pytest.param("parquet", 8_000, 17_000, 20, marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, format: str, few: int, many: int, megabytes: int) -> None:
    """25 or 45 MB of cells more, for which 1 and at most 3 MB more were measured. Parquet holds a row group, of 32 MB, in any case."""
    program = (
        "import sys; from pathlib import Path; from test_export import export;"
        "export(Path(sys.argv[1]), Path(sys.argv[2]), format=sys.argv[3]);"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    peaks = []
    for size in (few, many):
        folder = tmp_path / str(size)
        enter_job(folder, (PlannedItem(f"k{index}", row(index, f"{index:05}" * 1000, "")) for index in range(size)))
        command = [sys.executable, "-c", program, str(folder), str(tmp_path / "out"), format]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=True)
        peaks.append(int(done.stdout) / 1024)
    assert (tmp_path / "out").stat().st_size > 1_000_000
    assert peaks[1] - peaks[0] < megabytes
