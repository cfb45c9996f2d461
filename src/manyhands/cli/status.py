"""``manyhands status``: where a run stands, also while another process performs it."""

from __future__ import annotations

import argparse
import time
from typing import Any

from manyhands.cli.arguments import add_run, parser
from manyhands.cli.console import out, print_ledger, print_usage
from manyhands.cli.runs import run_state
from manyhands.core.outcomes import ItemState
from manyhands.core.text import json_text
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import open_run
from manyhands.runs.ledger import summarise

WATCH_SECONDS = 1.0


def run(argv: list[str]) -> int:
    """Print a run's status once, or until it ends."""
    options = _parser().parse_args(argv)
    reader = open_run(options.run, options.data_dir)
    try:
        if options.watch:
            return _watch(reader, options.json)
        _show(reader, options.json)
    finally:
        reader.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser("status", "Say where a run stands. Only reads, so it works while another process performs the run.")
    add_run(result)
    result.add_argument("--watch", action="store_true", help="go on until the run is no longer being performed")
    result.add_argument("--json", action="store_true", help="print JSON (with --watch: one line each time)")
    return result


def status_of(reader: JournalReader) -> dict[str, Any]:
    """The summary, with the present state and the number of items that run now."""
    summary = summarise(reader)
    running = sum(count for (state, _), count in reader.counts().items() if state == ItemState.RUNNING)
    return {"run": reader.folder.name, "state": run_state(reader.folder, summary), "running": running, **summary}


def _show(reader: JournalReader, as_json: bool) -> None:
    status = status_of(reader)
    if as_json:
        print(json_text(status, indent=2))
        return
    console = out()
    console.print(f"{status['run']}: {status['state']} ({status['workload']})", markup=False)
    print_ledger(console, status)
    print_usage(console, status)


def _watch(reader: JournalReader, as_json: bool) -> int:
    console = out()
    while True:
        status = status_of(reader)
        if as_json:
            print(json_text(status), flush=True)
        elif console.is_terminal:
            console.file.write("\r")
            console.print(_one_line(status), end="", markup=False, soft_wrap=True)
        else:
            console.print(_one_line(status), markup=False)
        if status["state"] != "running":
            if console.is_terminal and not as_json:
                console.print()
            return 0
        time.sleep(WATCH_SECONDS)


def _one_line(status: dict[str, Any]) -> str:
    ledger = status["ledger"]
    ended = ledger["items"] - ledger["pending"]
    return (
        f"{status['run']}: {status['state']}, {ended} of {ledger['items']} ended, {status['running']} running, "
        f"{ledger['failed']} failed, {status['usage']['total_tokens']:,} tokens, ${status['usage']['cost']:.4f}   "
    )
