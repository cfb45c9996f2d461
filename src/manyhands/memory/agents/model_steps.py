"""A model call of an agent, as a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from manyhands.agents.loop import settings_digest
from manyhands.agents.reading import SCRATCHPADS, brief_usage, flattened, visible_text
from manyhands.agents.trajectory import MODEL
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import without_surrogates
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.context import Context, Effect
from manyhands.models.openai_response import RAW
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings

_DROPPED_AT_ONCE = 0.1
"""The share of the conversation that is left out when the endpoint finds it too long."""


class ModelCaller:
    """Asks one model. ``simulated``: whether its answers are made up."""

    def __init__(self, model: ChatModel, settings: ChatSettings) -> None:
        self._model = model
        self._settings = settings

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    @property
    def model_name(self) -> str:
        return self._settings.model

    async def ask(
        self,
        context: Context,
        messages: Sequence[Message],
        *,
        added: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        keep: int = 1,
    ) -> tuple[Message, Usage, int]:
        """The model's message, what it used, and how many of ``messages`` had to be left out after the first ``keep``, oldest first,
        because the endpoint took no more.

        ``added``: those of the messages that no earlier step of the agent names; the others are known from there.
        Raises ItemError as the model does; a context that stays too long is one of its failures.
        """
        request: dict[str, Any] = {
            "settings": settings_digest(self._settings),
            "added": list(added),
            "count": len(messages),
        }
        if tools:
            request["tools"] = digest("tools", list(tools)).hex()

        async def effect() -> Effect:
            left_out = 0
            while True:
                sent = [*messages[:keep], *messages[keep + left_out :]]
                try:
                    completion = await self._model.complete(
                        ChatRequest(self._settings, sent, tools), context.limits, context.clock
                    )
                    break
                except ItemError as error:
                    room = len(messages) - keep - left_out - 1
                    if error.cause is not Cause.CONTEXT_OVERFLOW or room < 1:
                        raise
                    left_out += max(1, min(room, int(len(messages) * _DROPPED_AT_ONCE)))
            answered = flattened(completion.message.get("content")) or ""
            said = without_surrogates(visible_text(answered, SCRATCHPADS))
            message: Message = {"role": "assistant", "content": said}
            if completion.message.get("tool_calls"):
                message["tool_calls"] = completion.message["tool_calls"]
            output = {"message": message, "usage": brief_usage(completion.usage), "left_out": left_out}
            raw = {**({} if said == answered else {"content": answered}), **completion.extra.get(RAW, {})}
            return Effect(output | ({"extra": {RAW: raw}} if raw else {}), completion.usage)

        output: dict[str, Any] = await context.step(MODEL, request, effect)
        return output["message"], Usage(**output["usage"]), output["left_out"]

    def with_settings(self, **changes: Any) -> ModelCaller:
        """The same model, asked in another way."""
        return ModelCaller(self._model, replace(self._settings, **changes))

    async def close(self) -> None:
        await self._model.close()
