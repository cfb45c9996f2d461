"""Letting this process's own clock show the virtual time, for agents that read it (the package ``time-machine``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from manyhands.core.errors import UserError


def clock_of_process() -> Callable[[float], AbstractContextManager[Any]]:
    """What makes the process's clock go on from a time, in seconds since 1970 UTC, for as long as something runs.

    Raises UserError if the package is not installed.
    """
    try:
        import time_machine
    except ImportError:
        raise UserError(
            "--time_travel=process needs the package time-machine: pip install 'manyhands[time-travel]'"
        ) from None

    def travelled(now: float) -> AbstractContextManager[Any]:
        moved: AbstractContextManager[Any] = time_machine.travel(now, tick=True)
        return moved

    return travelled
