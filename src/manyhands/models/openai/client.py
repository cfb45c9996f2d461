"""Chat completions of any OpenAI-compatible endpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_OF_CONTENT = (400, 422)
"""HTTP statuses of what is wrong with one request, though some servers say so of a model that they don't have."""
_NOT_THERE = (404, 405)
_UNBEGUN_TOLD = (
    "answers of {model} end reasoning with </think> that they do not begin, and it stays in the text: if the server's chat template "
    "opens the block, say so with --implied_think (for a target of an evaluation: implied_think: true)"
)
_OF_A_TARGET = "; for a target of an evaluation, in its targets file"
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


@dataclass(frozen=True, slots=True, eq=False)
class _Wired:
    """A request as endpoints take it."""

    body: bytes
    endpoint: Endpoint
    """One of them."""
    adaptation: Adaptation
    """How it was made."""


@dataclass(frozen=True, slots=True)
class _Limited:
    """A rate limit that a call met."""

    replica: EndpointReplica
    problem: Problem
    until: float
    """When the wait is over that it asked for (monotonic)."""


@dataclass(slots=True)
class _Call:
    """A call until it is answered, and what it has met with so far."""

    request: ChatRequest
    wired: list[_Wired] = field(default_factory=list)
    """The request in the ways in which it was made."""
    lessons: dict[str, list[Lesson]] = field(default_factory=dict)
    """What refusals taught, by the endpoint's URL."""
    learns_at: str | None = None
    """The limiter's key of the replica that taught it something, as long as that is not proven."""
    tries: int = 0
    """Those that count."""
    failed: dict[str, tuple[EndpointReplica, Problem]] = field(default_factory=dict)
    """By their limiters' keys, the replicas that failed since the last pause, where there are several."""
    limited: dict[str, _Limited] = field(default_factory=dict)
    """By their limiters' keys, the replicas whose rate limits are waited out."""
    limited_since: float = 0.0
    """When the first one was met (monotonic)."""


