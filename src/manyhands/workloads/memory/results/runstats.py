"""``runstats.json``: what a session has spent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from manyhands.core.errors import UserError
from manyhands.io.json_files import read_object
from manyhands.workloads.memory.conversation.definitions import Json
from manyhands.workloads.memory.conversation.filler import random_state
from manyhands.workloads.memory.conversation.schedule import Counters


class RunStatsContent(TypedDict):
    """What ``runstats.json`` holds: what a conversation has spent, by which a program of the original benchmark's kind goes on."""

    total_tokens: int
    agent_tokens: int
    agent_costs_usd: float
    managing_costs_usd: float
    """US dollars of judges and other models of the benchmark."""
    duration: float
    """Seconds."""
    rnd_state: Json
    """The state of the filler's random numbers."""


@dataclass(frozen=True, slots=True)
class RunStats:
    """``counters.filler_state`` is None, and ``agent_tokens`` None, in files of older versions, which don't hold them."""

    total_tokens: int
    agent_tokens: int | None
    agent_costs_usd: float
    managing_costs_usd: float
    duration: float
    filler_state: Json = None

    @property
    def counters(self) -> Counters:
        """What a scheduler is restored from."""
        return Counters(self.total_tokens, self.agent_tokens or 0, self.duration, self.filler_state)

    def content(self) -> RunStatsContent:
        """What the file holds."""
        return {
            "total_tokens": self.total_tokens,
            "agent_tokens": self.agent_tokens or 0,
            "agent_costs_usd": self.agent_costs_usd,
            "managing_costs_usd": self.managing_costs_usd,
            "duration": self.duration,
            "rnd_state": self.filler_state,
        }


def runstats_of(counters: Counters, agent_costs_usd: float, managing_costs_usd: float) -> RunStats:
    """What a session has spent, in tokens and seconds and in US dollars."""
    return RunStats(
        counters.total_tokens,
        counters.agent_tokens,
        agent_costs_usd,
        managing_costs_usd,
        counters.duration,
        counters.filler_state,
    )


def read_runstats(path: Path) -> RunStats:
    """Raises UserError that names the file and the field which is wrong."""
    found = read_object(path)
    agent_tokens = _number(found, "agent_tokens", path) if "agent_tokens" in found else None
    return RunStats(
        int(_number(found, "total_tokens", path)),
        None if agent_tokens is None else int(agent_tokens),
        _number(found, "agent_costs_usd", path),
        _number(found, "managing_costs_usd", path),
        _number(found, "duration", path),
        _state(found.get("rnd_state"), path),
    )


def _number(found: dict[str, Json], name: str, path: Path) -> float:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: {name}: not a number")
    return value


def _state(state: Json, path: Path) -> Json:
    try:
        return None if state is None else [*random_state(state)]
    except ValueError:
        raise UserError(f"{path}: rnd_state: not the state of a generator") from None
