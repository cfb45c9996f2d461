"""Calls of a model, and embeddings from an endpoint that speaks OpenAI's ``/embeddings``, each as a step."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from struct import pack, unpack
from typing import Any

import aiohttp

from manyhands.agents.loop import settings_digest
from manyhands.agents.reading import SCRATCHPADS, brief_usage, flattened, visible_text
from manyhands.agents.trajectory import MODEL
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import loads_outside, without_surrogates
from manyhands.core.messages import Message
from manyhands.core.redaction import KNOWN, protect
from manyhands.core.text import one_line
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.models.openai.client import answer_body
from manyhands.models.openai.request import CALL_TOKENS
from manyhands.models.openai.response import RAW, parse_usage
from manyhands.models.pricing import PriceTable
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


EMBEDDING = "embedding"
"""The kind of a step that makes one."""
MAX_ANSWER = 16 << 20
"""Bytes of an answer at most."""
_TRIES = 4
_CAUSES = {401: Cause.AUTHENTICATION, 402: Cause.PAYMENT, 403: Cause.AUTHENTICATION}
_NOT_REACHED, _BROKEN = 502, 408
_PASSING = (408, 429, 500, 502, 503, 504, 529)


class EndpointEmbedder:
    """Gets embeddings from an endpoint, each as a step.

    ``timeout``: seconds for one call."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        *,
        prices: PriceTable | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model = model
        protect([] if api_key is None else [api_key])
        self._prices = prices or PriceTable()
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def embed(self, context: Context, text: str) -> tuple[Sequence[float], Usage]:
        """The vector of a text. Raises ItemError if the endpoint gives none."""
        request = {"model": self._model, "text": digest("text", text).hex()}

        async def effect() -> Effect:
            vector, usage = await self._asked(context, text)
            return Effect({"vector": _packed(vector), "usage": usage.to_json()}, usage)

        output: dict[str, Any] = await context.step(EMBEDDING, request, effect)
        return _unpacked(output["vector"]), Usage.from_json(output["usage"])

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _asked(self, context: Context, text: str) -> tuple[list[float], Usage]:
        reserve = self._reserve(text)
        for number in range(1, _TRIES + 1):
            permit = await context.limits.acquire(self._url, reserve)
            report = CallReport(failed=True, unknown=True)
            try:
                status, body = await self._posted(text)
                if status == 200:
                    vector, usage = self._read(body)
                    report = CallReport(usage, unknown=not usage.input_tokens)
                    return vector, usage
                said = f"the embeddings endpoint answered {status}: {KNOWN.text(str(body))[:300]}"
                rate_limited = status in (429, 529)
                made = status == _BROKEN or (status >= 500 and status not in (_NOT_REACHED, 529))
                report = CallReport(
                    failed=True,
                    rate_limited=rate_limited,
                    unknown=made,
                    said=one_line(said, 1000),
                    refused=status not in _PASSING,
                    again_in=2.0**number if status in _PASSING and number < _TRIES else None,
                )
            finally:
                context.limits.release(permit, report)
            if status not in _PASSING:
                raise ItemError(_CAUSES.get(status, Cause.MODEL_REFUSED), said)
            if number < _TRIES:
                await context.clock.sleep(2.0**number)
        cause = Cause.RATE_LIMIT if status in (429, 529) else Cause.MODEL_ERROR
        raise ItemError(
            cause, f"the embeddings endpoint answered {status} {_TRIES} times: {KNOWN.text(str(body))[:300]}"
        )

    def _reserve(self, text: str) -> Reserve:
        tokens = len(text.encode("utf-8", "surrogatepass")) + CALL_TOKENS
        price = self._prices.price(self._model)
        cost = price.worst_case(tokens, 0) if price is not None else 0.0
        return Reserve(tokens, cost, f"{self._model} at {self._url}", priced=price is not None)

    async def _posted(self, text: str) -> tuple[int, Any]:
        """The status and the body; where there is no answer, a status that stands for it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            request = {"model": self._model, "input": text}
            async with self._session.post(self._url, json=request, allow_redirects=False) as response:
                body = await answer_body(response, MAX_ANSWER)
                text = body.decode("utf-8", "replace")
                return response.status, loads_outside(body) if response.status == 200 else text
        except aiohttp.ClientConnectorError as error:
            return _NOT_REACHED, f"{type(error).__name__}: {error}"
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return _BROKEN, f"{type(error).__name__}: {error}"

    def _read(self, body: Any) -> tuple[list[float], Usage]:
        """Raises ItemError for a reply of another shape."""
        try:
            vector = [float(value) for value in body["data"][0]["embedding"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ItemError(
                Cause.MODEL_ERROR, f"the embeddings endpoint's reply holds no vector: {KNOWN.text(str(body))[:200]}"
            ) from error
        reported = body.get("usage")
        usage, cost = parse_usage(reported if isinstance(reported, dict) else {})
        return vector, self._prices.priced(replace(usage, output_tokens=0), self._model, cost)


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _unpacked(text: str) -> list[float]:
    data = b64decode(text)
    return list(unpack(f"<{len(data) // 4}f", data))
