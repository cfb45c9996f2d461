"""A row's steps for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from manyhands.agents.describe import describe_step as describe_agent_step
from manyhands.engine.workload import RecordedStep

WORKER = "worker"
"""The kind of a step in which a command or a function did the work."""


def describe_step(step: RecordedStep) -> Iterable[tuple[str, str]]:
    """Who said what, in order; for an external worker, what it was asked, printed and reported."""
    return _worker_step(step) if step.kind == WORKER else describe_agent_step(step)


def _worker_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for label, value in (*step.request.items(), *step.output.items()):
        if value not in (None, "", [], {}):
            yield label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
