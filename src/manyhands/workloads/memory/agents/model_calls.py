"""Calls of a model, and embeddings, each as a step."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from struct import pack, unpack
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
from manyhands.engine.contract import Context, Effect
from manyhands.models.openai.embeddings import OpenAIEmbeddings
from manyhands.models.openai.response import RAW
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion

_DROPPED_SHARE = 0.1
"""Of the conversation, what is left out at once when the endpoint finds it too long."""


class ModelCaller:
    """Asks one model."""

    def __init__(self, model: ChatModel, settings: ChatSettings) -> None:
        self._model = model
        self._settings = settings

    @property
    def simulated(self) -> bool:
        """Whether its answers are made up."""
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
    ) -> tuple[Message, Usage]:
        """The model's message, and what it used.

        ``added``: those of the messages that no earlier step of the agent names; the others are known from there. Where the endpoint finds
        the messages too long, some are left out after the first ``keep``, oldest first. Raises ItemError as the model does; messages that
        stay too long are one of its failures.
        """
        request: dict[str, Any] = {
            "settings": settings_digest(self._settings),
            "added": list(added),
            "count": len(messages),
        }
        if tools:
            request["tools"] = digest("tools", list(tools)).hex()

        async def effect() -> Effect:
            completion, left_out = await self._complete(context, messages, tools, keep)
            answered = flattened(completion.message.get("content")) or ""
            said = without_surrogates(visible_text(answered, SCRATCHPADS))
            message: Message = {"role": "assistant", "content": said}
            if completion.message.get("tool_calls"):
                message["tool_calls"] = completion.message["tool_calls"]
            output = {"message": message, "usage": brief_usage(completion.usage), "left_out": left_out}
            raw = {**({} if said == answered else {"content": answered}), **completion.extra.get(RAW, {})}
            return Effect(output | ({"extra": {RAW: raw}} if raw else {}), completion.usage)

        output: dict[str, Any] = await context.step(MODEL, request, effect)
        return output["message"], Usage(**output["usage"])

    async def _complete(
        self, context: Context, messages: Sequence[Message], tools: Sequence[dict[str, Any]], keep: int
    ) -> tuple[Completion, int]:
        """The answer, and how many messages had to be left out for it."""
        left_out = 0
        while True:
            sent = [*messages[:keep], *messages[keep + left_out :]]
            request = ChatRequest(self._settings, sent, tools)
            try:
                return await self._model.complete(request, context.limits, context.clock), left_out
            except ItemError as error:
                droppable = len(sent) - keep - 1
                if error.cause is not Cause.CONTEXT_OVERFLOW or droppable < 1:
                    raise
                left_out += max(1, min(droppable, int(len(messages) * _DROPPED_SHARE)))

    def with_settings(self, **changes: Any) -> ModelCaller:
        """The same model, called in another way."""
        return ModelCaller(self._model, replace(self._settings, **changes))

    async def close(self) -> None:
        await self._model.close()


EMBEDDING = "embedding"
"""The kind of a step that makes one."""


class EmbeddingCaller:
    """Asks one model for embeddings."""

    def __init__(self, embeddings: OpenAIEmbeddings) -> None:
        self._embeddings = embeddings

    async def embed(self, context: Context, text: str) -> tuple[Sequence[float], Usage]:
        """The vector of a text, with four bytes to a number, and what it took. Raises ItemError if the endpoint gives none."""
        request = {"model": self._embeddings.model, "text": digest("text", text).hex()}

        async def effect() -> Effect:
            vector, usage = await self._embeddings.embed(text, context.limits, context.clock)
            return Effect({"vector": _packed(vector), "usage": usage.to_json()}, usage)

        output: dict[str, Any] = await context.step(EMBEDDING, request, effect)
        return _unpacked(output["vector"]), Usage.from_json(output["usage"])

    async def close(self) -> None:
        await self._embeddings.close()


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _unpacked(text: str) -> list[float]:
    data = b64decode(text)
    return list(unpack(f"<{len(data) // 4}f", data))
