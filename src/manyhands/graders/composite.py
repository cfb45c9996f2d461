"""``composite``: several graders as one.

=================  ==================================================================================================
aggregator         score
=================  ==================================================================================================
weighted_average   Σ(score · weight) ÷ Σ(weight) of the members
threshold          weight of the members whose verdict is pass or borderline ÷ Σ(weight); the verdict is pass if that reaches
                   ``threshold``, else fail. A member with a ``min_score`` passes from that on, and not below
minimum            the lowest score of a member whose weight is above 0
code_judge         what a program makes of the members' results
llm_judge          what a model makes of them
=================  ==================================================================================================

A member's weight is the one that ``weights`` of the aggregator gives its name, else its own. Weight, required, min_score and negate hold
for members as for graders of a test, at every depth: if a required member is below its minimum, the composite scores 0, whatever the
aggregator, and one that would cost something is not asked. If a member breaks, so does the composite. A member that found nothing to
compare counts as if it were not there; if all did, so did the composite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BeforeValidator

from manyhands.core.places import Place
from manyhands.core.settings import OptionalText, optional_number
from manyhands.core.usage import ZERO, Usage
from manyhands.graders.aggregate import broken, heeded, short, shortfall
from manyhands.graders.aggregators import AskModel, RunProgram
from manyhands.graders.config import members_of
from manyhands.graders.entry import Entry, SomeItems, key, read, snake
from manyhands.graders.exact import weighted_mean
from manyhands.graders.found import nothing_to_compare
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, verdict_of
from manyhands.graders.registry import Setup
from manyhands.graders.running import grade_all

AGGREGATORS = ("weighted_average", "threshold", "minimum", "code_judge", "llm_judge")
_ALIASES = {
    **dict.fromkeys(("code_grader", "script", "command"), "code_judge"),
    **dict.fromkeys(("llm_grader", "llm_rubric"), "llm_judge"),
    "min": "minimum",
}


_OF_ONE = {"threshold": ("threshold",), "code_judge": ("path",), "llm_judge": ("prompt", "target")}
_IDLE = {
    kind: tuple(name for other, names in _OF_ONE.items() if other != kind for name in names) for kind in AGGREGATORS
}
"""Keys that only other aggregators heed."""
LARGEST_WEIGHT = 1e300


def _kind(value: Any) -> str:
    word = snake(value) if isinstance(value, str) else ""
    word = _ALIASES.get(word, word)
    if word not in AGGREGATORS:
        raise ValueError(f"must be one of {', '.join(AGGREGATORS)}")
    return word


def _weights(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of members' names to weights")
    for weight in value.values():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= LARGEST_WEIGHT:
            raise ValueError("must be a mapping of members' names to numbers of 0 or more")
    return {str(name): float(weight) for name, weight in value.items()}


def _aggregator(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class AggregatorEntry(Entry):
    """How the members' scores become one."""

    spellings: ClassVar[Mapping[str, str]] = {
        "script": "path",
        "command": "path",
        "grader_target": "target",
        "judge_target": "target",
    }
    type: Annotated[str, BeforeValidator(_kind)] = key("weighted_average", f"One of {', '.join(AGGREGATORS)}.")
    weights: Annotated[dict[str, float], BeforeValidator(_weights)] | None = key(
        None, "Weights of members, by their names."
    )
    threshold: Annotated[float | None, optional_number(least=0, most=1)] = key(
        None, "For threshold: the share of members that must pass, 0 to 1."
    )
    path: OptionalText = key(None, "For code_judge: a line for sh, run in the eval file's folder.")
    prompt: OptionalText = key(None, "For llm_judge: a text, or a file, in which {{EVALUATOR_RESULTS_JSON}} stands.")
    target: OptionalText = key(None, "For llm_judge: the model that is asked; the test's own judge by default.")


class CompositeEntry(Entry):
    """Settings of ``composite``."""

    spellings: ClassVar[Mapping[str, str]] = {"evaluators": "assert", "assertions": "assert", "graders": "assert"}
    obsolete: ClassVar[frozenset[str]] = frozenset(("evaluators",))
    entries: ClassVar[Mapping[str, type[Entry]]] = {"aggregator": AggregatorEntry}
    members: ClassVar[str | None] = "assert"
    graders: Annotated[list[Any], SomeItems] = key(..., "The members: graders of any kind.", alias="assert")
    aggregator: Annotated[
        AggregatorEntry, BeforeValidator(_aggregator, json_schema_input_type=AggregatorEntry | str)
    ] = key(AggregatorEntry(), "How the members' scores become one.")


ENTRY = CompositeEntry


