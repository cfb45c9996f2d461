"""Chat completions of any OpenAI-compatible endpoint."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.redaction import KNOWN
from manyhands.core.text import one_line
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.contract import CallReport, Limits
from manyhands.models.openai.adapting import Lesson, lesson_of, setting_refused
from manyhands.models.openai.errors import (
    Problem,
    Retries,
    classify,
    classify_payload,
    page_instead,
    parse_rate_headers,
    read_json,
)
from manyhands.models.openai.http import MAX_CONNECT, MAX_RESPONSE, NEVER_SENT, EndpointConnections, TooLarge
from manyhands.models.openai.request import AS_KNOWN, Adaptation, Endpoint, input_tokens, request_body, writes_cache
from manyhands.models.openai.response import UNBEGUN, Unreadable, parse_completion, reported_usage, tells_usage
from manyhands.models.pricing import BOUNDED_ANSWER, FREE, PriceTable
from manyhands.models.protocol import ChatRequest, Completion

MAX_RATE_LIMIT_WAIT = 1800.0
"""Seconds in all for which one call waits for rate limits."""
MAX_RETRY_AFTER = 60.0
"""Seconds that a server error's ``Retry-After`` is honoured for at most."""
MAX_SAID = 1000
"""Characters of what a problem says that are reported at once."""
_TIMED_OUT = 408
_OF_CONTENT = (400, 422)
"""HTTP statuses of what is wrong with one request, though some servers say so of a model that they don't have."""
_NOT_THERE = (404, 405)
_UNBEGUN_TOLD = (
    "answers of {model} end reasoning with </think> that they do not begin, and it stays in the text: if the server's chat template "
    "opens the block, say so with --implied_think (for a target of an evaluation: implied_think: true)"
)
_CANCELLED = CallReport(failed=True, unknown=True)
_OF_BOUND = re.compile(r"max_(completion_)?tokens")
_MAX_LESSONS = 6
"""How often a call is made again in another way: once for each thing that there is to learn, and once more."""


@dataclass(slots=True)  # not frozen: see Outcome
class _Try:
    """What one HTTP exchange came to: a completion or a problem, and what the limiter should know."""

    report: CallReport
    completion: Completion | None = None
    problem: Problem | None = None
    lesson: Lesson | None = None
    """What the problem teaches, so that the call is made again in another way."""


