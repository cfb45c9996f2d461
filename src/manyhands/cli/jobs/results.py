"""``manyhands jobs show`` and ``export``: one row with everything recorded of it, and the table with the results."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.cli.console import notice, out
from manyhands.cli.jobs.follow import job_service
from manyhands.cli.plain import add_job, parser, shown_path
from manyhands.cli.show import TEXT_LIMIT, cut, failure_lines, print_steps
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted, json_text, one_line, printable
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.io.tables.formats import format_in_name, format_named, formats
from manyhands.io.tables.standard_input import STANDARD_STREAM
from manyhands.processes.output import raw_stream
from manyhands.runs.folders import open_reader
from manyhands.runs.listing import item_details, step_contents
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.rows.columns import column_list
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import rfc3339
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload


def show(argv: list[str]) -> int:
    """Print the row, its prompt, attempts and failures, the steps, and the report."""
    options = _show_parser().parse_args(argv)
    with closing(open_reader(find_job(Path(options.data_dir), options.job, folders=True))) as reader:
        item = find_item(reader, options.item)
        workload = CsvJobsWorkload(reader.meta("spec"), reader.folder)
        if options.json:
            print(json_text(_as_json(reader, workload, item), indent=2))
        else:
            _print_row(reader, workload, item, None if options.full else TEXT_LIMIT)
    return 0


def find_item(reader: JournalReader, which: str) -> ItemRow:
    """A row by its item id or, if no item is called so, by its number among the rows, from 1.

    Raises UserError if there is none.
    """
    item = reader.item_by_key(which) or _row_numbered(reader, which)
    if item is None:
        folder = shown_path(reader.folder)
        raise UserError(f"{folder}: no item {which!r} (manyhands show {folder} lists them)")
    return item


def _row_numbered(reader: JournalReader, which: str) -> ItemRow | None:
    """A row by its number in the table as it is now, from 1."""
    position = int(which) - 1 if which.isdecimal() and len(which) < 13 else -1
    item = next(reader.items(position - 1), None) if position >= 0 else None
    return item if item is not None and item.position == position else None


def _show_parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs show",
        "Show one row of a job: its cells, its prompt, every attempt and failure, the steps in order, and the report.",
    )
    add_job(result)
    result.add_argument("item", metavar="ITEM", help="item id, or the row's number from 1")
    result.add_argument("--full", action="store_true", help=f"don't cut texts at {TEXT_LIMIT} characters")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _print_row(reader: JournalReader, workload: CsvJobsWorkload, item: ItemRow, limit: int | None) -> None:
    console = out()
    row = JobRow.of(item.item)
    where = f"item {one_line(item.key)}: {_state(item)}, row {row.row_index + 1}, line {row.line}"
    console.print(where + (f", attempt {item.attempt}" if row.problem is None else ""))
    for line in failure_lines(item_details(reader, item)):
        console.print(line)
    console.print("\n── row")
    for name, cell in _cells(workload, row).items():
        text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
        console.print(f"{one_line(name)}: {cut(text, limit)}")
    if row.problem is None and not item.left_input:
        _print_prompts(reader, workload, item, limit)
    for attempt in range(1, item.attempt + 1):
        if item.attempt > 1:
            console.print(f"\n── attempt {attempt}")
        print_steps(console, workload, reader.steps(item.number, attempt), limit)
    _print_report(item, limit)


def _print_prompts(reader: JournalReader, workload: CsvJobsWorkload, item: ItemRow, limit: int | None) -> None:
    """The row's prompt, or that of each stage which has one by now, with the state of each."""
    console = out()
    stages = workload.stage_states(item, reader.steps(item.number, item.attempt))
    for stage in stages:
        console.print(f"\n── stage {one_line(stage.name)}: {stage.state}")
        if stage.work is not None:
            console.print(cut(stage.work.prompt, limit))
    if not stages:
        console.print("\n── prompt")
        console.print(cut(workload.assignment(item.item, run_id_of(reader.folder)).prompt, limit))


def _print_report(item: ItemRow, limit: int | None) -> None:
    console, record = out(), item.record or {}
    if "result" in record:
        corrected = f", after {record['corrections']} corrections" if record["corrections"] else ""
        at = "" if record["reported_at"] is None else f", {rfc3339(record['reported_at'])}"
        how = f"via {record['via']}{at}{corrected}"
        console.print(f"\n── report ({how})")
        console.print(cut(json.dumps(record["result"], ensure_ascii=False, indent=2), limit))
    elif "last_report" in record:
        console.print("\n── last report, rejected")
        console.print(cut(json.dumps(record["last_report"], ensure_ascii=False, indent=2), limit))
        for violation in record.get("violations", ()):
            console.print(f"  {printable(violation)}")


