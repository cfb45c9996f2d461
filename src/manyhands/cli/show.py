"""``manyhands show``: a run's items, or one item's steps in order."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from rich.table import Table

from manyhands.cli.console import (
    Console,
    announced,
    out,
    print_ledger,
    print_orders,
    print_sandboxes,
    print_usage,
    run_meant,
)
from manyhands.cli.plain import add_run, parser, positive
from manyhands.core.errors import ManyhandsError, RunError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted, json_text, one_line, printable
from manyhands.core.usage import Usage, UsageFigures
from manyhands.engine.contract import ItemRow, RecordedStep, Workload
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import find_run, latest_run, load_recorded, open_reader, run_named
from manyhands.runs.ledger import timestamp
from manyhands.runs.listing import (
    ItemDetails,
    find_item,
    item_called,
    item_contents,
    item_details,
    step_contents,
)
from manyhands.runs.progress import sandbox_text
from manyhands.runs.summaries import ItemSummary, item_summaries, run_status, summarizer_of

LIST_LIMIT = 50
TEXT_LIMIT = 2000
LISTED_CHARS = 100
"""How much of an item's input the list shows."""


def run(argv: list[str]) -> int:
    """Show a run, or one of its items."""
    options = _parser().parse_intermixed_args(argv)
    folder, item = _meant(options.run, options.item, options.data_dir)
    with closing(open_reader(folder)) as reader:
        if item is None:
            _show_run(reader, options)
        else:
            _show_item(reader, item, options)
    return 0


def _meant(run: str | None, item: str | None, data_dir: str) -> tuple[Path, str | None]:
    """The run and the item to show. A single word that names no run is an item of the latest one. Raises RunError."""
    if run is None or item is not None or run_named(run, data_dir) is not None:
        return run_meant(run, data_dir), item
    latest = None
    with suppress(ManyhandsError):  # a run that can't be read is no reason to refuse a name that there is not
        latest = latest_run(data_dir)
        with closing(open_reader(latest)) as reader:
            found = item_called(reader, run)
        if found is not None:
            return announced(latest), run
    try:
        return find_run(run, data_dir), None
    except RunError as error:
        raise error if latest is None else RunError(f"{error}, and no such item in {latest.name}, the latest") from None


def _parser() -> argparse.ArgumentParser:
    result = parser("show", "List the items of a run, or show one item's steps in order.")
    add_run(result)
    result.add_argument(
        "item",
        metavar="ITEM",
        nargs="?",
        help="an item's number, key, or own id; alone it is one of the latest run, unless a run has that name",
    )
    result.add_argument("--attempt", type=positive, help="an earlier attempt of the item (default: the latest)")
    result.add_argument("--state", choices=[str(state) for state in ItemState], help="only items in this state")
    result.add_argument(
        "--limit", type=positive, default=LIST_LIMIT, help=f"maximum number of items to list (default: {LIST_LIMIT})"
    )
    result.add_argument("--full", action="store_true", help=f"do not cut texts at {TEXT_LIMIT} characters")
    result.add_argument("--json", action="store_true", help="print JSON, one line an item or step")
    return result


def _show_run(reader: JournalReader, options: argparse.Namespace) -> None:
    if options.json:
        for row, item in item_summaries(reader, options.state, limit=options.limit):
            print(json_text(item_contents(row, item)))
        return
    listed = [item for _, item in item_summaries(reader, options.state, limit=options.limit + 1)]
    console, summary = out(), run_status(reader)
    console.print(f"{reader.folder.name}: {summary['workload']}, created {summary['created_at']}")
    print_sandboxes(console, summary["sandboxes"])
    table = Table(box=None, pad_edge=False)
    scored = any(item["score"] is not None for item in listed)
    for column in ("item", "state", "attempt", "executed", "why", *["score"] * scored, "name"):
        table.add_column(column)
    table.add_column("input", no_wrap=True, overflow="ellipsis")
    for item in listed[: options.limit]:
        table.add_row(*_cells(item, scored=scored))
    console.print(table)
    if len(listed) > options.limit:
        console.print(f"… more items; --limit {options.limit * 10} shows more, --state narrows the list")
    print_orders(console, summary["orders"])
    print_ledger(console, summary)
    print_usage(console, summary)


