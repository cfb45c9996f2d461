"""Embeddings from any endpoint that speaks OpenAI's ``/embeddings``."""

from __future__ import annotations

from collections.abc import Sequence
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
from manyhands.models.addresses import Addresses
from manyhands.models.openai.http import NEVER_SENT
from manyhands.models.openai.replicas import EndpointReplica, EndpointReplicas
from manyhands.models.openai.request import CALL_TOKENS
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
        base_url: Addresses,
        model: str,
        api_key: str | Sequence[str] | None = None,
        *,
        prices: PriceTable | None = None,
        timeout: float = 60.0,
        **more: Any,
    ) -> None:
        """``timeout``: seconds for one call; ``more``: see ``EndpointReplicas``."""
        self.model = model
        self._prices = prices or PriceTable()
        self._timeout = timeout
        self._replicas = EndpointReplicas(base_url, api_key, path="/embeddings", max_response=MAX_ANSWER, **more)

    async def embed(self, text: str, limits: Limits, clock: Clock) -> tuple[list[float], Usage]:
        """The vector of a text. Raises ItemError if the endpoint gives none."""
        reserve = self._reserve(text)
        avoid: set[str] = set()
        tries = 1
        while True:
            permit, replica = await self._replicas.acquire(limits, reserve, avoid)
            report = CallReport(failed=True, unknown=True)
            try:
                status, body = await self._post(replica, text)
                if status == 200:
                    vector, usage = self._read(body)
                    report = CallReport(usage, unknown=not usage.input_tokens)
                    return vector, usage
                said = KNOWN.text(str(body))[:300]
                avoid.add(replica.limit_key)
                elsewhere = self._replicas.has_others(avoid)
                report = _report(status, f"the embeddings endpoint answered {status}: {said}", tries, elsewhere)
            finally:
                limits.release(permit, report)
            if report.again_in is None:
                raise _failure(status, said, tries)
            tries += bool(report.again_in or report.unknown)
            await clock.sleep(report.again_in)

    async def close(self) -> None:
        """Close the connections."""
        await self._replicas.close()

    def _reserve(self, text: str) -> Reserve:
        tokens = len(text.encode("utf-8", "surrogatepass")) + CALL_TOKENS
        price = self._prices.price(self.model)
        cost = price.worst_case(tokens, 0) if price is not None else 0.0
        return Reserve(tokens, cost, f"{self.model} at {self._replicas.shown}/embeddings", priced=price is not None)

    async def _post(self, replica: EndpointReplica, text: str) -> tuple[int, Any]:
        """The status and the body; where there is no answer, a status that stands for it."""
        try:
            request = dumps({"model": self.model, "input": text})
            status, _, body = await replica.connections.post(replica.endpoint.at("embeddings"), request, self._timeout)
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


def _failure(status: int, said: str, tries: int) -> ItemError:
    if status not in _PASSING:
        return ItemError(_CAUSES.get(status, Cause.MODEL_REFUSED), f"the embeddings endpoint answered {status}: {said}")
    cause = Cause.RATE_LIMIT if status in _RATE_LIMITS else Cause.MODEL_ERROR
    return ItemError(cause, f"the embeddings endpoint answered {status} {tries} times: {said}")


def _report(status: int, said: str, tries: int, elsewhere: bool) -> CallReport:
    """What the limiter should know of the call that failed, at this one of its tries. ``elsewhere``: whether another replica is left to
    ask, which is none of the tries if the call was certainly not answered."""
    unknown = status == _BROKEN or (status >= 500 and status not in (_NOT_REACHED, 529))
    again_in = 2.0**tries if status in _PASSING and tries < _TRIES else None
    if elsewhere and (status in _PASSING or status in _CAUSES) and (tries < _TRIES or not unknown):
        again_in = 0.0
    return CallReport(
        failed=True,
        rate_limited=status in _RATE_LIMITS,
        unknown=unknown,
        said=one_line(said, 1000),
        refused=status not in _PASSING and again_in is None,
        again_in=again_in,
        unhealthy=status not in _RATE_LIMITS and (status in _PASSING or status in _CAUSES),
    )
