"""A service that one has access to: which one it is, where it is, and requests to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from manyhands.core.errors import UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.models.addresses import read_address
from manyhands.models.openai.errors import classify, read_json
from manyhands.tools.services.courtesy import USER_AGENT
from manyhands.tools.services.steps import ServiceAnswer, ServiceError
from manyhands.tools.services.web.providers import PROVIDERS, Provider, ServiceRequest

if TYPE_CHECKING:
    import aiohttp

SECONDS = 60.0
"""For one answer."""
MAX_ANSWER = 20 << 20
"""Bytes of one answer."""
_CHUNK = 1 << 16
_Found = TypeVar("_Found")


def chosen_provider(
    option: str, name: str | None, among: Collection[str], environ: Mapping[str, str]
) -> dict[str, str] | None:
    """What is recorded of a service: the named one, else the first one that there is a key for; None if there is none. ``option``: the
    setting that names it. Raises UserError if what it needs is missing, or its address is none."""
    if name is None:
        name = next((each for each in among if PROVIDERS[each].is_set_up(environ)), None)
        if name is None:
            return None
    provider = PROVIDERS[name]
    if not provider.is_set_up(environ):
        raise UserError(f"--{option} {name}: {provider.title} needs {provider.needs} in the environment")
    address = environ.get(provider.url_variable, "").strip() or provider.base_url or ""
    try:
        return {"provider": name, "base_url": read_address(address).rstrip("/")}
    except ValueError as error:
        raise UserError(f"{provider.url_variable} {error}") from None


def provider_secrets(option: str, record: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The key of a recorded service, if it has one. Raises UserError if it needs one and there is none."""
    provider = PROVIDERS[record["provider"]]
    key = provider.key(environ)
    if key is None and record["base_url"] == provider.base_url:
        raise UserError(f"--{option} {provider.name}: {provider.title} needs {provider.needs} in the environment")
    return {} if key is None else {provider.name: key}


class Access:
    """A service in one process of a run. ``key``: None where none is needed. Must be closed."""

    def __init__(self, provider: Provider, base_url: str, key: str | None) -> None:
        self.provider, self.base_url, self._key = provider, base_url, key
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def answer(
        self, request: ServiceRequest, read: Callable[[Any], _Found], record: Callable[[_Found], Json]
    ) -> ServiceAnswer:
        """What the service answers. ``read``: makes something of the answer, of which ``record`` is what a step keeps. Raises
        ServiceError."""
        payload = await self._payload(request)
        cost = self.provider.cost(payload)
        try:
            return ServiceAnswer(record(read(payload)), cost)
        except ServiceError as error:
            raise ServiceError(f"{self.provider.title}: {error}", unknown=True, cost=cost) from None
        except (LookupError, TypeError, ValueError, AttributeError):
            said = f"{self.provider.title} gave an answer that can't be read"
            raise ServiceError(said, unknown=True, cost=cost) from None

    async def _payload(self, request: ServiceRequest) -> Json:
        import aiohttp  # takes long, and most runs ask no service

        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=True)
        title = self.provider.title
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        headers |= {} if self._key is None else self.provider.auth(self._key)
        try:
            async with (
                asyncio.timeout(SECONDS),
                self._session.request(
                    request.method,
                    self.base_url + request.path,
                    json=request.body,
                    params=dict(request.query),
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                status, answered, body = response.status, response.headers, await _bounded_body(title, response)
        except TimeoutError:
            raise ServiceError(
                f"{title} gave no answer within {SECONDS:g} s; try again later", passing=True, unknown=True
            ) from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or "no connection"
            raise ServiceError(f"{title} can't be reached at {self.base_url}: {reason}", passing=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServiceError(
                f"{title} broke off its answer ({type(error).__name__}); try again later", passing=True, unknown=True
            ) from None
        if status == 200:
            return read_json(body)
        problem = classify(status, answered, body, time.time())
        hint = "; its key is wrong or has no rights" if problem.cause is Cause.AUTHENTICATION else ""
        raise ServiceError(
            f"{title} refuses the request ({problem.message}){hint}",
            passing=problem.passing,
            rate_limited=problem.rate_limited,
            retry_after=problem.retry_after,
            unknown=problem.unknown,
        )


async def _bounded_body(title: str, response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        found += chunk
        if len(found) > MAX_ANSWER:
            raise ServiceError(f"{title} answers with more than {MAX_ANSWER >> 20} MB", unknown=True)
    return bytes(found)