class OpenAIChatModel:
    """A ``ChatModel`` at ``base_url``, which is used with or without a key; at one of them, if there are several addresses or keys. A call
    that fails at one may go to another at once. That counts as a try only if it might have been answered (and paid) there.

    ``retries``: how failed calls are tried again. ``simulated``: whether the answers are known to come from the simulated
    model. ``max_tokens``: is sent with calls that name none, so that a budget can rely on it. ``headers``: sent with every request; their
    values are secrets. Connections are pooled; the pool is opened by the first call, in its loop. What refusals teach about the endpoint
    (see ``adapting``) holds for all later calls once a request that heeds it was answered.
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
        """By the endpoint's URL."""
        self._kinds: tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]] | None = None
        """All endpoints, and those that are left if each stands for all that take the same."""
        self._simulated = simulated
        self._max_tokens = max_tokens

    @property
    def simulated(self) -> bool:
        return self._simulated

    def worst_case(self, request: ChatRequest) -> Reserve:
        """What a call may use at most, as far as is known before it."""
        call = _Call(self._bounded(request))
        return self._reserve(call.request, self._ways(call))

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Ask, waiting out rate limits and trying again what passes by itself. Raises ItemError."""
        call = _Call(self._bounded(request))
        ways: list[_Wired] = []
        reserve = Reserve()
        began = clock.monotonic()
        tries, paid = 0, ZERO
        while True:
            if ways != (ways := self._ways(call)):  # as this call or another one has learnt meanwhile
                reserve = self._reserve(call.request, ways)
            tried = await self._limited_try(call, reserve, limits, clock)
            tries += 1
            if tried.completion is not None:
                # The completion was made for this call alone, so that nobody else sees what is added.
                tried.completion.extra.update(latency=round(clock.monotonic() - began, 4), tries=tries)
                if refused := sum(map(len, call.lessons.values())):
                    tried.completion.extra["refused_first"] = refused
                return (
                    replace(tried.completion, usage=tried.completion.usage + paid) if paid.calls else tried.completion
                )
            paid = paid + tried.report.usage
            if not tried.learnt:
                await self._before_next(call, tried, clock)

    async def _before_next(self, call: _Call, tried: _Try, clock: Clock) -> None:
        """What comes between a try that failed and the next one. Raises ItemError if there is none."""
        problem, now = tried.problem, clock.monotonic()
        assert problem is not None  # a try comes to one or the other
        assert tried.at is not None  # and a problem has a place
        if self._retries.waits_out(problem):
            call.limited_since = call.limited_since if call.limited else now
            call.limited[tried.at.limit_key] = _Limited(tried.at, problem, now + (problem.retry_after or 0.0))
            lasting = {key: each for key, each in call.failed.items() if not self._retries.judged(each[1]).passing}
            call.failed = lasting  # the others may be back before the limit is over
            self._check_rate_limit_wait(call, now)
            return
        call.tries += tried.counts
        problem = self._retries.judged(problem)
        if tried.report.again_in is None:
            raise self._error(tried.at, self._explained(problem, call.request), call.tries)
        if not tried.elsewhere:
            await clock.sleep(tried.report.again_in)
            call.failed.clear()
        elif not problem.passing:
            self._check_rate_limit_wait(call, now)

    async def close(self) -> None:
        """Close the connections. The next call would open new ones."""
        await self._replicas.close()

    async def _limited_try(self, call: _Call, reserve: Reserve, limits: Limits, clock: Clock) -> _Try:
        """A try, which adds to the call what it fails with."""
        permit, replica = await self._replicas.acquire(limits, reserve, call.failed, call.learns_at)
        report = _CANCELLED
        try:
            wired = self._wired(call, replica.endpoint)
            tried = await self._try(replica, call.request, wired.body, clock)
            problem = tried.problem
            if problem is None:
                tried = self._answered(call, replica, tried)
            elif self._learns(call, wired, replica, problem):
                tried = replace(tried, learnt=True, report=replace(tried.report, said=_said(replica, problem)))
            else:
                tried = self._described(call, replica, tried, problem, wired.body)
            report = tried.report
            return tried
        finally:
            limits.release(permit, report)

    def _ways(self, call: _Call) -> list[_Wired]:
        """The request in all ways in which it may be sent next."""
        endpoints = self._replicas.endpoints if call.lessons else self._different()
        return list(dict.fromkeys(self._wired(call, endpoint) for endpoint in endpoints))

    def _different(self) -> tuple[Endpoint, ...]:
        """One endpoint of each kind, by what it takes: of a thousand there is often but one."""
        endpoints = self._replicas.endpoints
        if self._kinds is None or self._kinds[0] is not endpoints:
            found: dict[Any, Endpoint] = {}
            for endpoint in endpoints:
                found.setdefault((endpoint.shape, self._adaptations.get(endpoint.url)), endpoint)
            self._kinds = endpoints, tuple(found.values())
        return self._kinds[1]

    def _wired(self, call: _Call, endpoint: Endpoint) -> _Wired:
        """The request as an endpoint takes it, made once for all that take the same."""
        taught = call.lessons.get(endpoint.url)
        adaptation = taught[-1].adaptation if taught else self._adaptations.get(endpoint.url, AS_KNOWN)
        for wired in call.wired:
            if wired.adaptation == adaptation and wired.endpoint.shape == endpoint.shape:
                return wired
        made = _Wired(dumps(request_body(call.request, endpoint, adaptation)), endpoint, adaptation)
        call.wired.append(made)
        return made

    def _learns(self, call: _Call, wired: _Wired, replica: EndpointReplica, problem: Problem) -> bool:
        """Whether a refusal teaches the call something, so that it is no failure of the endpoint. ``wired``: what was refused."""
        endpoint = replica.endpoint
        taught = call.lessons.setdefault(endpoint.url, [])
        lesson = lesson_of(problem, call.request, wired.adaptation, endpoint) if len(taught) < _MAX_LESSONS else None
        if lesson is not None:
            taught.append(lesson)
        call.learns_at = None if lesson is None else replica.limit_key
        return lesson is not None

    def _answered(self, call: _Call, replica: EndpointReplica, tried: _Try) -> _Try:
        """The try that came to an answer, with what to remark. What the call has learnt about the endpoint is proven, and kept."""
        taught = call.lessons.get(replica.endpoint.url)
        remarks = [one_line(lesson.remark, MAX_SAID) for lesson in taught or ()]
        if taught:
            self._adaptations[replica.endpoint.url] = taught[-1].adaptation
            self._kinds = None
        if self._replicas.only is None:
            assert tried.completion is not None
            tried.completion.extra["address"] = replica.endpoint.shown
        remarks += filter(None, (tried.report.remark, self._replicas.remark()))
        return replace(tried, report=replace(tried.report, remark="\n".join(remarks))) if remarks else tried

    def _described(self, call: _Call, replica: EndpointReplica, tried: _Try, problem: Problem, body: bytes) -> _Try:
        """The try with what the problem says, where to, and when, the call is made again."""
        report = replace(
            tried.report,
            said=_said(replica, problem),
            by_content=problem.status in _OF_CONTENT,
            unhealthy=_is_unhealthy(problem),
            remark=self._replicas.remark(),
        )
        elsewhere = self._replicas.only is None and self._goes_elsewhere(call, replica, problem, report)
        again_in, counts = (0.0, not _is_free(report)) if elsewhere else (None, True)
        if not elsewhere and not self._retries.waits_out(problem):
            replica, problem = _most_hopeful(replica, problem, call)
            judged = self._retries.judged(problem)
            if judged.passing and call.tries + 1 < self._retries.tries:
                again_in = self._pause(judged, call.tries + 1, body)
        refused = problem.refused and not elsewhere
        report = replace(report, refused=refused, again_in=again_in)
        return _Try(report, problem=problem, at=replica, counts=counts, elsewhere=elsewhere)

    def _goes_elsewhere(self, call: _Call, replica: EndpointReplica, problem: Problem, report: CallReport) -> bool:
        """Whether a call that failed goes to another replica at once."""
        if self._retries.waits_out(problem) or not (problem.rate_limited or report.unhealthy):
            return False
        again = replica.limit_key in call.failed
        call.failed[replica.limit_key] = replica, problem
        if again or not self._replicas.has_others(call.failed):
            return False
        passing = self._retries.judged(problem).passing
        if passing and not self._replicas.has_others({*call.failed, *self._limited_too_long(call)}):
            return False
        return _is_free(report) or (passing and call.tries + 1 < self._retries.tries)

    def _limited_too_long(self, call: _Call) -> Iterator[str]:
        """The limiters' keys of the replicas whose rate limits are not waited out."""
        latest = call.limited_since + self._max_rate_limit_wait
        return (key for key, limited in call.limited.items() if limited.until > latest)

    async def _try(self, replica: EndpointReplica, request: ChatRequest, body: bytes, clock: Clock) -> _Try:
        seconds = request.settings.call_timeout
        try:
            status, headers, content = await replica.connections.post(replica.endpoint.url, body, seconds)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = Problem(Cause.MODEL_ERROR, replica.connections.problem(error, seconds), passing=True)
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
        return _failed(problem, unknown=problem.unknown)

    def _bounded(self, request: ChatRequest) -> ChatRequest:
        """The request with the ``max_tokens`` of the run, if it names none of its own."""
        if self._max_tokens is None or request.settings.max_tokens is not None:
            return request
        return replace(request, settings=replace(request.settings, max_tokens=self._max_tokens))

    def _reserve(self, request: ChatRequest, ways: Sequence[_Wired]) -> Reserve:
        """What it may use at most, whichever way it is sent."""
        settings = request.settings
        input_bound = max(input_tokens(request, wired.body) for wired in ways)
        answered = settings.max_tokens or BOUNDED_ANSWER
        price = self._prices.price(settings.model) or (FREE if self._simulated else None)
        cache_writes = any(writes_cache(settings, wired.endpoint) for wired in ways)
        model = f"{settings.model} at {self._replicas.shown}"
        if price is None:
            return Reserve(input_bound + answered, 0.0, model, answered, priced=False)
        cost = price.worst_case(input_bound, answered, cache_writes=cache_writes)
        of_answer = cost - price.worst_case(input_bound, 0, cache_writes=cache_writes)
        return Reserve(input_bound + answered, cost, model, answered, of_answer)

    def _pause(self, problem: Problem, failures: int, body: bytes) -> float:
        delay = self._retries.pause(failures, hashlib.blake2b(body, digest_size=8).hexdigest())
        return max(delay, min(problem.retry_after or 0.0, MAX_RETRY_AFTER))

    def _check_rate_limit_wait(self, call: _Call, now: float) -> None:
        """Raises ItemError if a call waits too long for rate limits, or would have to, where nothing else is left for it."""
        if not call.limited:
            return
        waited = now - call.limited_since
        first = min(call.limited.values(), key=lambda limited: limited.until)
        elsewhere = self._replicas.has_others({*call.limited, *call.failed})
        asked = 0.0 if elsewhere else max(0.0, first.until - now)
        if waited + asked <= self._max_rate_limit_wait:
            return
        text = f"{first.replica.endpoint.shown}: rate-limited for {waited:.0f} s"
        if asked:
            text += f" and asked to wait {asked:.0f} s more"
        problem = first.problem
        raise ItemError(Cause.RATE_LIMIT, KNOWN.text(f"{text}: {problem.message}"), retry_after=problem.retry_after)

    def _explained(self, problem: Problem, request: ChatRequest) -> Problem:
        """The problem; if it is about a setting, or the bound of the answer, which nobody may know of, with what to do about it."""
        if name := setting_refused(problem, request):
            hint = f"requests have it by the setting {name}: leave it out, on resume with --{name}= --override={name}"
            hint += _OF_A_TARGET
            return replace(problem, message=f"{problem.message} ({hint})")
        bound = request.settings.max_tokens
        about = problem.cause is Cause.CONTEXT_OVERFLOW or _OF_BOUND.search(problem.message)
        if bound is None or bound != self._max_tokens or problem.status is None or not about:
            return problem
        hint = f"under the budget, max_tokens is {bound:,}; --max_tokens sets another, on resume with --override=max_tokens"
        hint += _OF_A_TARGET
        return replace(problem, message=f"{problem.message} ({hint})")

    def _error(self, replica: EndpointReplica, problem: Problem, failures: int) -> ItemError:
        tries = f" ({failures} tries)" if failures > 1 else ""
        message = f"{replica.endpoint.shown}: {problem.message}{tries}"
        return ItemError(problem.cause, KNOWN.text(message), retry_after=problem.retry_after)


