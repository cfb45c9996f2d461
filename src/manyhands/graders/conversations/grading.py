"""Scoring conversations: graders look at them when they have ended."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from manyhands.agents.run_settings import NeverCalled, chat_settings, model_of
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError, ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, text_of
from manyhands.core.outcomes import GRADE
from manyhands.engine.contract import Context
from manyhands.graders.conversations.grade_file import JUDGE, GradeFile
from manyhands.graders.messages import (
    answer_of,
    expected_messages,
    output_of,
    reference_of,
    tool_uses_of,
    trace_of,
)
from manyhands.graders.protocol import Candidate, Grading, Judge, MessageJson
from manyhands.graders.scoring import combine, grade_all
from manyhands.models.protocol import ChatModel
from manyhands.models.settings import ModelSettings
from manyhands.processes.scripts import ScriptPool, ScriptResult, Scripts, ScriptsWith
from manyhands.processes.system import processors
from manyhands.runs.options import BudgetSettings


class GradingSettings(Protocol):
    """What grading needs to know of how a run is executed."""

    @property
    def executor(self) -> str: ...

    @property
    def num_workers(self) -> int: ...


class ConversationGrader:
    """Scores the conversations of a run. Made by ``opened``."""

    def __init__(self, checks: GradeFile, judge: Judges, scripts: ScriptPool) -> None:
        self._checks = checks
        self._graders = checks.graders()
        self._judges = judge
        self._scripts = scripts
        # With other graders, steps are other steps: a conversation that waits to be graded does not diverge.
        self._scope = f"grade-{digest('graders', [checks.entries, dict(checks.judge)]).hex()[:12]}"

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        checks: GradeFile,
        judge: ModelSettings,
        budget: BudgetSettings,
        *,
        keys: Sequence[str],
        headers: Mapping[str, str],
        run_folder: Path,
        mark: str,
        replay: bool,
        at_once: int | None,
    ) -> AsyncIterator[Self]:
        """``judge``: how the model is called that judges ask; ``keys`` and ``headers``: of its endpoint; ``mark``: of the run's processes;
        ``replay``: nothing is called or run; ``at_once``: how many programs run at once (see ``programs_at_once``)."""
        async with AsyncExitStack() as stack:
            scripts: ScriptPool = NoScripts()
            if not replay:
                opened = await stack.enter_async_context(Scripts.opened(mark, os.environ, at_once=at_once))
                scripts = ScriptsWith.of(opened, checks.environment(os.environ))
            judges = Judges(judge, budget, keys, headers, run_folder, None if replay else stack)
            yield cls(checks, judges, scripts)

    @property
    def folder(self) -> Path:
        """What relative paths of graders start from."""
        return self._checks.folder

    async def graded(self, context: Context, candidate: Candidate, record: Mapping[str, Any]) -> dict[str, Any]:
        """The item's record with what the graders found as ``grade``.

        Raises ItemError(GRADER_ERROR), with the record, if a grader broke, or if none of them had anything to compare.
        """
        checks = self._checks
        grading = Grading(
            context.scope(self._scope), self._judges, self._scripts, checks.seconds, pass_limit=checks.threshold
        )
        scores = await grade_all(self._graders, candidate, grading)
        total = combine(scores, checks.threshold)
        found = {
            "score": total.value,
            "verdict": total.verdict,
            "threshold": checks.threshold,
            "scores": [score.to_json() for score in scores],
        }
        if total.value is None:  # what nothing could be held against is no training data
            error = total.error or f"no grader had anything to compare ({'; '.join(total.left_out)})"
            raise ItemError(Cause.GRADER_ERROR, error, record={**record, GRADE: {**found, "error": error}})
        return {**record, GRADE: found}


class Judges:
    """The judge of a run, made ready when it is first called. ``stack``: closes its model; None if it is not to be called."""

    def __init__(
        self,
        options: ModelSettings,
        budget: BudgetSettings,
        keys: Sequence[str],
        headers: Mapping[str, str],
        run_folder: Path,
        stack: AsyncExitStack | None,
    ) -> None:
        self._options = options
        self._budget = budget
        self._keys = keys
        self._headers = headers
        self._folder = run_folder
        self._stack = stack
        self._judge: Judge | None = None

    async def judge(self, name: str | None) -> Judge:
        """Raises GraderError if there is none of that name, or it can't be used."""
        if name not in (None, JUDGE):
            raise GraderError(f"no judge is called {name!r}")
        if self._judge is None:
            self._judge = Judge(JUDGE, self._model(), chat_settings(self._options))
        return self._judge

    def _model(self) -> ChatModel:
        if self._stack is None:
            return NeverCalled()
        try:
            model = model_of(self._options, self._keys, self._folder, self._budget, headers=self._headers)
        except UserError as error:
            raise GraderError(f"the judge can't be used: {error}") from error
        self._stack.push_async_callback(model.close)
        return model


class NoScripts:
    """Stands for graders' programs during a replay."""

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        raise RuntimeError("a replay ran a grader's program")


def ended_conversation(
    key: str,
    messages: Sequence[Message],
    *,
    question: Json,
    input: tuple[MessageJson, ...],
    source: Mapping[str, Json],
    figures: Mapping[str, Any],
    failed: int,
    folder: Path,
) -> Candidate:
    """What graders get to see of a conversation. It must be the same on a replay, so it is made of what is recorded alone.

    ``messages``: the agent's own and the results of its tools; ``input``: what it was given; ``source``: the other fields of the row that
    it was made from, of which ``criteria``, ``expected_output`` and ``metadata`` count; ``figures``: what it took, as ``figures_of`` gives
    it; ``failed``: how many of its tool calls failed; ``folder``: what relative paths of graders start from.
    """
    output = output_of(messages)
    uses = tool_uses_of(output)
    expected = expected_messages(source.get("expected_output"))
    criteria, metadata = source.get("criteria"), source.get("metadata")
    return Candidate(
        test_id=key,
        answer=answer_of(output),
        question=text_of(question),
        criteria=text_of(criteria),
        input=input,
        expected_output=expected,
        reference_answer=reference_of(expected),
        output=output,
        tool_uses=uses,
        trace=trace_of(output, uses=uses, errors=failed, **figures),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        folder=folder,
        cached_in_input=True,
        **figures,
    )


def programs_at_once(settings: GradingSettings) -> int | None:
    """Programs of graders at once in one process, so that all worker processes together have as many as there are processors."""
    if settings.executor == "local":
        return None
    return max(1, processors() // settings.num_workers)
