"""The simulated model over HTTP, with latency and faults to order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from aiohttp import web

from manyhands.core.digests import Draws
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, exact_line, loads
from manyhands.models.simulated.model import simulate

_MAX_REQUEST = 256 * 1024 * 1024
_PIECE = 24
FAULTS = ("429", "500", "truncated", "hang", "malformed", "unreadable", "paid_500")
_PAID = ("unreadable", "paid_500")
"""Faults that ``/stats`` names only if there were any."""
_UNBOUNDED_ANSWER = 100_000
"""Tokens of a full answer to a request that sets no bound."""
_MESSAGE_TOKENS, _IMAGE_TOKENS = 8, 1500
_MILLION = 1_000_000.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the server does. Rates are shares (0 to 1) of requests; which of them are hit follows from the seed and the request's number."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    seed: int = 0
    latency: float = 0.0
    """Seconds before each answer."""
    latency_jitter: float = 0.0
    """Seconds by which ``latency`` varies at most, either way."""
    rate_429: float = 0.0
    """Answered with 429."""
    retry_after: float = 0.2
    """Seconds: the ``Retry-After`` of a 429."""
    rate_500: float = 0.0
    """Answered with 500."""
    rate_truncated: float = 0.0
    """Cut off in mid-body."""
    rate_hang: float = 0.0
    """Held until the client leaves, or for ``hang_seconds``."""
    hang_seconds: float = 60.0
    rate_malformed: float = 0.0
    """Answered with a tool call that is no JSON or names no known tool."""
    rate_unreadable: float = 0.0
    """Answered with a usage and no choices."""
    rate_paid_500: float = 0.0
    """Answered with 500 after the answer was made."""
    fill: bool = False
    """Whether answers count as having used as many output tokens as they may have (``max_tokens``; 100,000 without)."""
    answer_tokens: int | None = None
    """Output tokens that answers count as having used, whatever they may have."""
    dense: bool = False
    """Whether an input token is counted for each byte, and some for messages and images."""
    input_price: float = 0.0
    """US dollars per million tokens."""
    output_price: float = 0.0
    """US dollars per million tokens."""
    no_usage: bool = False
    """Whether answers don't say what they used."""
    requests_per_second: float | None = None
    """Requests beyond that are answered with 429."""
    log_file: Path | None = None
    """A JSON line for each request (number, time, digest of its body, fault, seed that it came with), flushed before it is answered."""

    def __post_init__(self) -> None:
        rates = self.rates
        if any(not 0 <= rate <= 1 for rate in rates) or sum(rates) > 1 + 1e-9:
            raise UserError("each fault rate must be between 0 and 1, and all together at most 1")
        if min(self.latency, self.latency_jitter, self.retry_after, self.hang_seconds) < 0:
            raise UserError("latency, latency_jitter, retry_after and hang_seconds must be 0 or more seconds")
        if self.requests_per_second is not None and self.requests_per_second <= 0:
            raise UserError("requests_per_second must be more than 0")

    @property
    def rates(self) -> tuple[float, ...]:
        """The shares of the faults, in their order."""
        return (
            self.rate_429,
            self.rate_500,
            self.rate_truncated,
            self.rate_hang,
            self.rate_malformed,
            self.rate_unreadable,
            self.rate_paid_500,
        )


