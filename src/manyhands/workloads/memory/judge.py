"""The benchmark's own model: it judges answers, plays a part in dynamic tests, and generates tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from manyhands.agents.run_settings import chat_settings, model_of
from manyhands.core.messages import Message
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context
from manyhands.models.factory import is_simulated
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.definitions import Ask
from manyhands.workloads.memory.datasets.rule_judge import rule_judge
from manyhands.workloads.memory.settings import JUDGE_KEY, MemorySpec


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
        message, usage, _ = await caller.ask(context, messages, added=messages, keep=len(messages))
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


def settings_of_judge(options: MemorySpec) -> MemorySpec:
    """The settings with the judge as the model that is asked."""
    url = options.judge_base_url or options.base_url
    return options.model_copy(update={"model": str(options.judge_model), "base_url": url})


def judge_of(options: MemorySpec, secrets: Mapping[str, str], folder: Path) -> ModelJudge | RuleJudge | None:
    """The judge that is configured; None if none is. ``folder``: of the run, which keeps the files that the settings name."""
    if options.judge_model is None:
        return None
    asked = settings_of_judge(options)
    if is_simulated(asked.model, asked.base_url):
        return RuleJudge()
    return ModelJudge(ModelCaller(model_of(asked, secrets.get(JUDGE_KEY), folder), chat_settings(asked)))


def _message(said: Mapping[str, str]) -> Message:
    return cast(Message, {"role": said["role"], "content": said["content"]})
