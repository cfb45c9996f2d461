"""Steps of a tool's own: what a call pays for, each request recorded as soon as it is answered.

A tool that asks a model or a paid service does so by the ``ToolSteps`` of its environment. After a crash in the middle of the call, what
was answered is replayed, and only the request in flight is made again. What the requests cost is the run's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from manyhands.core.errors import ItemError, ManyhandsError, ToolError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.messages import Message
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.contract import CallReport, Context, Effect, Limits, OneOf, OwnLimit
from manyhands.models.openai.errors import Retries
from manyhands.models.protocol import ChatModel, ChatRequest, ChatSettings, Completion
from manyhands.tools.services.artifacts import ArtifactStore

_Value = TypeVar("_Value")
ASK = "ask"
"""A step that asked a model: ``settings`` and ``messages`` in its request; in its output ``message``, ``finish_reason`` and ``usage``, or
``failure``."""
REQUEST = "request"
"""A step that asked a service: ``service`` and ``request`` in its request; in its output ``usage``, and ``answer`` or ``failure``."""

_PASSED_ON = frozenset(cause for cause, rule in FAILURES.items() if rule.stops_run) - {Cause.AUTHENTICATION}
"""Failures that are the run's, not the tool's: no money left. A tool's key may be wrong where the run's own is right."""
_TOGETHER = "calls of a tool together"
_SIBLING = "another call of the same turn has failed"
"""Why a call is cancelled, where it is not the whole conversation that is."""
_NOT_SENT = ("call_timeout", "implied_think", "send_reasoning")


class ServiceError(ToolError):
    """A request to a service failed; the message is for the model.

    ``passing``: trying again may help. ``rate_limited``: the service asks for a pause, of ``retry_after`` seconds if it said so.
    ``unknown``: it may have been answered, and paid for. ``cost``, ``usage``: what it was billed all the same, as of a ``ServiceAnswer``.
    """

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        rate_limited: bool = False,
        retry_after: float | None = None,
        unknown: bool = False,
        cost: float | None = None,
        usage: Usage = ZERO,
    ) -> None:
        super().__init__(message)
        self.passing = passing
        self.rate_limited = rate_limited
        self.retry_after = retry_after
        self.unknown = unknown
        self.cost = cost
        self.usage = usage


@dataclass(frozen=True, slots=True)
class Charge:
    """Who bills a request, and how much."""

    service: str
    """The service's name; with ``operation`` the name that a price table has."""
    operation: str
    price: float | None = None
    """US dollars for one request, at most; None where that is not known."""
    by_tokens: Reserve | None = None
    """The worst case of one that is billed by tokens."""

    @property
    def name(self) -> str:
        return f"{self.service}/{self.operation}"

    def usage(self, answer: ServiceAnswer) -> Usage:
        """Of one request that was answered; nothing for one that is free."""
        known = self.price if answer.cost is None else answer.cost
        if known == 0 and answer.usage is ZERO:
            return ZERO
        priced = Usage(unpriced_calls=1) if known is None else Usage(cost=known)
        return (Usage(calls=1) if answer.usage is ZERO else answer.usage) + priced

    def usage_of_failure(self, error: ServiceError) -> Usage:
        """Of one that was billed without an answer that could be used; nothing if the service did not say so."""
        if error.cost is None and error.usage is ZERO:
            return ZERO
        return self.usage(ServiceAnswer(None, error.cost, error.usage))

    @property
    def reserve(self) -> Reserve:
        """The worst case of one request."""
        if self.by_tokens is not None:
            return replace(self.by_tokens, model=self.name)
        return Reserve(cost=self.price or 0.0, model=self.name, priced=self.price is not None)


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """What a service answered."""

    content: Json
    cost: float | None = None
    """US dollars, where the service says so, or its tokens do."""
    usage: Usage = ZERO
    """The call, its tokens and whether it was simulated, without the cost; nothing where the service counts no tokens."""


