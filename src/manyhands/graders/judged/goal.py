"""``trajectory:goal_success``: a model judges whether what was done, and the answer at its end, reached a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.core.jsonio import dumps
from manyhands.core.settings import OptionalText
from manyhands.graders.judged.asking import ask, score_given, sections
from manyhands.graders.judged.judge import SCORE, score_messages
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, found
from manyhands.graders.registry import Setup
from manyhands.graders.trajectory.steps import Step, steps_of
from manyhands.graders.trajectory.tool_calls import shown_call
from manyhands.io.keys import Entry, SomeWords, key, read
from manyhands.io.locations import Location

_MAX_STEPS = 200
_TASK = (
    "Judge whether an agent reached its goal. You see the steps that it took, in order, and its answer at the end. 1 is for a goal that "
    "was reached, 0 for one that was not; a goal that was reached in part is in between. What the answer claims counts only as far as "
    "the steps bear it out."
)


class Goal(Entry):
    """A goal."""

    goal: SomeWords = key(..., "What was to be reached.")


def _goal(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        return {"goal": value}
    if not isinstance(value, Mapping):
        raise ValueError("must be a text, or a mapping with goal")
    return value


class GoalEntry(Entry):
    """Settings of ``trajectory:goal_success``."""

    spellings: ClassVar[Mapping[str, str]] = {"judge_target": "target", "grader_target": "target", "provider": "target"}
    entries: ClassVar[Mapping[str, type[Entry]]] = {"value": Goal}
    value: Annotated[Goal, BeforeValidator(_goal, json_schema_input_type=str | Goal)] = key(
        ..., "What was to be reached: a text, or a mapping with goal."
    )
    target: OptionalText = key(None, "Model that judges; by default the test's own judge.")


ENTRY = GoalEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError if there is no goal."""
    settings = read(GoalEntry, entry, location)
    return GoalSuccess(entry["name"], entry["type"], settings.value.goal, settings.target)


@dataclass(frozen=True, slots=True)
class GoalSuccess:
    """Asks for a score."""

    name: str
    type: str
    goal: str
    target: str | None
    """The judge's name; None for the test's own."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        steps = steps_of(candidate)
        if steps is None:
            return found(self, 0.0, misses=("no data about tool calls",))
        judge = (await grading.judges.judge(self.target)).about(candidate)
        shown = sections(
            candidate, ("goal", self.goal), ("steps", _listed(steps)), leave_out=("criteria", "reference_answer")
        )
        reply = await ask(grading.context, judge, score_messages(f"{_TASK}\n\n{shown}"), SCORE)
        return score_given(self, reply, grading)


def _listed(steps: list[Step]) -> str:
    lines = [f"{number}. {_line(step)}" for number, step in enumerate(steps[:_MAX_STEPS], 1)]
    if len(steps) > _MAX_STEPS:
        lines.append(f"… and {len(steps) - _MAX_STEPS} more")
    return "\n".join(lines) or "(none)"


def _line(step: Step) -> str:
    if step.kind not in ("tool", "command") or not step.args:
        return f"{step.kind}: {step}"
    return shown_call(f"{step.kind}: {step} {dumps(step.args).decode()}")
