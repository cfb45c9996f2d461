"""A target that answers the same to everything."""

from __future__ import annotations

import asyncio

from manyhands.engine.context import Context
from manyhands.evals.model import Test
from manyhands.evals.records import Answer, read_text
from manyhands.evals.target_settings import MockSettings
from manyhands.evals.workspaces import TestWorkspace


class MockAnswerer:
    """See ``answering.Answerer``. What it does costs nothing and is always the same, so that it is no step."""

    simulated = True

    def __init__(self, settings: MockSettings) -> None:
        self._settings = settings

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            await workspace.begin()
        settings = self._settings
        if settings.most > 0:
            await asyncio.sleep(context.random(f"delay-{trial}").uniform(settings.least, settings.most))
        if workspace is not None:
            await workspace.end()
        return read_text(settings.response)
