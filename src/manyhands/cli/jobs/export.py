"""``manyhands jobs export``: the table with the results, at any time."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from manyhands.cli.arguments import add_job, parser
from manyhands.cli.plain import counted_rows, shown_path
from manyhands.core.text import json_text
from manyhands.io.tables.formats import format_in_name, format_named, formats
from manyhands.workloads.csv_jobs.service.jobs import JobService


def run(argv: list[str]) -> int:
    """Write the file and say where it is."""
    options = _parser().parse_args(argv)
    desk = JobService(Path(options.data_dir), environ=os.environ, folders=True)
    target = None if options.output_csv_path is None else Path(options.output_csv_path)
    exported = desk.export(
        options.job, target, format=options.format, flatten=options.flatten, excel_safe=options.excel_safe
    )
    if options.json:
        found = {"job_id": exported.job_id, "output_csv_path": exported.path, "row_count": exported.rows}
        print(json_text(found, indent=2))
    else:
        path = Path(exported.path)
        # What the name says need not be said again.
        format = format_named(exported.format)
        held = "" if format_in_name(path) is format else f" ({format.title})"
        print(f"{counted_rows(exported.rows)}: {shown_path(path)}{held}")
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs export",
        "Write the table with what is known of each row now, whatever state the job is in. The file is there whole or not "
        "at all. What is not given is as the job was made.",
    )
    add_job(result)
    result.add_argument(
        "--output_csv_path", "--output-csv-path", "--path", metavar="FILE", help="where (default: the job's output)"
    )
    result.add_argument("--format", choices=tuple(formats()), help="what (default: what the file's name says)")
    switch(result, "flatten", "a column for each property of the results")
    switch(result, "excel_safe", "an apostrophe before cells that a spreadsheet would take for formulas")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def switch(result: argparse.ArgumentParser, name: str, text: str) -> None:
    """A switch that may also be turned off, and is None if it is not given."""
    typed = name.replace("_", "-")
    spellings = dict.fromkeys((f"--{name}", f"--{typed}"))
    result.add_argument(*spellings, dest=name, action="store_true", default=None, help=text)
    result.add_argument(*(f"--no-{each[2:]}" for each in spellings), dest=name, action="store_false", help="not so")
