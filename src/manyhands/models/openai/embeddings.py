"""Embeddings from any endpoint that speaks OpenAI's ``/embeddings``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps, loads_outside
from manyhands.core.redaction import KNOWN
from manyhands.core.text import one_line
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Limits
from manyhands.models.openai.http import NEVER_SENT, EndpointConnections
from manyhands.models.openai.request import CALL_TOKENS, Endpoint
from manyhands.models.openai.response import object_in, parse_usage
from manyhands.models.pricing import PriceTable

MAX_ANSWER = 16 << 20
"""Bytes of an answer."""
_TRIES = 4
_CAUSES = {401: Cause.AUTHENTICATION, 402: Cause.PAYMENT, 403: Cause.AUTHENTICATION}
_NOT_REACHED, _BROKEN = 502, 408
"""Statuses that stand for an answer that did not come: the request was never sent, or may have been answered."""
_RATE_LIMITS = (429, 529)
_PASSING = (408, 429, 500, 502, 503, 504, 529)


class OpenAIEmbeddings:
    """Embeddings of one model. A call that fails for a while is made four times, after 2, 4 and 8 seconds."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        prices: PriceTable | None = None,
        timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``timeout``: seconds for one call; ``headers``: sent with every request."""
        endpoint = Endpoint.of(base_url)
        self.model = model
        self._url = endpoint.at("embeddings")
        self._prices = prices or PriceTable()
        self._timeout = timeout
        self._connections = EndpointConnections(endpoint, api_key, headers=headers, max_response=MAX_ANSWER)

    async def embed(self, text: str, limits: Limits, clock: Clock) -> tuple[list[float], Usage]:
        """The vector of a text. Raises ItemError if the endpoint gives none."""
        reserve = self._reserve(text)
        for number in range(1, _TRIES + 1):
            permit = await limits.acquire(self._url, reserve)
            report = CallReport(failed=True, unknown=True)
            try:
                status, body = await self._post(text)
                if status == 200:
                    vector, usage = self._read(body)
                    report = CallReport(usage, unknown=not usage.input_tokens)
                    return vector, usage
                said = KNOWN.text(str(body))[:300]
                report = _report(status, f"the embeddings endpoint answered {status}: {said}", number)
            finally:
                limits.release(permit, report)
            if report.again_in is not None:
                await clock.sleep(report.again_in)
            elif status not in _PASSING:
                cause = _CAUSES.get(status, Cause.MODEL_REFUSED)
                raise ItemError(cause, f"the embeddings endpoint answered {status}: {said}")
        cause = Cause.RATE_LIMIT if status in _RATE_LIMITS else Cause.MODEL_ERROR
        raise ItemError(cause, f"the embeddings endpoint answered {status} {_TRIES} times: {said}")

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    def _reserve(self, text: str) -> Reserve:
        tokens = len(text.encode("utf-8", "surrogatepass")) + CALL_TOKENS
        price = self._prices.price(self.model)
        cost = price.worst_case(tokens, 0) if price is not None else 0.0
        return Reserve(tokens, cost, f"{self.model} at {self._url}", priced=price is not None)

    async def _post(self, text: str) -> tuple[int, Any]:
        """The status and the body; where there is no answer, a status that stands for it."""
        try:
            request = dumps({"model": self.model, "input": text})
            status, _, body = await self._connections.post(self._url, request, self._timeout)
            return status, loads_outside(body) if status == 200 else body.decode("utf-8", "replace")
        except NEVER_SENT as error:
            return _NOT_REACHED, f"{type(error).__name__}: {error}"
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return _BROKEN, f"{type(error).__name__}: {error}"

    def _read(self, body: Any) -> tuple[list[float], Usage]:
        """Raises ItemError for a reply of another shape."""
        try:
            vector = [float(value) for value in body["data"][0]["embedding"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said = KNOWN.text(str(body))[:200]
            raise ItemError(Cause.MODEL_ERROR, f"the embeddings endpoint's reply holds no vector: {said}") from error
        usage, cost = parse_usage(object_in(body, "usage"))
        return vector, self._prices.priced(replace(usage, output_tokens=0), self.model, cost)


def _report(status: int, said: str, number: int) -> CallReport:
    """What the limiter should know of the call that failed as the ``number``-th."""
    return CallReport(
        failed=True,
        rate_limited=status in _RATE_LIMITS,
        unknown=status == _BROKEN or (status >= 500 and status not in (_NOT_REACHED, 529)),
        said=one_line(said, 1000),
        refused=status not in _PASSING,
        again_in=2.0**number if status in _PASSING and number < _TRIES else None,
    )