def _cells(item: ItemSummary, *, scored: bool) -> Iterator[str]:
    yield from (str(item["item"]), item["state"], str(item["attempt"]), str(item["performances"]))
    yield item["reason"] or item["cause"] or ""
    if scored:
        yield "" if item["score"] is None else f"{item['score']:.3f}"
    yield f"{item['label']} #{item['sample']}" if item["sample"] else item["label"]
    yield one_line(item["input"], LISTED_CHARS)


def _show_item(reader: JournalReader, item: str, options: argparse.Namespace) -> None:
    row = find_item(reader, item)
    attempt = options.attempt or row.attempt
    steps = reader.steps(row.number, attempt)
    if options.json:
        for step in steps:
            print(json_text(step_contents(step)))
        return
    console, limit = out(), None if options.full else TEXT_LIMIT
    _print_head(console, row, summarizer_of(reader).item(row), item_details(reader, row), limit)
    workload = load_recorded(reader)
    described = list(workload.describe_item(row)) if attempt == row.attempt else []
    for label, text in described:
        _print_text(console, label, text, limit)
    print_steps(console, workload, steps, limit)
    if not steps and not described:
        console.print(f"attempt {attempt} has no recorded steps")


def _print_head(console: Console, row: ItemRow, item: ItemSummary, details: ItemDetails, limit: int | None) -> None:
    console.print(f"item {row.number} ({row.key}): {row.state}, attempt {row.attempt}")
    if item["sandbox"] is not None:
        console.print_line(f"  sandbox: {printable(sandbox_text(item['sandbox']))}")
    if any(item["usage"].values()):
        console.print_line(f"  used: {_usage_text(item['usage'])}")
    for tool in details.tools:
        console.print_line(f"  of this, {tool['tool']}: {_usage_text(tool)}")
    for line in (*_score_lines(item), *failure_lines(details)):
        console.print(line)
    if details.system_prompt:
        console.print("\nsystem, as it was sent:", style="bold")
        console.print("  " + cut(details.system_prompt, limit).replace("\n", "\n  "))


def _usage_text(usage: UsageFigures) -> str:
    text = f"{counted(usage['calls'], 'call')}, {usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out, ${usage['cost']:.4f}"
    remarks = Usage.from_json(dict(usage)).remarks
    return f"{text} ({remarks})" if remarks else text


def _score_lines(item: ItemSummary) -> Iterator[str]:
    """What an item with a score was given, what came of it, and how it was scored: its steps need not show that in one place."""
    if item["score"] is None:
        return
    yield f"  input: {printable(item['input'])}"
    yield f"  outcome: {printable(item['outcome'])}"
    yield f"  score: {item['score']:.3f}" + (f" ({item['verdict']})" if item["verdict"] else "")


def failure_lines(details: ItemDetails) -> Iterator[str]:
    """What went wrong with an item, now and before."""
    if details.message:
        yield f"  {details.cause}: {printable(details.message)}"
    for given_up in details.given_up:
        yield f"  attempt {given_up.attempt} given up {timestamp(given_up.ended_at)}: {printable(given_up.reason)}"
    for earlier in details.earlier:
        why = f" ({earlier.why})" if earlier.why else ""
        yield f"  attempt {earlier.attempt} had ended as {earlier.state}{why}; executed again {timestamp(earlier.reopened_at)}"
    for failure in details.failures:
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
        remarks = Usage.from_json(dict(step.usage)).remarks
        bill += f" ({remarks})" if remarks else ""
    address = f"{step.scope}/{step.seq}"
    console.print(f"\n── {address} {step.kind} · {timestamp(step.started_at)} · {seconds:.2f} s{bill}")
    for label, text in workload.describe_step(step):
        _print_text(console, label, text, limit)


def _print_text(console: Console, label: str, text: str, limit: int | None) -> None:
    console.print(f"{label}:", style="bold")
    console.print("  " + cut(text, limit).replace("\n", "\n  "))


def cut(text: str, limit: int | None) -> str:
    """A text for a terminal, and how much of it is left out, if any."""
    if limit is None or len(text) <= limit:
        return printable(text)
    return f"{printable(text[:limit])} … ({len(text) - limit} more characters)"
