"""Giving an order to a run from outside: to the process that executes it, or to its journal where none does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.store import Store
from manyhands.runs.steering.changes import user
from manyhands.runs.steering.control import ANSWER_SECONDS, Message, request
from manyhands.runs.steering.owner import carry_out

PATIENCE = 15.0
"""Seconds for which a process that is just beginning or ending is asked again."""
_PAUSE = 0.1


async def give_order(folder: Path, command: str, **about: Any) -> tuple[Message, bool]:
    """Have a run changed: what was done (``Steering.answer``), and whether a process that executes the run did it.

    Raises RunError if it is refused, or if the process can't be reached; UserError, StorageError.
    """
    if not os.access(folder, os.W_OK):
        raise RunError(f"{folder}: the folder can't be written, so that the run can't be changed")
    message = {"command": command, "given_by": user(), **about}
    loop = asyncio.get_running_loop()
    latest = loop.time() + PATIENCE
    while True:
        if is_owned(folder):
            answer = await request(folder, {"op": "steer", **message}, ANSWER_SECONDS)
            if answer is not None and not answer.get("later"):
                if "error" in answer:
                    raise RunError(f"{folder}: {answer['error']}")
                return answer, True
        else:
            answer = _carried_out(folder, message)
            if answer is not None:
                return answer, False
        if loop.time() >= latest:
            why = (answer or {}).get("error", "the process that executes the run does not answer")
            raise RunError(f"{folder}: {why}")
        await asyncio.sleep(_PAUSE)


def _carried_out(folder: Path, message: Mapping[str, Any]) -> Message | None:
    """None if a process has begun to execute the run."""
    try:
        store = Store(folder, SystemClock(), lambda text: None)
    except RunError:
        if is_owned(folder):
            return None
        raise
    with closing(store):
        return carry_out(store, message)
