"""An agent that is a server: each message is posted to its address as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import loads_outside
from manyhands.core.redaction import KNOWN
from manyhands.models.openai.client import answer_body
from manyhands.workloads.memory.agents.external.agent import REFUSED

TIME_HEADER = "X-Manyhands-Time"
"""The header that holds the virtual time, as RFC 3339 in UTC."""
KEY_VARIABLE = "MANYHANDS_AGENT_KEY"
"""The environment variable that holds a key for servers that want one. Keys of models are not sent to agents."""
MAX_ANSWER = 16 << 20
"""Bytes of an answer at most."""
_NOT_OFFERED = (404, 405, 501)
_NOT_UNDERSTOOD = (*_NOT_OFFERED, 400, 422)


class HttpConnection:
    """The way to an agent that is a server. One that does not know ``load``, ``exchange`` or ``forward_time`` (404, 405, 501) is taken to
    go by what it remembers; one that does not know ``reset`` can't forget. ``seconds``: for one answer; ``key``: sent as a bearer token."""

    def __init__(self, url: str, *, seconds: float, key: str | None = None) -> None:
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._session is None:
            raise RuntimeError("the line is not open")
        headers = {TIME_HEADER: datetime.fromtimestamp(float(message["now"]), UTC).isoformat()}
        try:
            async with self._session.post(
                self._url, json=dict(message), headers=headers, allow_redirects=False
            ) as response:
                if response.status in _NOT_UNDERSTOOD and message["type"] == "reset":
                    return {REFUSED: f"{self._url} answered {response.status}"}
                if response.status in _NOT_OFFERED and message["type"] != "message":
                    return {"number": message["number"]} if message["type"] == "load" else {}
                if response.status >= 300:  # no redirect is followed: it may lead the key, and what is said, elsewhere
                    text = KNOWN.text((await answer_body(response, MAX_ANSWER)).decode("utf-8", "replace"))[:300]
                    cause = Cause.RATE_LIMIT if response.status == 429 else Cause.TARGET_ERROR
                    raise ItemError(cause, f"the agent at {self._url} answered {response.status}: {text}")
                found = loads_outside(await answer_body(response, MAX_ANSWER))
        except TimeoutError:
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} gave no answer in time") from None
        except aiohttp.ClientError as error:
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} can't be talked to: {error}") from error
        except ValueError as error:
            kind = message["type"]
            raise ItemError(
                Cause.TARGET_ERROR, f"the agent at {self._url} answered {kind} with what is no JSON: {error}"
            ) from error
        if not isinstance(found, dict):
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} answered with no JSON object")
        if found.get("error") and message["type"] == "reset":
            return {REFUSED: f"{self._url} says: {KNOWN.text(str(found['error']))[:300]}"}
        if found.get("error"):
            raise ItemError(
                Cause.TARGET_ERROR, f"the agent at {self._url} says: {KNOWN.text(str(found['error']))[:500]}"
            )
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)
