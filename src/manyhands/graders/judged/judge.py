"""``llm_judge``: a model that judges.

``prompt`` is a text, the path of a file, or a program that prints one; without it the judge sees criteria, question, reference answer
and answer in sections. With ``rubrics`` it answers point by point (``rubrics``), else with a score. ``value``, as ``llm-rubric`` has it,
is a list of points, or what stands in the place of the test's criteria: a text, or an object that becomes JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from manyhands.core.errors import GraderError
from manyhands.core.messages import Message
from manyhands.core.settings import OptionalText, shown
from manyhands.graders.contract import said
from manyhands.graders.judged.asking import (
    SCORE_REPLY,
    SCORE_TASK,
    SYSTEM,
    Prompt,
    Shape,
    ask,
    prompt_of,
    score_given,
    sections,
)
from manyhands.graders.judged.rubric_items import RubricItem, RubricList, RubricValue, criteria_in, rubrics_or_value
from manyhands.graders.judged.rubrics import rubrics_of
from manyhands.graders.protocol import Candidate, Grader, Grading, Score
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, key, own_keys, read
from manyhands.io.locations import Location

MAX_FINDINGS = 4
"""Hits, and misses, that are kept of a judge's reply."""
_TEXTS = {"type": "array", "items": {"type": "string"}}
_SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "hits": _TEXTS,
        "misses": _TEXTS,
        "reasoning": {"type": "string"},
    },
    "required": ["score", "hits", "misses", "reasoning"],
    "additionalProperties": False,
}


class JudgeEntry(Entry):
    """Settings of ``llm_judge``; every other key goes to the prompt's program as ``config``."""

    spellings: ClassVar[Mapping[str, str]] = {
        "judge_target": "target",
        "grader_target": "target",
        "judge": "target",
        "criteria": "rubrics",
        "rubric": "rubrics",
    }
    entries: ClassVar[Mapping[str, type[Entry]]] = {"rubrics": RubricItem}
    open: ClassVar[bool] = True
    prompt: Any = key(None, "Prompt of the judge: a text, the path of a file, or a mapping with script.")
    rubrics: RubricList | None = key(None, "Points to be judged one by one.")
    value: RubricValue = key(
        None, "Points to be judged one by one; or a text or an object that counts instead of the test's criteria."
    )
    target: OptionalText = key(None, "Model that judges; by default the test's own judge.")


ENTRY = JudgeEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for a prompt file that can't be read, or shows the judge no answer."""
    settings = read(JudgeEntry, entry, location)
    prompt = prompt_of(settings.prompt, location.at("prompt"), setup.folder)
    own = own_keys(JudgeEntry, entry) | ({"value": settings.value} if prompt.script and settings.value else {})
    if prompt.script is None:
        for word in own:
            setup.notices(location.at(word).says("has no effect, as only a prompt that is a program gets it"))
    elif prompt.config is None:
        prompt = replace(prompt, config=own or None)
    rubrics, at = rubrics_or_value(settings.rubrics, settings.value, location, setup)
    if rubrics is not None:
        return rubrics_of(entry, rubrics, at, settings.target, prompt, setup.folder)
    return LlmJudge(entry["name"], entry["type"], prompt, settings.target, setup.folder, criteria_in(settings.value))


@dataclass(frozen=True, slots=True)
class LlmJudge:
    """Asks for a score."""

    name: str
    type: str
    prompt: Prompt
    target: str | None
    """The judge's name; None for the test's own."""
    folder: Path
    criteria: str | None = None
    """What counts instead of the test's criteria; None for these."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        if self.criteria is not None:
            candidate = replace(candidate, criteria=self.criteria)
        judge = (await grading.judges.judge(self.target)).about(candidate)
        text = await self.prompt.rendered(self, candidate, grading, self.folder)
        reply = await ask(grading.context, judge, score_messages(text or default_prompt(candidate)), SCORE)
        return score_given(self, reply, grading)


def default_prompt(candidate: Candidate) -> str:
    """What a judge is given where nobody wrote a prompt. Raises GraderError if there is nothing to hold an answer against."""
    if not (candidate.criteria.strip() or candidate.reference_answer.strip()):
        raise GraderError("there are neither criteria nor an expected output to hold the answer against")
    return f"{SCORE_TASK}\n\n{sections(candidate)}"


def score_messages(prompt: str) -> list[Message]:
    """The conversation in which a score is requested."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{prompt}\n\n{SCORE_REPLY}"}]


def read_score(value: Mapping[str, Any]) -> dict[str, Any]:
    """A reply with a score, checked: a number out of bounds may be meant on another scale. Raises GraderError."""
    found = said(value, "the judge")
    score = value.get("score")
    if score is not None and not 0 <= score <= 1:
        raise GraderError(f"the judge gave {shown(score)} as its score, which must be from 0 to 1")
    for name in ("hits", "misses"):
        found[name] = found[name][:MAX_FINDINGS]
    return found


SCORE = Shape("score", _SCHEMA, read_score)
