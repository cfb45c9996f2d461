"""``rubrics``: points that a judge answers one by one.

Each point is a text, or a mapping with ``id``, ``outcome``, ``weight``, ``required``, ``min_score``, ``required_min_score`` and
``score_ranges``, and ``operator``, which the judge is told: ``correctness`` (the answer must say or do it) or ``contradiction`` (it must
not contradict it). If no point has score ranges or a minimum, the judge says of each whether it is satisfied:

    score = Σ(weight of satisfied points) ÷ Σ(weight of answered points)

and the verdict is fail if a required point (each is, unless it says ``required: false``) is not satisfied. If one has, the judge gives
each from 0 to 10:

    score = Σ(weight · points given) ÷ Σ(weight of answered points) ÷ 10

7 and more is a hit; the verdict is fail if one is below its minimum: ``min_score``, a share of the 10 points, or in its older form
``required_min_score``, points; ``required: true`` alone makes it 10. A point that is not answered, after the judge was called again, is
left out and named, unless it is required: then the grader broke.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from manyhands.core.errors import GraderError
from manyhands.core.messages import Message
from manyhands.core.settings import OptionalText
from manyhands.core.statistics import weighted_mean
from manyhands.graders.judged.asking import SYSTEM, Prompt, Reply, Shape, ask, broken, prompt_of, sections
from manyhands.graders.judged.rubric_items import MAX_WEIGHT, Range, RubricItem, RubricList
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, verdict_of
from manyhands.graders.registry import Setup, free_name
from manyhands.io.keys import Entry, key, read
from manyhands.io.locations import Location

GOOD = 7
"""Points, of 10, from which on one is a hit."""
_CHECKLIST_TASK = "Say of each point below whether the answer satisfies it. Judge every point by itself."
_RANGES_TASK = (
    "Give the answer a whole number from 0 to 10 for each point below. Where a point says what its numbers mean, keep to that. Judge "
    "every point by itself."
)
_OPERATORS = {
    "correctness": (
        "A point with the operator correctness is satisfied only if the answer itself says or does what the point states: an answer that "
        "leaves it out, or contradicts it, does not satisfy it."
    ),
    "contradiction": (
        "A point with the operator contradiction states a fact that the answer must not contradict: it is satisfied unless the answer "
        "claims something that is incompatible with it, and an answer that does not mention it satisfies it."
    ),
}
_CHECKLIST_REPLY = (
    'Reply with one JSON object: {"checks": {"ID OF THE POINT": {"satisfied": true or false, "reasoning": "one sentence"}, and so on '
    'for every point}, "overall_reasoning": "one or two sentences"}'
)
_RANGES_REPLY = (
    'Reply with one JSON object: {"checks": {"ID OF THE POINT": {"score": 0 to 10, "reasoning": "one sentence"}, and so on for every '
    'point}, "overall_reasoning": "one or two sentences"}'
)


class RubricsEntry(Entry):
    """Settings of ``rubrics``."""

    spellings: ClassVar[Mapping[str, str]] = {
        "rubrics": "criteria",
        "rubric": "criteria",
        "judge_target": "target",
        "grader_target": "target",
    }
    entries: ClassVar[Mapping[str, type[Entry]]] = {"criteria": RubricItem}
    criteria: RubricList = key(..., "The points: texts, or mappings with outcome, weight, required, score_ranges.")
    prompt: Any = key(None, "Additional prompt of the judge: a text, the path of a file, or a mapping with script.")
    target: OptionalText = key(None, "Model that judges; by default the test's own judge.")


ENTRY = RubricsEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for points without an outcome, with the same id, or with ranges that leave gaps."""
    settings = read(RubricsEntry, entry, location)
    prompt = prompt_of(settings.prompt, location.at("prompt"), setup.folder)
    return rubrics_of(entry, settings.criteria, location.at("criteria"), settings.target, prompt, setup.folder)


