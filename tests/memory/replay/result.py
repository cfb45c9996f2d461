"""What the comparison of a published session with the scheduler finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyhands.workloads.memory.conversation.definitions import Json
from manyhands.workloads.memory.conversation.schedule import Counters
from manyhands.workloads.memory.results.files import RunStats

Verdict = Literal["exact", "differs"]
"""``exact``: every event and the final counters agree."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the log and the scheduler disagree. ``index``: of the event, counted from 0, None for the final counters;
    ``field``: what of it; ``logged`` and ``replayed``: both sides, None where a side has nothing more."""

    index: int | None
    test_id: str
    field: str
    logged: Json
    replayed: Json

    def __str__(self) -> str:
        place = "at the end" if self.index is None else f"event {self.index}"
        test = f" ({self.test_id})" if self.test_id else ""
        return f"{place}{test}: {self.field}: logged {_short(self.logged)}, replayed {_short(self.replayed)}"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """``events``: in the log; ``agreeing``: how many from the beginning agree; ``is_complete``: whether all tests ended in the log;
    ``resumes``: after the start, with ``tokens_lost`` in all of them; ``fillers`` and ``other_fillers``: filler messages, and those of
    them that other facts were drawn for; ``counters``: as last saved by the replayed session; ``duration`` is for information, as
    it is no part of the verdict; ``notes``: what could not be checked, and why."""

    run: str
    agent: str
    verdict: Verdict
    difference: Difference | None
    events: int
    agreeing: int
    is_complete: bool
    resumes: int
    tokens_lost: int
    fillers: int
    other_fillers: int
    token_counter: str
    counters: Counters
    runstats: RunStats | None
    notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        return self.verdict == "exact"


def _short(value: Json) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else f"{text[:150]} … {text[-40:]}"
