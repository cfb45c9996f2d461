"""Talking to the person: results on standard output, everything else on standard error, no control codes into files."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyhands.cli.plain import shown_path, usage_text
from manyhands.core.redaction import KNOWN, without_user_info
from manyhands.core.text import printable
from manyhands.processes.output import raw_stream
from manyhands.runs.ledger import ORDER

FILE_WIDTH = 200
"""Columns for tables that go into a file or a pipe."""
_errors: Console | None = None


class SafeConsole(Console):
    """A console that takes texts, also those in tables, for what they are: no markup in them is obeyed, and nothing that a terminal
    would obey."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(KNOWN.text(text)), **settings)


def out() -> Console:
    """Standard output. Lines are wrapped only for a terminal."""
    return _console(sys.stdout)


def err() -> Console:
    """Standard error. The same console each time, so that lines are put above a bar that is live on it."""
    global _errors
    if _errors is None or _errors.file is not raw_stream(sys.stderr):
        _errors = _console(sys.stderr)
    return _errors


def program() -> str:
    """What to type for this program at this terminal: its name alone only where the shell would find it."""
    if shutil.which("manyhands"):
        return "manyhands"
    script = Path(sys.executable).parent / "manyhands"
    if script.is_file():
        return shlex.quote(shown_path(script))
    return f"{shlex.quote(shown_path(Path(sys.executable)))} -P -m manyhands"


def resume_command(folder: Path) -> str:
    """What to type to continue a run."""
    return f"{program()} resume {shlex.quote(shown_path(folder))}"


def _console(stream: TextIO) -> Console:
    raw = raw_stream(stream)
    return SafeConsole(file=raw) if raw.isatty() else SafeConsole(file=raw, soft_wrap=True, width=FILE_WIDTH)


def notice(text: str) -> None:
    """One line that the person should see, though nothing is wrong."""
    err().print(f"note: {without_user_info(text)}", markup=False)


_MEANING = {
    "completed": "ended with a result",
    "discarded": "ended, and left out of the results",
    "failed": "ended without a result",
    "cancelled": "not to be performed any more",
    "pending": "not ended: resume to go on",
}


def print_ledger(console: Console, summary: Mapping[str, Any]) -> None:
    """The ledger as a table: N in = the sum of the states."""
    ledger = summary["ledger"]
    table = Table(title="Ledger", title_justify="left", box=None, pad_edge=False)
    table.add_column("state")
    table.add_column("items", justify="right")
    table.add_column("")
    for state in ORDER:
        causes = ledger["by_cause"].get(state, {})
        why = ", ".join(f"{name} {count}" for name, count in causes.items()) or _MEANING[state]
        table.add_row(str(state), str(ledger[state]), why)
    table.add_row("in all", str(ledger["items"]), "= the sum of the states")
    console.print(table)


def print_usage(console: Console, summary: Mapping[str, Any]) -> None:
    """What the whole run has used, all sessions together."""
    text = usage_text(summary["usage"], summary["working_seconds"])
    console.print(text, markup=False, soft_wrap=True)