@dataclass(slots=True)
class _Bucket:
    """A token bucket that holds one second's worth of requests."""

    rate: float
    level: float = field(init=False)
    filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = max(1.0, self.rate)
        self.filled_at = time.monotonic()

    def wait(self) -> float:
        """Take one; 0, or the seconds until there is one to take."""
        now = time.monotonic()
        self.level = min(max(1.0, self.rate), self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.level >= 1.0:
            self.level -= 1.0
            return 0.0
        return (1.0 - self.level) / self.rate


class SimulatedServer:
    """``POST /v1/chat/completions`` (also streamed), ``GET /v1/models`` and ``GET /stats``. An async context manager;
    ``base_url`` ends in ``/v1``."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self.base_url = ""
        self.requests = 0
        self._counts: Counter[str] = Counter()
        self._seen: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._answered_again = 0
        self._used = {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}
        rate = self.options.requests_per_second
        self._bucket = _Bucket(rate) if rate is not None else None
        self._log: TextIO | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Raises UserError if the address is taken or the log can't be written."""
        options = self.options
        try:
            if options.log_file is not None:
                self._log = open(options.log_file, "a", encoding="utf-8")  # noqa: SIM115 - closed by stop
            # handler_cancellation: a hanging request ends when its client leaves.
            self._runner = web.AppRunner(self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await self._runner.setup()
            await web.TCPSite(self._runner, options.host, options.port, backlog=4096).start()
        except OSError as error:
            await self.stop()
            raise UserError(f"can't serve on {options.host}:{options.port}: {error}") from None
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.base_url = f"http://{host}:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._log is not None:
            self._log.close()

    def stats(self) -> dict[str, Any]:
        """Counts so far. ``distinct``: different request bodies; ``duplicates``: requests whose body had come before;
        ``answered_again``: those of them whose body had been answered before (a repeated paid call); ``used``: tokens and US dollars of
        all answers that were made, whether or not they arrived."""
        return {
            "total": self.requests,
            "ok": self._counts["ok"],
            "faults": {name: self._counts[name] for name in FAULTS if name not in _PAID or self._counts[name]},
            "invalid": self._counts["invalid"],
            "distinct": len(self._seen),
            "duplicates": self.requests - self._counts["invalid"] - len(self._seen),
            "answered_again": self._answered_again,
            "used": dict(self._used),
        }

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_REQUEST)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/stats", self._stats)
        return app

    async def _models(self, _request: web.Request) -> web.Response:
        model = {"id": "simulated", "object": "model", "created": 0, "owned_by": "manyhands"}
        return _json({"object": "list", "data": [model]})

    async def _stats(self, _request: web.Request) -> web.Response:
        return _json(self.stats())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests += 1
        number = self.requests
        try:
            fields = _checked(loads(body))
        except ValueError as error:
            self._counts["invalid"] += 1
            return _error(400, f"invalid request: {error}", "invalid_request_error")
        digest = hashlib.blake2b(body, digest_size=8).digest()
        self._seen.add(digest)
        draws = Draws(self.options.seed, "request", number)
        wait = self._bucket.wait() if self._bucket is not None else 0.0
        fault = "429" if wait else self._fault(draws)
        self._write_log(number, digest, fault, fields.get("seed"))
        if fault == "429":
            self._counts["429"] += 1
            return _too_many(wait or self.options.retry_after)
        await self._take_time(draws)
        if fault is None or fault == "malformed":
            return await self._answer(request, fields, body, fault, draws)
        self._counts[fault] += 1
        return await self._break(request, fields, body, fault)

    def _fault(self, draws: Draws) -> str | None:
        drawn = draws.below(1 << 32) / (1 << 32)
        for name, rate in zip(FAULTS, self.options.rates, strict=True):
            if drawn < rate:
                return name
            drawn -= rate
        return None

    def _write_log(self, number: int, digest: bytes, fault: str | None, seed: Json) -> None:
        if self._log is not None:
            entry = {"number": number, "time": time.time(), "digest": digest.hex(), "fault": fault, "seed": seed}
            self._log.write(exact_line(entry).decode())
            self._log.flush()

    async def _take_time(self, draws: Draws) -> None:
        options = self.options
        seconds = options.latency
        if options.latency_jitter:
            seconds += options.latency_jitter * (draws.below(2001) - 1000) / 1000
        if seconds > 0:
            await asyncio.sleep(seconds)

    async def _answer(
        self, request: web.Request, fields: dict[str, Any], body: bytes, fault: str | None, draws: Draws
    ) -> web.StreamResponse:
        payload, digest = self._made(fields, body), hashlib.blake2b(body, digest_size=8).digest()
        if fault == "malformed" and _spoil(payload, fields, draws):
            self._counts["malformed"] += 1
        else:
            self._counts["ok"] += 1
        if digest in self._answered:
            self._answered_again += 1
        self._answered.add(digest)
        if fields.get("stream"):
            return await _stream(request, payload, bool((fields.get("stream_options") or {}).get("include_usage")))
        return _json(payload)

    def _made(self, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
        """An answer, entered in the books."""
        payload = simulate(
            fields["messages"],
            fields.get("tools") or (),
            seed=self.options.seed,
            request_seed=fields.get("seed"),
            model=str(fields.get("model", "simulated")),
            response_format=fields.get("response_format"),
        )
        usage = payload["usage"]
        self._count(usage, fields, body)
        self._used["input_tokens"] += usage["prompt_tokens"]
        self._used["output_tokens"] += usage["completion_tokens"]
        self._used["cost"] += usage["cost"]
        if self.options.no_usage:
            del payload["usage"]
        return payload

    def _count(self, usage: dict[str, Any], fields: dict[str, Any], body: bytes) -> None:
        """Count an answer's tokens and its cost as the options say."""
        options = self.options
        if options.dense:
            usage["prompt_tokens"] = _dense(fields, body)
        if options.fill:
            allowed = fields.get("max_completion_tokens") or fields.get("max_tokens")
            usage["completion_tokens"] = allowed if isinstance(allowed, int) else _UNBOUNDED_ANSWER
        if options.answer_tokens is not None:
            usage["completion_tokens"] = options.answer_tokens
        used_input, used_output = usage["prompt_tokens"], usage["completion_tokens"]
        usage["total_tokens"] = used_input + used_output
        usage["cost"] = (used_input * options.input_price + used_output * options.output_price) / _MILLION

    async def _break(self, request: web.Request, fields: dict[str, Any], body: bytes, fault: str) -> web.StreamResponse:
        if fault == "paid_500":
            self._made(fields, body)
        if fault in ("500", "paid_500"):
            return _error(500, "simulated server error", "server_error")
        if fault == "hang":
            await asyncio.sleep(self.options.hang_seconds)
            return _error(504, "simulated hang", "server_error")
        payload = self._made(fields, body)
        if fault == "unreadable":
            return _json({**payload, "choices": []})
        whole = dumps(payload)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(whole)
        await response.prepare(request)
        await response.write(whole[: len(whole) // 2])
        if request.transport is not None:
            request.transport.close()
        return response


async def serve(options: ServerOptions, ready: Callable[[SimulatedServer], None] | None = None) -> None:
    """Serve until cancelled. ``ready`` is called once the server listens. Raises UserError if it can't."""
    async with SimulatedServer(options) as server:
        if ready is not None:
            ready(server)
        await asyncio.Event().wait()


def _checked(fields: Json) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ValueError("the body must be a JSON object")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("'messages' must be a list of objects")
    if not isinstance(fields.get("tools") or [], list):
        raise ValueError("'tools' must be a list")
    return fields


def _dense(fields: dict[str, Any], body: bytes) -> int:
    """A token for each byte of a request but for its images, and some for each message and each image."""
    images = [
        len(dumps(part))
        for message in fields["messages"]
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    return len(body) - sum(images) + _IMAGE_TOKENS * len(images) + _MESSAGE_TOKENS * len(fields["messages"])


def _json(payload: Json) -> web.Response:
    return web.Response(body=dumps(payload), content_type="application/json")


def _error(status: int, message: str, kind: str, headers: dict[str, str] | None = None) -> web.Response:
    body = dumps({"error": {"message": message, "type": kind, "code": status}})
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _too_many(wait: float) -> web.Response:
    return _error(429, "simulated rate limit", "rate_limit_error", {"Retry-After": f"{wait:.3f}"})


def _spoil(payload: dict[str, Any], fields: dict[str, Any], draws: Draws) -> bool:
    """Break a tool call of the answer (or its final text, into one); False where there are no tools."""
    if not fields.get("tools"):
        return False
    choice = payload["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls")
    if not calls:
        name = fields["tools"][0]["function"]["name"]
        call_id = f"call_{Draws(draws.name, 'spoilt').name[:12]}"
        calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}]
        message.update(content=None, tool_calls=calls)
        choice["finish_reason"] = "tool_calls"
    function = calls[0]["function"]
    if draws.chance(50):
        function["arguments"] = '{"unfinished": "' + function["arguments"][:20].replace('"', "'")
    else:
        function["name"] = "imaginary_tool"
    return True


async def _stream(request: web.Request, payload: dict[str, Any], with_usage: bool) -> web.StreamResponse:
    """The answer as server-sent events, as OpenAI streams it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in _chunks(payload, with_usage):
        await response.write(b"data: " + dumps(chunk) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _chunks(payload: dict[str, Any], with_usage: bool) -> Iterator[dict[str, Any]]:
    frame = {name: payload[name] for name in ("id", "created", "model", "system_fingerprint")}
    frame["object"] = "chat.completion.chunk"
    choice = payload["choices"][0]
    for delta in _deltas(choice["message"]):
        yield {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if with_usage:
        yield {**frame, "choices": [], "usage": payload["usage"]}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning", "content"):
        text = message.get(name) or ""
        for start in range(0, len(text), _PIECE):
            yield {name: text[start : start + _PIECE]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [opening]}
        arguments = function["arguments"]
        for start in range(0, len(arguments), _PIECE):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + _PIECE]}}]}
