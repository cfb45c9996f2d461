"""``manyhands import``: conversations from files become a run, to list, show, grade, compare and export."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from manyhands.cli.console import notice, out, print_ledger, print_usage, program
from manyhands.cli.execution import execute, print_ending, tell_end
from manyhands.cli.exports.listing import print_formats
from manyhands.cli.options import help_text, make, parse
from manyhands.cli.plain import shown_path
from manyhands.cli.resume import PROGRAM as RESUME
from manyhands.cli.resume import print_help, resumed_settings
from manyhands.core.text import counted
from manyhands.export.readers.reader import load_reader, readers
from manyhands.io.json_files import read_object
from manyhands.runs.execution import RunResult
from manyhands.runs.making import Opened
from manyhands.workloads.imported.opening import continue_import, make_import
from manyhands.workloads.imported.results import SUMMARY
from manyhands.workloads.imported.spec import ImportSpec
from manyhands.workloads.imported.workload import ImportedWorkload

PROGRAM = "manyhands import"
USAGE = f"{PROGRAM} FILE…"
DESCRIPTION = (
    "Makes a run of the conversations in files: each is an item that has ended, to be listed, shown, exported and compared like those of "
    "any run. With --grade, graders score them first, which can be resumed. Only judges among the graders ask a model, the one that "
    "--model names; what the conversations once cost is in their records. A row that is no conversation is refused, and nothing is made, "
    "unless --skip_bad_rows is given. manyhands import --from list lists the formats."
)
WITHOUT = (
    *("stop", "tool_choice", "send_reasoning", "max_attempts"),
    *("providers_allowed", "providers_ignored", "providers_order", "provider_sort"),
)
"""Settings of agents' models, which are of no use for judges."""
_NOT_FOR_RESUME = ("input_files", "from_", "id_field", "skip_bad_rows", *WITHOUT)


def run(argv: list[str]) -> int:
    """Import the files that the command line names; the exit code."""
    line = parse(ImportSpec, argv, PROGRAM, positional="input_files", repeated=("input_files",), without=WITHOUT)
    if line.help:
        print(help_text(ImportSpec, USAGE, DESCRIPTION, without=WITHOUT, positional="input_files"))
        return 0
    if line.values.get("from_") == "list":
        return print_formats(readers(), load_reader)
    values = {**line.values, **{name: values for name, values in line.lists.items() if values}}
    options = make(ImportSpec, values, PROGRAM)
    return _execute(make_import(options, notice, os.environ))


def resume(folder: Path, words: list[str]) -> int:
    """Go on with the grading of an import; the exit code."""
    line = parse(ImportSpec, words, RESUME, without=_NOT_FOR_RESUME)
    if line.help:
        print_help(ImportSpec, _NOT_FOR_RESUME)
        return 0
    options = resumed_settings(ImportSpec, folder, line.values, ("from_", "input_files"))
    return _execute(continue_import(folder, options, notice, os.environ))


def _execute(opened: Opened[ImportedWorkload]) -> int:
    options = opened.workload.options
    # Without graders nothing is executed that could be watched.
    result = execute(opened, quiet=options.quiet or not opened.workload.is_graded)
    _print(opened, result)
    return tell_end(options.on_end, result, result.exit_code)


def _print(opened: Opened[ImportedWorkload], result: RunResult) -> None:
    """What was made, the ledger, and what can be done next."""
    console, options = out(), opened.workload.options
    print_ledger(console, result.summary)
    summary = opened.folder / SUMMARY
    if summary.is_file():
        _print_summary(summary)
    if opened.workload.is_graded:
        print_usage(console, result.summary)
    run = shlex.quote(shown_path(opened.folder))
    console.print_line(f"Run {opened.folder.name}: {shown_path(opened.folder)}, from {options.from_}")
    if result.done:
        console.print_line(f"Next:  {program()} show {run}  |  {program()} export {run} --to FORMAT")
        if opened.workload.is_graded:
            console.print_line(f"       {program()} eval compare {run} OTHER")
    print_ending(result)


def _print_summary(path: Path) -> None:
    found = read_object(path)
    scores = found["scores"]
    left_out = f", {counted(found['left_out'], 'row')} left out" if found["left_out"] else ""
    out().print_line(f"Conversations: {found['conversations']:,}{left_out}")
    if scores["scored"]:
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in scores["verdicts"].items())
        told = f" ({verdicts})" if any(scores["verdicts"].values()) else ""
        out().print_line(f"Scores: mean {scores['mean']:.3f} of {scores['scored']:,}{told}")
