"""Jobs over tables without any worker: their rows are entered as they are said to have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.store import Store
from manyhands.io.tables.base import Table
from manyhands.io.tables.formats import open_table
from manyhands.workloads.csv_jobs.rows.export import ExportOptions, write_export
from manyhands.workloads.csv_jobs.rows.planning import BAD_ROW, JobRow

JOB_ID = "0b5e7d34-94c1-4b58-9d0a-7f5f9f6f2c11"
Ending = Callable[[int], Outcome | None]


def reported(result: dict[str, Any], at: float = 1_770_330_555.7) -> Outcome:
    """A row that a worker reported this for. ``at``: seconds since 1970 UTC."""
    record = {"result": result, "reported_at": at, "via": "function", "stop": False, "corrections": 0}
    return Outcome(ItemState.COMPLETED, record)


def enter_job(folder: Path, items: Iterable[PlannedItem], clock: Clock | None = None) -> None:
    """Make a run that holds these items."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(Store(folder, clock or SystemClock(), lambda text: None)) as store:
        store.set_meta(run_id=JOB_ID, workload="csv_jobs")
        store.plan(items, 1)


def table_items(table: Table, ending: Ending) -> Iterator[PlannedItem]:
    """The rows of a table. ``ending``: how the row with an index ended; None if it did not."""
    for index, row in enumerate(table.rows()):
        payload = JobRow(index, row.line, None, tuple(row.cells), row.problem).to_json()
        bad = row.problem and Outcome(ItemState.DISCARDED, reason=BAD_ROW, message=f"line {row.line}: {row.problem}")
        yield PlannedItem(f"row-{index + 1}", payload, bad or ending(index))


@contextmanager
def reading_job(folder: Path) -> Iterator[JournalReader]:
    """A job's journal, to read."""
    with closing(JournalReader(folder)) as reader:
        yield reader


def export_table(
    source: Path, folder: Path, target: Path, ending: Ending, schema: dict[str, Any] | None = None, **options: Any
) -> int:
    """A job over a table, in that run folder, from its file to its export; how many rows were written."""
    table = open_table(source)
    enter_job(folder, table_items(table, ending))
    with reading_job(folder) as reader:
        return write_export(reader, table.info.headers, schema, table.info, target, ExportOptions(**options))