@dataclass(frozen=True, slots=True)
class Point:
    """One point, ready."""

    id: str
    outcome: str
    weight: float
    required: bool
    """Whether it must be satisfied."""
    minimum: float | None
    """The points that it must get, None if it need not."""
    ranges: tuple[Range, ...]
    operator: str | None = None
    """``correctness`` or ``contradiction``, if it says how the answer is held against it."""

    def __str__(self) -> str:
        by = "" if self.operator is None else f" (operator: {self.operator})"
        lines = [f"- {self.id}{by}: {self.outcome}".rstrip(": ")]
        lines += [f"    {low:g} to {high:g}: {text}" for low, high, text in self.ranges]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Points:
    """A list of points, and how replies about it are read."""

    points: tuple[Point, ...]

    @classmethod
    def of(cls, items: Sequence[RubricItem], location: Location) -> Points:
        """Raises UserError."""
        ranged = any(item.score_ranges or item.minimum is not None for item in items)
        given = {item.id for item in items if item.id is not None}
        names = (free_name(f"rubric-{index + 1}", given) for index in range(len(items)))
        points = tuple(
            _point(item.id or name, item, location.at(index), ranged)
            for index, (item, name) in enumerate(zip(items, names, strict=True))
        )
        seen: set[str] = set()
        for index, point in enumerate(points):
            if point.id in seen:
                raise location.at(index, "id").error(f"is the id of another point too: {point.id!r}")
            seen.add(point.id)
        return cls(points)

    @property
    def ranged(self) -> bool:
        """Whether points are given, rather than a yes or no."""
        return any(point.ranges or point.minimum is not None for point in self.points)

    @property
    def task(self) -> str:
        named = dict.fromkeys(point.operator for point in self.points if point.operator is not None)
        return " ".join((_RANGES_TASK if self.ranged else _CHECKLIST_TASK, *(_OPERATORS[each] for each in named)))

    @property
    def reply(self) -> str:
        return _RANGES_REPLY if self.ranged else _CHECKLIST_REPLY

    def listed(self) -> str:
        """The points as a judge sees them."""
        return "\n".join(map(str, self.points))

    def shape(self) -> Shape:
        """What a complete reply must be."""
        key = (
            {"score": {"type": "integer", "minimum": 0, "maximum": 10}}
            if self.ranged
            else {"satisfied": {"type": "boolean"}}
        )
        check = _object({**key, "reasoning": {"type": "string"}})
        checks = _object({point.id: check for point in self.points})
        schema = _object({"checks": checks, "overall_reasoning": {"type": "string"}})
        return Shape("checks", schema, lambda value: self.read(value, complete=True))

    def partial(self) -> Shape:
        """The same for a last reply: points that are not required may be missing."""
        shape = self.shape()
        return Shape(shape.name, shape.schema, lambda value: self.read(value, complete=False))

    def read(self, value: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
        """A reply, checked: ``{"checks": {id: {"value": bool or float, "reasoning"}}, "reasoning"}``. Raises GraderError."""
        given = _by_id(value.get("checks"))
        checks: dict[str, Any] = {}
        for point in self.points:
            found = given.get(point.id)
            if found is not None:
                checks[point.id] = {"value": self._value(point, found), "reasoning": _text(found.get("reasoning"))}
            elif complete or point.required or point.minimum is not None:
                raise GraderError(f"the judge did not answer the point {point.id!r}")
        if not checks:
            raise GraderError("the judge answered none of the points")
        return {"checks": checks, "reasoning": _text(value.get("overall_reasoning") or value.get("reasoning"))}

    def _value(self, point: Point, given: Mapping[str, Any]) -> bool | float:
        value = given.get("score" if self.ranged else "satisfied")
        if not self.ranged:
            if not isinstance(value, bool):
                raise GraderError(f"the judge did not say, true or false, whether {point.id!r} is satisfied")
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_WEIGHT:
            raise GraderError(f"the judge gave {point.id!r} no number from 0 to 10")
        return float(value)

    def score(self, grader: Any, reply: Reply, grading: Grading) -> Score:
        """What a reply that was read comes to. ``grader``: anything with ``name`` and ``type``."""
        if reply.value is None:
            return broken(grader, reply)
        checks = reply.value["checks"]
        answered = [point for point in self.points if point.id in checks]
        values = {point.id: checks[point.id]["value"] for point in answered}
        scale = MAX_WEIGHT if self.ranged else 1.0
        value = weighted_mean([(values[point.id] / scale, point.weight) for point in answered])
        failed = [point for point in answered if self._fails(point, values[point.id])]
        good = [values[point.id] >= (GOOD if self.ranged else 1) for point in answered]
        texts = [self._finding(point, checks[point.id]) for point in answered]
        return Score(
            grader.name,
            grader.type,
            value,
            "fail" if failed else verdict_of(value, grading.pass_limit),
            hits=tuple(text for text, passed in zip(texts, good, strict=True) if passed),
            misses=tuple(text for text, passed in zip(texts, good, strict=True) if not passed),
            reasoning=_reasoning(reply.value["reasoning"], failed),
            details=self._details(checks, values),
            usage=reply.usage,
        )

    def _fails(self, point: Point, value: bool | float) -> bool:
        if self.ranged:
            return point.minimum is not None and value < point.minimum
        return point.required and not value

    def _finding(self, point: Point, check: Mapping[str, Any]) -> str:
        given = f" ({check['value']:g} of 10)" if self.ranged else ""
        text = f"[{point.id}] {point.outcome}".rstrip() + given
        return f"{text}: {check['reasoning']}" if check["reasoning"] else text

    def _details(self, checks: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        name = "score" if self.ranged else "satisfied"
        details: dict[str, Any] = {
            "checks": [{"id": id, name: each["value"], "reasoning": each["reasoning"]} for id, each in checks.items()]
        }
        if self.ranged:
            details["raw_scores"] = dict(values)
        unanswered = [point.id for point in self.points if point.id not in checks]
        return details | ({"unanswered": unanswered} if unanswered else {})


@dataclass(frozen=True, slots=True)
class Rubrics:
    """Asks about points."""

    name: str
    type: str
    points: Points
    target: str | None
    """The judge's name; None for the test's own."""
    prompt: Prompt
    folder: Path

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        judge = (await grading.judges.judge(self.target)).about(candidate)
        own = await self.prompt.rendered(self, candidate, grading, self.folder)
        return self.points.score(
            self,
            await ask(
                grading.context, judge, self._messages(own, candidate), self.points.shape(), last=self.points.partial()
            ),
            grading,
        )

    def _messages(self, own: str | None, candidate: Candidate) -> list[Message]:
        listed = ("points", self.points.listed())
        if own is None:
            text = f"{self.points.task}\n\n{sections(candidate, listed)}"
        else:
            text = f"{own}\n\n{self.points.task}\n\n[[ ## points ## ]]\n{listed[1]}"
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{text}\n\n{self.points.reply}"}]


def rubrics_of(
    entry: Mapping[str, Any],
    items: Sequence[RubricItem],
    location: Location,
    target: str | None,
    prompt: Prompt,
    folder: Path,
) -> Rubrics:
    """The grader of points. Raises UserError."""
    return Rubrics(entry["name"], entry["type"], Points.of(items, location), target, prompt, folder)


def _point(name: str, item: RubricItem, location: Location, ranged: bool) -> Point:
    if item.outcome is None and not item.score_ranges:
        raise location.error("outcome is required, or score_ranges")
    minimum = item.minimum
    if minimum is None and ranged and item.required:
        minimum = MAX_WEIGHT
    return Point(
        name,
        item.outcome or "",
        item.weight,
        item.required is not False and not item.score_ranges,
        minimum,
        tuple(item.score_ranges),
        item.operator,
    )


def _by_id(value: Any) -> dict[str, Mapping[str, Any]]:
    """Checks by the ids of their points, from a mapping or a list of mappings with ``id``."""
    if isinstance(value, Mapping):
        return {str(id): check for id, check in value.items() if isinstance(check, Mapping)}
    if not isinstance(value, list):
        raise GraderError("the judge's reply has no checks")
    found: dict[str, Mapping[str, Any]] = {}
    for check in value:
        if isinstance(check, Mapping) and isinstance(check.get("id"), str):
            if check["id"] in found:
                raise GraderError(f"the judge answered the point {check['id']!r} twice")
            found[check["id"]] = check
    return found


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _reasoning(said: str, failed: Sequence[Point]) -> str | None:
    short = f"required: {', '.join(point.id for point in failed)}" if failed else ""
    return "; ".join(part for part in (said, short) if part) or None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
