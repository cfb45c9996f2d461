"""Aggregators of composites that ask somebody: a program, or a model. Each time they do it is a step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import dumps
from manyhands.core.places import Place
from manyhands.engine.context import Effect
from manyhands.graders.code import GRADE, environment_of, read_result
from manyhands.graders.judge import SCORE, score_messages
from manyhands.graders.judge_prompt import filled, shown_json
from manyhands.graders.judging import ask, broken
from manyhands.graders.protocol import Candidate, Grading, Score, ScriptResult
from manyhands.graders.verdicts import last_object, score_of

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
    def of(cls, prompt: str | None, target: str | None, place: Place, folder: Path) -> AskModel:
        """``prompt``: a text, or the path of a file with one. Raises UserError if the results have no place in it."""
        if prompt is None:
            raise place.error("prompt is required for llm_judge")
        at = place.at("prompt")
        text = prompt if "\n" in prompt or _RESULTS.search(prompt) else _file_text(prompt, folder, at)
        if not _RESULTS.search(text):
            raise at.error("must hold {{EVALUATOR_RESULTS_JSON}}, where the members' results are put in")
        return cls(text, target)

    async def combined(self, scores: Sequence[Score], candidate: Candidate, grading: Grading) -> Score:
        judge = await grading.judges.judge(self.target)
        reply = await ask(grading.context, judge, score_messages(self._filled(scores, candidate)), SCORE)
        if reply.value is None:
            return broken(_NOBODY, reply)
        return score_of(_NOBODY, reply.value, grading, usage=reply.usage)

    def _filled(self, scores: Sequence[Score], candidate: Candidate) -> str:
        """Part by part, so that what an answer says is never taken for the place of the results."""
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


def _file_text(prompt: str, folder: Path, place: Place) -> str:
    """The text of a file of that name, if there is one; else the prompt itself."""
    path = folder / prompt
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else prompt
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise place.error(f"{path} can't be read: {error}") from error
