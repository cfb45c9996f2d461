"""The benchmark's own model: it judges answers, plays a part in dynamic tests, and generates tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from manyhands.agents.run_settings import chat_settings, keys_in, model_of
from manyhands.agents.trajectory import describe_step
from manyhands.core.messages import Message
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Execution, RecordedStep, Workload
from manyhands.models.factory import is_simulated
from manyhands.models.headers import headers_among
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.definitions import Ask
from manyhands.workloads.memory.datasets.registry import rule_judge
from manyhands.workloads.memory.settings import JUDGE_KEY, BenchmarkSettings


class ModelJudge:
    """Judges by a model: each question to it is a step."""

    def __init__(self, caller: ModelCaller) -> None:
        self._caller = caller

    @property
    def name(self) -> str:
        """As results name it; a made-up one says so."""
        return f"{self._caller.model_name} (simulated)" if self._caller.simulated else self._caller.model_name

    async def ask(self, context: Context, ask: Ask) -> tuple[str, Usage]:
        """Its reply, as a step. Raises ItemError."""
        messages = [_message(each) for each in ask.messages]
        caller = self._caller.with_settings(temperature=ask.temperature, max_tokens=ask.max_tokens)
        message, usage = await caller.ask(context, messages, added=messages, keep=len(messages))
        return str(message.get("content") or ""), usage

    async def close(self) -> None:
        await self._caller.close()


class RuleJudge:
    """Judges by rules in place of a model: what ``--judge_model=simulated`` means."""

    name = "rules (simulated)"

    async def ask(self, context: Context, ask: Ask) -> tuple[str, Usage]:
        """Its reply; nothing is paid, so it is no step."""
        return rule_judge(ask), ZERO

    async def close(self) -> None:
        """Nothing to close."""


def judge_of(options: BenchmarkSettings, secrets: Mapping[str, str], folder: Path) -> ModelJudge | RuleJudge | None:
    """The judge that is configured; None if none is. ``folder``: of the run, which keeps the files that the settings name."""
    model = options.judge
    if model is None:
        return None
    if is_simulated(model.model, model.base_url):
        return RuleJudge()
    headers = headers_among(secrets, JUDGE_KEY)
    chat_model = model_of(model, keys_in(secrets, JUDGE_KEY), folder, options, headers=headers)
    return ModelJudge(ModelCaller(chat_model, chat_settings(model)))


def _message(said: Mapping[str, str]) -> Message:
    return cast(Message, {"role": said["role"], "content": said["content"]})


class JudgeRun(Workload):
    """The base of runs that ask the judge and nobody else."""

    concurrency_setting = "concurrency"
    _options: BenchmarkSettings

    @property
    def execution(self) -> Execution:
        options = self._options
        return options.execution(
            executor="local",
            workers=1,
            concurrency=options.concurrency,
            item_timeout=options.item_timeout,
            seed=options.seed or 0,
        )

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)
