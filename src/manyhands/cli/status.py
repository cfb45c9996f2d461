"""``manyhands status``: where a run stands, also while another process executes it."""

from __future__ import annotations

import argparse
import time
from contextlib import closing

from manyhands.cli.console import (
    out,
    print_ledger,
    print_orders,
    print_replicas,
    print_sandboxes,
    print_usage,
    run_meant,
)
from manyhands.cli.plain import add_run, parser
from manyhands.core.text import json_text
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import open_reader
from manyhands.runs.progress import image_text, images_line
from manyhands.runs.summaries import RunStatus, run_status

WATCH_SECONDS = 1.0
ORDERS = 3
"""The latest changes of a run that are shown."""


def run(argv: list[str]) -> int:
    """Print a run's status once, or until it ends."""
    options = _parser().parse_args(argv)
    with closing(open_reader(run_meant(options.run, options.data_dir))) as reader:
        if options.watch:
            return _watch(reader, options.json)
        _show(reader, options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "status", "Show the progress of a run. Only reads, so it works while another process executes the run."
    )
    add_run(result)
    result.add_argument("--watch", action="store_true", help="repeat until no process executes the run any more")
    result.add_argument("--json", action="store_true", help="print JSON (with --watch: one line each time)")
    return result


def _show(reader: JournalReader, as_json: bool) -> None:
    status = run_status(reader)
    if as_json:
        print(json_text(status, indent=2))
        return
    console = out()
    console.print(f"{status['run']}: {status['state']} ({status['workload']})")
    print_sandboxes(console, status["sandboxes"])
    if status["images"]:
        console.print(f"  {images_line(status['images'])}")
    print_orders(console, status["orders"][:ORDERS])
    print_ledger(console, status)
    if status["figures"]:
        console.print(", ".join(f"{each['label']} {each['text']}" for each in status["figures"]))
    print_replicas(console, status["replicas"])
    print_usage(console, status)


def _watch(reader: JournalReader, as_json: bool) -> int:
    console = out()
    while True:
        status = run_status(reader, with_figures=False)
        if as_json:
            print(json_text(status), flush=True)
        elif console.is_terminal:
            console.file.write("\r")
            console.print(_one_line(status), end="", soft_wrap=True)
        else:
            console.print(_one_line(status))
        if status["state"] not in ("running", "paused"):
            if console.is_terminal and not as_json:
                console.print()
            return 0
        time.sleep(WATCH_SECONDS)


def _one_line(status: RunStatus) -> str:
    ledger = status["ledger"]
    ended = ledger["items"] - ledger["pending"]
    images = f", {image_text(status['images'])}" if status["images"] and status["images"]["pulling"] else ""
    return (
        f"{status['run']}: {status['state']}, {ended} of {ledger['items']} ended, {status['running']} running, "
        f"{ledger['failed']} failed, {status['usage']['total_tokens']:,} tokens, ${status['usage']['cost']:.4f}{images}   "
    )
