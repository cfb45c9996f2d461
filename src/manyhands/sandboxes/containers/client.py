"""The connection to a container engine, over aiodocker.

Own code does what aiodocker has no call for: ``request`` (an image's look-up at its registry by Docker, Podman's own account of itself,
streamed archives and exports), on aiodocker's session. A client belongs to one process and event loop: in a forked process, or another
loop, it connects anew.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import quote

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause

CALL_SECONDS = 120.0
"""For a call that only asks or changes a little; a busy engine takes its time."""
_CONNECT_SECONDS = 20.0
_INFO_SECONDS = 300.0
_LIBPOD = "v4.0.0"
_KNOWN_INFO: dict[str, tuple[float, dict[str, Any]]] = {}


class EngineClient:
    """One engine at an address, as seen by one process. ``kind``: as the engine is called in messages."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._docker: aiodocker.Docker | None = None
        self._podman = False

    @asynccontextmanager
    async def calls(self, doing: str, *, seconds: float = CALL_SECONDS) -> AsyncIterator[aiodocker.Docker]:
        """aiodocker, for calls that together take ``seconds`` at most. Whatever fails becomes ItemError(SANDBOX_LOST), with ``doing``
        and the engine's words, unless it is handled inside; FileNotFoundError, for a path in a container, is left as it is."""
        try:
            async with asyncio.timeout(seconds):
                yield await self._connected()
        except FileNotFoundError:
            raise
        except TimeoutError as error:
            raise self.lost(doing, f"no answer within {seconds:g} seconds") from error
        except DockerError as error:
            raise self.lost(doing, error.message) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self.lost(doing, str(error) or type(error).__name__) from error

    def lost(self, doing: str, said: str) -> ItemError:
        return ItemError(Cause.SANDBOX_LOST, f"{self.kind}: {doing}: {' '.join(said.split())[:1000]}")

    async def is_podman(self) -> bool:
        """Whether the engine is Podman, whatever it is addressed as."""
        async with self.calls("ask what it is"):
            return self._podman

    async def info(self) -> dict[str, Any]:
        """What the engine says of itself: Docker's ``/info``, or Podman's own. Podman takes a second for that, so an answer is used again
        for some minutes."""
        known = _KNOWN_INFO.get(self.address)
        if known is None or time.monotonic() - known[0] > _INFO_SECONDS:
            async with self.calls("ask for its state") as docker:
                if self._podman:
                    async with self.request("GET", "libpod/info", own=_LIBPOD) as response:
                        said = dict(await response.json())
                else:
                    said = dict(await docker.system.info())
            known = _KNOWN_INFO[self.address] = (time.monotonic(), said)
        return known[1]

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        own: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A call that aiodocker doesn't have. ``own``: the version of Podman's own interface, where that is meant. Raises DockerError for
        4xx and 5xx, so it is to be made inside ``calls``."""
        docker = await self._connected()
        url = f"{docker.docker_host}/{own or docker.api_version}/{path}"
        timeout = aiohttp.ClientTimeout(connect=_CONNECT_SECONDS)
        async with docker.session.request(method, url, params=params, headers=headers, timeout=timeout) as response:
            if response.status >= 400:
                raise DockerError(response.status, await _message(response))
            yield response

    async def upgraded(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """The answer to a POST, whose connection then carries a stream both ways; to be closed. Raises DockerError as ``request`` does."""
        docker = await self._connected()
        response = await docker.session.post(
            f"{docker.docker_host}/{docker.api_version}/{path}",
            json=body,
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            timeout=aiohttp.ClientTimeout(connect=_CONNECT_SECONDS),
        )
        if response.status >= 400:
            with closing(response):
                raise DockerError(response.status, await _message(response))
        return response

    async def close(self) -> None:
        """Idempotent."""
        docker, self._docker = self._docker, None
        if docker is not None and self._owner == (os.getpid(), asyncio.get_running_loop()):
            await _closed(docker)

    async def _connected(self) -> aiodocker.Docker:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._docker is None or self._owner != owner:
            docker = self._made()
            try:
                async with docker.session.get(f"{docker.docker_host}/_ping") as response:
                    answer = response.headers
                    if response.status != 200 or "Api-Version" not in answer:
                        raise DockerError(response.status, f"what answers at {self.address} is no container engine")
            except BaseException:
                await _closed(docker)
                raise
            docker.api_version = f"v{answer['Api-Version']}"  # aiodocker would ask for it at length
            if self._docker is not None and self._owner == owner:  # made meanwhile
                await _closed(docker)
                return self._docker
            self._docker, self._owner, self._podman = docker, owner, "Libpod-Api-Version" in answer
        return self._docker

    def _made(self) -> aiodocker.Docker:
        timeout = aiohttp.ClientTimeout(connect=_CONNECT_SECONDS)
        path = self.address.removeprefix("unix://")
        if path == self.address:
            return aiodocker.Docker(url=self.address, timeout=timeout)
        # Each container holds streams open: a bound on connections would have calls wait for ever.
        return aiodocker.Docker(url="unix://localhost", connector=aiohttp.UnixConnector(path, limit=0), timeout=timeout)


async def _closed(docker: aiodocker.Docker) -> None:
    await docker.close()
    await docker.connector.close()  # if it was made here, aiodocker leaves it open


def quoted(name: str) -> str:
    """The name of an image or a container as part of a path."""
    return quote(name, safe="/:@")


async def _message(response: aiohttp.ClientResponse) -> str:
    text = await response.text(errors="replace")
    if response.content_type == "application/json":
        said = await response.json()
        if isinstance(said, dict):
            return str(said.get("message") or said.get("cause") or text)
    return text
