"""``composite``: several graders as one.

=================  ==================================================================================================
aggregator         score
=================  ==================================================================================================
weighted_average   Σ(score · weight) ÷ Σ(weight) of the members
threshold          weight of the members whose verdict is pass or borderline ÷ Σ(weight); the verdict is pass if that reaches
                   ``threshold``, else fail. A member with a ``min_score`` passes from that on, and not below
minimum            the lowest score of a member whose weight is above 0
assert_set         as weighted_average; the verdict is pass if the score reaches ``threshold``, or without one if every member whose
                   weight is above 0 passes, else fail
code_judge         what a program makes of the members' results
llm_judge          what a model makes of them
=================  ==================================================================================================

A member's weight is the one that ``weights`` of the aggregator gives its name, else its own. Weight, required, min_score and negate hold
for members as for graders of a test, at every depth: if a required member is below its minimum, the composite scores 0, whatever the
aggregator, and one that would cost something does not run. If a member breaks, so does the composite. A member that found nothing to
compare counts as if it were not there; if all did, so did the composite. Each run of an aggregator's program, and each call of its model,
is a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BeforeValidator

from manyhands.core.jsonio import dumps
from manyhands.core.settings import OptionalText, optional_number
from manyhands.core.statistics import weighted_mean
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Effect
from manyhands.graders.config import members_of
from manyhands.graders.contract import GRADE, environment_of, last_object, score_of
from manyhands.graders.judged.asking import ask, filled, shown_json
from manyhands.graders.judged.asking import broken as judge_broken
from manyhands.graders.judged.judge import SCORE, score_messages
from manyhands.graders.programs.code import read_result
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, nothing_to_compare, verdict_of
from manyhands.graders.registry import Setup
from manyhands.graders.scoring import broken, grade_all, heeded, short, shortfall
from manyhands.io.keys import Entry, SomeItems, key, read, snake
from manyhands.io.locations import Location
from manyhands.processes.scripts import ScriptResult

AGGREGATORS = ("weighted_average", "threshold", "minimum", "assert_set", "code_judge", "llm_judge")
_ALIASES = {
    **dict.fromkeys(("code_grader", "script", "command"), "code_judge"),
    **dict.fromkeys(("llm_grader", "llm_rubric"), "llm_judge"),
    "min": "minimum",
}


_OF_SOME = {
    **dict.fromkeys(("threshold", "assert_set"), ("threshold",)),
    "code_judge": ("path",),
    "llm_judge": ("prompt", "target"),
}
_IDLE = {
    kind: tuple(name for name in ("threshold", "path", "prompt", "target") if name not in _OF_SOME.get(kind, ()))
    for kind in AGGREGATORS
}
"""Keys that only other aggregators heed."""
MAX_WEIGHT = 1e300


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
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight <= MAX_WEIGHT:
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
    threshold: Annotated[float | None, optional_number(minimum=0, maximum=1)] = key(
        None,
        "For threshold: the share of members that must pass, 0 to 1. For assert_set: the score from which on it passes.",
    )
    path: OptionalText = key(None, "For code_judge: a line for sh, run in the eval file's folder.")
    prompt: OptionalText = key(None, "For llm_judge: a text, or a file, in which {{EVALUATOR_RESULTS_JSON}} stands.")
    target: OptionalText = key(None, "For llm_judge: model that judges; by default the test's own judge.")


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


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for anything wrong with a member, or if the aggregator lacks what it needs."""
    settings = read(CompositeEntry, entry, location)
    at = location.at("aggregator")
    graders = members_of(settings.graders, location.at("assert"), setup)
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


def _aggregator_of(settings: AggregatorEntry, location: Location, setup: Setup) -> Aggregator:
    if settings.type == "code_judge":
        if settings.path is None:
            raise location.error("path is required for code_judge")
        return RunProgram(settings.path, setup.folder)
    if settings.type == "llm_judge":
        return AskModel.of(settings.prompt, settings.target, location, setup.folder)
    if settings.type == "threshold":
        if settings.threshold is None:
            raise location.error("threshold is required for threshold")
        return Threshold(settings.threshold)
    if settings.type == "assert_set":
        return AssertSet(settings.threshold)
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
    """The members' average."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        value = weighted_mean([(score.value or 0.0, score.weight) for score in scores])
        return _with_findings(value, verdict_of(value, grading.pass_limit), scores, f"weighted average {value:g}")


class Minimum:
    """The lowest score."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        value = min((score.value or 0.0 for score in scores if score.weight), default=0.0)
        return _with_findings(value, verdict_of(value, grading.pass_limit), scores, f"lowest score {value:g}")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The share of members that pass."""

    share: float
    """Of the members, 0 to 1: so many must pass."""

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        passed = [score.verdict in ("pass", "borderline") for score in scores]
        value = weighted_mean([(float(good), score.weight) for good, score in zip(passed, scores, strict=True)])
        reasoning = f"{sum(passed)} of {len(passed)} members pass (needed: a share of {self.share:g})"
        return _with_findings(value, "pass" if value >= self.share else "fail", scores, reasoning)


@dataclass(frozen=True, slots=True)
class AssertSet:
    """The members' average, which passes from a score on, or if all of them do."""

    threshold: float | None

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        value = weighted_mean([(score.value or 0.0, score.weight) for score in scores])
        passed = all(score.verdict == "pass" or not score.weight for score in scores)
        if self.threshold is not None:
            passed = value >= self.threshold
        return _with_findings(value, "pass" if passed else "fail", scores, f"weighted average {value:g}")


