"""Embeddings from an endpoint that speaks OpenAI's ``/embeddings``, each a step."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from struct import pack, unpack
from typing import Any

import aiohttp

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.context import CallReport, Context, Effect

EMBEDDING = "embedding"
"""The kind of a step that makes one."""
_TRIES = 4
_CAUSES = {401: Cause.AUTHENTICATION, 402: Cause.PAYMENT, 403: Cause.AUTHENTICATION}
_PASSING = (408, 429, 500, 502, 503, 504, 529)


class EndpointEmbedder:
    """See ``retrieval.Embedder``. ``timeout``: seconds for one call."""

    def __init__(self, base_url: str, model: str, api_key: str | None, *, timeout: float = 60.0) -> None:
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._model = model
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
        for number in range(1, _TRIES + 1):
            permit = await context.limits.acquire(self._url, Reserve(tokens=len(text) // 2))
            report = CallReport(failed=True)
            try:
                status, body = await self._posted(text)
                if status == 200:
                    vector, usage = _read(body)
                    report = CallReport(usage)
                    return vector, usage
                report = CallReport(failed=True, rate_limited=status in (429, 529))
            finally:
                context.limits.release(permit, report)
            if status not in _PASSING:
                raise ItemError(
                    _CAUSES.get(status, Cause.MODEL_REFUSED),
                    f"the embeddings endpoint answered {status}: {str(body)[:300]}",
                )
            if number < _TRIES:
                await context.clock.sleep(2.0**number)
        cause = Cause.RATE_LIMIT if status in (429, 529) else Cause.MODEL_ERROR
        raise ItemError(cause, f"the embeddings endpoint answered {status} {_TRIES} times: {str(body)[:300]}")

    async def _posted(self, text: str) -> tuple[int, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            async with self._session.post(self._url, json={"model": self._model, "input": text}) as response:
                body = await response.json(content_type=None) if response.status == 200 else await response.text()
                return response.status, body
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return 503, f"{type(error).__name__}: {error}"


def _read(body: Any) -> tuple[list[float], Usage]:
    """Raises ItemError for a reply of another shape."""
    try:
        vector = [float(value) for value in body["data"][0]["embedding"]]
        tokens = int((body.get("usage") or {}).get("prompt_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ItemError(
            Cause.MODEL_ERROR, f"the embeddings endpoint's reply holds no vector: {str(body)[:200]}"
        ) from error
    return vector, Usage(calls=1, input_tokens=tokens, unpriced_calls=1)


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _unpacked(text: str) -> list[float]:
    data = b64decode(text)
    return list(unpack(f"<{len(data) // 4}f", data))
