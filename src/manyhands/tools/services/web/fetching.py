"""Getting files of the web by their addresses: public hosts only, within bounds, and as their owners allow.

The rules lie where connections are made (``network.connecting``): a name is looked up once, and the connection goes to an address that
passed. Redirects are followed here, one by one, so that each is judged like the address that it started from.
"""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from manyhands.core.text import shorten
from manyhands.models.openai.errors import parse_retry_after
from manyhands.network.addresses import Address, read_host, why_not_public
from manyhands.network.connecting import LookUp, Refused, Unreachable, connectable_addresses, look_up
from manyhands.network.rules import NetworkRules
from manyhands.tools.services.courtesy import MAX_RULES, USER_AGENT, Courtesy
from manyhands.tools.services.steps import ServiceError

MAX_BODY = 10 << 20
"""Bytes of a file, packed and unpacked."""
SECONDS = 20.0
"""For all answers on the way to a file; turns that are waited for do not count."""
REDIRECTS = 5
_REDIRECTING = (301, 302, 303, 307, 308)
_SHORT_WAIT = 10.0
"""Seconds that a host may ask to be left alone and is then asked again."""
_SCHEMES = ("http", "https")
_MAX_ADDRESS = 2000
_CHUNK = 1 << 16
_GZIP_OR_ZLIB = 47
_RAW_DEFLATE = -15
_HEADERS = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file of the web."""

    content: bytes
    media_type: str
    """In lower case, without parameters; empty if the server gave none."""
    charset: str | None
    final_url: str
    """The address behind all redirects."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Any
    content: bytes = b""


class DirectFetcher:
    """Gets files of the web, for one process. Must be closed.

    ``rules``: what may be connected to; ``ignore_robots``: whether files are read that a ``robots.txt`` closes to robots; ``look_up``:
    finds the addresses of names; ``seconds``, ``max_body``: see ``SECONDS`` and ``MAX_BODY``.
    """

    def __init__(
        self,
        rules: NetworkRules,
        *,
        ignore_robots: bool = False,
        look_up: LookUp = look_up,
        courtesy: Courtesy | None = None,
        seconds: float = SECONDS,
        max_body: int = MAX_BODY,
    ) -> None:
        self._rules = rules
        self._max_body = max_body
        self._ignore_robots = ignore_robots
        self._look_up = look_up
        self._courtesy = courtesy or Courtesy()
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, address: str) -> Fetched:
        """Get a file. Raises ServiceError, whose message is for a model, if it can't be had."""
        url, left = read_url(address), self._seconds
        for _ in range(REDIRECTS + 1):
            host = await self._checked(url)
            await self._ask_robots(url)
            async with self._courtesy.turn(str(host), paused=self._is_public(host)):
                began = time.monotonic()
                answer = await self._get(url, left, self._max_body)
                left -= time.monotonic() - began
            if answer.status not in _REDIRECTING:
                return _file(url, answer, self._max_body)
            url = _target(url, answer)
        raise ServiceError(
            f"{address} can't be read: it leads on from one address to the next, more than {REDIRECTS} times"
        )

    async def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _checked(self, url: URL) -> Address | str:
        """The host of an address. Raises ServiceError if it may not be read."""
        try:
            host = read_host(url.raw_host or "")
        except ValueError as error:
            raise ServiceError(f"{url} can't be read: {url.raw_host} {error}") from None
        problem = self._rules.host(host)
        if problem is not None:
            raise ServiceError(f"{url} can't be read: {host} {problem}")
        if not isinstance(host, str):  # aiohttp asks no resolver for it
            try:
                await connectable_addresses(host, self._rules)
            except Refused as error:
                raise ServiceError(f"{url} can't be read: {error}") from None
        return host

    async def _ask_robots(self, url: URL) -> None:
        """Raises ServiceError if robots are not wanted there."""
        if self._ignore_robots:
            return
        origin = str(url.origin())
        allowed = await self._courtesy.may_read(
            str(url.raw_host), origin, str(url), lambda: self._robots(URL(origin) / "robots.txt")
        )
        if not allowed:
            raise ServiceError(f"{url} can't be read: the robots.txt of {url.raw_host} asks programs not to read it")

    async def _robots(self, url: URL) -> str:
        """The text of a ``robots.txt``; nothing where there is none. Raises ServiceError if the host can't be reached, or
        is out of order."""
        for _ in range(REDIRECTS + 1):
            host = await self._checked(url)
            async with self._courtesy.turn(str(host), paused=False):
                answer = await self._get(url, self._seconds, MAX_RULES, cut=True)
            if answer.status not in _REDIRECTING:
                if answer.status >= 500:
                    raise ServiceError(
                        f"{url} can't be read (HTTP {answer.status}), so nothing of its host is read now"
                    )
                return answer.content.decode("utf-8", "replace") if answer.status == 200 else ""
            url = _target(url, answer)
        return ""

    async def _get(self, url: URL, seconds: float, max_body: int, *, cut: bool = False) -> _Answer:
        """One answer. ``cut``: whether more than ``max_body`` bytes are left out; else it is an error."""
        try:
            async with (
                asyncio.timeout(max(0.1, seconds)),
                self._opened().get(url, allow_redirects=False, headers=_HEADERS) as response,
            ):
                if response.status in _REDIRECTING:
                    return _Answer(response.status, response.headers)
                content = await _body(url, response, max_body, cut)
                return _Answer(response.status, response.headers, content)
        except (Refused, Unreachable) as error:
            raise ServiceError(f"{url} can't be read: {error}") from None
        except TimeoutError:
            raise ServiceError(f"{url} can't be read: no whole answer within {self._seconds:g} s") from None
        except aiohttp.ClientPayloadError:
            raise ServiceError(
                f"{url} can't be read: the answer broke off before its end, or is not well formed"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServiceError(f"{url} can't be read: {_reason(error)}") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(self._rules, self._look_up), use_dns_cache=False, force_close=True, limit=0
            )
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        return self._session

    @staticmethod
    def _is_public(host: Address | str) -> bool:
        """Whether a pause is due: a host of one's own, given by its address, is not spared."""
        return isinstance(host, str) or why_not_public(host) is None


