"""The grader of task folders: the reward that a task's own verifier gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import GraderError
from manyhands.core.settings import OptionalText
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, found, nothing_to_compare
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, key, read
from manyhands.io.locations import Location

REWARD = "reward"
"""The name of a task's one reward."""


class VerifierEntry(Entry):
    """Settings of ``verifier``."""

    reward: OptionalText = key(None, 'The reward that is the score; by default "reward", or the only one.')


ENTRY = VerifierEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """A grader of an entry."""
    return VerifierGrader(entry["name"], entry["type"], read(VerifierEntry, entry, location).reward)


def score_name(rewards: Mapping[str, float | int], wanted: str | None = None) -> str:
    """The name of the one reward that stands for all: the one ``wanted``, else ``reward``, else the only one. Raises GraderError if there
    is none."""
    name = wanted or (REWARD if REWARD in rewards or len(rewards) != 1 else next(iter(rewards)))
    if name not in rewards:
        raise GraderError(
            f'the verifier gave the rewards {", ".join(map(repr, rewards))}, and none is called "{name}"; '
            "say which one is the score"
        )
    return name


def raw_score(rewards: Mapping[str, float | int], wanted: str | None = None) -> float:
    """The reward of that name. Raises GraderError if there is none."""
    name = score_name(rewards, wanted)
    try:
        return float(rewards[name])
    except OverflowError:  # a whole number larger than any floating-point number
        return float("inf") if rewards[name] > 0 else float("-inf")


def clipped(value: float) -> float:
    """A reward as a score: 0 below 0, 1 above 1."""
    return min(1.0, max(0.0, value))


@dataclass(frozen=True, slots=True)
class VerifierGrader:
    """A ``Grader``."""

    name: str
    type: str
    reward: str | None

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        verified = candidate.verified
        if verified is None:
            return nothing_to_compare(self, "no verifier of a task has run")
        rewards = verified.get("rewards")
        if rewards is None:
            raise GraderError(str(verified.get("error") or "the verifier gave no reward"))
        raw = raw_score(rewards, self.reward)
        value = clipped(raw)
        why = None if value == raw else f"the reward {raw:g} is not between 0 and 1, the score is"
        if verified.get("ended_processes") and value < 1:
            why = "; ".join(
                [*filter(None, [why]), "what the agent left running was ended before the verifier (--end_processes)"]
            )
        details = {"rewards": dict(rewards), "exit_code": verified.get("exit_code"), "output": verified.get("output")}
        said = f"{score_name(rewards, self.reward)} {raw:g}"
        hits, misses = ((said,), ()) if value >= 1 else ((), (said,))
        return found(self, value, hits, misses, reasoning=why, details=details)
