"""Answers that are kept: for how long, and by whom they are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyhands.testing.context import MemoryContext
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.steps import ServiceAnswer, ToolSteps
from manyhands.tools.services.web.answer_cache import AnswerCache
from tests.support.clocks import ManualClock

DAY = 86_400.0


class Asking:
    """A service that numbers its answers, asked through caches of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.answers = folder, ManualClock(), 0

    async def __call__(self, cache: AnswerCache, context: MemoryContext | None = None, **how: Any) -> tuple[int, bool]:
        async def send() -> ServiceAnswer:
            self.answers += 1
            return ServiceAnswer({"number": self.answers})

        steps = ToolSteps("web_extract", lambda: context or MemoryContext())
        artifacts = ArtifactStore(self.folder / "run")
        answer, cached = await cache.answer(
            steps, None, {"page": 1}, send, artifacts=artifacts, clock=self.clock, **how
        )
        return answer["number"], cached


async def test_an_answer_is_kept_for_its_day(tmp_path: Path) -> None:
    ask, cache = Asking(tmp_path), AnswerCache(tmp_path / "cache")
    assert await ask(cache) == (1, False)
    assert await ask(cache) == (1, True)
    ask.clock.time += 5 * DAY
    assert await ask(cache) == (2, False)
    assert await ask(AnswerCache(tmp_path / "cache")) == (2, True)


async def test_reading_on_has_a_day(tmp_path: Path) -> None:
    ask, cache = Asking(tmp_path), AnswerCache()
    for passed, expected in ((0, (1, False)), (0.8, (1, True)), (0.8, (2, False))):
        ask.clock.time += passed * DAY
        assert await ask(cache, again=True) == expected


async def test_a_replayed_answer_is_read_on_in_but_not_kept_for_others(tmp_path: Path) -> None:
    ask, context = Asking(tmp_path), MemoryContext()
    assert await ask(AnswerCache(tmp_path / "cache"), context) == (1, False)
    ask.clock.time += 9 * DAY
    resumed = AnswerCache(tmp_path / "cache")
    assert await ask(resumed, MemoryContext(context.journal)) == (1, False)
    assert await ask(resumed, again=True) == (1, True)
    assert await ask(AnswerCache(tmp_path / "cache")) == (2, False)