VERDICTS = ("pass", "borderline", "fail")
"""What an aggregator's program may say."""
_RESULTS = re.compile(r"\{\{\s*EVALUATOR_RESULTS_JSON\s*\}\}")


@dataclass(frozen=True, slots=True)
class _Aggregator:
    """Who gave a score that the composite will give its own name and type."""

    name: str = "aggregator"
    type: str = "composite"


_NOBODY = _Aggregator()


@dataclass(frozen=True, slots=True)
class RunProgram:
    """``code_judge``: a line for ``sh``, with the members' results on standard input and a score on standard output.

    Standard input is ``{"results": {NAME: …}}``, see ``results_of``. The answer is that of a ``code_judge``; ``verdict`` counts here, too.
    """

    path: str
    folder: Path

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        payload = {"results": results_of(scores)}

        async def effect() -> Effect:
            result = await grading.scripts.run(
                self.path,
                dumps(payload),
                folder=self.folder,
                seconds=grading.seconds,
                environment=environment_of(candidate),
            )
            return Effect(_said(result, grading.seconds))

        found = await grading.context.step(GRADE, {"aggregator": self.path, **payload}, effect)
        score = score_of(_NOBODY, found, grading)
        return replace(score, verdict=found.get("verdict", score.verdict))


def _said(result: ScriptResult, seconds: float) -> dict[str, Any]:
    found = read_result(result, seconds)
    verdict = (last_object(result.stdout.decode(errors="replace")) or {}).get("verdict")
    return found | ({"verdict": verdict} if verdict in VERDICTS else {})


@dataclass(frozen=True, slots=True)
class AskModel:
    """``llm_judge``: a prompt in which the members' results stand as JSON, and variables as in other prompts of judges."""

    prompt: str
    target: str | None

    @classmethod
    def of(cls, prompt: str | None, target: str | None, location: Location, folder: Path) -> AskModel:
        """``prompt``: a text, or the path of a file with one. Raises UserError if it has no placeholder for the results."""
        if prompt is None:
            raise location.error("prompt is required for llm_judge")
        at = location.at("prompt")
        text = prompt if "\n" in prompt or _RESULTS.search(prompt) else _file_text(prompt, folder, at)
        if not _RESULTS.search(text):
            raise at.error("must hold {{EVALUATOR_RESULTS_JSON}}, where the members' results are put in")
        return cls(text, target)

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        judge = (await grading.judges.judge(self.target)).about(candidate)
        reply = await ask(grading.context, judge, score_messages(self._filled(scores, candidate)), SCORE)
        if reply.value is None:
            return judge_broken(_NOBODY, reply)
        return score_of(_NOBODY, reply.value, grading, usage=reply.usage)

    def _filled(self, scores: Sequence[Score], candidate: Candidate) -> str:
        """Part by part, so that what an answer says is never taken for the placeholder of the results."""
        results = shown_json(results_of(scores))
        return results.join(filled(part, candidate) for part in _RESULTS.split(self.prompt))


def results_of(scores: Sequence[Score]) -> Mapping[str, Any]:
    """The members' results by name, in the spelling that programs of AgentV's composites get."""
    return {
        score.name: {
            "score": score.value,
            "verdict": score.verdict,
            "hits": list(score.hits),
            "misses": list(score.misses),
            "expectedAspectCount": max(len(score.hits) + len(score.misses), 1),
            "reasoning": score.reasoning,
            "weight": score.weight,
            **({"details": score.details} if score.details else {}),
        }
        for score in scores
    }


def _file_text(prompt: str, folder: Path, location: Location) -> str:
    """The text of a file of that name, if there is one; else the prompt itself."""
    path = folder / prompt
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else prompt
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise location.error(f"{path} can't be read: {error}") from error