class ToolSteps:
    """The steps that one call of a tool is made of.

    ``tool``: its name, for whose account they are. ``open_parts`` opens the branch of the attempt that they are taken in, which is done
    when the first one is. ``artifacts``: where the pictures are that messages refer to.
    """

    __slots__ = ("_artifacts", "_context", "_holds", "_open_parts", "_retries", "_tool", "_used")

    def __init__(
        self,
        tool: str,
        open_parts: Callable[[], Context],
        *,
        artifacts: ArtifactStore | None = None,
        retries: Retries | None = None,
    ) -> None:
        self._tool = tool
        self._open_parts = open_parts
        self._context: Context | None = None
        self._artifacts = artifacts
        self._retries = retries or Retries()
        self._used: list[Usage] = []
        self._holds: list[int] = []
        """Permits; the last one is that which calls are paid for from."""

    @property
    def usage(self) -> Usage:
        """What all steps used so far, those of branches and replayed ones included."""
        return sum(self._used, ZERO)

    def new_attempt_needed(self, reason: str) -> Exception:
        """See ``Context``."""
        return self._opened().new_attempt_needed(reason)

    def branch(self, name: str) -> ToolSteps:
        """Steps that are taken at the same time as others. ``name``: the same on a replay, and unique within the call."""
        context = self._opened()
        made = ToolSteps(self._tool, lambda: context.scope(name), artifacts=self._artifacts, retries=self._retries)
        made._used, made._holds = self._used, self._holds
        return made

    @property
    def replaying(self) -> bool:
        """Whether the next step is recorded already."""
        return self._opened().replaying

    @asynccontextmanager
    async def holding(self, calls: Sequence[Reserve]) -> AsyncIterator[None]:
        """Within it, the models that are asked, also by branches, are paid for out of what is reserved here: the worst cases of ``calls``.

        So the run's budget stops them before the first one, or none of them, whatever other items do meanwhile. Waits until it has room
        for all of them together. What they don't use is free again at the end. Raises ItemError if the budget never will.
        """
        limits = self._opened().limits
        whole = Reserve(sum(each.tokens for each in calls), sum(each.cost for each in calls))
        if whole == Reserve():
            yield
            return
        permit = await limits.acquire(_TOGETHER, whole)
        self._holds.append(permit)
        try:
            yield
        finally:
            self._holds.remove(permit)
            limits.release(permit, CallReport())

    async def ask(self, model: ChatModel, settings: ChatSettings, messages: Sequence[Message]) -> Completion:
        """Ask a model once. Pictures are given as ``artifacts.reference``, so that the journal holds no bytes of them.

        Raises ToolError if the model gives no answer, and ItemError if the run's budget does not allow for the call.
        """
        context = self._opened()
        request = {"settings": _sent(settings), "messages": list(messages)}
        limits = _Within(context.limits, self._holds[-1]) if self._holds else context.limits

        async def effect() -> Effect:
            sent = list(messages) if self._artifacts is None else await self._artifacts.embedded(messages)
            try:
                found = await model.complete(ChatRequest(settings, sent), limits, context.clock)
            except ItemError as error:
                if error.cause in _PASSED_ON:
                    raise
                return Effect({"failure": f"{settings.model} gave no answer ({error.cause}): {error.message}"})
            output = {"message": found.message, "finish_reason": found.finish_reason, "usage": found.usage.to_json()}
            return Effect(output, found.usage, self._tool)

        output = await _answered(context.step(ASK, request, effect))
        self._settle(output)
        usage = Usage.from_json(output["usage"])
        return Completion(output["message"], output["finish_reason"], usage)

    async def request(
        self, charge: Charge | None, request: Json, send: Callable[[], Awaitable[ServiceAnswer]], *, service: str = ""
    ) -> Json:
        """Ask a service once, and again where that may help; the answer's content. ``request`` names everything that the answer depends
        on, without keys. ``charge``: None for what costs nothing, which no budget holds back; then ``service`` names it.

        Raises ServiceError if there is no answer, and ItemError if the run's budget does not allow for the request.
        """
        context = self._opened()
        name = service if charge is None else charge.name

        async def effect() -> Effect:
            billed: list[Usage] = []
            try:
                answer = await self._sent(context, charge, dumps(request).decode("utf-8", "replace"), send, billed)
                output = {"answer": answer.content}
            except ServiceError as error:
                output = {"failure": str(error)}
            usage = sum(billed, ZERO)
            return Effect({**output, "usage": usage.to_json()}, usage, self._tool)

        output = await _answered(context.step(REQUEST, {"service": name, "request": request}, effect))
        self._settle(output)
        return output["answer"]

    async def _sent(
        self,
        context: Context,
        charge: Charge | None,
        identity: str,
        send: Callable[[], Awaitable[ServiceAnswer]],
        billed: list[Usage],
    ) -> ServiceAnswer:
        """The answer of the first try that has one, rate limits waited out. ``billed``: gets what each try cost."""
        for tries in range(1, self._retries.tries + 1):
            try:
                return await (send() if charge is None else self._limited(context, charge, send, billed))
            except ServiceError as error:
                if tries == self._retries.tries or not (error.passing or error.rate_limited):
                    raise
                pause = self._retries.pause(tries, identity)
                await context.clock.sleep(min(max(pause, error.retry_after or 0.0), self._retries.max_delay))
        raise AssertionError("a call has at least one try")

    @staticmethod
    async def _limited(
        context: Context, charge: Charge, send: Callable[[], Awaitable[ServiceAnswer]], billed: list[Usage]
    ) -> ServiceAnswer:
        """One try, within the run's limits and budget."""
        permit = await context.limits.acquire(f"service {charge.service}", charge.reserve)
        report = CallReport(failed=True, unknown=True)
        try:
            answer = await send()
            billed.append(charge.usage(answer))
            report = CallReport(billed[-1])
            return answer
        except ServiceError as error:
            usage = charge.usage_of_failure(error)
            billed += () if usage is ZERO else (usage,)
            report = CallReport(
                usage,
                failed=True,
                rate_limited=error.rate_limited,
                retry_after=error.retry_after,
                unknown=error.unknown and usage is ZERO,
            )
            raise
        finally:
            context.limits.release(permit, report)

    def _opened(self) -> Context:
        if self._context is None:
            self._context = self._open_parts()
        return self._context

    def _settle(self, output: dict[str, Any]) -> None:
        """Count what a step used. Raises ServiceError if it failed."""
        if (usage := output.get("usage")) is not None:  # failures that earlier versions recorded have none
            self._used.append(Usage.from_json(usage))
        if (failure := output.get("failure")) is not None:
            raise ServiceError(failure)


