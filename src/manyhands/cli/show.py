"""``manyhands show``: a run's items, or one item's steps in order."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

from manyhands.cli.arguments import add_run, parser, positive
from manyhands.cli.console import out, print_ledger, print_usage
from manyhands.cli.plain import printable
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import json_text
from manyhands.engine.contract import ItemRow, RecordedStep, Workload
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import load_recorded, open_run
from manyhands.runs.ledger import summarise, timestamp

LIST_LIMIT = 50
TEXT_LIMIT = 2000


def run(argv: list[str]) -> int:
    """Show a run, or one of its items."""
    options = _parser().parse_args(argv)
    reader = open_run(options.run, options.data_dir)
    try:
        if options.item is None:
            _show_run(reader, options)
        else:
            _show_item(reader, options)
    finally:
        reader.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser("show", "List the items of a run, or show one item's steps in order.")
    add_run(result)
    result.add_argument("item", metavar="ITEM", nargs="?", help="an item's number, key, or own id")
    result.add_argument("--attempt", type=positive, help="an earlier attempt of the item (default: the latest)")
    result.add_argument("--state", choices=[str(state) for state in ItemState], help="only items in this state")
    result.add_argument(
        "--limit", type=positive, default=LIST_LIMIT, help=f"items to list at most (default: {LIST_LIMIT})"
    )
    result.add_argument("--full", action="store_true", help=f"do not cut texts at {TEXT_LIMIT} characters")
    result.add_argument("--json", action="store_true", help="print JSON, one line an item or step")
    return result


def _show_run(reader: JournalReader, options: argparse.Namespace) -> None:
    rows = (row for row in reader.items() if options.state is None or row.state == options.state)
    listed = list(islice(rows, options.limit + 1))
    if options.json:
        for row in listed[: options.limit]:
            print(json_text(item_json(row)))
        return
    console, summary = out(), summarise(reader)
    console.print(f"{reader.folder.name}: {summary['workload']}, created {summary['created_at']}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("item", "state", "attempt", "performed", "why", "key"):
        table.add_column(column)
    for row in listed[: options.limit]:
        why = row.reason or row.cause or ""
        table.add_row(str(row.number), row.state, str(row.attempt), str(row.performances), why, row.key)
    console.print(table)
    if len(listed) > options.limit:
        console.print(f"… more items; --limit {options.limit * 10} shows more, --state narrows the list", markup=False)
    print_ledger(console, summary)
    print_usage(console, summary)


def item_json(row: ItemRow) -> dict[str, Any]:
    """An item for programs."""
    return {
        "item": row.number,
        "key": row.key,
        "state": row.state,
        "attempt": row.attempt,
        "performances": row.performances,
        "reason": row.reason,
        "cause": row.cause,
        "message": row.message,
        "payload": row.payload,
        "record": row.record,
    }


def _show_item(reader: JournalReader, options: argparse.Namespace) -> None:
    row = reader.item(options.item) or reader.item(f"id:{options.item}#0")  # a person's own id, of the first sample
    if row is None:
        raise UserError(f"{reader.folder}: no item {options.item!r} (manyhands show {reader.folder} lists them)")
    attempt = options.attempt or row.attempt
    steps = reader.steps(row.number, attempt)
    if options.json:
        for step in steps:
            print(json_text(step_json(step)))
        return
    console = out()
    _print_head(console, reader, row)
    _print_system(console, row.record or {}, None if options.full else TEXT_LIMIT)
    workload = load_recorded(reader)
    print_steps(console, workload, steps, None if options.full else TEXT_LIMIT)
    if not steps:
        console.print(f"attempt {attempt} has no recorded steps", markup=False)


def _print_head(console: Console, reader: JournalReader, row: ItemRow) -> None:
    console.print(f"item {row.number} ({row.key}): {row.state}, attempt {row.attempt}", markup=False)
    for line in failure_lines(reader, row):
        console.print(line, markup=False)


def _print_system(console: Console, record: Mapping[str, Any], limit: int | None) -> None:
    """The system message of the item's agent, which is no part of its conversation."""
    if text := record.get("system_prompt"):
        console.print("\nsystem, as it was sent:", style="bold", markup=False)
        console.print("  " + cut(text, limit).replace("\n", "\n  "), markup=False)


def failure_lines(reader: JournalReader, row: ItemRow) -> Iterator[str]:
    """What went wrong with an item, now and before."""
    if row.message:
        yield f"  {row.reason or row.cause}: {printable(row.message)}"
    for given_up in reader.attempts(row.number):
        yield f"  attempt {given_up.attempt} given up {timestamp(given_up.ended_at)}: {printable(given_up.reason)}"
    for failure in reader.failures(row.number):
        when = f"attempt {failure.attempt}, {timestamp(failure.at)}"
        yield f"  failure in {when}: {failure.cause}: {printable(failure.message)}"


def print_steps(console: Console, workload: Workload, steps: Sequence[RecordedStep], limit: int | None) -> None:
    """Steps in order; texts are cut to ``limit`` characters."""
    for step in steps:
        _print_step(console, workload, step, limit)


def _print_step(console: Console, workload: Workload, step: RecordedStep, limit: int | None) -> None:
    seconds = step.finished_at - step.started_at
    bill = ""
    if step.usage.get("calls"):
        bill = f", {step.usage['input_tokens']} tokens in, {step.usage['output_tokens']} out, ${step.usage['cost']:.4f}"
    place = f"{step.scope}/{step.seq}"
    console.print(f"\n── {place} {step.kind} · {timestamp(step.started_at)} · {seconds:.2f} s{bill}", markup=False)
    for label, text in workload.describe_step(step):
        console.print(f"{label}:", style="bold", markup=False)
        console.print("  " + cut(text, limit).replace("\n", "\n  "), markup=False)


def cut(text: str, limit: int | None) -> str:
    """A text for a terminal, and how much of it is left out, if any."""
    if limit is None or len(text) <= limit:
        return printable(text)
    return f"{printable(text[:limit])} … ({len(text) - limit} more characters)"


def step_json(step: RecordedStep) -> dict[str, Any]:
    """A step for programs."""
    return {
        "attempt": step.attempt,
        "scope": step.scope,
        "seq": step.seq,
        "kind": step.kind,
        "request": step.request,
        "output": step.output,
        "usage": dict(step.usage),
        "started_at": step.started_at,
        "finished_at": step.finished_at,
    }
