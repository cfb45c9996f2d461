"""Talking to the person: results on standard output, everything else on standard error, no control codes into files."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console

from manyhands.cli.plain import shown_path

FILE_WIDTH = 200
"""Columns for tables that go into a file or a pipe."""
_errors: Console | None = None


def out() -> Console:
    """Standard output. Lines are wrapped only for a terminal."""
    return _console(sys.stdout)


def err() -> Console:
    """Standard error. The same console each time, so that lines are put above a bar that is live on it."""
    global _errors
    if _errors is None or _errors.file is not sys.stderr:
        _errors = _console(sys.stderr)
    return _errors


def program() -> str:
    """What to type for this program at this terminal: its name alone only where the shell would find it."""
    if shutil.which("manyhands"):
        return "manyhands"
    script = Path(sys.executable).parent / "manyhands"
    if script.is_file():
        return shlex.quote(shown_path(script))
    return f"{shlex.quote(shown_path(Path(sys.executable)))} -m manyhands"


def resume_command(folder: Path) -> str:
    """What to type to continue a run."""
    return f"{program()} resume {shlex.quote(shown_path(folder))}"


def _console(stream: TextIO) -> Console:
    if stream.isatty():
        return Console(file=stream, highlight=False)
    return Console(file=stream, highlight=False, soft_wrap=True, width=FILE_WIDTH)


def notice(text: str) -> None:
    """One line that the person should see, though nothing is wrong."""
    err().print(f"note: {text}", markup=False)
