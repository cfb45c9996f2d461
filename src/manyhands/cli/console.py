"""Talking to the person: results on standard output, everything else on standard error, no control codes into files."""

from __future__ import annotations

import sys

from rich.console import Console


def out() -> Console:
    """Standard output. Lines are wrapped only for a terminal."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Standard error."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def notice(text: str) -> None:
    """One line that the person should see, though nothing is wrong."""
    err().print(f"note: {text}", markup=False)