def parse(entry: Mapping[str, Any], place: Place, setup: Setup) -> Grader:
    """Raises UserError for anything wrong with a member, or if the aggregator lacks what it needs."""
    settings = read(CompositeEntry, entry, place)
    at = place.at("aggregator")
    graders = members_of(settings.graders, place.at("assert"), setup)
    weights = settings.aggregator.weights or {}
    names = [grader.name for grader in graders]
    for name in weights:
        if name not in names:
            raise at.at("weights", name).error(f"no member has that name; they are called {', '.join(names)}")
    for name in _IDLE[settings.aggregator.type]:
        if getattr(settings.aggregator, name) is not None:
            setup.notices(at.at(name).says(f"has no effect with {settings.aggregator.type}"))
    aggregator = _aggregator_of(settings.aggregator, at, setup)
    return Composite(entry["name"], entry["type"], graders, weights, aggregator)


class Aggregator(Protocol):
    """Makes one score of those of members, none of which is broken. ``name`` and ``type`` of what it returns do not matter."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score: ...


def _aggregator_of(settings: AggregatorEntry, place: Place, setup: Setup) -> Aggregator:
    if settings.type == "code_judge":
        if settings.path is None:
            raise place.error("path is required for code_judge")
        return RunProgram(settings.path, setup.folder)
    if settings.type == "llm_judge":
        return AskModel.of(settings.prompt, settings.target, place, setup.folder)
    if settings.type == "threshold":
        if settings.threshold is None:
            raise place.error("threshold is required for threshold")
        return Threshold(settings.threshold)
    return Minimum() if settings.type == "minimum" else WeightedAverage()


@dataclass(frozen=True, slots=True)
class Composite:
    """Asks its members at the same time, and makes one score of theirs."""

    name: str
    type: str
    members: Sequence[Grader]
    weights: Mapping[str, float]
    aggregator: Aggregator

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        """``usage``: the members' and the aggregator's together."""
        scores = tuple(
            replace(score, weight=self.weights.get(score.name, score.weight))
            for score in await grade_all(self.members, candidate, grading)
        )
        result = await self._result(scores, candidate, grading)
        usage: Usage = reduce(lambda total, score: total + score.usage, scores, result.usage)
        return replace(result, name=self.name, type=self.type, scores=scores, usage=usage)

    async def _result(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        failures = [f"[{score.name}] {score.error or 'no score'}" for score in scores if broken(score)]
        if failures:
            return Score(self.name, self.type, None, "error", error="; ".join(failures))
        counted = heeded(scores)
        if not counted:
            return nothing_to_compare(self, "; ".join(f"[{score.name}] {score.left_out}" for score in scores))
        below = short(counted)
        if below:
            texts = [f"[{score.name}] {shortfall(score)}" for score in below]
            return _with_findings(0.0, "fail", counted, "a required member is below its minimum", extra=texts)
        found = await self.aggregator.combined(counted, candidate, grading)
        unheeded = [f"{score.name} was left out: {score.left_out}" for score in scores if score.left_out is not None]
        return replace(found, reasoning="; ".join((*filter(None, (found.reasoning,)), *unheeded)) or None)


def _with_findings(
    value: float, verdict: str, scores: Sequence[Score], reasoning: str, *, extra: Sequence[str] = ()
) -> Score:
    """A score with the members' hits and misses."""
    return Score(
        "",
        "",
        value,
        verdict,
        hits=tuple(f"[{score.name}] {hit}" for score in scores for hit in score.hits),
        misses=(*extra, *(f"[{score.name}] {miss}" for score in scores for miss in score.misses)),
        reasoning="; ".join((reasoning, *(f"{score.name}: {score.reasoning}" for score in scores if score.reasoning))),
        usage=ZERO,
    )


class WeightedAverage:
    """See the module."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        value = weighted_mean([(score.value or 0.0, score.weight) for score in scores])
        return _with_findings(value, verdict_of(value, grading.pass_limit), scores, f"weighted average {value:g}")


class Minimum:
    """See the module."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        value = min((score.value or 0.0 for score in scores if score.weight), default=0.0)
        return _with_findings(value, verdict_of(value, grading.pass_limit), scores, f"lowest score {value:g}")


@dataclass(frozen=True, slots=True)
class Threshold:
    """See the module. ``share``: of the members that must pass, 0 to 1."""

    share: float

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        passed = [score.verdict in ("pass", "borderline") for score in scores]
        value = weighted_mean([(float(good), score.weight) for good, score in zip(passed, scores, strict=True)])
        reasoning = f"{sum(passed)} of {len(passed)} members pass (needed: a share of {self.share:g})"
        return _with_findings(value, "pass" if value >= self.share else "fail", scores, reasoning)
