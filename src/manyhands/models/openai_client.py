"""Any OpenAI-compatible endpoint, over aiohttp.

aiohttp is used directly because this is the hot path: a tenth of the CPU per call of the vendors' clients (measured).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.usage import Reserve
from manyhands.engine.context import CallReport, Limits
from manyhands.models.openai_errors import Problem, classify, classify_payload, parse_rate_headers, redact
from manyhands.models.openai_request import Endpoint, request_body, request_headers
from manyhands.models.openai_response import Unreadable, parse_completion
from manyhands.models.pricing import PriceTable
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.models.retries import Retries

LONGEST_RATE_LIMIT_WAIT = 1800.0
"""Seconds in all for which one call waits for rate limits."""
LONGEST_RETRY_AFTER = 60.0
"""Seconds that a server error's ``Retry-After`` is honoured for at most."""
LARGEST_RESPONSE = 64 * 1024 * 1024
DEFAULT_OUTPUT_TOKENS = 8192
"""What an answer is assumed to be at most where ``max_tokens`` is not set."""
LEAST_SECRET = 16
"""Characters from which on a key is taken out of answers. Shorter ones (``none``, ``dummy``) are no secrets, but words."""
_BYTES_PER_TOKEN = 3
_TOKENS_PER_IMAGE = 2000
_LARGEST_INLINE = 4096


@dataclass(frozen=True, slots=True)
class _Try:
    """What one HTTP exchange came to: a completion or a problem, and what the limiter should know."""

    report: CallReport
    completion: Completion | None = None
    problem: Problem | None = None


