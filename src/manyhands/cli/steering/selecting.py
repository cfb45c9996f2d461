"""``manyhands retry`` and ``manyhands cancel``: execute ended items of a run again, or end others, also while it is executed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import Any

from manyhands.cli.console import out, resume_command
from manyhands.cli.plain import add_run, parser
from manyhands.core.text import counted
from manyhands.engine.journal.reader import ItemOutline
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run, open_reader
from manyhands.runs.steering.client import give_order
from manyhands.runs.steering.owner import CANCEL, DONE, RETRY
from manyhands.runs.steering.selection import Chosen, Selection, chosen, has_ended, has_not_ended, parsed

_SELECT = (
    "which items (repeatable): state=STATE, cause=CAUSE, key=KEY, item=NUMBER or item=FROM-TO, or @FILE with a key on each line. "
    "Of one name any may match; of several, each has to"
)


def retry(argv: list[str]) -> int:
    """Execute ended items again."""
    options = _retry_parser().parse_args(argv)
    return _ordered(RETRY, options, parsed(options.select, "state=failed"), has_ended, fresh=options.fresh)


def cancel(argv: list[str]) -> int:
    """End items that have not ended."""
    options = _cancel_parser().parse_args(argv)
    return _ordered(CANCEL, options, parsed(options.select), has_not_ended, firm=options.firm)


def _retry_parser() -> argparse.ArgumentParser:
    result = parser(
        "retry",
        "Execute items of a run again that have ended: by default those that failed. These go on from their recorded steps; completed and "
        "discarded ones start anew. Earlier results stay in the journal and leave the output files. While a process executes the run, it "
        "takes the items on at once; otherwise the next resume does. Of a CSV job, manyhands jobs retry names rows by their numbers in the "
        "table, and continues the job.",
    )
    _add_selection(result)
    result.add_argument(
        "--fresh", action="store_true", help="let failed items start anew, too, but for stages of a row that are done"
    )
    return result


def _cancel_parser() -> argparse.ArgumentParser:
    result = parser(
        "cancel",
        "End items of a run that have not ended, as cancelled: they are not executed, unless they are retried. One in flight may end its "
        "present step, within 30 seconds; if that completes the item, it counts. (To stop a whole run, press Ctrl-C where it is executed.)",
    )
    _add_selection(result)
    result.add_argument("--firm", action="store_true", help="stop items in flight at once")
    return result


def _add_selection(result: argparse.ArgumentParser) -> None:
    add_run(result, required=True)
    result.add_argument("--select", action="append", default=[], metavar="NAME=VALUE", help=_SELECT)
    result.add_argument("--dry_run", "--dry-run", action="store_true", help="only say how many items are meant")


def _ordered(
    command: str,
    options: argparse.Namespace,
    selection: Selection,
    concerns: Callable[[ItemOutline], bool],
    **about: Any,
) -> int:
    folder = find_run(options.run, options.data_dir)
    with closing(open_reader(folder)) as reader:
        found = chosen(reader, selection, concerns)
    if options.dry_run or not found.numbers:
        what = f"would {command}" if options.dry_run else DONE[command]
        out().print_line(f"{folder.name}: {_count(found, len(found.numbers), what, command)}")
        return 0
    answer = give_order(folder, command, numbers=list(found.numbers), select=selection.text, **about)
    done, by_owner = run_on_loop(answer)
    line = _count(found, done["items"], DONE[command], command)
    if in_flight := done.get("in_flight", 0):
        waiting = done["items"] - in_flight
        line = f"cancelled {waiting:,} of {counted(found.of, 'item')}; {in_flight:,} in flight end as cancelled, or complete"
    out().print_line(f"{folder.name}: {line}")
    if not by_owner and command == RETRY:
        out().print_line(f"No process executes the run. To execute them:  {resume_command(folder)}")
    return 0


def _count(found: Chosen, items: int, what: str, command: str) -> str:
    """``items``: which the order concerns; some of those that were chosen may have ended, or been taken on, in the meantime."""
    text, others = f"{what} {items:,} of {counted(found.of, 'item')}", found.others + len(found.numbers) - items
    if not others:
        return text
    why = "not ended" if command == RETRY else "ended already"
    return f"{text} ({others:,} of those selected {'has' if others == 1 else 'have'} {why})"
