"""Runs for the pages, and the pages of some runs served as the viewer serves them, but to everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from manyhands.view.answers import add_headers, failures
from manyhands.view.index.pool import Indexes
from manyhands.view.links import Links
from manyhands.view.pages.page import Site
from manyhands.view.rendering import Renderer
from manyhands.view.server import WebApp
from manyhands.view.source import Runs
from tests.support.batches import REASONED, BatchFolder, ServerThread, prompt_of
from tests.support.view_servers import server

REFUSED = ScriptedResponse(status=400, body={"error": {"message": "this is refused"}})
MAX_SECONDS = 60.0


def answered(request: RecordedRequest) -> Reply:
    """A tool call, and an answer once it is there. Prompts with ``fail`` in them are refused from then on."""
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return REFUSED if "fail" in prompt_of(request) else REASONED
    function = {"name": "terminal", "arguments": '{"command": "echo said"}'}
    wanted = [{"id": "c1", "type": "function", "function": function}]
    return chat_response("I look.", reasoning="Who knows?", tool_calls=wanted)


def make_batches(path: Path, rows: Sequence[str], names: Sequence[str]) -> None:
    """Runs of these prompts by those names, in ``data``, each of two calls of a model and one of a tool an item."""
    folder = BatchFolder(path, rows)
    with ServerThread(answered) as model:
        for name in names:
            folder.batch(f"--base_url={model.base_url}", f"--run_name={name}")


@dataclass
class Sent:
    """Events that a page gets, as they are entered, in the place of the viewer's own."""

    texts: list[str] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    """The number of the last event that each of those who came had got."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send what is entered, for a minute at most."""
        self.asked.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        place = 0
        for _ in range(int(MAX_SECONDS / 0.02)):
            for text in self.texts[place:]:
                place += 1
                if text == "cut":
                    self.texts.clear()
                    return response
                await response.write(text.encode())
            await asyncio.sleep(0.02)
        return response


@contextmanager
def pages_of(folder: Path, add: Callable[[web.Application], object] = lambda application: None) -> Iterator[str]:
    """Serve the pages of the runs under a folder; where they are. ``add`` adds what comes before the viewer's own."""
    runs = Runs([folder])
    site = Site(runs, Links(), [folder], Indexes(folder / "indexes", 1, is_on=False))
    application = web.Application(middlewares=[failures])
    application.on_response_prepare.append(add_headers)
    add(application)
    pages = WebApp(site, Renderer(site.links))
    pages.add_to(application)
    with server(lambda _: application) as address:
        yield f"http://{address.host}:{address.port}"
    runs.close()
