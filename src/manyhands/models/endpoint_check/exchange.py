"""Single small requests to an endpoint, bounded in time and size, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from manyhands.core.clock import Clock
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.messages import Message
from manyhands.core.redaction import KNOWN
from manyhands.core.text import one_line
from manyhands.core.usage import ZERO, Usage
from manyhands.models.openai.adapting import lesson_of
from manyhands.models.openai.errors import Problem, classify, classify_payload, page_instead, read_json
from manyhands.models.openai.http import EndpointConnections, TooLarge
from manyhands.models.openai.request import AS_KNOWN, Endpoint, request_body
from manyhands.models.openai.response import Unreadable, object_in, parse_completion, parse_usage
from manyhands.models.pricing import PriceTable
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion

MAX_ANSWER = 1 << 20
"""Bytes of an answer."""
_MAX_SAID = 200
_WAITS = 2
"""How often a rate limit is waited out for one request."""
_MAX_WAIT = 20.0
_AT_ONCE = 4
_MAX_LESSONS = 6


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came to."""

    seconds: float
    said: str = ""
    """Why there is no answer, in one line."""
    status: int | None = None
    """None if nothing came."""
    payload: Json = None
    headers: Mapping[str, str] = field(default_factory=dict)
    completion: Completion | None = None
    """None where none was requested, or none came."""
    problem: Problem | None = None

    @property
    def refused(self) -> bool:
        """Whether the request as it was is not taken."""
        return self.problem is not None and self.status is not None and 400 <= self.status < 500 and self.status != 429

    @property
    def sent(self) -> Mapping[str, Any]:
        """The message as the server sent it."""
        choices = self.payload.get("choices") if isinstance(self.payload, dict) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        return object_in(first, "message") if isinstance(first, dict) else {}

    @property
    def text(self) -> str:
        """The text of the answer."""
        content = None if self.completion is None else self.completion.message.get("content")
        return content if isinstance(content, str) else ""


class Prober:
    """Asks one model at an endpoint. It learns from refusals as the client of a run does."""

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None,
        headers: Mapping[str, str],
        *,
        model: str | None,
        seconds: float,
        extra_body: dict[str, Any] | None,
        clock: Clock,
    ) -> None:
        """``seconds``: for one request."""
        self.endpoint = endpoint
        self.model = model or ""
        self.adaptation = AS_KNOWN
        self.remarks: list[str] = []
        """What was learnt."""
        self.calls = 0
        self.usage: Usage = ZERO
        self.cost: float | None = None
        """US dollars, as far as the server says so."""
        self.latencies: list[float] = []
        self._extra_body = extra_body
        self._seconds = seconds
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._connections = EndpointConnections(endpoint, api_key, headers=headers, max_response=MAX_ANSWER)

    async def close(self) -> None:
        await self._connections.close()

    async def models(self) -> Reply:
        """The list of models."""
        return await self._exchange(None)

    async def ask(
        self,
        messages: str | Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        *,
        learn: bool = False,
        max_tokens: int = 1024,
        **settings: Any,
    ) -> Reply:
        """The answer to a conversation, or to a text. ``learn``: make the request otherwise if a refusal says how; ``settings``: of
        ``ChatSettings``."""
        conversation: list[Message] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        chosen = ChatSettings(self.model, max_tokens=max_tokens, extra_body=self._extra_body, **settings)
        request = ChatRequest(chosen, conversation, tools)
        async with self._slots:
            for _ in range(_MAX_LESSONS):
                adaptation = self.adaptation
                reply = await self._patient(dumps(request_body(request, self.endpoint, adaptation)))
                lesson = None
                if learn and reply.problem is not None:
                    lesson = lesson_of(reply.problem, request, adaptation, self.endpoint)
                if lesson is None:
                    return reply
                self.adaptation = lesson.adaptation
                self.remarks.append(lesson.remark)
            return reply

    async def _patient(self, body: bytes) -> Reply:
        for _ in range(_WAITS):
            reply = await self._exchange(body)
            if reply.problem is None or not reply.problem.rate_limited:
                break
            await self._clock.sleep(min(reply.problem.retry_after or 2.0, _MAX_WAIT))
        else:
            reply = await self._exchange(body)
        return reply

    async def _exchange(self, body: bytes | None) -> Reply:
        began = self._clock.monotonic()
        try:
            if body is None:
                answer = await self._connections.get(self.endpoint.at("models"), self._seconds)
            else:
                self.calls += 1
                answer = await self._connections.post(self.endpoint.url, body, self._seconds)
        except TooLarge as error:
            return Reply(self._clock.monotonic() - began, said=str(error), status=200)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Reply(
                self._clock.monotonic() - began,
                said=one_line(self._connections.problem(error, self._seconds), _MAX_SAID),
            )
        return self._read(answer, self._clock.monotonic() - began, body)

    def _read(self, answer: tuple[int, Any, bytes], seconds: float, body: bytes | None) -> Reply:
        status, headers, content = answer
        payload = read_json(content)
        if status != 200:
            problem: Problem | None = classify(status, headers, content, self._clock.now())
        else:
            problem = classify_payload(payload, self._clock.now()) if payload is not None else page_instead(content)
        reply = Reply(seconds, status=status, payload=payload, headers=headers)
        if problem is None and body is not None:
            return self._with_completion(reply, body)
        if problem is None and not isinstance(payload, (dict, list)):
            problem = Problem(Cause.MODEL_ERROR, "the answer is not JSON")
        return Reply(
            seconds,
            said="" if problem is None else one_line(KNOWN.text(problem.message), _MAX_SAID),
            status=status,
            payload=payload,
            headers=headers,
            problem=problem,
        )

    def _with_completion(self, reply: Reply, body: bytes) -> Reply:
        try:
            completion = parse_completion(
                reply.payload, model=self.model, prices=PriceTable(), request_size=len(body), implied_think=False
            )
        except Unreadable as error:
            problem = Problem(Cause.MODEL_ERROR, str(error))
            return Reply(reply.seconds, str(error), reply.status, reply.payload, reply.headers, problem=problem)
        self.usage = self.usage + completion.usage
        self.latencies.append(reply.seconds)
        _, cost = parse_usage(object_in(reply.payload, "usage"))
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost
        return Reply(reply.seconds, "", reply.status, reply.payload, reply.headers, completion)
