"""How a row ends without a result, in the words that the original's users know."""

from __future__ import annotations

import re
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import StopReason
from manyhands.core.terminal import printable

UNREPORTED = "worker finished without calling report_agent_job_result"
LONGEST_WORDS = 2000
"""Characters that are kept of a worker's last words."""
LONGEST_ERROR = 600
"""Characters of them that are the error of a worker that failed."""
_LAST_LINES = 3
_LONGEST_SEARCHED = 64 << 10
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
"""Control characters, but for those that end a line or part words."""


def overdue(seconds: float) -> ItemError:
    """The worker took longer than it may."""
    return ItemError(Cause.TIMEOUT, f"worker exceeded max runtime of {seconds:g}s")


def unreported(
    record: dict[str, Any], *, stopped: StopReason = StopReason.ANSWERED, why: str | None = None
) -> ItemError:
    """The worker ended, but there is no result. ``stopped``: how an agent's conversation ended; ``why``: what it printed in place of a
    result, if that looks like one."""
    if stopped is StopReason.ANSWERED:
        return ItemError(Cause.INVALID_OUTPUT, UNREPORTED if why is None else f"{UNREPORTED}: {why}", record=record)
    cause = Cause.CONTEXT_OVERFLOW if stopped is StopReason.CONTEXT_OVERFLOW else Cause.INVALID_OUTPUT
    return ItemError(cause, f"{UNREPORTED} ({stopped.value})", record=record)


def last_words(text: str) -> str:
    """The end of what a worker said, within bounds."""
    text = text.strip()
    return text if len(text) <= LONGEST_WORDS else f"…{text[1 - LONGEST_WORDS :]}"


def last_lines(text: str) -> str:
    """The last three lines of what a worker said, on one line, without control characters, within bounds."""
    lines = [" ".join(_CONTROL.sub("", line).split()) for line in text[-_LONGEST_SEARCHED:].splitlines()]
    joined = " | ".join([line for line in lines if line][-_LAST_LINES:])
    return printable(joined[-LONGEST_ERROR:])