class _Within:
    """The limits of calls whose worst cases a permit holds."""

    def __init__(self, limits: Limits, permit: int) -> None:
        self._limits, self._permit = limits, permit

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        return await self._limits.acquire(key, replace(reserve, within=self._permit))

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        return await self._limits.acquire_one_of(wanted, replace(reserve, within=self._permit))

    def release(self, permit: int, report: CallReport) -> None:
        self._limits.release(permit, report)


def _sent(settings: ChatSettings) -> dict[str, Any]:
    """What of the settings makes a call another call."""
    return {
        field.name: value
        for field in fields(settings)
        if field.name not in _NOT_SENT and (value := getattr(settings, field.name)) is not None
    }


def within(settings: ChatSettings, seconds: float) -> ChatSettings:
    """The settings for a call that has so many seconds left."""
    return replace(settings, call_timeout=max(1.0, min(settings.call_timeout, seconds)))


async def together(parts: Sequence[Coroutine[Any, Any, _Value]]) -> list[_Value]:
    """The values of coroutines run at the same time, in their order. If one raises, the others begin no further step of theirs: what they
    ask is answered and recorded, as it is paid for, then they are cancelled. Raises one exception, the engine's before a tool's."""
    if len(parts) < 2:
        return [await part for part in parts]
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        await _cancelled(tasks, _SIBLING)
    except asyncio.CancelledError as error:
        await _cancelled(tasks, *error.args)
        raise
    errors = [raised for task in tasks if not task.cancelled() and (raised := task.exception()) is not None]
    if errors:
        raise min(errors, key=_is_of_a_tool)
    return [task.result() for task in tasks]


async def _cancelled(tasks: Sequence[asyncio.Task[Any]], *why: Any) -> None:
    """Cancel those that have not ended, and wait for them; whoever is cancelled while he waits, cancels them anew."""
    for task in tasks:
        task.cancel(*why)
    await _ended(tasks)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        await _ended(tasks)
        raise


def _is_of_a_tool(error: BaseException) -> bool:
    """Whether it says something of a tool, not of the run or the attempt."""
    if isinstance(error, ItemError):
        return not FAILURES[error.cause].stops_run
    return not isinstance(error, ManyhandsError) or isinstance(error, ToolError)


async def _answered(step: Coroutine[Any, Any, _Value]) -> _Value:
    """Take a step, to its end if only another call of the same turn has failed."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as error:
        if _SIBLING in error.args:
            await _ended([task])
        else:
            await _cancelled([task])
        raise
