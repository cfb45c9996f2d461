"""A target whose command answers one test at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from manyhands.core.jsonio import Json
from manyhands.engine.context import Context, Effect
from manyhands.evals.command_target import CommandTarget, Question
from manyhands.evals.model import Test
from manyhands.evals.paid import paid, spent
from manyhands.evals.records import Answer, answer_from_json, read_text
from manyhands.evals.workspaces import TestWorkspace, keep_folder

STEP = "target"
"""The kind of a step in which a target answered."""
FILES = "target"
"""The folder of its files, in the attempt's."""


class CommandAnswerer:
    """See ``answering.Answerer``. Each invocation is a step. ``identity``: what makes it another target if it changes."""

    simulated = False

    def __init__(self, target: CommandTarget, identity: Json, *, keep_files: bool = False) -> None:
        """``keep_files``: whether the attempt's folder stays, as the command's files in it do."""
        self._keep_files = keep_files
        self._target = target
        self._identity = identity

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        prompt = test.prompt()

        async def effect() -> Effect:
            question = Question(test.id, prompt, test.guidelines, test.all_files, trial)
            folder = Path(context.workspace)
            asked = await self._target.ask(question, folder / FILES, None if workspace is None else workspace.path)
            if self._keep_files:
                await asyncio.to_thread(keep_folder, folder)
            answer = asked.answer
            printed = {"exit_code": asked.exit_code, "stdout": asked.stdout, "stderr": asked.stderr}
            output = {"answer": answer.to_json(), "seconds": asked.seconds, **printed}
            return Effect(output, spent(answer.cost_usd))

        request = {"target": self._identity, "test": test.id, "prompt": prompt, "trial": trial}
        asking = paid(context, f"target {self._identity}", effect if workspace is None else workspace.around(effect))
        output = await context.step(STEP, request, asking)
        if workspace is not None:
            await workspace.recall(output)
        return timed(answer_from_json(output["answer"]), 1000 * output["seconds"])


def timed(answer: Answer, duration_ms: float) -> Answer:
    """The answer, with a duration where it names none itself."""
    if answer.duration_ms is not None:
        return answer
    if answer.record is None:
        return read_text(answer.text, duration_ms=duration_ms, error=answer.error)
    return answer.timed(duration_ms)
