"""Scoring trajectories: graders look at the conversation when it has ended."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from manyhands.agents.run_settings import NeverCalled, chat_settings, model_of
from manyhands.agents.task import AgentResult
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError, ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message, text_of
from manyhands.engine.contract import Context
from manyhands.graders.messages import (
    answer_of,
    expected_messages,
    figures_of,
    output_of,
    reference_of,
    tool_uses_of,
    trace_of,
)
from manyhands.graders.protocol import Candidate, Grading, Judge, MessageJson
from manyhands.graders.scoring import combine, grade_all
from manyhands.models.protocol import ChatModel
from manyhands.processes.scripts import ScriptPool, ScriptResult, Scripts, ScriptsWith
from manyhands.processes.system import processors
from manyhands.workloads.trajectories.grade_file import JUDGE, GradeFile
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.records import GRADE
from manyhands.workloads.trajectories.spec import BatchSpec


class TrajectoryGrader:
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
        options: BatchSpec,
        *,
        keys: Sequence[str],
        headers: Mapping[str, str],
        run_folder: Path,
        mark: str,
        replay: bool,
    ) -> AsyncIterator[Self]:
        """``keys`` and ``headers``: of the judge's endpoint; ``mark``: of the run's processes; ``replay``: nothing is called or run."""
        async with AsyncExitStack() as stack:
            scripts: ScriptPool = NoScripts()
            if not replay:
                opened = await stack.enter_async_context(Scripts.opened(mark, os.environ, at_once=_at_once(options)))
                scripts = ScriptsWith.of(opened, checks.environment(os.environ))
            judges = Judges(checks, options, keys, headers, run_folder, None if replay else stack)
            yield cls(checks, judges, scripts)

    async def graded(
        self,
        context: Context,
        payload: PromptItem,
        messages: Sequence[Message],
        result: AgentResult,
        record: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The item's record with what the graders found as ``grade``. ``messages``: those that are saved.

        Raises ItemError(GRADER_ERROR), with the record, if a grader broke, or if none of them had anything to compare.
        """
        checks = self._checks
        candidate = _candidate(context, payload, messages, result, record["times"], checks.folder)
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
        checks: GradeFile,
        options: BatchSpec,
        keys: Sequence[str],
        headers: Mapping[str, str],
        run_folder: Path,
        stack: AsyncExitStack | None,
    ) -> None:
        self._options = checks.judge_options(options)
        self._budget = options
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


def _candidate(
    context: Context,
    payload: PromptItem,
    messages: Sequence[Message],
    result: AgentResult,
    times: Mapping[str, float],
    folder: Path,
) -> Candidate:
    """What graders get to see. It must be the same on a replay, so it is made of what is recorded alone."""
    output = output_of([message for message in messages if "_given" not in message])
    uses = tool_uses_of(output)
    figures = figures_of(result.usage, round(1000 * (times["finished"] - times["began"]), 3))
    expected = expected_messages(payload.source.get("expected_output"))
    criteria, metadata = payload.source.get("criteria"), payload.source.get("metadata")
    return Candidate(
        test_id=context.item.key,
        answer=answer_of(output),
        question=text_of(payload.prompt),
        criteria=text_of(criteria),
        input=_input(payload),
        expected_output=expected,
        reference_answer=reference_of(expected),
        output=output,
        tool_uses=uses,
        trace=trace_of(output, uses=uses, errors=sum(use.failed for use in result.tool_uses), **figures),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        folder=folder,
        cached_in_input=True,
        **figures,
    )


def _input(payload: PromptItem) -> tuple[MessageJson, ...]:
    """The row's own conversation."""
    system: list[MessageJson] = [{"role": "system", "content": payload.system}] if payload.system is not None else []
    opening = payload.messages or [{"role": "user", "content": payload.prompt}]
    return (*system, *(dict(message) for message in opening))


def _at_once(options: BatchSpec) -> int | None:
    """Programs at once in one process, so that all worker processes together have as many as there are processors."""
    if options.executor == "local":
        return None
    return max(1, processors() // options.num_workers)
