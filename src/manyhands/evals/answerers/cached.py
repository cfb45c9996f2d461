"""A target whose answers of earlier runs are used again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from manyhands.core.jsonio import Json
from manyhands.engine.context import Context, Effect
from manyhands.evals.answer_cache import AnswerCache, question_key
from manyhands.evals.answering import Answerer
from manyhands.evals.model import Test
from manyhands.evals.records import Answer, answer_from_json
from manyhands.evals.workspaces import TestWorkspace

STEP = "cache"
"""The kind of a step that looks into the cache: a resumed run goes on with what was there when it looked."""
FOUND = "answer of an earlier run (--cache)"


class CachedAnswerer:
    """See ``answering.Answerer``. Errors are not kept, and where tests have a workspace every one is asked: what an answer left there is
    not in the cache.

    ``asked``: all that makes the target another one if it changes; ``told``: see ``question_key``.
    """

    def __init__(self, target: Answerer, cache: AnswerCache, asked: Json, told: tuple[str, ...] = ()) -> None:
        self.target = target
        self._cache = cache
        self._asked = asked
        self._told = told

    @property
    def simulated(self) -> bool:
        return self.target.simulated

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            return await self.target.answer(context, test, trial, workspace)
        key = await asyncio.to_thread(question_key, self._asked, test, self._told)

        async def effect() -> Effect:
            return Effect({"found": await asyncio.to_thread(self._cache.find, key)})

        looked = await context.scope(STEP).step(STEP, {"test": test.id}, effect)
        if looked["found"] is not None:
            found = answer_from_json(looked["found"])
            return replace(found, notices=(*found.notices, FOUND))
        answer = await self.target.answer(context, test, trial, workspace)
        if answer.error is None:
            await asyncio.to_thread(self._cache.keep, key, answer)
        return answer
