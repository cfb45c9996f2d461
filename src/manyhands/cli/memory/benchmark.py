"""Conversations of agents in the foreground: opened, executed, and what is printed of them.

The live view of the conversations shows which test speaks, which wait for what, the virtual time, tokens, and the score so far.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from manyhands.cli.console import err, notice, out, print_usage, view_line
from manyhands.cli.execution import LINE_SECONDS, print_ending, stopped_by_signals, tell_end
from manyhands.cli.memory.running import HUMAN
from manyhands.cli.plain import shown_path
from manyhands.cli.resume import refuse_options
from manyhands.cli.viewing.beside import viewer_beside
from manyhands.core.text import counted, one_line, printable
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.fork_server import ForkServer
from manyhands.runs.execution import Controls, RunResult, execute_run, forks_for
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.folders import open_reader
from manyhands.runs.making import Opened
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.conversation.driver import NO_JUDGE, ConversationStatus, WaitingTest, status_of
from manyhands.workloads.memory.folders import ResultPaths
from manyhands.workloads.memory.opening import open_together, reopen_memory
from manyhands.workloads.memory.results.records import current_record
from manyhands.workloads.memory.settings import MemorySpec
from manyhands.workloads.memory.workload import MemoryWorkload

SECONDS = 0.5
"""Seconds between two updates."""
_WAITING_SHOWN = 3


class MemoryView:
    """Shows the conversations repeatedly. ``look``: their present status."""

    def __init__(self, look: Callable[[], Iterable[ConversationStatus]], *, quiet: bool) -> None:
        self._look = look
        self._quiet = quiet
        self._console = err()

    async def show(self) -> None:
        """Show them until it is cancelled."""
        if self._quiet:
            return
        if not self._console.is_terminal:
            await self._lines()
            return
        with (
            Live(console=self._console.rich, auto_refresh=False, transient=True) as live,
            suppress(asyncio.CancelledError),
        ):
            while True:
                live.update(view_of(self._look()), refresh=True)
                await asyncio.sleep(SECONDS)

    def tell(self, line: str) -> None:
        """Print what a run waits for, above the table if there is one."""
        if not self._quiet:
            self._console.print_line(line)

    async def _lines(self) -> None:
        """Where there is no terminal: a line for each conversation now and then."""
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(LINE_SECONDS)
                for each in self._look():
                    self._console.print_line(line_of(each))


def view_of(conversations: Iterable[ConversationStatus]) -> Table:
    """The conversations as a table."""
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "tests", "score", "tokens", "virtual time", "speaking", "waiting"):
        table.add_column(name, justify="right" if name in ("tests", "score", "tokens") else "left", overflow="ellipsis")
    for each in conversations:
        cells = (
            each.agent,
            f"{each.ended}/{each.tests}",
            _score(each),
            f"{each.tokens:,}",
            _moment(each.now),
            _real_wait(each) or each.speaking or "(filler)",
            ", ".join(map(_waiting, each.waiting[:_WAITING_SHOWN])) + _more(len(each.waiting) - _WAITING_SHOWN),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def line_of(each: ConversationStatus) -> str:
    """A conversation as a line."""
    parts = [
        f"{each.ended} of {each.tests} tests ended",
        f"score so far {_score(each)}",
        f"{each.tokens:,} tokens",
        f"virtual time {_moment(each.now)}",
        f"{len(each.waiting)} tests wait",
        *filter(None, [_real_wait(each)]),
    ]
    return f"{printable(each.agent)}: {', '.join(parts)}"


def _real_wait(each: ConversationStatus) -> str:
    """Until when real time has to pass, if it has."""
    return "" if each.real_until is None else f"waiting until {_moment(each.real_until)} (in real time)"


def _score(each: ConversationStatus) -> str:
    return "-" if each.score is None else f"{each.score:.2f}"


def _moment(now: float) -> str:
    return datetime.fromtimestamp(now).strftime("%Y-%m-%d %H:%M:%S")


def _waiting(each: WaitingTest) -> str:
    parts = [f"{each.tokens:,} tokens"] if each.tokens else []
    parts += [str(timedelta(seconds=round(each.seconds)))] if each.seconds else []
    return f"{each.test} ({' and '.join(parts) or 'its turn'})"


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""


def resume(folder: Path, words: list[str]) -> int:
    """Continue all conversations of a run; the exit code. With other settings, ``manyhands memory run`` continues it."""
    refuse_options(words, f"{folder}: to continue it with other settings use manyhands memory run")
    return execute_all([reopen_memory(folder, environ=os.environ)])


def execute_specs(specs: Sequence[MemorySpec]) -> int:
    """Open the runs that the settings name, execute them concurrently, and report how they ended."""
    opened = open_together(specs, environ=os.environ, notice=notice, ask=_ask)
    return execute_all(opened, view=any(spec.view for spec in specs))


def execute_all(opened: Sequence[Opened[MemoryWorkload]], *, view: bool = False) -> int:
    """Execute opened runs concurrently in the foreground; the exit code. ``view``: they can be looked at in a browser meanwhile."""
    quiet = all(each.workload.options.quiet for each in opened)
    if not quiet:
        for each in opened:
            _print_head(each)
    with forks_for(*(each.workload for each in opened)) as forks:
        results = run_on_loop(_executed(opened, forks, quiet=quiet, beside=view))
    codes = []
    for each, result in zip(opened, results, strict=True):
        _print_result(each, result)
        codes.append(tell_end(each.workload.options.on_end, result, result.exit_code))
    return ExitCode.INTERRUPTED if ExitCode.INTERRUPTED in codes else max(codes)


async def _executed(
    opened: Sequence[Opened[MemoryWorkload]], forks: ForkServer | None, *, quiet: bool, beside: bool
) -> list[RunResult]:
    controls = [Controls() for _ in opened]
    quiet = quiet or any(each["agent"] == HUMAN for one in opened for each in one.workload.spec["sessions"])
    view = MemoryView(lambda: _status(opened), quiet=quiet)

    async def executed(each: Opened[MemoryWorkload], own: Controls) -> RunResult:
        try:
            return await execute_run(each, notice=notice, controls=own, on_wait=view.tell, forks=forks)
        except Exception:
            for control in controls:  # the others end in good order before this is reported
                control.stop()
            raise

    showing = asyncio.ensure_future(view.show())
    try:
        async with viewer_beside([each.folder for each in opened], wanted=beside):
            with stopped_by_signals(controls, "messages in flight are answered first"):
                ended = await asyncio.gather(*map(executed, opened, controls), return_exceptions=True)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
    results: list[RunResult] = []
    failed = [each for each in ended if isinstance(each, BaseException)]
    for other in failed[1:]:
        notice(one_line(f"{type(other).__name__}: {other}"))
    for result in ended:
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _status(opened: Sequence[Opened[MemoryWorkload]]) -> Iterator[ConversationStatus]:
    for each in opened:
        yield from map(status_of, list(each.workload.watching))


def _ask(question: str, default: bool) -> bool:
    """Ask at a terminal; elsewhere the default is taken."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return default
    choices = "[y]/n" if default else "y/[n]"
    while True:
        err().print(f"{question} {choices} ", end="", soft_wrap=True)
        answer = sys.stdin.readline()
        if not answer:
            return False
        word = answer.strip().lower()
        if word in ("y", "yes", "n", "no", ""):
            return default if not word else word.startswith("y")


