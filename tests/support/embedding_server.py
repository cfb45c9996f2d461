"""A server of embeddings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class EmbeddingServer:
    """Speaks OpenAI's ``/embeddings``: a vector that counts a few words. ``failures``: statuses to give first."""

    def __init__(self, failures: Sequence[int] = ()) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures = list(failures)
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EmbeddingServer]:
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.failures:
            return web.Response(status=self.failures.pop(0), text="not now", headers={"Location": "/elsewhere"})
        text = body["input"].lower()
        vector = [float(text.count(word)) for word in ("cat", "else", "weather")] + [0.1]
        return web.json_response({"data": [{"embedding": vector}], "usage": {"prompt_tokens": 7}})