class OpenAIChatModel:
    """A ``ChatModel`` at ``base_url``, which is used with or without a key.

    ``retries``: how failed calls are tried again. ``simulated``: whether the answers are known to come from the simulated
    model. ``max_tokens``: is sent with calls that name none, so that a budget can rely on it. ``headers``: sent with every request; their
    values are secrets. Connections are pooled; the pool is opened by the first call, in its loop. What refusals teach about the endpoint
    (see ``adapting``) holds for all later calls.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        prices: PriceTable | None = None,
        retries: Retries | None = None,
        max_rate_limit_wait: float = MAX_RATE_LIMIT_WAIT,
        max_connect: float = MAX_CONNECT,
        max_response: int = MAX_RESPONSE,
        simulated: bool = False,
        max_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.endpoint = Endpoint.of(base_url)
        self._prices = prices or PriceTable()
        self._retries = retries or Retries()
        self._max_rate_limit_wait = max_rate_limit_wait
        self._connections = EndpointConnections(
            self.endpoint, api_key, headers=headers, max_connect=max_connect, max_response=max_response
        )
        self._adaptation = AS_KNOWN
        self._simulated = simulated
        self._max_tokens = max_tokens
        key_hash = hashlib.blake2b((api_key or "").encode(), digest_size=4).hexdigest()
        self.limit_key = f"{self.endpoint.shown}#{key_hash}"

    @property
    def simulated(self) -> bool:
        return self._simulated

    def worst_case(self, request: ChatRequest) -> Reserve:
        """What a call may use at most, as far as is known before it."""
        request = self._bounded(request)
        return self._reserve(request, self._body(request, self._adaptation))

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask, waiting out rate limits and trying again what passes by itself. Raises ItemError."""
        request = self._bounded(request)
        adaptation = self._adaptation
        body = self._body(request, adaptation)
        reserve = self._reserve(request, body)
        began = clock.monotonic()
        rate_limited_since: float | None = None
        tries = failures = lessons = 0
        paid = ZERO
        while True:
            if adaptation is not self._adaptation:  # as this call or another one has learnt meanwhile
                adaptation = self._adaptation
                body = self._body(request, adaptation)
                reserve = self._reserve(request, body)
            may_learn = lessons < _MAX_LESSONS
            tried = await self._limited_try(
                request, body, reserve, limits, clock, failures, adaptation if may_learn else None
            )
            tries += 1
            if tried.completion is not None:
                # The completion was made for this call alone, so that nobody else sees what is added.
                tried.completion.extra.update(latency=round(clock.monotonic() - began, 4), tries=tries)
                if lessons:
                    tried.completion.extra["refused_first"] = lessons
                return (
                    replace(tried.completion, usage=tried.completion.usage + paid) if paid.calls else tried.completion
                )
            paid = paid + tried.report.usage
            problem = tried.problem
            assert problem is not None  # a try comes to one or the other
            if tried.lesson is not None:
                lessons += 1
                if self._adaptation is adaptation:
                    self._adaptation = tried.lesson.adaptation
                continue
            if self._retries.waits_out(problem):
                now = clock.monotonic()
                rate_limited_since = now if rate_limited_since is None else rate_limited_since
                self._check_rate_limit_wait(problem, now - rate_limited_since)
                continue
            failures += 1
            problem = self._retries.judged(problem)
            if tried.report.again_in is None:
                raise self._error(self._explained(problem, request), failures)
            await clock.sleep(tried.report.again_in)

    async def close(self) -> None:
        """Close the connections. The next call would open new ones."""
        await self._connections.close()

    def _body(self, request: ChatRequest, adaptation: Adaptation) -> bytes:
        return dumps(request_body(request, self.endpoint, adaptation))

    async def _limited_try(
        self,
        request: ChatRequest,
        body: bytes,
        reserve: Reserve,
        limits: Limits,
        clock: Clock,
        failures: int,
        adaptation: Adaptation | None,
    ) -> _Try:
        """``failures``: how many tries of the call came to nothing before. ``adaptation``: how the body was made; None if it can't be made
        otherwise any more."""
        permit = await limits.acquire(self.limit_key, reserve)
        report = _CANCELLED
        try:
            tried = await self._try(request, body, clock)
            if tried.problem is not None:
                tried = self._learnt(tried, tried.problem, request, adaptation)
            if tried.problem is not None and tried.lesson is None:
                tried = replace(tried, report=self._described(tried.report, tried.problem, failures + 1, body))
            report = tried.report
            return tried
        finally:
            limits.release(permit, report)

    def _learnt(self, tried: _Try, problem: Problem, request: ChatRequest, adaptation: Adaptation | None) -> _Try:
        """The try with what it teaches, which is then no failure of the endpoint."""
        lesson = None if adaptation is None else lesson_of(problem, request, adaptation, self.endpoint)
        if lesson is None:
            return tried
        return replace(tried, lesson=lesson, report=replace(tried.report, remark=one_line(lesson.remark, MAX_SAID)))

    def _described(self, report: CallReport, problem: Problem, failures: int, body: bytes) -> CallReport:
        """The report with what the problem says, and with when the call is made again after so many failures."""
        said = one_line(KNOWN.text(f"{self.endpoint.shown}: {problem.message}"), MAX_SAID)
        again_in = None
        if not self._retries.waits_out(problem):
            judged = self._retries.judged(problem)
            if judged.passing and failures < self._retries.tries:
                again_in = self._pause(judged, failures, body)
        by_content = problem.status in _OF_CONTENT
        return replace(report, said=said, refused=problem.refused, by_content=by_content, again_in=again_in)

    async def _try(self, request: ChatRequest, body: bytes, clock: Clock) -> _Try:
        try:
            seconds = request.settings.call_timeout
            status, headers, content = await self._connections.post(self.endpoint.url, body, seconds)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = Problem(Cause.MODEL_ERROR, self._connection_problem(error, request), passing=True)
            return _failed(problem, unknown=not isinstance(error, NEVER_SENT))
        except TooLarge as error:
            return _failed(Problem(Cause.MODEL_ERROR, str(error)), unknown=True)
        if status != 200:
            problem = self._with_address(classify(status, headers, content, clock.now()))
            return self._broken(problem, read_json(content), request)
        return self._read(request, body, headers, content, clock)

    def _read(self, request: ChatRequest, body: bytes, headers: Any, content: bytes, clock: Clock) -> _Try:
        payload = read_json(content)
        problem = classify_payload(payload, clock.now()) if payload is not None else page_instead(content)
        if problem is not None:
            return self._broken(problem, payload, request)
        try:
            completion = parse_completion(
                payload,
                model=request.settings.model,
                prices=self._prices,
                request_size=len(body),
                implied_think=request.settings.implied_think,
            )
        except Unreadable as error:
            return self._broken(Problem(Cause.MODEL_ERROR, str(error), passing=True), payload, request)
        remaining, reset_after = parse_rate_headers(headers, clock.now())
        # Where the server does not say what a call used, its bill is an estimate, and the budget counts the worst.
        unknown = not tells_usage(payload)
        remark = _UNBEGUN_TOLD.format(model=request.settings.model) if UNBEGUN in completion.extra else None
        report = CallReport(
            completion.usage, remaining=remaining, reset_after=reset_after, unknown=unknown, remark=remark
        )
        return _Try(report, completion)

    def _broken(self, problem: Problem, payload: Json, request: ChatRequest) -> _Try:
        """An answer without a completion. It costs what it says; if it says nothing, it may have been made all the same, unless the server
        refused the request."""
        reported = reported_usage(payload, model=request.settings.model, prices=self._prices)
        if reported is not None:
            return _failed(problem, reported)
        return _failed(problem, unknown=not (problem.rate_limited or _refuses(problem.status)))

    def _bounded(self, request: ChatRequest) -> ChatRequest:
        """The request with the ``max_tokens`` of the run, if it names none of its own."""
        if self._max_tokens is None or request.settings.max_tokens is not None:
            return request
        return replace(request, settings=replace(request.settings, max_tokens=self._max_tokens))

    def _reserve(self, request: ChatRequest, body: bytes) -> Reserve:
        settings = request.settings
        input_bound = input_tokens(request, body)
        answered = settings.max_tokens or BOUNDED_ANSWER
        price = self._prices.price(settings.model) or (FREE if self._simulated else None)
        cache_writes = writes_cache(settings, self.endpoint)
        model = f"{settings.model} at {self.endpoint.shown}"
        if price is None:
            return Reserve(input_bound + answered, 0.0, model, answered, priced=False)
        cost = price.worst_case(input_bound, answered, cache_writes=cache_writes)
        of_answer = cost - price.worst_case(input_bound, 0, cache_writes=cache_writes)
        return Reserve(input_bound + answered, cost, model, answered, of_answer)

    def _pause(self, problem: Problem, failures: int, body: bytes) -> float:
        delay = self._retries.pause(failures, hashlib.blake2b(body, digest_size=8).hexdigest())
        return max(delay, min(problem.retry_after or 0.0, MAX_RETRY_AFTER))

    def _check_rate_limit_wait(self, problem: Problem, waited: float) -> None:
        requested_wait = problem.retry_after or 0.0
        if waited + requested_wait <= self._max_rate_limit_wait:
            return
        text = f"{self.endpoint.shown}: rate-limited for {waited:.0f} s"
        if requested_wait:
            text += f" and asked to wait {requested_wait:.0f} s more"
        raise ItemError(Cause.RATE_LIMIT, KNOWN.text(f"{text}: {problem.message}"), retry_after=problem.retry_after)

    def _explained(self, problem: Problem, request: ChatRequest) -> Problem:
        """The problem; if it is about a setting, or the bound of the answer, which nobody may know of, with what to do about it."""
        if name := setting_refused(problem, request):
            hint = f"requests have it by the setting {name}: leave it out, on resume with --{name}= --override={name}"
            return replace(problem, message=f"{problem.message} ({hint})")
        bound = request.settings.max_tokens
        about = problem.cause is Cause.CONTEXT_OVERFLOW or _OF_BOUND.search(problem.message)
        if bound is None or bound != self._max_tokens or problem.status is None or not about:
            return problem
        hint = f"under the budget, max_tokens is {bound:,}; --max_tokens sets another, on resume with --override=max_tokens"
        return replace(problem, message=f"{problem.message} ({hint})")

    def _with_address(self, problem: Problem) -> Problem:
        """The problem; if the address itself may be wrong, with the address that was called."""
        if problem.status not in _NOT_THERE or "model" in problem.message.lower():
            return problem
        path = urlsplit(self.endpoint.shown).path
        mend = "is --base_url right?" if path.strip("/") else "does --base_url lack a path, as /v1?"
        return replace(problem, message=f"{problem.message} (asked: {self.endpoint.shown}/chat/completions; {mend})")

    def _error(self, problem: Problem, failures: int) -> ItemError:
        tries = f" ({failures} tries)" if failures > 1 else ""
        message = f"{self.endpoint.shown}: {problem.message}{tries}"
        return ItemError(problem.cause, KNOWN.text(message), retry_after=problem.retry_after)

    def _connection_problem(self, error: BaseException, request: ChatRequest) -> str:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"can't connect: no connection within {min(self._connections.max_connect, request.settings.call_timeout):g} s"
        if isinstance(error, TimeoutError):
            return f"no answer within {request.settings.call_timeout:g} s"
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return "can't connect: the host name is not known"
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            return f"can't connect: {os.strerror(number) if number else error.os_error}"
        if isinstance(error, aiohttp.ClientPayloadError):
            return "the connection broke in the middle of the answer"
        text = " ".join(KNOWN.text(str(error)).split())
        return f"the connection broke: {text or type(error).__name__}"


def _failed(problem: Problem, usage: Usage = ZERO, *, unknown: bool = False) -> _Try:
    report = CallReport(
        usage, failed=True, rate_limited=problem.rate_limited, retry_after=problem.retry_after, unknown=unknown
    )
    return _Try(report, problem=problem)


def _refuses(status: int | None) -> bool:
    """Whether an HTTP status means that no answer was made."""
    return status is not None and 300 <= status < 500 and status != _TIMED_OUT
