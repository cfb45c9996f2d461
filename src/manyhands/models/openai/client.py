"""Chat completions of any OpenAI-compatible endpoint."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from manyhands.models.addresses import Addresses
from manyhands.models.openai.adapting import lesson_of, setting_refused
from manyhands.models.openai.errors import (
    Problem,
    Retries,
    classify,
    classify_payload,
    page_instead,
    parse_rate_headers,
    read_json,
)
from manyhands.models.openai.http import MAX_CONNECT, MAX_RESPONSE, NEVER_SENT, TooLarge
from manyhands.models.openai.replicas import EndpointReplica, EndpointReplicas
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
"""How often a call is made again in another way at an address: once for each thing that there is to learn, and once more."""


@dataclass(slots=True)  # not frozen: see Outcome
class _Try:
    """What one HTTP exchange came to: a completion or a problem, and what the limiter should know."""

    report: CallReport
    completion: Completion | None = None
    problem: Problem | None = None
    learnt: bool = False
    """Whether the problem taught how the call can be made otherwise, which is done next."""
    at: EndpointReplica | None = None
    """Where the problem was."""
    counts: bool = True
    """Of a problem: whether it is one of the tries that a call has."""
    elsewhere: bool = False
    """Of a problem: whether the call goes to another replica at once."""


@dataclass(slots=True)
class _Failed:
    """What one call has failed with so far."""

    tries: int = 0
    """Those that count."""
    replicas: dict[str, tuple[EndpointReplica, Problem]] = field(default_factory=dict)
    """By their limiters' keys, those that failed since the last pause, where there are several."""
    limited: set[str] = field(default_factory=set)
    """The limiters' keys of those that were rate-limited, where there are several."""
    lessons: dict[str, int] = field(default_factory=dict)
    """How often a refusal taught something about an address."""


@dataclass(frozen=True, slots=True)
class _Wired:
    """A request as an endpoint takes it."""

    body: bytes
    adaptation: Adaptation
    """How it was made."""


