"""``manyhands jobs show``: one row of a job, and everything that was done about it."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.cli.arguments import add_job, parser
from manyhands.cli.console import out
from manyhands.cli.plain import one_line, printable, shown_path
from manyhands.cli.show import TEXT_LIMIT, cut, failure_lines, item_json, print_steps, step_json
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import json_text
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.runs.folders import open_reader
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.rows.model import JobRow
from manyhands.workloads.csv_jobs.service.status import rfc3339
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload


def run(argv: list[str]) -> int:
    """Print the row, the prompt, attempts and failures, the steps, and the report."""
    options = _parser().parse_args(argv)
    with closing(open_reader(find_job(Path(options.data_dir), options.job, folders=True))) as reader:
        item = find_item(reader, options.item)
        workload = CsvJobsWorkload(reader.meta("spec"), reader.folder)
        if options.json:
            print(json_text(_as_json(reader, workload, item), indent=2))
        else:
            _print(reader, workload, item, None if options.full else TEXT_LIMIT)
    return 0


def find_item(reader: JournalReader, which: str) -> ItemRow:
    """A row by its item id or, if no item is called so, by its number among the rows, from 1.

    Raises UserError if there is none.
    """
    item = reader.item_by_key(which) or reader.item(which)
    if item is None:
        folder = shown_path(reader.folder)
        raise UserError(f"{folder}: no item {which!r} (manyhands show {folder} lists them)")
    return item


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs show",
        "Show one row of a job: its cells, its prompt, every attempt and failure, the steps in order, and the report.",
    )
    add_job(result)
    result.add_argument("item", metavar="ITEM", help="the item id, or else the row's number from 1")
    result.add_argument("--full", action="store_true", help=f"do not cut texts at {TEXT_LIMIT} characters")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _print(reader: JournalReader, workload: CsvJobsWorkload, item: ItemRow, limit: int | None) -> None:
    console = out()
    row = JobRow.of(item.item)
    where = f"item {one_line(item.key)}: {_state(item)}, row {row.row_index + 1}, line {row.line}"
    console.print(where + (f", attempt {item.attempt}" if row.problem is None else ""), markup=False)
    for line in failure_lines(reader, item):
        console.print(line, markup=False)
    console.print("\n── row", markup=False)
    for name, cell in _cells(workload, row).items():
        text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
        console.print(f"{one_line(name)}: {cut(text, limit)}", markup=False)
    if row.problem is None:
        console.print("\n── prompt", markup=False)
        console.print(cut(workload.assignment(item.item, run_id_of(reader.folder)).prompt, limit), markup=False)
    for attempt in range(1, item.attempt + 1):
        if item.attempt > 1:
            console.print(f"\n── attempt {attempt}", markup=False)
        print_steps(console, workload, reader.steps(item.number, attempt), limit)
    _print_report(item, limit)


def _print_report(item: ItemRow, limit: int | None) -> None:
    console, record = out(), item.record or {}
    if "result" in record:
        corrected = f", after {record['corrections']} corrections" if record["corrections"] else ""
        how = f"via {record['via']}, {rfc3339(record['reported_at'])}{corrected}"
        console.print(f"\n── report ({how})", markup=False)
        console.print(cut(json.dumps(record["result"], ensure_ascii=False, indent=2), limit), markup=False)
    elif "last_report" in record:
        console.print("\n── last report, which was refused", markup=False)
        console.print(cut(json.dumps(record["last_report"], ensure_ascii=False, indent=2), limit), markup=False)
        for violation in record.get("violations", ()):
            console.print(f"  {printable(violation)}", markup=False)


def _state(item: ItemRow) -> str:
    return "skipped" if item.state == ItemState.DISCARDED else str(item.state)


def _cells(workload: CsvJobsWorkload, row: JobRow) -> dict[str, Any]:
    return dict(zip(workload.job.table.headers, row.cells, strict=True))


def _as_json(reader: JournalReader, workload: CsvJobsWorkload, item: ItemRow) -> dict[str, Any]:
    row = JobRow.of(item.item)
    usable = row.problem is None
    found = item_json(item)
    return {
        "item_id": item.key,
        "status": _state(item),
        "row_index": row.row_index,
        "line": row.line,
        "source_id": row.source_id,
        "row": _cells(workload, row),
        "prompt": workload.assignment(item.item, run_id_of(reader.folder)).prompt if usable else None,
        **{name: found[name] for name in ("attempt", "performances", "reason", "cause", "message", "record")},
        "attempts": [
            {"attempt": each.attempt, "given_up_at": each.ended_at, "reason": each.reason}
            for each in reader.attempts(item.number)
        ],
        "failures": [asdict(failure) for failure in reader.failures(item.number)],
        "steps": [
            step_json(step) for attempt in range(1, item.attempt + 1) for step in reader.steps(item.number, attempt)
        ],
    }