def _said(replica: EndpointReplica, problem: Problem) -> str:
    return one_line(KNOWN.text(f"{replica.endpoint.shown}: {problem.message}"), MAX_SAID)


def _is_free(report: CallReport) -> bool:
    """Whether a call that failed was certainly not answered."""
    return not report.unknown and report.usage is ZERO


def _is_unhealthy(problem: Problem) -> bool:
    """Whether the endpoint or the key is to blame for a problem, rather than the request."""
    by_content = problem.status in _OF_CONTENT
    return not problem.rate_limited and (problem.passing or (problem.refused and not by_content))


def _most_hopeful(replica: EndpointReplica, problem: Problem, call: _Call) -> tuple[EndpointReplica, Problem]:
    """Of what replicas failed with, what may pass by itself, if anything does."""
    found = (replica, problem), *call.failed.values()
    return next((each for each in found if each[1].passing), found[0])


def _with_address(replica: EndpointReplica, problem: Problem) -> Problem:
    """The problem; if the address itself may be wrong, with the address that was called."""
    if problem.status not in _NOT_THERE or "model" in problem.message.lower():
        return problem
    shown = replica.endpoint.shown
    mend = "is --base_url right?" if urlsplit(shown).path.strip("/") else "does --base_url lack a path, as /v1?"
    return replace(problem, message=f"{problem.message} (asked: {shown}/chat/completions; {mend})")


def _failed(problem: Problem, usage: Usage = ZERO, *, unknown: bool = False) -> _Try:
    report = CallReport(
        usage, failed=True, rate_limited=problem.rate_limited, retry_after=problem.retry_after, unknown=unknown
    )
    return _Try(report, problem=problem)