def _print_head(opened: Opened[MemoryWorkload]) -> None:
    benchmark = opened.workload.benchmark
    agents = ", ".join(each["name"] for each in opened.workload.executed)
    span = f"memory span {benchmark.configuration.memory_span:,} tokens"
    out().print_line(
        f"{opened.folder.name}: {counted(len(benchmark.definitions), 'test')}, {span}; {agents}",
    )
    out().print_line(view_line(opened.folder))


def _print_unscored(opened: Opened[MemoryWorkload], records: Sequence[dict[str, Any]]) -> None:
    """Which datasets are in no score, and what can be done about it."""
    reasons: dict[str, str] = {}
    for record in records:
        reasons.update(record.get("unscored_datasets", {}))
    without = [name for name, reason in sorted(reasons.items()) if reason == NO_JUDGE]
    if without:
        folder = shlex.quote(shown_path(opened.folder))
        out().print_line(
            f"No score, as a model has to judge: {', '.join(without)} (--judge_model; for this run:  "
            f"manyhands memory rescore {folder} --judge_model=MODEL)",
        )
    for name, reason in sorted(reasons.items()):
        if reason != NO_JUDGE:
            out().print_line(f"No score: {name} ({reason})")


def _print_result(opened: Opened[MemoryWorkload], result: RunResult) -> None:
    console = out()
    table = Table(title=Text(printable(opened.folder.name)), title_justify="left", box=None, pad_edge=False)
    for name in ("agent", "state", "score", "tests", "tokens", "cost"):
        table.add_column(name, justify="left" if name in ("agent", "state") else "right")
    reader = open_reader(opened.folder)
    try:
        rows = [row for row in reader.items() if not row.left_input]
    finally:
        reader.close()
    datasets, has_judge = opened.workload.benchmark.datasets, opened.workload.options.judge_model is not None
    records = {row.key: current_record(row.record or {}, datasets, has_judge=has_judge) for row in rows}
    for row in rows:
        record = records[row.key]
        label = " (simulated)" if record.get("simulated") else ""
        scored = f"{record['score']:.2f} of {record['max_score']}" if "score" in record else "-"
        tests = f"{len(record['tests']) - record['unscored']} of {len(record['tests'])}" if "tests" in record else "-"
        tokens = f"{record['total_tokens']:,}" if record else "-"
        cost = f"${record['agent_cost'] + record['judge_cost']:.4f}" if record else "-"
        table.add_row(row.payload["name"] + label, str(row.state), scored, tests, tokens, cost)
    console.print(table)
    for row in rows:
        if row.message:
            err().print_line(f"{row.payload['name']}: {one_line(row.message)}")
    judged = [row for row in rows if choose_agent(row.payload["agent"]).kind != "cost"]  # an estimate has no scores
    _print_unscored(opened, [records[row.key] for row in judged])
    print_usage(console, result.summary)
    for row in rows:
        if row.record:
            console.print_line(
                f"Results:  {shown_path(ResultPaths.of(opened.folder, row.payload['name']).folder)}",
            )
    print_ending(result)
