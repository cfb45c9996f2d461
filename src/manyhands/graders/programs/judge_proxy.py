"""What graders' programs may ask a judge through: a small HTTP server on this machine.

======================  ==============================================================================================
``GET /info``           ``{"targetName", "maxCalls", "callCount", "availableTargets"}``
``POST /invoke``        ``{"question", "systemPrompt"?, "target"?}`` → ``{"output": [message], "rawText"}``
``POST /invokeBatch``   ``{"requests": […]}`` → ``{"responses": […]}``, one after the other
======================  ==============================================================================================

Every request needs the bearer token. 401: it is not there; 400: the request is wrong; 404: no such judge; 429: no calls are left; 502:
the judge failed. Each call is a step of a scope that is named after what is asked, so a program that is run again after a crash gets
recorded answers, in whatever order it asks.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from aiohttp import web

from manyhands.agents.loop import settings_digest
from manyhands.agents.reading import as_sent, brief_usage, flattened
from manyhands.agents.trajectory import MODEL
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError, ItemError, ManyhandsError
from manyhands.core.jsonio import dumps
from manyhands.core.messages import Message
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect
from manyhands.graders.judged.asking import complete
from manyhands.graders.protocol import Judge, Judges
from manyhands.models.protocol import ChatRequest

DEFAULT_CALLS = 50
_MAX_BODY = 32 << 20
"""Bytes of a request at most."""


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JudgeProxy:
    """The server for one run of a program. Made by ``opened``. ``environment``: what tells the program of it; ``count``: calls made;
    ``usage``: what they used."""

    def __init__(self, context: Context, judges: Judges, most: int, test_id: str) -> None:
        self._context = context
        self._judges = judges
        self._most = most
        self._test_id = test_id
        self._token = secrets.token_urlsafe(32)
        self._asked: Counter[str] = Counter()
        self._failure: ManyhandsError | None = None
        self._url = ""
        self.count = 0
        self.usage = ZERO

    @classmethod
    @asynccontextmanager
    async def opened(cls, context: Context, judges: Judges, most: int, test_id: str) -> AsyncIterator[Self]:
        """``context``: a scope for its steps; ``most``: calls that the program may make. Raises GraderError if it can't listen."""
        proxy = cls(context, judges, most, test_id)
        application = web.Application(client_max_size=_MAX_BODY)
        application.add_routes(
            [
                web.get("/info", proxy._handler(proxy._info)),
                web.post("/invoke", proxy._handler(proxy._invoke)),
                web.post("/invokeBatch", proxy._handler(proxy._invoke_batch)),
            ]
        )
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            try:
                await site.start()
            except OSError as error:
                raise GraderError(f"can't listen on 127.0.0.1 for the grader's program: {error.strerror}") from error
            proxy._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        return {"AGENTV_TARGET_PROXY_URL": self._url, "AGENTV_TARGET_PROXY_TOKEN": self._token}

    def check(self) -> None:
        """Raises what kept a call from being made, where that passes by itself or concerns the whole run: then whatever the program
        made of it is no score."""
        if self._failure is not None:
            raise self._failure

    def _handler(self, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                self._authorise(request)
                body = await _body(request) if request.method == "POST" else None
                return _json(200, await answer(body))
            except _Refused as refused:
                return _json(refused.status, {"error": str(refused)})

        return handle

    def _authorise(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise _Refused(401, "the bearer token is missing or wrong")

    async def _info(self, body: Any) -> dict[str, Any]:
        name = (await self._judge(None)).name
        return {
            "targetName": name,
            "maxCalls": self._most,
            "callCount": self.count,
            "availableTargets": [name],
        }

    async def _invoke_batch(self, body: Mapping[str, Any]) -> dict[str, Any]:
        requests = body.get("requests")
        if not isinstance(requests, list) or not all(isinstance(each, dict) for each in requests):
            raise _Refused(400, "requests must be a list of objects")
        if self.count + len(requests) > self._most:
            raise _Refused(429, f"only {self._most - self.count} of {self._most} calls are left")
        return {"responses": [await self._invoke(each) for each in requests]}

    async def _invoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        messages, name = _asked(body)
        judge = await self._judge(name)
        if self.count >= self._most:
            raise _Refused(429, f"all {self._most} calls were made")
        self.count += 1
        try:
            text = await self._answer(judge, messages)
        except GraderError as error:
            raise _Refused(502, str(error)) from error
        except ItemError as error:
            self._failure = error
            raise _Refused(502, str(error)) from error
        except ManyhandsError as error:  # the run is stopping, or the journal can't be written
            self._failure = error
            raise _Refused(503, "the run is stopping") from error
        return {"output": [{"role": "assistant", "content": text}], "rawText": text}

    async def _judge(self, name: str | None) -> Judge:
        try:
            return await self._judges.judge(name)
        except GraderError as error:
            raise _Refused(404, str(error)) from error

    async def _answer(self, judge: Judge, messages: list[Message]) -> str:
        request = {"judge": judge.name, "settings": settings_digest(judge.settings), "added": messages}
        key = digest("ask", request).hex()
        self._asked[key] += 1
        scope = self._context.scope(f"{key}-{self._asked[key]}")

        async def effect() -> Effect:
            completion = await complete(scope, judge, ChatRequest(judge.settings, messages))
            content = flattened(completion.message.get("content")) or ""
            message = {"role": "assistant", "content": content}
            output: dict[str, Any] = {"message": message, "finish_reason": completion.finish_reason}
            output |= {"usage": brief_usage(completion.usage), **as_sent(completion)}
            return Effect(output, completion.usage)

        output: dict[str, Any] = await scope.step(MODEL, {**request, "count": len(messages)}, effect)
        self.usage += Usage(**output["usage"])
        text: str = output["message"]["content"]
        return text


def _asked(body: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    question, system, name = body.get("question"), body.get("systemPrompt"), body.get("target")
    if not isinstance(question, str) or not question.strip():
        raise _Refused(400, "question must be a text")
    if not isinstance(system, str | None) or not isinstance(name, str | None):
        raise _Refused(400, "systemPrompt and target must be texts")
    messages: list[Message] = [{"role": "user", "content": question}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return messages, name or None


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _Refused(400, "the request must be a JSON object")
    return body


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=dumps(value), content_type="application/json")
