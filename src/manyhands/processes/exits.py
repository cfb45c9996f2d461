"""How programs end: what their exit says, and what a pool of them gives back."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MAX_REASON_LENGTH = 600


def failure_of(exit_code: int | None, limit: float | None, errors: str) -> str | None:
    """Why a command did not end as it should, in one line; None if it did. ``limit``: its time limit, if that ended it; ``errors``: what
    it said before."""
    if limit is not None:
        return f"the command timed out after {limit:g} s{_reason(errors)}"
    if exit_code:
        return f"the command ended with exit code {exit_code}{_signal(exit_code)}{_reason(errors)}"
    return None


def _reason(errors: str) -> str:
    """The last lines of what a command said last."""
    lines = [line.strip() for line in errors.strip().splitlines() if line.strip()]
    text = " | ".join(lines[-3:])
    return f": {text[-MAX_REASON_LENGTH:]}" if text else ""


def _signal(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""


class ScriptPool(Protocol):
    """Runs graders' programs: many at once within a limit, Python scripts in interpreters that are warm already."""

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        """``command``: a line for ``sh -c``, or argv. ``payload`` goes to standard input; a program may leave it unread."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a program ended. ``exit_code``: None if it was stopped at its time limit; ``omitted``: bytes of output left out."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    omitted: int = 0
