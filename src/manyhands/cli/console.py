"""Output for people: results on standard output, everything else on standard error, no control codes into files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from manyhands.cli.plain import SHARES_TITLE, shares_table, shown_path, usage_text
from manyhands.cli.plain import table as plain_table
from manyhands.core.redaction import KNOWN, without_user_info
from manyhands.core.text import cut, printable, shell_quoted
from manyhands.processes.output import raw_stream
from manyhands.runs.folders import find_run, latest_run
from manyhands.runs.ledger import ORDER, ToolUsage, shares
from manyhands.runs.progress import RunSandbox, sandboxes_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from manyhands.cli.styled import SafeConsole
    from manyhands.core.usage import UsageFigures
    from manyhands.runs.summaries import Order

FILE_WIDTH = 200
"""Columns for tables that go into a file or a pipe."""
_RICH_DECIDES = frozenset(("FORCE_COLOR", "TTY_COMPATIBLE"))
"""Environment variables from which rich takes whether something is a terminal."""
_errors: Console | None = None


class Console:
    """Prints texts as they are: markup and terminal control sequences in them have no effect.

    Into files and pipes it writes them itself. For everything else it needs rich, which is imported when that is printed.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._plain = not (file.isatty() or _RICH_DECIDES & os.environ.keys())

    @cached_property
    def rich(self) -> SafeConsole:
        """What prints everything but texts."""
        from manyhands.cli.styled import SafeConsole

        file = self.file
        return SafeConsole(file=file) if file.isatty() else SafeConsole(file=file, soft_wrap=True, width=FILE_WIDTH)

    @property
    def is_terminal(self) -> bool:
        """Whether control sequences have an effect there."""
        return not self._plain and self.rich.is_terminal

    def print(self, what: RenderableType = "", *, end: str = "\n", **settings: Any) -> None:
        """Print a text, or what rich can show. ``settings``: of rich's ``print``, for terminals."""
        if self._plain and isinstance(what, str):
            self.file.write(printable(KNOWN.text(what)).expandtabs() + end)
            self.file.flush()
        else:
            self.rich.print(what, end=end, **settings)

    def print_line(self, text: str) -> None:
        """Print a text that only the terminal itself wraps, so that what is copied from there has no line breaks."""
        self.print(text, soft_wrap=True)

    def print_table(
        self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
    ) -> None:
        """Print columns under their headings. ``title``: a line above them, if there is to be one; ``right``: the headings of those that
        are aligned to the right."""
        if self._plain:
            self.print_line(f"{title}\n{plain_table(headings, rows, right=right)}".lstrip("\n"))
            return
        from manyhands.cli.styled import table

        self.print(table(title, headings, rows, right))


def out() -> Console:
    """Standard output. Lines are wrapped only for a terminal."""
    return Console(raw_stream(sys.stdout))


def err() -> Console:
    """Standard error. The same console each time, so that lines are put above a bar that is live on it."""
    global _errors
    if _errors is None or _errors.file is not raw_stream(sys.stderr):
        _errors = Console(raw_stream(sys.stderr))
    return _errors


def program() -> str:
    """This program as it is typed at this terminal: its name alone only if the shell would find it."""
    if shutil.which("manyhands"):
        return "manyhands"
    script = Path(sys.executable).parent / "manyhands"
    if script.is_file():
        return shell_quoted(shown_path(script))
    return f"{shell_quoted(shown_path(Path(sys.executable)))} -P -m manyhands"


def resume_command(folder: Path) -> str:
    """The command line that continues a run."""
    return f"{program()} resume {shell_quoted(shown_path(folder))}"


def view_line(folder: Path) -> str:
    """The line of a command's beginning that says how to look at its run."""
    return f"  to look at it:  {view_command(folder)}"


def view_command(folder: Path) -> str:
    """The command line that shows a run in a browser."""
    return f"{program()} view {shell_quoted(shown_path(folder))}"


def notice(text: str) -> None:
    """One line of information, though nothing is wrong."""
    err().print(f"note: {without_user_info(text)}")


def run_meant(name: str | None, data_dir: str) -> Path:
    """The folder of the named run, or else of the latest one, which is then said. Raises RunError if there is none."""
    return announced(latest_run(data_dir)) if name is None else find_run(name, data_dir)


def announced(folder: Path) -> Path:
    """Say which run is the latest one."""
    notice(f"{shown_path(folder)} is the latest run")
    return folder


_MEANING = {
    "completed": "ended with a result",
    "discarded": "ended, and left out of the results",
    "failed": "ended without a result",
    "cancelled": "will not be executed",
    "pending": "not ended: resume to continue",
}


def print_ledger(console: Console, summary: Mapping[str, Any]) -> None:
    """The ledger as a table: N in = the sum of the states."""
    ledger = summary["ledger"]
    rows = []
    for state in ORDER:
        causes = ledger["by_cause"].get(state, {})
        why = ", ".join(f"{name} {count}" for name, count in causes.items()) or _MEANING[state]
        rows.append((str(state), str(ledger[state]), why))
    skipped = ledger.get("skipped", 0)
    if skipped:
        rows.append(("skipped", str(skipped), "rows that can't be used: failures.jsonl lists them"))
    rows.append(("in all", str(ledger["items"] + skipped), "= the sum of the states"))
    console.print_table("Ledger", ("state", "items", ""), rows, right=("items",))


def print_orders(console: Console, orders: Sequence[Order]) -> None:
    """What people have changed in the run, the latest last. ``orders``: the latest first."""
    for each in reversed(orders):
        console.print_line(f"  {each['at']} {each['text']} (by {each['given_by']})")


def print_sandboxes(console: Console, sandboxes: Sequence[RunSandbox]) -> None:
    """What sandboxes a run makes of images, and of which."""
    for text in sandboxes_text(sandboxes):
        console.print_line(f"  {printable(text)}")


def print_replicas(console: Console, replicas: Sequence[Mapping[str, Any]]) -> None:
    """Where replicas stand, if there are several."""
    if len(replicas) < 2:
        return
    rows = [
        (
            each["replica"],
            f"{each['in_flight']:,}",
            f"{each['window']:,}",
            f"{each['answered']:,}",
            f"{each['failed']:,}",
            "" if each["seconds"] is None else f"{each['seconds']:.1f}",
            "" if each["out_since"] is None else f"since {each['out_since']}: {cut(each['reason'] or '', 80)}",
        )
        for each in replicas
    ]
    headings = ("replica", "in flight", "window", "answered", "failed", "seconds", "out")
    console.print_table("Replicas", headings, rows, right=headings[1:-1])


def print_usage(console: Console, summary: Mapping[str, Any]) -> None:
    """What the whole run has used, all sessions together."""
    text = usage_text(summary["usage"], summary["working_seconds"])
    console.print_line(text)
    print_tools(console, summary["usage"], summary["tools"])


def print_tools(console: Console, usage: UsageFigures, tools: Sequence[ToolUsage]) -> None:
    """What of ``usage`` tools used, and all other calls; nothing where no tool paid for anything."""
    if not tools:
        return
    headings, rows = shares_table(shares(usage, tools))
    console.print_table(SHARES_TITLE, headings, rows, right=headings[1:-1])


def standard_input() -> BinaryIO:
    """Standard input, to read; a person at a terminal is told that it is waited for."""
    if sys.stdin.isatty():
        notice("reading from standard input; Ctrl-D ends it")
    return sys.stdin.buffer
