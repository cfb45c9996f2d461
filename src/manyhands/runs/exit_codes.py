"""The exit codes of every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended, for whoever started it."""

    DONE = 0
    """Everything that was requested was done."""
    FAILED = 1
    """Items failed, are left or were all discarded; a test did not pass; storage or the program itself failed."""
    USAGE = 2
    """Bad usage or input; nothing was begun."""
    NO_SCORE = 3
    """``eval``: tests have no score, because of errors or because nothing graded them."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM, as shells count signals; the run can be resumed."""
    OUTPUT_CLOSED = 141
    """Whoever read the output went away, as shells count signals."""