class OpenAIChatModel:
    """A ``ChatModel`` at ``base_url``, which is used with or without a key; at one of them, if there are several addresses or keys. A call
    that fails at one may go to another at once. That counts as a try only if it might have been answered (and paid) there.

    ``retries``: how failed calls are tried again. ``simulated``: whether the answers are known to come from the simulated
    model. ``max_tokens``: is sent with calls that name none, so that a budget can rely on it. ``headers``: sent with every request; their
    values are secrets. Connections are pooled; the pool is opened by the first call, in its loop. What refusals teach about the endpoint
    (see ``adapting``) holds for all later calls.
    """

    def __init__(
        self,
        base_url: Addresses,
        api_key: str | Sequence[str] | None = None,
        *,
        prices: PriceTable | None = None,
        retries: Retries | None = None,
        max_rate_limit_wait: float = MAX_RATE_LIMIT_WAIT,
        max_connect: float = MAX_CONNECT,
        max_response: int = MAX_RESPONSE,
        simulated: bool = False,
        max_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
        provider_of: Callable[[str], str] | None = None,
    ) -> None:
        self._replicas = EndpointReplicas(
            base_url,
            api_key,
            headers=headers,
            provider_of=provider_of,
            max_connect=max_connect,
            max_response=max_response,
        )
        self.endpoint = self._replicas.first.endpoint
        self._prices = prices or PriceTable()
        self._retries = retries or Retries()
        self._max_rate_limit_wait = max_rate_limit_wait
        self._adaptations: dict[str, Adaptation] = {}
        self._simulated = simulated
        self._max_tokens = max_tokens

    @property
    def simulated(self) -> bool:
        return self._simulated

    def worst_case(self, request: ChatRequest) -> Reserve:
        """What a call may use at most, as far as is known before it."""
        request = self._bounded(request)
        return self._reserve(request, self._wired(request, self.endpoint).body)

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask, waiting out rate limits and trying again what passes by itself. Raises ItemError."""
        request = self._bounded(request)
        sent = self._wired(request, self.endpoint)
        reserve = self._reserve(request, sent.body)
        began = clock.monotonic()
        rate_limited_since: float | None = None
        tries = 0
        failed, paid = _Failed(), ZERO
        while True:
            if sent.adaptation is not self._adapted(self.endpoint):  # as this call or another one has learnt meanwhile
                sent = self._wired(request, self.endpoint)
                reserve = self._reserve(request, sent.body)
            tried = await self._limited_try(request, sent, reserve, limits, clock, failed)
            tries += 1
            if tried.completion is not None:
                # The completion was made for this call alone, so that nobody else sees what is added.
                tried.completion.extra.update(latency=round(clock.monotonic() - began, 4), tries=tries)
                if failed.lessons:
                    tried.completion.extra["refused_first"] = sum(failed.lessons.values())
                return (
                    replace(tried.completion, usage=tried.completion.usage + paid) if paid.calls else tried.completion
                )
            paid = paid + tried.report.usage
            problem = tried.problem
            assert problem is not None  # a try comes to one or the other
            if tried.learnt:
                continue
            if self._retries.waits_out(problem):
                now = clock.monotonic()
                rate_limited_since = now if rate_limited_since is None else rate_limited_since
                if not self._replicas.has_others(failed.limited):
                    self._check_rate_limit_wait(tried, problem, now - rate_limited_since)
                continue
            failed.tries += tried.counts
            problem = self._retries.judged(problem)
            if tried.report.again_in is None:
                raise self._error(tried, self._explained(problem, request), failed.tries)
            if not tried.elsewhere:
                await clock.sleep(tried.report.again_in)
                failed.replicas.clear()

    async def close(self) -> None:
        """Close the connections. The next call would open new ones."""
        await self._replicas.close()

    async def _limited_try(
        self, request: ChatRequest, sent: _Wired, reserve: Reserve, limits: Limits, clock: Clock, failed: _Failed
    ) -> _Try:
        """``sent``: the request as the first replica takes it; ``failed``: what the call failed with before; what it fails with now is
        added, but for the try."""
        replica = self._replicas.only
        if replica is not None:
            permit = await limits.acquire(replica.limit_key, reserve)
        else:
            permit, replica = await self._replicas.acquire(limits, reserve, failed.replicas)
        report = _CANCELLED
        try:
            if self._replicas.only is None:
                sent = self._wired_for(replica, request, sent)
            tried = await self._try(replica, request, sent.body, clock)
            if tried.problem is not None:
                tried = self._learnt(replica, tried, tried.problem, request, sent, failed)
            if tried.problem is not None and not tried.learnt:
                tried = self._described(replica, tried, tried.problem, failed, sent.body)
            elif tried.completion is not None and self._replicas.only is None:
                tried.completion.extra["address"] = replica.endpoint.shown
            report = tried.report
            # What was learnt is remarked but this once.
            if self._replicas.only is None and not tried.learnt and (remark := self._replicas.remark()) is not None:
                report = replace(report, remark=remark)
            return tried
        finally:
            limits.release(permit, report)

    def _wired(self, request: ChatRequest, endpoint: Endpoint) -> _Wired:
        adaptation = self._adapted(endpoint)
        return _Wired(dumps(request_body(request, endpoint, adaptation)), adaptation)

    def _wired_for(self, replica: EndpointReplica, request: ChatRequest, sent: _Wired) -> _Wired:
        """The request as a replica takes it. ``sent``: as the first does."""
        endpoint = replica.endpoint
        alike = replica is self._replicas.first or endpoint.alike(self.endpoint)
        return sent if alike and self._adapted(endpoint) == sent.adaptation else self._wired(request, endpoint)

    def _adapted(self, endpoint: Endpoint) -> Adaptation:
        """What was learnt about an endpoint so far."""
        return self._adaptations.get(endpoint.shown, AS_KNOWN)

    def _learnt(
        self,
        replica: EndpointReplica,
        tried: _Try,
        problem: Problem,
        request: ChatRequest,
        sent: _Wired,
        failed: _Failed,
    ) -> _Try:
        """The try with whether it teaches something, which is then no failure of the endpoint. ``sent``: the request as it was made."""
        endpoint = replica.endpoint
        lessons = failed.lessons.get(endpoint.shown, 0)
        lesson = lesson_of(problem, request, sent.adaptation, endpoint) if lessons < _MAX_LESSONS else None
        if lesson is None:
            return tried
        failed.lessons[endpoint.shown] = lessons + 1
        if self._adapted(endpoint) == sent.adaptation:
            self._adaptations[endpoint.shown] = lesson.adaptation
        return replace(tried, learnt=True, report=replace(tried.report, remark=one_line(lesson.remark, MAX_SAID)))

    def _described(self, replica: EndpointReplica, tried: _Try, problem: Problem, failed: _Failed, body: bytes) -> _Try:
        """The try with what the problem says, where to, and when, the call is made again."""
        said = one_line(KNOWN.text(f"{replica.endpoint.shown}: {problem.message}"), MAX_SAID)
        report = replace(
            tried.report, said=said, by_content=problem.status in _OF_CONTENT, unhealthy=_is_unhealthy(problem)
        )
        elsewhere = self._replicas.only is None and self._goes_elsewhere(replica, problem, report, failed)
        again_in, counts = (0.0, not _is_free(report)) if elsewhere else (None, True)
        if not elsewhere and not self._retries.waits_out(problem):
            replica, problem = _most_hopeful(replica, problem, failed)
            judged = self._retries.judged(problem)
            if judged.passing and failed.tries + 1 < self._retries.tries:
                again_in = self._pause(judged, failed.tries + 1, body)
        refused = problem.refused and not elsewhere
        report = replace(report, refused=refused, again_in=again_in)
        return _Try(report, problem=problem, at=replica, counts=counts, elsewhere=elsewhere)

    def _goes_elsewhere(self, replica: EndpointReplica, problem: Problem, report: CallReport, failed: _Failed) -> bool:
        """Whether a call that failed goes to another replica at once."""
        if problem.rate_limited:
            failed.limited.add(replica.limit_key)
        if self._retries.waits_out(problem) or not (problem.rate_limited or report.unhealthy):
            return False
        again = replica.limit_key in failed.replicas
        failed.replicas[replica.limit_key] = replica, problem
        if again or not self._replicas.has_others(failed.replicas):
            return False
        if _is_free(report):
            return True
        return self._retries.judged(problem).passing and failed.tries + 1 < self._retries.tries

    async def _try(self, replica: EndpointReplica, request: ChatRequest, body: bytes, clock: Clock) -> _Try:
        try:
            seconds = request.settings.call_timeout
            status, headers, content = await replica.connections.post(replica.endpoint.url, body, seconds)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = Problem(Cause.MODEL_ERROR, _connection_problem(replica, error, request), passing=True)
            return _failed(problem, unknown=not isinstance(error, NEVER_SENT))
        except TooLarge as error:
            return _failed(Problem(Cause.MODEL_ERROR, str(error)), unknown=True)
        if status != 200:
            problem = _with_address(replica, classify(status, headers, content, clock.now()))
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
        model = f"{settings.model} at {self._replicas.shown}"
        if price is None:
            return Reserve(input_bound + answered, 0.0, model, answered, priced=False)
        cost = price.worst_case(input_bound, answered, cache_writes=cache_writes)
        of_answer = cost - price.worst_case(input_bound, 0, cache_writes=cache_writes)
        return Reserve(input_bound + answered, cost, model, answered, of_answer)

    def _pause(self, problem: Problem, failures: int, body: bytes) -> float:
        delay = self._retries.pause(failures, hashlib.blake2b(body, digest_size=8).hexdigest())
        return max(delay, min(problem.retry_after or 0.0, MAX_RETRY_AFTER))

    def _check_rate_limit_wait(self, tried: _Try, problem: Problem, waited: float) -> None:
        requested_wait = problem.retry_after or 0.0
        if waited + requested_wait <= self._max_rate_limit_wait:
            return
        text = f"{_shown(tried)}: rate-limited for {waited:.0f} s"
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

    def _error(self, tried: _Try, problem: Problem, failures: int) -> ItemError:
        tries = f" ({failures} tries)" if failures > 1 else ""
        message = f"{_shown(tried)}: {problem.message}{tries}"
        return ItemError(problem.cause, KNOWN.text(message), retry_after=problem.retry_after)


def _shown(tried: _Try) -> str:
    assert tried.at is not None  # a problem has a place
    return tried.at.endpoint.shown


def _is_free(report: CallReport) -> bool:
    """Whether a call that failed was certainly not answered."""
    return not report.unknown and report.usage is ZERO


def _is_unhealthy(problem: Problem) -> bool:
    """Whether the endpoint or the key is to blame for a problem, rather than the request."""
    by_content = problem.status in _OF_CONTENT
    return not problem.rate_limited and (problem.passing or (problem.refused and not by_content))


def _most_hopeful(replica: EndpointReplica, problem: Problem, failed: _Failed) -> tuple[EndpointReplica, Problem]:
    """Of what replicas failed with, what may pass by itself, if anything does."""
    found = (replica, problem), *failed.replicas.values()
    return next((each for each in found if each[1].passing), found[0])


def _with_address(replica: EndpointReplica, problem: Problem) -> Problem:
    """The problem; if the address itself may be wrong, with the address that was called."""
    if problem.status not in _NOT_THERE or "model" in problem.message.lower():
        return problem
    shown = replica.endpoint.shown
    mend = "is --base_url right?" if urlsplit(shown).path.strip("/") else "does --base_url lack a path, as /v1?"
    return replace(problem, message=f"{problem.message} (asked: {shown}/chat/completions; {mend})")


def _connection_problem(replica: EndpointReplica, error: BaseException, request: ChatRequest) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"can't connect: no connection within {min(replica.connections.max_connect, request.settings.call_timeout):g} s"
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
