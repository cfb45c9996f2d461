"""``manyhands check``: do recorded items still come out as recorded?"""

from __future__ import annotations

import argparse

from manyhands.cli.arguments import add_run, parser
from manyhands.cli.console import out
from manyhands.engine.check import CheckResult, check_run
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import load_recorded, open_run

LIST_LIMIT = 20


def run(argv: list[str]) -> int:
    """Replay a run from its journal alone; 0 when everything agrees, 1 when something does not."""
    options = _parser().parse_args(argv)
    reader = open_run(options.run, options.data_dir)
    try:
        result = run_on_loop(check_run(reader, load_recorded(reader)))
    finally:
        reader.close()
    _print(result)
    return 1 if result.mismatches else 0


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "check",
        "Perform a run's recorded items again from the journal only (no model is called, no command is run) and name "
        "the first step of each item that no longer fits.",
    )
    add_run(result)
    return result


def _print(result: CheckResult) -> None:
    console = out()
    for mismatch in result.mismatches[:LIST_LIMIT]:
        console.print(f"item {mismatch.item} ({mismatch.key}): {mismatch.problem}", markup=False)
    if len(result.mismatches) > LIST_LIMIT:
        console.print(f"… and {len(result.mismatches) - LIST_LIMIT} more", markup=False)
    agree = result.checked - len(result.mismatches)
    console.print(
        f"{result.checked} items checked: {agree} agree with the journal, {len(result.mismatches)} do not"
        + (f" ({result.unfinished} of them not ended yet)" if result.unfinished else "")
        + (f"; {result.skipped} have no recorded steps" if result.skipped else ""),
        markup=False,
    )
