"""``code_judge`` and ``code_grader``: a program of the person's own that judges.

It gets a JSON object on standard input (see ``graders.payloads``) and prints one on standard output (see ``graders.contract``); other lines
may stand before it. What goes wrong with the program is an error of the grader, never a score: another exit code than 0, whatever it had
printed by then, a signal, no object, an object with wrong types, the time limit, a program that can't be started. A program may end
without reading its input.

A ``code_grader`` (also written ``script`` or ``command``) may print plain text, or nothing, instead of an object: its exit code is then the
score, 1 for 0 and 0 for others, as long as it wrote nothing to standard error. Text is not plain if it says within a line what the
score is (``result: {"score": 0}``); nor is what a failed program left behind if it begins like JSON, or one of its lines like an object.
From a program that succeeds, ``0.2`` or ``false`` by itself is an error too: it would count as 1.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from aiohttp import web
from pydantic import BeforeValidator

from manyhands.agents.loop import settings_digest
from manyhands.agents.reading import as_sent, brief_usage, flattened
from manyhands.agents.trajectory import MODEL
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError, ItemError, ManyhandsError
from manyhands.core.jsonio import dumps
from manyhands.core.messages import Message
from manyhands.core.settings import OptionalText, shown
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Context, Effect
from manyhands.graders.contract import (
    GRADE,
    MAX_CHARACTERS,
    breakdown_in,
    environment_of,
    folder_of,
    last_object,
    replied,
    score_of,
    with_stderr,
)
from manyhands.graders.judged.asking import complete
from manyhands.graders.payloads import FIRST, LATER, encoded, handed, identifying
from manyhands.graders.protocol import Candidate, Grader, Grading, Judge, Judges, Score
from manyhands.graders.registry import Setup, judge_access
from manyhands.io.keys import Entry, key, own_keys, read
from manyhands.io.locations import Location
from manyhands.models.protocol import ChatRequest
from manyhands.processes.scripts import ScriptResult
from manyhands.processes.templates import script_of

_LAST_LINES = 300
_JSON_LINE = re.compile(r"\A[\ufeff\s]*\[|^[\ufeff \t]*\{", re.MULTILINE)
"""What JSON begins with, whole or cut off."""
_SCORE = re.compile(r"""["'](?:score|assertions)["']\s*:""")
"""What says a score, in JSON or in a dictionary of Python's."""
_BELOW_ONE = re.compile(r"0*(?:\.\d+)?|0+\.?|false|null|nan", re.IGNORECASE)
"""A value by itself that is a score below 1, or none: a program that prints it and succeeds has not said that all is well."""
_MAX_EXIT_CODE = 125
"""The highest exit code that is a program's own: shells use those above for programs that can't be run, and for signals."""
DEFAULT_CALLS = 50
_MAX_BODY = 32 << 20
"""Bytes of a request at most."""


def target_calls(value: Any) -> int | None:
    """Calls that the program may make of the judge; None: it may make none."""
    if value is None or isinstance(value, bool):
        return DEFAULT_CALLS if value else None
    calls = value.get("max_calls", value.get("maxCalls", DEFAULT_CALLS)) if isinstance(value, Mapping) else None
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
        raise ValueError("must be true, or a mapping with max_calls, a whole number of 0 or more")
    return calls


class CodeEntry(Entry):
    """Settings of ``code_judge`` and ``code_grader``; every other key goes to the program as ``config``."""

    spellings: ClassVar[Mapping[str, str]] = {"command": "script"}
    open: ClassVar[bool] = True
    script: Annotated[Any, BeforeValidator(script_of)] = key(
        ..., "The program: a line for sh, or a list of a program and its arguments."
    )
    cwd: OptionalText = key(None, "The folder to run it in, from the eval file's folder, which is the default.")
    target: Annotated[Any, BeforeValidator(target_calls)] = key(
        None, "Whether the program may ask the judge: true, or max_calls with a number of calls."
    )


class LaterEntry(CodeEntry):
    """Settings of ``code_grader``."""

    provider: Any = key(
        None, "AgentV 5's word for target: true, or max_calls. Anything else goes to the program as a key of your own."
    )


ENTRIES = {FIRST: CodeEntry, LATER: LaterEntry}


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError if there is no program."""
    kind: str = entry["type"]
    settings = read(ENTRIES[kind], entry, location)
    config, access = own_keys(CodeEntry, entry), judge_access(entry)
    calls = settings.target
    if access is not entry.get("target"):
        calls = _calls(config.pop("provider"), location.at("provider"))
    return CodeJudge(entry["name"], kind, settings.script, settings.cwd, setup.folder, config or None, calls, kind)


def _calls(access: Any, location: Location) -> int | None:
    try:
        return target_calls(access)
    except ValueError as error:
        raise location.error(f"{error}, not {shown(access)}") from None


@dataclass(frozen=True, slots=True)
class CodeJudge:
    """Runs a program, and reads its verdict."""

    name: str
    type: str
    script: str | Sequence[str]
    """A line for ``sh``, or argv."""
    cwd: str | None
    folder: Path
    """Where to run it if the candidate has no folder of its own."""
    config: Mapping[str, Any] | None = None
    calls: int | None = None
    """Calls of the judge that it may make; None: it may make none."""
    contract: str = FIRST
    """What it is given (``graders.payloads``)."""

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        known = encoded(identifying(candidate, self.type, self.config))
        folder = folder_of(candidate, self.folder, self.cwd)
        request = {
            "grader": self.name,
            "script": self.script if isinstance(self.script, str) else list(self.script),
            "cwd": self.cwd,
            "payload": digest("payload", known.decode("utf-8", "replace")).hex(),
        }
        proxied = grading.context.scope("target") if self.calls is not None else None

        async def effect() -> Effect:
            environment = environment_of(candidate)
            async with AsyncExitStack() as stack:
                proxy = None
                if proxied is not None and self.calls is not None:
                    proxy = await stack.enter_async_context(JudgeProxy.opened(proxied, grading.judges, self.calls))
                    environment |= proxy.environment
                payload = stack.enter_context(handed(candidate, self.contract, self.config))
                result = await grading.scripts.run(
                    self.script, payload, folder=folder, seconds=grading.seconds, environment=environment
                )
                if proxy is not None:
                    proxy.check()
            found = read_result(result, grading.seconds, plain=self.contract == LATER)
            if proxy is not None:
                found["details"] = {**found.get("details", {}), "target_calls": proxy.count}
                found["usage"] = brief_usage(proxy.usage)
            return Effect({**found, "seconds": round(result.seconds, 3)})

        output = await grading.context.step(GRADE, request, effect)
        return score_of(self, output, grading, usage=Usage(**output.get("usage", {})))


def read_result(result: ScriptResult, seconds: float, *, plain: bool = False) -> dict[str, Any]:
    """What a program said, checked. ``seconds``: its time limit; ``plain``: whether an exit code and a text are an answer.

    Raises GraderError that says how it ended, with the last lines of what it wrote.
    """
    if result.exit_code is None:
        raise GraderError(with_stderr(f"the program took more than {seconds:g} s and was stopped", result))
    text = result.stdout.decode("utf-8", "replace")
    if result.exit_code != 0:
        silent = not (result.stderr.strip() or _JSON_LINE.search(text) or _SCORE.search(text[-MAX_CHARACTERS:]))
        if plain and result.exit_code <= _MAX_EXIT_CODE and silent:
            return _plain(text, passed=False)
        raise GraderError(with_stderr(_ended(result) + _besides(text, result), result))
    value = last_object(text)
    if value is not None:
        return replied(value, "the program")
    if plain and not (text.lstrip().startswith(("{", "[")) or _meant_as_score(text)):
        return _plain(text, passed=True)
    what = "nothing" if not text.strip() else f"no JSON object: {shown(text.strip()[-_LAST_LINES:], _LAST_LINES)}"
    if len(text) > MAX_CHARACTERS:
        what += f" (looked for in the last {MAX_CHARACTERS:,} characters)"
    raise GraderError(with_stderr(f"the program printed {what}", result))


def _meant_as_score(text: str) -> bool:
    """Whether the text of a program that succeeded says a score in a way that is not read, and may be below 1."""
    end = text[-MAX_CHARACTERS:].strip()
    return bool(end) and (_BELOW_ONE.fullmatch(end) or _SCORE.search(end)) is not None


def _besides(text: str, result: ScriptResult) -> str:
    """What a person would miss in an error that says how a program ended: its own last words, where standard error has none."""
    crashed = (result.exit_code or 0) > _MAX_EXIT_CODE
    if crashed or result.stderr.strip() or not text.strip():
        return ""
    value = last_object(text)
    broke = None if value is None else breakdown_in(value)
    if broke is not None:
        return f": {broke}"
    if value is not None and not value.keys().isdisjoint(("score", "assertions", "checks", "pass")):
        return ", although it had printed a score: it does not count"
    return f": {shown(text.strip()[-_LAST_LINES:], _LAST_LINES)}"


def _plain(text: str, *, passed: bool) -> dict[str, Any]:
    line = [" ".join(text.split())[:500] or f"exit code {0 if passed else 1}"]
    return {"score": float(passed), "hits": line if passed else [], "misses": [] if passed else line}


def _ended(result: ScriptResult) -> str:
    code = result.exit_code or 0
    return f"the program ended with exit code {code}" + (f" (signal {code - 128})" if code > 128 else "")


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JudgeProxy:
    """What a program may ask a judge through: a small HTTP server on this machine, for one run of the program. Made by ``opened``.

    ======================  ==============================================================================================
    ``GET /info``           ``{"targetName", "maxCalls", "callCount", "availableTargets"}``
    ``POST /invoke``        ``{"question", "systemPrompt"?, "target"?}`` → ``{"output": [message], "rawText", "tokenUsage"?}``
    ``POST /invokeBatch``   ``{"requests": […]}`` → ``{"responses": […]}``, one after the other
    ======================  ==============================================================================================

    AgentV 5's clients say ``provider`` for ``target``, ``providerLabel`` and ``availableProviderLabels``, and look for it in variables of
    other names; both are there. ``tokenUsage`` is ``{"input", "output", "cached"}``, missing where the judge's endpoint counts nothing.

    Every request needs the bearer token. 401: it is not there; 400: the request is wrong; 404: no such judge; 429: no calls are left;
    502: the judge failed. Each call is a step of a scope that is named after the request, so a program that is run again after a crash
    gets recorded answers, in whatever order it asks. ``environment``: what points the program to it; ``count``: calls made; ``usage``: what
    they used.
    """

    def __init__(self, context: Context, judges: Judges, max_calls: int) -> None:
        self._context = context
        self._judges = judges
        self._max_calls = max_calls
        self._token = secrets.token_urlsafe(32)
        self._counts: Counter[str] = Counter()
        self._failure: ManyhandsError | None = None
        self._url = ""
        self.count = 0
        self.usage = ZERO

    @classmethod
    @asynccontextmanager
    async def opened(cls, context: Context, judges: Judges, max_calls: int) -> AsyncIterator[Self]:
        """``context``: a scope for its steps; ``max_calls``: calls that the program may make. Raises GraderError if it can't listen."""
        proxy = cls(context, judges, max_calls)
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
        where = {"URL": self._url, "TOKEN": self._token}
        return {f"AGENTV_{what}_PROXY_{name}": part for what in ("TARGET", "PROVIDER") for name, part in where.items()}

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
            "maxCalls": self._max_calls,
            "callCount": self.count,
            "availableTargets": [name],
            "providerLabel": name,
            "availableProviderLabels": [name],
        }

    async def _invoke_batch(self, body: Mapping[str, Any]) -> dict[str, Any]:
        requests = body.get("requests")
        if not isinstance(requests, list) or not all(isinstance(each, dict) for each in requests):
            raise _Refused(400, "requests must be a list of objects")
        if self.count + len(requests) > self._max_calls:
            raise _Refused(429, f"only {self._max_calls - self.count} of {self._max_calls} calls are left")
        return {"responses": [await self._invoke(each) for each in requests]}

    async def _invoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        messages, name = _question(body)
        judge = await self._judge(name)
        if self.count >= self._max_calls:
            raise _Refused(429, f"all {self._max_calls} calls were made")
        self.count += 1
        try:
            text, usage = await self._answer(judge, messages)
        except GraderError as error:
            raise _Refused(502, str(error)) from error
        except ItemError as error:
            self._failure = error
            raise _Refused(502, str(error)) from error
        except ManyhandsError as error:  # the run is stopping, or the journal can't be written
            self._failure = error
            raise _Refused(503, "the run is stopping") from error
        answer: dict[str, Any] = {"output": [{"role": "assistant", "content": text}], "rawText": text}
        if usage.input_tokens or usage.output_tokens:
            tokens = {"input": usage.input_tokens, "output": usage.output_tokens, "cached": usage.cached_tokens}
            answer["tokenUsage"] = tokens
        return answer

    async def _judge(self, name: str | None) -> Judge:
        try:
            return await self._judges.judge(name)
        except GraderError as error:
            raise _Refused(404, str(error)) from error

    async def _answer(self, judge: Judge, messages: list[Message]) -> tuple[str, Usage]:
        request = {"judge": judge.name, "settings": settings_digest(judge.settings), "added": messages}
        key = digest("ask", request).hex()
        self._counts[key] += 1
        scope = self._context.scope(f"{key}-{self._counts[key]}")

        async def effect() -> Effect:
            completion = await complete(scope, judge, ChatRequest(judge.settings, messages))
            content = flattened(completion.message.get("content")) or ""
            message = {"role": "assistant", "content": content}
            output: dict[str, Any] = {"message": message, "finish_reason": completion.finish_reason}
            output |= {"usage": brief_usage(completion.usage), **as_sent(completion)}
            return Effect(output, completion.usage)

        output: dict[str, Any] = await scope.step(MODEL, {**request, "count": len(messages)}, effect)
        usage = Usage(**output["usage"])
        self.usage += usage
        return output["message"]["content"], usage


def _question(body: Mapping[str, Any]) -> tuple[list[Message], str | None]:
    question, system = body.get("question"), body.get("systemPrompt")
    name = body.get("provider") if body.get("target") is None else body["target"]
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
