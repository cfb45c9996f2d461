"""Targets whose answers are given beforehand: the mock, which answers the same to everything, and a file of answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from manyhands.core.jsonio import dumps
from manyhands.core.settings import Text, number
from manyhands.engine.contract import Context
from manyhands.graders.protocol import Judge
from manyhands.io.keys import key
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import Answer, read_text
from manyhands.workloads.evals.targets.judging import Asked, judge_of
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.protocol import JudgeOpening, Making, TargetOpening, TargetSettings
from manyhands.workloads.evals.targets.kinds.recorded_sessions import FixtureSettings
from manyhands.workloads.evals.targets.live import LiveTarget
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace

# --- The mock

MOCK_RESPONSE = '{"answer":"Mock dry-run response"}'
Milliseconds = Annotated[float, number(minimum=0)]


class MockBlock(TargetBlock):
    """A mock, which answers the same to everything."""

    response: Any = key(None, "The answer: a text, or anything else, which is given as JSON.")
    delay_ms: Milliseconds | None = key(None, "Delay of each answer in milliseconds.")
    delay_min_ms: Milliseconds | None = key(None, "Minimum delay in milliseconds; delays are drawn between both.")
    delay_max_ms: Milliseconds | None = key(None, "Maximum delay in milliseconds.")


@dataclass(frozen=True, slots=True)
class MockTargetSettings(TargetSettings):
    """The same answer to everything."""

    response: str = MOCK_RESPONSE
    min_seconds: float = 0.0
    """Minimum seconds of an answer."""
    max_seconds: float = 0.0
    """Maximum seconds of an answer."""

    async def open(self, opening: TargetOpening) -> LiveTarget:
        return MockTarget(self)

    def judge(self, name: str, opening: JudgeOpening) -> Judge:
        async def ask(asked: Asked) -> Answer:
            await asyncio.sleep(self.min_seconds)
            return read_text(self.response)

        return judge_of(name, ask, simulated=True)


class MockTarget:
    """A ``LiveTarget``. Its answer costs nothing and is always the same, so that it is no step."""

    simulated = True

    def __init__(self, settings: MockTargetSettings) -> None:
        self._settings = settings

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            await workspace.begin()
        settings = self._settings
        if settings.max_seconds > 0:
            delay = context.random(f"delay-{sample}").uniform(settings.min_seconds, settings.max_seconds)
            await asyncio.sleep(delay)
        if workspace is not None:
            await workspace.end()
        return read_text(settings.response)


def mock_settings(block: MockBlock, making: Making) -> MockTargetSettings:
    """The mock's answer and delay. Raises UserError if the minimum delay is more than the maximum."""
    answer = block.response
    response = MOCK_RESPONSE if answer is None else answer if isinstance(answer, str) else dumps(answer).decode()
    minimum = block.delay_min_ms if block.delay_min_ms is not None else block.delay_ms or 0.0
    maximum = block.delay_max_ms if block.delay_max_ms is not None else max(minimum, block.delay_ms or 0.0)
    if minimum > maximum:
        raise making.at("delay_min_ms").error("must not be more than delay_max_ms")
    return MockTargetSettings(response, minimum / 1000, maximum / 1000)


# --- A file of answers


class ReplayBlock(TargetBlock):
    """Answers that are in a file already."""

    spellings: ClassVar = {**TargetBlock.spellings, "file": "path", "output_file": "path"}
    beyond: ClassVar = {"execution_traces": "record replay fixtures, and name them in fixtures"}

    path: Text | None = key(
        None, "Output file: JSON Lines with a record for each test, relative to the eval file. This, or fixtures."
    )
    fixtures: Text | None = key(None, "Replay fixtures of AgentV: JSON Lines, relative to the eval file.")
    source_target: Text | None = key(None, "With fixtures: the target that gave the answers. Required then.")
    suite: Text | None = key(None, "With fixtures: suite of the records (default: that of the eval file).")
    eval_path: Text | None = key(None, "With fixtures: eval file of the records (default: this one).")
    variant: Text | None = key(None, "With fixtures: variant of the records (default: none).")


@dataclass(frozen=True, slots=True)
class ReplayTargetSettings(TargetSettings):
    """A file of answers."""

    path: Path

    async def open(self, opening: TargetOpening) -> LiveTarget:
        return await opening.answers_in(self.path)


def replay_settings(block: ReplayBlock, making: Making) -> ReplayTargetSettings | FixtureSettings:
    """The file with the answers. Raises UserError if there is no such file, or not exactly one is named."""
    if (block.path is None) == (block.fixtures is None):
        raise making.location.error("needs either path, an output file, or fixtures with source_target")
    name = "path" if block.fixtures is None else "fixtures"
    path = making.path(block.path or block.fixtures)
    if not path.is_file():
        raise making.at(name).error(f"there is no file {path}")
    if block.fixtures is None:
        return ReplayTargetSettings(path)
    if block.source_target is None:
        raise making.location.error("source_target is required with fixtures")
    return FixtureSettings(path, block.source_target, block.suite, block.eval_path, block.variant)