def _state(item: ItemRow) -> str:
    return "skipped" if item.state == ItemState.DISCARDED else str(item.state)


def _cells(workload: CsvJobsWorkload, row: JobRow) -> dict[str, Any]:
    return dict(zip(workload.job.table.headers, row.cells, strict=False))


def _as_json(reader: JournalReader, workload: CsvJobsWorkload, item: ItemRow) -> dict[str, Any]:
    row = JobRow.of(item.item)
    usable = row.problem is None and not item.left_input
    stages = workload.stage_states(item, reader.steps(item.number, item.attempt)) if usable else []
    prompted = usable and not stages
    return {
        "item_id": item.key,
        "status": _state(item),
        "row_index": row.row_index,
        "line": row.line,
        "source_id": row.source_id,
        "row": _cells(workload, row),
        "prompt": workload.assignment(item.item, run_id_of(reader.folder)).prompt if prompted else None,
        "stages": [
            {"name": each.name, "state": each.state, "prompt": each.work and each.work.prompt, "result": each.result}
            for each in stages
        ],
        **{name: getattr(item, name) for name in ("attempt", "performances", "reason", "cause", "message", "record")},
        "attempts": [
            {"attempt": each.attempt, "given_up_at": each.ended_at, "reason": each.reason}
            for each in reader.attempts(item.number)
        ],
        "failures": [asdict(failure) for failure in reader.failures(item.number)],
        "steps": [
            step_contents(step) for attempt in range(1, item.attempt + 1) for step in reader.steps(item.number, attempt)
        ],
    }


def export(argv: list[str]) -> int:
    """Write the table with the results, and print its path."""
    options = _export_parser().parse_args(argv)
    service = job_service(options.data_dir)
    target = None if options.output_csv_path is None else Path(options.output_csv_path)
    settings = {name: getattr(options, name) for name in ("format", "flatten", "excel_safe")}
    settings |= {"delimiter": options.output_delimiter, "columns": options.output_columns}
    if options.output_csv_path == STANDARD_STREAM:
        return _print_export(service, options.job, settings, as_json=options.json)
    exported = service.export(options.job, target, **settings)
    if options.json:
        found = {"job_id": exported.job_id, "output_csv_path": exported.path, "row_count": exported.rows}
        print(json_text(found, indent=2))
    else:
        path = Path(exported.path)
        format = format_named(exported.format)
        held = "" if format_in_name(path) is format else f" ({format.title})"
        print(f"{counted(exported.rows, 'row')}: {shown_path(path)}{held}")
    return 0


def _print_export(service: JobService, job: str, settings: dict[str, Any], *, as_json: bool) -> int:
    """Write the table to standard output, and how many rows it has to standard error."""
    if as_json:
        raise UserError("--json and --output=- can't both have standard output: give --output a file")
    stream = raw_stream(sys.stdout)
    if stream.isatty() and settings["format"] not in (None, "csv", "jsonl"):
        raise UserError(f"--output=-: {settings['format']} is not for a terminal: send it to a file or a program")
    exported = service.export_to(stream.buffer, job, **settings)
    stream.flush()
    notice(counted(exported.rows, "row"))
    return 0


def _export_parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs export",
        "Write the table with the present results, whatever the state of the job. The file is written completely or not at all. "
        "Options that are not given are those of the job.",
    )
    add_job(result)
    result.add_argument(
        "--output_csv_path",
        "--output-csv-path",
        "--path",
        "--output",
        metavar="FILE",
        help="output file, or - for standard output (default: the job's output)",
    )
    result.add_argument("--format", choices=tuple(formats()), help="output format (default: from the file's name)")
    result.add_argument(
        "--output_columns",
        "--output-columns",
        metavar="A,B,…",
        type=_columns,
        help="columns to write, as of jobs spawn",
    )
    _switch(result, "flatten", "add one column per result property")
    _switch(result, "excel_safe", "write CSV for spreadsheet programs: a byte order mark, no cell taken for a formula")
    result.add_argument(
        "--output_delimiter",
        "--output-delimiter",
        metavar="CHARACTER",
        help="delimiter of CSV, such as ';' or tab (default: the table's)",
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _columns(text: str) -> tuple[str, ...] | None:
    try:
        return column_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _switch(result: argparse.ArgumentParser, name: str, text: str) -> None:
    """A switch that may also be turned off, and is None if it is not given."""
    typed = name.replace("_", "-")
    spellings = dict.fromkeys((f"--{name}", f"--{typed}"))
    result.add_argument(*spellings, dest=name, action="store_true", default=None, help=text)
    result.add_argument(
        *(f"--no-{each[2:]}" for each in spellings), dest=name, action="store_false", help=f"turn --{name} off"
    )
