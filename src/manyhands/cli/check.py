"""``manyhands check``: replays recorded items, and reports those that no longer agree with the journal."""

from __future__ import annotations

import argparse

from manyhands.cli.console import out, run_meant
from manyhands.cli.plain import add_run, parser
from manyhands.engine.check import CheckResult, check_run
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.folders import load_recorded, open_reader

LIST_LIMIT = 20


def run(argv: list[str]) -> int:
    """Replay a run from its journal alone; fails when something does not agree."""
    options = _parser().parse_args(argv)
    reader = open_reader(run_meant(options.run, options.data_dir))
    try:
        result = run_on_loop(check_run(reader, load_recorded(reader)))
    finally:
        reader.close()
    _print(result)
    return ExitCode.FAILED if result.mismatches else ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "check",
        "Replay a run's recorded items from the journal alone (no model is called, no command is run), and report the first step of "
        "each item that no longer fits.",
    )
    add_run(result)
    return result


def _print(result: CheckResult) -> None:
    console = out()
    for mismatch in result.mismatches[:LIST_LIMIT]:
        console.print(f"item {mismatch.item} ({mismatch.key}): {mismatch.problem}")
    if len(result.mismatches) > LIST_LIMIT:
        console.print(f"… and {len(result.mismatches) - LIST_LIMIT} more")
    agree = result.checked - len(result.mismatches)
    console.print(
        f"{result.checked} items checked: {agree} agree with the journal, {len(result.mismatches)} do not"
        + (f" ({result.unfinished} of them not ended yet)" if result.unfinished else "")
        + (f"; {result.skipped} have no recorded steps" if result.skipped else ""),
    )