class _CheckedResolver(AbstractResolver):
    """Gives names only addresses that may be connected to."""

    def __init__(self, rules: NetworkRules, look_up: LookUp) -> None:
        self._rules, self._look_up = rules, look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises Refused, Unreachable, or ValueError for what is no name."""
        addresses = await connectable_addresses(read_host(host), self._rules, self._look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return


def read_url(address: str) -> URL:
    """An address of the web, without its fragment. Raises ServiceError for what is none that can be read."""
    shown = shorten(address, 200)
    if len(address) > _MAX_ADDRESS:
        raise ServiceError(f"{shown} can't be read: it is longer than {_MAX_ADDRESS} characters")
    try:
        url = URL(address.strip()).with_fragment(None)
        usable = bool(url.raw_host) and url.explicit_port != 0
    except ValueError:
        usable = False
    if not usable or url.scheme not in _SCHEMES:
        raise ServiceError(f"{shown} can't be read: give a whole address that starts with http:// or https://")
    if url.raw_user is not None or url.raw_password is not None:
        raise ServiceError("an address with a user name or password can't be read; give it without them")
    return url


def _target(url: URL, answer: _Answer) -> URL:
    """Where a redirect leads."""
    location = answer.headers.get("Location")
    if not location:
        raise ServiceError(f"{url} can't be read: it leads on (HTTP {answer.status}), but does not say where")
    try:
        return read_url(str(url.join(URL(location))))
    except ValueError:
        raise ServiceError(f"{url} can't be read: it leads on to what is no address") from None
    except ServiceError as error:
        raise ServiceError(f"{url} leads on: {error}") from None


def _file(url: URL, answer: _Answer, max_body: int) -> Fetched:
    """The file in an answer. Raises ServiceError if it is an error."""
    if answer.status != 200:
        wait = parse_retry_after(answer.headers, time.time())
        asked = "" if wait is None else f", and asks not to be asked again for {wait:.0f} s"
        short = answer.status in (429, 503) and wait is not None and wait <= _SHORT_WAIT
        raise ServiceError(
            f"{url} can't be read: the server answers HTTP {answer.status}{asked}", rate_limited=short, retry_after=wait
        )
    media_type, _, parameters = answer.headers.get("Content-Type", "").partition(";")
    charset = next(
        (
            value
            for name, _, value in (part.partition("=") for part in parameters.split(";"))
            if name.strip().lower() == "charset"
        ),
        None,
    )
    return Fetched(
        _unpacked(url, answer, max_body),
        media_type.strip().lower(),
        charset and charset.strip().strip("\"'")[:40],
        str(url),
    )


async def _body(url: URL, response: aiohttp.ClientResponse, max_body: int, cut: bool) -> bytes:
    """The body as it is sent. Raises ServiceError if it is too large."""
    found = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        found += chunk
        if len(found) > max_body:
            if cut:
                return bytes(found[:max_body])
            raise _too_large(url, max_body)
    return bytes(found)


def _unpacked(url: URL, answer: _Answer, max_body: int) -> bytes:
    """Without its packing. No more is unpacked than a file may have, whatever is packed. Raises ServiceError."""
    packing = answer.headers.get("Content-Encoding", "").strip().lower()
    if packing in ("", "identity"):
        return answer.content
    if packing not in ("gzip", "x-gzip", "deflate"):
        raise ServiceError(f"{url} can't be read: it is packed as {shorten(packing, 40)}, which was not asked for")
    for form in (_GZIP_OR_ZLIB, _RAW_DEFLATE):
        unpacking = zlib.decompressobj(form)
        try:
            found = unpacking.decompress(answer.content, max_body + 1)
        except zlib.error:
            continue
        if len(found) > max_body:
            raise _too_large(url, max_body)
        if unpacking.eof:
            return found
    raise ServiceError(f"{url} can't be read: it is not packed as its server says")


def _too_large(url: URL, max_body: int) -> ServiceError:
    return ServiceError(f"{url} can't be read: it is larger than {max_body >> 20} MB")


def _reason(error: Exception) -> str:
    """Why there is no answer, in a few words."""
    cause = getattr(error, "os_error", None) or error
    return shorten(" ".join(str(getattr(cause, "strerror", None) or cause).split()) or type(error).__name__, 200)
