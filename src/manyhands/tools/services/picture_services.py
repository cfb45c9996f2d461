"""Services that make pictures, each asked in its own way. Their requests and answers are those of their documentation.

- ``openai``: ``POST /images/generations`` of OpenAI's API, which many servers have.
- ``fal``: the queue of fal.ai. What was ordered is a step of its own, so that a resume asks for the same picture again.
- ``chat``: chat completions whose answer holds pictures (``modalities``), as OpenRouter has them.
- ``simulated``: coloured squares, without any service.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from manyhands.core.errors import ToolError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.models.openai.errors import classify, classify_payload, read_json
from manyhands.models.openai.response import parse_usage
from manyhands.models.pricing import PriceTable
from manyhands.tools.services.artifacts import ArtifactStore, data_of
from manyhands.tools.services.pictures import drawn, size_of
from manyhands.tools.services.steps import Charge, ServiceAnswer, ServiceError, ToolSteps

if TYPE_CHECKING:
    from manyhands.tools.services.web.fetching import DirectFetcher

Shape = Literal["landscape", "square", "portrait"]
SIZES: dict[Shape, tuple[int, int]] = {"landscape": (1536, 1024), "square": (1024, 1024), "portrait": (1024, 1536)}
"""Pixels."""
OUTPUT_TOKENS = 10_000
"""That a picture has at most, where pictures are billed by tokens. (OpenAI's largest has 6,240.)"""
SIMULATED = "simulated"
_FAL_SIZES: dict[Shape, str] = {"landscape": "landscape_4_3", "square": "square_hd", "portrait": "portrait_4_3"}
_ALLOWED = 1000
"""Tokens of a request besides its prompt, at most."""
_POLL = (0.25, 3.0)
"""Seconds between two looks at the queue: at first, and at most."""
_SIMULATED_SCALE = 16


@dataclass(frozen=True, slots=True)
class Order:
    """A picture that is wanted."""

    prompt: str
    shape: Shape
    seconds: float
    """That there are for it."""


class Studio:
    """A service that makes pictures, ready to be asked."""

    def __init__(
        self,
        record: Mapping[str, Any],
        connections: Any,
        files: Any,
        artifacts: ArtifactStore,
        prices: PriceTable,
        fetcher: DirectFetcher | None,
    ) -> None:
        """``connections``, ``files``: of ``models.openai.http``, the latter without a key; ``fetcher``: gets files of the
        web. All are None for the simulated service."""
        self.provider: str = record["provider"]
        self.model: str = record["model"]
        self._quality: str | None = record.get("quality")
        self._base_url: str = record["base_url"] or ""
        self._connections = connections
        self._files = files
        self._artifacts = artifacts
        self._price = prices.price(self.model)
        self._fetcher = fetcher
        self._reading = asyncio.Semaphore(1)
        """Pictures are unpacked one at a time, as each takes up to 200 MB meanwhile."""

    async def make(self, steps: ToolSteps, order: Order) -> dict[str, Any]:
        """Have a picture made: ``artifact``, its name; ``type``, ``width`` and ``height``. Raises ServiceError, and ItemError if the run's
        budget does not allow for it."""
        request = {"provider": self.provider, "model": self.model, "prompt": order.prompt, "shape": order.shape}
        request |= {"quality": self._quality} if self._quality else {}

        async def send() -> ServiceAnswer:
            return await _SENDERS[self.provider](self, order)

        found: dict[str, Any] = await steps.request(self._charge(order), request, send)
        if "artifact" in found:
            return found

        async def get() -> ServiceAnswer:
            return ServiceAnswer(await self._kept(await self._collected(found, order)))

        kept: dict[str, Any] = await steps.request(None, found, get, service=self.provider)
        return kept

    def _charge(self, order: Order) -> Charge:
        if self.provider == SIMULATED:
            return Charge(SIMULATED, "picture", 0.0)
        if self._price is None or not (self._price.input or self._price.output):
            return Charge(self.provider, self.model, None if self._price is None else self._price.request)
        asked = len(order.prompt.encode()) + _ALLOWED
        dearest = self._price.worst_case(asked, OUTPUT_TOKENS)
        of_picture = dearest - self._price.worst_case(asked, 0)
        worst = Reserve(asked + OUTPUT_TOKENS, dearest, output_tokens=OUTPUT_TOKENS, output_cost=of_picture)
        return Charge(self.provider, self.model, dearest, worst)

    async def _by_openai(self, order: Order) -> ServiceAnswer:
        width, height = SIZES[order.shape]
        body = {"model": self.model, "prompt": order.prompt, "n": 1, "size": f"{width}x{height}"}
        body |= {"quality": self._quality} if self._quality else {}
        payload = await self._posted("/images/generations", body, order)
        data = payload.get("data")
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        return await self._answer(payload, first.get("b64_json"), first.get("url"))

    async def _by_chat(self, order: Order) -> ServiceAnswer:
        said = f"{order.prompt}\n\n(Answer with one picture, in {order.shape} format.)"
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": said}],
            "modalities": ["image", "text"],
        }
        body |= {"usage": {"include": True}} if "openrouter" in self._base_url else {}
        payload = await self._posted("/chat/completions", body, order)
        try:
            message = payload["choices"][0]["message"]
            pictures = message.get("images") or []
            url = pictures[0]["image_url"]["url"] if pictures else None
        except (LookupError, TypeError, AttributeError):
            raise self._billed_failure(payload, "gave an answer that can't be read") from None
        if url is None and isinstance(message.get("content"), str) and message["content"].strip():
            words = " ".join(message["content"].split())[:300]
            return self._billed(payload, {"failure": f"{self.model} made no picture, but said: {words}"})
        return await self._answer(payload, None, url)

    async def _by_fal(self, order: Order) -> ServiceAnswer:
        body = {"prompt": order.prompt, "image_size": _FAL_SIZES[order.shape], "num_images": 1, "output_format": "png"}
        payload = await self._posted(f"/{self.model}", body, order)
        ordered = payload.get("request_id")
        if not isinstance(ordered, str):
            raise ServiceError(f"{self.model} gave an answer without a request_id", unknown=True)
        beginning = f"{self._base_url}/{self.model}/requests/{ordered}"
        own = {name: payload.get(name) for name in ("status_url", "response_url")}
        urls = {
            "status_url": own["status_url"] if self._is_own(own["status_url"]) else f"{beginning}/status",
            "response_url": own["response_url"] if self._is_own(own["response_url"]) else beginning,
        }
        return ServiceAnswer({"request_id": ordered, **urls})

    async def _simulated(self, order: Order) -> ServiceAnswer:
        seed = hashlib.blake2b(f"{order.shape}\n{order.prompt}".encode("utf-8", "replace")).digest()
        width, height = (side // _SIMULATED_SCALE for side in SIZES[order.shape])
        found = await self._kept(await asyncio.to_thread(drawn, seed, width, height))
        return ServiceAnswer({**found, "simulated": True}, 0.0, Usage(calls=1, simulated_calls=1))

    async def _collected(self, found: Mapping[str, Any], order: Order) -> bytes:
        """The picture that a first answer refers to."""
        if "failure" in found:
            raise ServiceError(found["failure"])
        if "url" in found:
            return await self._downloaded(found["url"], order)
        payload = await self._done(found, order)
        pictures = payload.get("images")
        first = pictures[0] if isinstance(pictures, list) and pictures else None
        url = first.get("url") if isinstance(first, dict) else None
        if not isinstance(url, str):
            raise ServiceError(f"{self.model} made no picture: {_in_short(payload)}")
        return await self._downloaded(url, order)

    async def _done(self, found: Mapping[str, Any], order: Order) -> dict[str, Any]:
        """The result of what was ordered from a queue, once it is there."""
        pause, most = _POLL
        until = time.monotonic() + order.seconds
        while (state := (await self._got(found["status_url"], order)).get("status")) in ("IN_QUEUE", "IN_PROGRESS"):
            if time.monotonic() + pause > until:
                raise ServiceError(f"{self.model} has not made the picture within {order.seconds:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, most)
        if state != "COMPLETED":
            raise ServiceError(f"{self.model} made no picture: its state is {str(state)[:100]}")
        return await self._got(found["response_url"], order)

    async def _answer(self, payload: dict[str, Any], coded: Any, url: Any) -> ServiceAnswer:
        """What an answer with a picture, or its address, comes to."""
        if isinstance(coded, str):
            url = f"data:;base64,{coded}"
        if isinstance(url, str) and url.startswith("data:"):
            try:
                return self._billed(payload, await self._kept(data_of(url) or b""))
            except ToolError as error:
                return self._billed(payload, {"failure": f"{self.model} gave no picture that can be read: {error}"})
        if isinstance(url, str):
            return self._billed(payload, {"url": url})
        raise self._billed_failure(payload, f"made no picture: {_in_short(payload)}")

    def _billed_failure(self, payload: Any, what: str, *, unknown: bool = True) -> ServiceError:
        """An answer without a picture, with what the service says that it cost."""
        billed = self._billed(payload if isinstance(payload, dict) else {}, None)
        return ServiceError(f"{self.model} {what}", unknown=unknown, cost=billed.cost, usage=billed.usage)

    def _billed(self, payload: Mapping[str, Any], content: Json) -> ServiceAnswer:
        """With what the service says that it used."""
        reported = payload.get("usage")
        usage, cost = parse_usage(reported) if isinstance(reported, dict) else (ZERO, None)
        if cost is None and usage.total_tokens and self._price is not None:
            cost = self._price.cost(usage)
        return ServiceAnswer(content, cost, usage)

    async def _kept(self, data: bytes) -> dict[str, Any]:
        async with self._reading:
            media_type, width, height = await asyncio.to_thread(size_of, data)
        name = await self._artifacts.put(data, media_type)
        return {"artifact": name, "type": media_type, "width": width, "height": height}

    async def _downloaded(self, url: str, order: Order) -> bytes:
        if (data := data_of(url)) is not None:
            return data
        if self._fetcher is not None and not self._is_own(url):
            return (await self._fetcher.fetch(url)).content
        status, headers, content = await self._exchange(self._files.get(url, order.seconds), order, orders=False)
        if status != 200:
            raise self._refused(status, headers, content)
        return content

    async def _posted(self, path: str, body: Mapping[str, Any], order: Order) -> dict[str, Any]:
        call = self._connections.post(f"{self._base_url}{path}", dumps(body), order.seconds)
        return self._read(*await self._exchange(call, order))

    async def _got(self, url: str, order: Order) -> dict[str, Any]:
        return self._read(*await self._exchange(self._connections.get(url, order.seconds), order, orders=False))

    async def _exchange(
        self, call: Awaitable[tuple[int, Any, bytes]], order: Order, *, orders: bool = True
    ) -> tuple[int, Any, bytes]:
        """``orders``: whether it is to be paid for, so that it is not sent twice."""
        import aiohttp  # most runs don't need it here

        from manyhands.models.openai.http import NEVER_SENT, TooLarge

        try:
            return await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = self._connections.problem(error, order.seconds)
            sent = not isinstance(error, NEVER_SENT)
            raise ServiceError(
                f"{self.provider} gave no answer: {said}", passing=not (sent and orders), unknown=sent
            ) from None
        except TooLarge as error:
            raise ServiceError(f"{self.provider}: {error}", unknown=True) from None

    def _read(self, status: int, headers: Any, content: bytes) -> dict[str, Any]:
        if status not in (200, 202):
            raise self._refused(status, headers, content)
        payload = read_json(content)
        problem = classify_payload(payload, time.time())
        if problem is not None:
            raise self._billed_failure(payload, f"made no picture: {problem.message}", unknown=problem.unknown)
        if not isinstance(payload, dict):
            raise ServiceError(f"{self.provider} gave an answer that can't be read", unknown=True)
        return payload

    def _refused(self, status: int, headers: Any, content: bytes) -> ServiceError:
        problem = classify(status, headers, content, time.time())
        hint = "; its key is wrong or has no rights" if problem.cause is Cause.AUTHENTICATION else ""
        return ServiceError(
            f"{self.provider} refuses the request ({problem.message}){hint}",
            passing=problem.passing,
            rate_limited=problem.rate_limited,
            retry_after=problem.retry_after,
            unknown=problem.unknown,
        )

    def _is_own(self, url: Any) -> bool:
        """Whether an address is the service's own, so that it may get the key."""
        return isinstance(url, str) and _origin(url) == _origin(self._base_url)


_SENDERS: Mapping[str, Callable[[Studio, Order], Awaitable[ServiceAnswer]]] = {
    "openai": Studio._by_openai,
    "fal": Studio._by_fal,
    "chat": Studio._by_chat,
    SIMULATED: Studio._simulated,
}


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return "", None, None


def _in_short(payload: Mapping[str, Any]) -> str:
    said = payload.get("detail") or payload.get("error") or payload.get("message") or "it gave no reason"
    return " ".join(str(said).split())[:300]
