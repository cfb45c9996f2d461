"""Getting pictures from the web by their addresses: from hosts that the rules of the network allow, and within bounds.

The rules lie where connections are made: a name is looked up once, and the connection goes to an address that passed. Redirects are
followed here, one by one, so that each is judged like the address that it started from.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from manyhands.core import VERSION
from manyhands.network.addresses import read_host
from manyhands.network.connecting import Refused, Unreachable, allowed_addresses, is_ours
from manyhands.network.rules import NetworkRules
from manyhands.tools.services.pictures import MAX_BYTES
from manyhands.tools.services.steps import ServiceError

if TYPE_CHECKING:
    import aiohttp

SECONDS = 30.0
"""For all answers on the way to a picture."""
REDIRECTS = 5
_HEADERS = {"User-Agent": f"manyhands/{VERSION}", "Accept": "image/*"}


class PictureFetcher:
    """Gets pictures from the web, for one process. To be closed."""

    def __init__(self, rules: NetworkRules) -> None:
        self._rules = rules
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, address: str) -> bytes:
        """The file at an address. Raises ServiceError, whose message is for a model, if it can't be had."""
        import aiohttp  # it takes long to import, and is rarely needed

        url = address
        try:
            async with asyncio.timeout(SECONDS):
                for _ in range(REDIRECTS + 1):
                    self._check(url)
                    async with self._opened().get(url, allow_redirects=False, headers=_HEADERS) as response:
                        if not 300 <= response.status < 400:
                            return await _body(address, response)
                        url = urljoin(url, response.headers.get("Location", ""))
        except (Refused, Unreachable) as error:
            raise ServiceError(f"{address} can't be read: {error}") from None
        except TimeoutError:
            raise ServiceError(f"{address} can't be read: no whole answer within {SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServiceError(f"{address} can't be read: {_reason(error)}") from None
        raise ServiceError(f"{address} can't be read: it leads on more than {REDIRECTS} times")

    async def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _check(self, url: str) -> None:
        """Raises Refused, and ValueError for what is no address of the web."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it does not start with http:// or https://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("it has a user name or password in it")
        host = read_host(parts.hostname)
        if (problem := self._rules.host(host)) is not None:
            raise Refused(f"{host} {problem}")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            connector = aiohttp.TCPConnector(resolver=_resolver(self._rules), use_dns_cache=False, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session


def _resolver(rules: NetworkRules) -> Any:
    """Gives names only addresses that may be connected to. (Addresses need none: ``PictureFetcher`` has checked them.)"""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Checked(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            found = await allowed_addresses(read_host(host), rules)
            if ours := [address for address in found if is_ours(address) and not rules.lists(address)]:
                raise Refused(f"{host} has the address {ours[0]}, which is this machine's own")
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in found
            ]

        async def close(self) -> None:
            return

    return Checked()


async def _body(address: str, response: aiohttp.ClientResponse) -> bytes:
    if response.status != 200:
        raise ServiceError(f"{address} can't be read: HTTP {response.status}")
    found = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        found += chunk
        if len(found) > MAX_BYTES:
            raise ServiceError(f"{address} can't be read: it has more than {MAX_BYTES:,} bytes")
    return bytes(found)


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    return " ".join(str(getattr(cause, "strerror", None) or cause).split())[:200] or type(error).__name__