class OpenAIChatModel:
    """A ``ChatModel`` at ``base_url``, which is used with or without a key.

    ``retries``: how failed calls are tried again. ``simulated``: whether the answers are known to come from the simulated
    model. Connections are pooled; the pool is opened by the first call, in its loop.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        prices: PriceTable | None = None,
        retries: Retries | None = None,
        longest_rate_limit_wait: float = LONGEST_RATE_LIMIT_WAIT,
        largest_response: int = LARGEST_RESPONSE,
        simulated: bool = False,
    ) -> None:
        self.endpoint = Endpoint.of(base_url)
        self._api_key = api_key or None
        self._secret = api_key.encode() if api_key and len(api_key) >= LEAST_SECRET else None
        self._prices = prices or PriceTable()
        self._retries = retries or Retries()
        self._longest_rate_limit_wait = longest_rate_limit_wait
        self._largest_response = largest_response
        self._simulated = simulated
        self._session: aiohttp.ClientSession | None = None
        self._headers = request_headers(self.endpoint, self._api_key)
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        key_hash = hashlib.blake2b((api_key or "").encode(), digest_size=4).hexdigest()
        self.limit_key = f"{self.endpoint.shown}#{key_hash}"

    @property
    def simulated(self) -> bool:
        return self._simulated

    def worst_case(self, request: ChatRequest) -> Reserve:
        """What a call may use at most, as far as can be told before it."""
        return self._reserve(request, dumps(request_body(request, self.endpoint)))

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask, waiting out rate limits and trying again what passes by itself. Raises ItemError."""
        body = dumps(request_body(request, self.endpoint))
        reserve = self._reserve(request, body)
        began = clock.monotonic()
        rate_limited_since: float | None = None
        tries = failures = 0
        while True:
            tried = await self._limited_try(request, body, reserve, limits, clock)
            tries += 1
            if tried.completion is not None:
                # The completion was made for this call alone, so that nobody else sees what is added.
                tried.completion.extra.update(latency=round(clock.monotonic() - began, 4), tries=tries)
                return tried.completion
            problem = tried.problem
            assert problem is not None  # a try comes to one or the other
            if self._retries.waits_out(problem):
                now = clock.monotonic()
                rate_limited_since = now if rate_limited_since is None else rate_limited_since
                self._check_rate_limit_wait(problem, now - rate_limited_since)
                continue
            failures += 1
            problem = self._retries.judged(problem)
            if not problem.passing or failures >= self._retries.tries:
                raise self._error(problem, failures)
            await clock.sleep(self._pause(problem, failures, body))

    async def close(self) -> None:
        """Close the connections. The next call would open new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _limited_try(
        self, request: ChatRequest, body: bytes, reserve: Reserve, limits: Limits, clock: Clock
    ) -> _Try:
        permit = await limits.acquire(self.limit_key, reserve)
        report = CallReport(failed=True)
        try:
            tried = await self._try(request, body, clock)
            report = tried.report
            return tried
        finally:
            limits.release(permit, report)

    async def _try(self, request: ChatRequest, body: bytes, clock: Clock) -> _Try:
        try:
            status, headers, content = await self._exchange(request, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return _failed(Problem(Cause.MODEL_ERROR, self._connection_problem(error, request), passing=True))
        except _TooLarge:
            text = f"the answer is larger than {self._largest_response:,} bytes"
            return _failed(Problem(Cause.MODEL_ERROR, text))
        if status != 200:
            return _failed(classify(status, headers, content, clock.now()))
        return self._read(request, body, headers, content, clock)

    def _read(self, request: ChatRequest, body: bytes, headers: Any, content: bytes, clock: Clock) -> _Try:
        # An answer is recorded, and a model may repeat what a server or a tool showed it.
        if self._secret is not None and self._secret in content:
            content = content.replace(self._secret, b"[redacted]")
        payload = _parse(content)
        problem = classify_payload(payload, clock.now())
        if problem is not None:
            return _failed(problem)
        try:
            completion = parse_completion(
                payload, model=request.settings.model, prices=self._prices, request_size=len(body)
            )
        except Unreadable as error:
            return _failed(Problem(Cause.MODEL_ERROR, str(error), passing=True))
        remaining, reset_after = parse_rate_headers(headers, clock.now())
        return _Try(CallReport(completion.usage, remaining=remaining, reset_after=reset_after), completion)

    async def _exchange(self, request: ChatRequest, body: bytes) -> tuple[int, Any, bytes]:
        timeout = self._timeout(request.settings.call_timeout)
        call = self._opened().post(self.endpoint.url, data=body, timeout=timeout, allow_redirects=False)
        async with call as response:
            return response.status, response.headers, await self._content(response)

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > self._largest_response:
                response.close()
                raise _TooLarge
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The limiter bounds the connections.
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                proxy=_proxy_for(self.endpoint.base_url),
            )
        return self._session

    def _timeout(self, seconds: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(seconds)
        if timeout is None:
            timeout = self._timeouts[seconds] = aiohttp.ClientTimeout(total=seconds, connect=min(60.0, seconds))
        return timeout

    def _reserve(self, request: ChatRequest, body: bytes) -> Reserve:
        input_tokens = _input_tokens(request, body)
        output_tokens = request.settings.max_tokens or DEFAULT_OUTPUT_TOKENS
        price = None if self._simulated else self._prices.price(request.settings.model)
        cost = price.worst_case(input_tokens, output_tokens) if price is not None else 0.0
        return Reserve(input_tokens + output_tokens, cost)

    def _pause(self, problem: Problem, failures: int, body: bytes) -> float:
        delay = self._retries.pause(failures, hashlib.blake2b(body, digest_size=8).hexdigest())
        return max(delay, min(problem.retry_after or 0.0, LONGEST_RETRY_AFTER))

    def _check_rate_limit_wait(self, problem: Problem, waited: float) -> None:
        asked = problem.retry_after or 0.0
        if waited + asked <= self._longest_rate_limit_wait:
            return
        text = f"{self.endpoint.shown}: rate-limited for {waited:.0f} s"
        if asked:
            text += f" and asked to wait {asked:.0f} s more"
        message = redact(f"{text}: {problem.message}", self._api_key)
        raise ItemError(Cause.RATE_LIMIT, message, retry_after=problem.retry_after)

    def _error(self, problem: Problem, failures: int) -> ItemError:
        tries = f" ({failures} tries)" if failures > 1 else ""
        message = f"{self.endpoint.shown}: {problem.message}{tries}"
        return ItemError(problem.cause, redact(message, self._api_key), retry_after=problem.retry_after)

    def _connection_problem(self, error: BaseException, request: ChatRequest) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {request.settings.call_timeout:g} s"
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return "can't connect: the host name is not known"
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            return f"can't connect: {os.strerror(number) if number else error.os_error}"
        if isinstance(error, aiohttp.ClientPayloadError):
            return "the connection broke in the middle of the answer"
        text = " ".join(str(error).split())
        return f"the connection broke: {text or type(error).__name__}"


class _TooLarge(Exception):
    """The response body passes the bound."""


def _failed(problem: Problem) -> _Try:
    report = CallReport(failed=True, rate_limited=problem.rate_limited, retry_after=problem.retry_after)
    return _Try(report, problem=problem)


def _parse(content: bytes) -> Json:
    try:
        return loads(content)
    except (ValueError, RecursionError):
        return None


def _input_tokens(request: ChatRequest, body: bytes) -> int:
    """Tokens of a request at most: a third of its bytes (English has four to a token; other scripts have more bytes to a
    character), with inline images counted apart."""
    only_text = not any(isinstance(message.get("content"), list) for message in request.messages)
    if only_text or (b'"image_url"' not in body and b'"input_audio"' not in body):
        return len(body) // _BYTES_PER_TOKEN + 1
    inline = images = 0
    for message in request.messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            size = len(dumps(part))
            if size > _LARGEST_INLINE and isinstance(part, dict) and part.get("type") != "text":
                inline += size
                images += 1
    return max(0, len(body) - inline) // _BYTES_PER_TOKEN + 1 + images * _TOKENS_PER_IMAGE


def _proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for a URL, found once rather than for each request."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)
