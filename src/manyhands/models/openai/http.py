"""Posts to an OpenAI-compatible endpoint, over aiohttp.

aiohttp is used directly because this is the hot path: a tenth of the CPU per call of the vendors' clients (measured). The body of an answer
is read up to a bound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from manyhands.core.jsonio import Json, dumps
from manyhands.core.redaction import KNOWN, REDACTED, protect
from manyhands.models.headers import secrets_in
from manyhands.models.openai.errors import classify_payload, read_json
from manyhands.models.openai.request import Endpoint, request_headers

MAX_RESPONSE = 64 * 1024 * 1024
MAX_CONNECT = 10.0
"""Seconds for a connection at most. A host that drops what it gets is reported, and tried again, long before a call's own time is over."""
NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
"""Errors that come before the request is on its way."""


_MIN_OWN = 4
"""Characters below which the value of a header is too common to be taken out of refusals."""


class TooLarge(ValueError):
    """The body passes the bound."""


async def answer_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """All of an answer's body, unpacked. Raises TooLarge, and what aiohttp raises."""
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > max_bytes:
            response.close()
            raise TooLarge(f"the answer is larger than {max_bytes:,} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class EndpointConnections:
    """Pooled connections to an endpoint, with or without a key. They are opened by the first call, in its loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        max_connect: float = MAX_CONNECT,
        max_response: int = MAX_RESPONSE,
    ) -> None:
        """``headers``: a person's own; ``max_connect``: seconds; ``max_response``: bytes."""
        protect([api_key] if api_key else [])
        protect(secrets_in(headers or {}))
        self.max_connect = max_connect
        self._base_url = endpoint.base_url
        self._headers = request_headers(endpoint, api_key or None, headers)
        self._max_response = max_response
        own = (value for value in (headers or {}).values() if len(value) >= _MIN_OWN)
        self._own = sorted(own, key=len, reverse=True)  # one may be part of another
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    async def post(self, url: str, body: bytes, seconds: float) -> tuple[int, Any, bytes]:
        """Status, headers and body of the answer, without known secrets; redirects are not followed. ``seconds``: for all of it. Raises
        TooLarge, and what aiohttp raises."""
        call = self._opened().post(url, data=body, timeout=self._timeout(seconds), allow_redirects=False)
        async with call as response:
            return await self._read(response)

    async def get(self, url: str, seconds: float) -> tuple[int, Any, bytes]:
        """The like for a request without a body."""
        call = self._opened().get(url, timeout=self._timeout(seconds), allow_redirects=False)
        async with call as response:
            return await self._read(response)

    def problem(self, error: BaseException, seconds: float) -> str:
        """What an error that aiohttp raised says to people, in one line. ``seconds``: for the whole call."""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return f"can't connect: no connection within {min(self.max_connect, seconds):g} s"
        if isinstance(error, TimeoutError):
            return f"no answer within {seconds:g} s"
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return "can't connect: the host name is not known"
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            return f"can't connect: {os.strerror(number) if number and number > 0 else error.os_error}"
        if isinstance(error, aiohttp.ClientPayloadError):
            return "the connection broke in the middle of the answer"
        text = " ".join(KNOWN.text(str(error)).split())
        return f"the connection broke: {text or type(error).__name__}"

    async def close(self) -> None:
        """Close the connections. The next call would open new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The limiter bounds the connections.
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                proxy=_proxy_for(self._base_url),
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[int, Any, bytes]:
        """An answer without secrets. A refusal often repeats the request's headers, of which no value is recorded; a model's words stay as
        they are."""
        status, headers = response.status, response.headers
        content = _without_secrets(await answer_body(response, self._max_response))
        if not self._own or (status == 200 and content[:1] == b"{" and b'"error"' not in content):
            return status, headers, content
        payload = read_json(content)
        if payload is None:
            content = self._without_own(content.decode("utf-8", "replace")).encode()
        elif status != 200 or classify_payload(payload, 0.0) is not None:
            content = dumps(self._without_own(payload))
        if "Location" in headers:
            changed = headers.copy()
            changed["Location"] = self._without_own(headers["Location"])
            return status, changed, content
        return status, headers, content

    def _without_own(self, value: Json) -> Json:
        """Without the values of a person's headers in its texts. Numbers and names, by which errors are classified, stay."""
        if isinstance(value, str):
            for own in self._own:
                value = value.replace(own, REDACTED)
        elif isinstance(value, list):
            return [self._without_own(part) for part in value]
        elif isinstance(value, dict):
            return {name: self._without_own(part) for name, part in value.items()}
        return value

    def _timeout(self, seconds: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(seconds)
        if timeout is None:
            timeout = self._timeouts[seconds] = aiohttp.ClientTimeout(
                total=seconds, connect=min(self.max_connect, seconds)
            )
        return timeout


def _without_secrets(content: bytes) -> bytes:
    """An answer as it may be recorded: a model repeats what a server or a tool showed it, and a server what it was sent."""
    if not KNOWN.is_in(content):
        return content
    payload = read_json(content)
    return KNOWN.data(content) if payload is None else dumps(KNOWN.json(payload))


def _proxy_for(base_url: str) -> str | None:
    """The proxy that the environment names for a URL, found once rather than for each request."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)
