"""The web app: which address is which page, and how pages, their JSON twins and downloads are sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import web

from manyhands.core.errors import ManyhandsError, UserError
from manyhands.core.jsonio import line, loads, pretty, without_surrogates
from manyhands.engine.journal.browsing import JournalBrowser, Value
from manyhands.io.loopback import Address
from manyhands.view.access import Access
from manyhands.view.answers import served
from manyhands.view.conversation import value_at
from manyhands.view.index.pool import Indexes
from manyhands.view.index.process import DEFAULT_GIB
from manyhands.view.links import Links
from manyhands.view.live import Event, Live
from manyhands.view.pages.compare import compare_page
from manyhands.view.pages.difference import difference_page
from manyhands.view.pages.export import FORMS, export_name, export_parts
from manyhands.view.pages.help import help_page
from manyhands.view.pages.item import item_page
from manyhands.view.pages.item_table import ShownItem, all_columns, items_page
from manyhands.view.pages.page import Page, Query, Site, joined, view_for, whole_number
from manyhands.view.pages.run import ledger_values, run_page, workload_page
from manyhands.view.pages.run_list import runs_page
from manyhands.view.pages.search import search_page
from manyhands.view.rendering import Renderer
from manyhands.view.source import NotFound, Runs, ShownRun

MAX_SHOWN = 5 << 20
"""Bytes of a text that are sent to be shown at once."""
MAX_TAKEN_APART = 16 << 20
"""Bytes of JSON of a value of which a part is shown. A few bytes in the journal may be very many."""
_WINDOW_SECONDS = 10.0
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_ASSET = re.compile(r"(vendor/)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebApp:
    """The pages about some runs, as an aiohttp application."""

    def __init__(self, site: Site, renderer: Renderer, *, is_live: bool = True) -> None:
        self.site = site
        self.is_live = is_live
        self.renderer = renderer
        self.live = Live(site.runs, self._run_events, self._list_event)

    def add_to(self, application: web.Application) -> None:
        """Add the addresses to an application."""
        get = application.router.add_get
        get("/", self._page(lambda request: runs_page(self.site, request.query)))
        get("/runs/{run}", self._page(lambda request: run_page(self.site, request.match_info["run"])))
        get(
            "/runs/{run}/items",
            self._page(lambda request: items_page(self.site, request.match_info["run"], request.query)),
        )
        get("/runs/{run}/items/{number:[0-9]{1,18}}", self._page(self._item, panel="item_body.html"))
        get("/runs/{run}/pages/{name}", self._page(self._workload))
        get("/runs/{run}/steps/{step:[0-9]{1,18}}/{what:text|json|download}", self._step)
        get("/runs/{run}/export", self._export)
        get("/compare", self._page(lambda request: compare_page(self.site, joined(request.query.items()))))
        get("/difference", self._page(lambda request: difference_page(self.site, request.query)))
        get("/search", self._page(lambda request: search_page(self.site, request.query)))
        get("/help", self._page(lambda _: help_page(self.site)))
        if self.is_live:
            get("/events", self._events)
        get("/assets/{name:.+}", self._asset)

    def _page(self, make: Callable[[web.Request], Awaitable[Page]], *, panel: str | None = None) -> Handler:
        """A handler that sends a page, its JSON twin for ``?format=json``, or its inner part for ``?format=part``."""

        async def handle(request: web.Request) -> web.StreamResponse:
            page = await make(request)
            form = request.query.get("format")
            if form == "json":
                text = await self.site.runs.in_thread(lambda: without_surrogates(pretty(page.json())))
                return web.Response(text=text, content_type="application/json", status=page.status)
            template = panel if form == "part" and panel is not None else page.template
            text = await self.site.runs.in_thread(lambda: self.renderer.page(template, page.context))
            return web.Response(text=text, content_type="text/html", status=page.status)

        return handle

    async def _item(self, request: web.Request) -> Page:
        return await item_page(self.site, request.match_info["run"], int(request.match_info["number"]), request.query)

    async def _workload(self, request: web.Request) -> Page:
        return await workload_page(self.site, request.match_info["run"], request.match_info["name"], request.query)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """What changes in a run, or in the list of runs, while somebody looks."""
        return await self.live.send(request, request.query.get("run", ""))

    def _run_events(self, run: ShownRun, items: Sequence[ShownItem], reader: JournalBrowser) -> Iterator[Event]:
        """The parts and rows of a run's pages, as HTML."""
        write = self.renderer.part
        yield _part("ledger", self.renderer.page("ledger.html", ledger_values(run)))
        yield _part("state", write("parts.html", "state", run.state))
        columns = all_columns(view_for(reader)) if items else []
        for item in items:
            name, html = f"item-{item.summary['item']}", write("item_row.html", "row", run.id, item, columns)
            yield Event("row", line({"id": name, "state": item.summary["state"], "html": html}), name)

    def _list_event(self, run: ShownRun, is_new: bool) -> Event:
        html = self.renderer.part("run_row.html", "row", run, 0.0)
        return Event("row", line({"id": run.row_id, "new": is_new, "html": html}), run.row_id)

    async def _step(self, request: web.Request) -> web.StreamResponse:
        """What a step holds: as text in parts of 5 MB, as JSON, or as a file of any size."""
        run, step, what = request.match_info["run"], int(request.match_info["step"]), request.match_info["what"]
        path = [name for name in request.query.get("path", "").split("/") if name]
        if what == "json":
            return web.Response(
                text=await self.site.runs.read(run, lambda reader: _step_json(reader, step)),
                content_type="application/json",
            )
        if len(path) > 1:
            text = await self.site.runs.read(run, lambda reader: _text_in(reader, step, path), seconds=10.0)
            return _sent(text.encode("utf-8", "replace"), request.query, step, download=what == "download")
        value: Value = "request" if path == ["request"] else "output"
        if what == "download":
            return await self._streamed(request, run, step, value)
        begin = whole_number(request.query.get("from")) or 0
        data = await self.site.runs.read(run, lambda reader: _window(reader, step, value, begin), seconds=10.0)
        return web.Response(text=data.decode("utf-8", "replace"), content_type="text/plain")

    async def _streamed(self, request: web.Request, run: str, step: int, value: Value) -> web.StreamResponse:
        """A value of a step as a file, byte for byte as it was recorded."""

        def parts(reader: JournalBrowser) -> Iterator[bytes]:
            if reader.step_outline(step) is None:
                raise NotFound(f"there is no step {step}")
            return reader.value_parts(step, value)

        return await self._download(request, run, f"step-{step}-{value}.json", "application/json", parts)

    async def _export(self, request: web.Request) -> web.StreamResponse:
        """What the filters of the table of items find, as a file."""
        run_id, form = request.match_info["run"], request.query.get("as", "")
        if form not in FORMS:
            raise NotFound(f"an export is one of: {', '.join(FORMS)}")
        run = await self.site.runs.in_thread(lambda: self.site.runs.shown(run_id))
        await self.site.indexes.wanted(run)

        def parts(reader: JournalBrowser) -> Iterator[bytes]:
            return export_parts(reader, run, self.site.indexes, form, request.query)

        return await self._download(request, run_id, export_name(run.folder.name, form), FORMS[form], parts)

    async def _download(
        self,
        request: web.Request,
        run: str,
        name: str,
        content_type: str,
        parts_of: Callable[[JournalBrowser], Iterator[bytes]],
    ) -> web.StreamResponse:
        """A file of any size, sent as it is read."""
        response = web.StreamResponse(
            headers={"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": content_type}
        )
        runs = self.site.runs
        reader = await runs.in_thread(lambda: runs.open(run, any_thread=True))
        async with _closed(reader):
            parts = await runs.in_thread(lambda: parts_of(reader))
            first = await runs.in_thread(lambda: next(parts, None))
            await response.prepare(request)
            part = None if request.method == "HEAD" else first
            try:
                while part is not None:
                    await response.write(part)
                    part = await runs.in_thread(lambda: next(parts, None))
            except ManyhandsError as error:  # what was sent must not be taken for all of it
                raise ConnectionAbortedError("a part of the file can't be read") from error
        await response.write_eof()
        return response

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        data = asset(name)
        if data is None:
            raise NotFound("there is no such file")
        return web.Response(body=data, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8")


def _part(name: str, html: str) -> Event:
    return Event("part", line({"id": name, "html": html}), name)


@cache
def asset(name: str) -> bytes | None:
    """A file that pages need; None if there is none of that name."""
    if name.rpartition(".")[2] not in _TYPES or not _ASSET.fullmatch(name):
        return None
    found = files("manyhands.view").joinpath("assets", *name.split("/"))
    return found.read_bytes() if found.is_file() else None


@asynccontextmanager
async def _closed(reader: JournalBrowser) -> AsyncIterator[None]:
    with closing(reader):
        yield


def _step_json(reader: JournalBrowser, step: int) -> str:
    found = reader.step_outline(step)
    if found is None:
        raise NotFound(f"there is no step {step}")
    item, attempt, outline = found
    head: dict[str, Any] = {
        "item": item,
        "attempt": attempt,
        "scope": outline.scope,
        "seq": outline.seq,
        "kind": outline.kind,
        "started_at": outline.started_at,
        "finished_at": outline.finished_at,
        "usage": outline.usage,
    }
    for name in ("request", "output"):
        data, complete = reader.value_beginning(step, name, MAX_SHOWN)
        head[name] = loads(data) if complete else {"too_large_to_show": True, "download": f"download?path={name}"}
    return without_surrogates(pretty(head))


def _text_in(reader: JournalBrowser, step: int, path: list[str]) -> str:
    """A text inside a step's request or output."""
    if path[0] not in ("request", "output") or reader.step_outline(step) is None:
        raise NotFound("there is no such part of a step")
    data, is_whole = reader.value_beginning(step, path[0], MAX_TAKEN_APART)  # type: ignore[arg-type]
    if not is_whole:
        raise UserError("what the step holds is too large to show a part of it; show or download all of it")
    try:
        found = value_at(loads(data), path[1:])
    except (KeyError, ValueError, RecursionError) as error:
        raise NotFound("there is no such part of the step") from error
    return found if isinstance(found, str) else pretty(found)


def _window(reader: JournalBrowser, step: int, value: Value, begin: int) -> bytes:
    """The part of a value that begins at a byte."""
    if reader.step_outline(step) is None:
        raise NotFound(f"there is no step {step}")
    found, place, end = bytearray(), 0, monotonic() + _WINDOW_SECONDS
    for part in reader.value_parts(step, value):
        if monotonic() > end:
            raise UserError("it takes too long to get to that part; download the value")
        if place + len(part) > begin:
            found += part[max(0, begin - place) :]
        place += len(part)
        if len(found) >= MAX_SHOWN:
            return bytes(found[:MAX_SHOWN])
    return bytes(found)


def _sent(data: bytes, query: Query, step: int, *, download: bool) -> web.Response:
    if download:
        headers = {"Content-Disposition": f'attachment; filename="step-{step}.txt"'}
        return web.Response(body=data, content_type="text/plain", charset="utf-8", headers=headers)
    begin = whole_number(query.get("from")) or 0
    return web.Response(body=data[begin : begin + MAX_SHOWN], content_type="text/plain", charset="utf-8")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How runs are shown."""

    folders: Sequence[Path]
    """Run folders, and folders under which runs lie."""
    address: Address
    cache_dir: Path
    """The user's own folder for what can be made again."""
    plain: bool = False
    """Texts of models are never taken for Markdown, and no images are shown."""
    index_dir: Path | None = None
    """Where indexes are kept; None: in the cache."""
    index_gib: float = DEFAULT_GIB
    """GiB of all indexes together."""
    has_index: bool = True
    """Whether runs are indexed, to be sorted and searched."""
    is_live: bool = True
    """Whether pages are kept up to date."""


async def serve(options: ViewOptions, on_ready: Callable[[str, str | None], None]) -> None:
    """Show runs until it is cancelled. ``on_ready`` is called with the link for the first browser, and a line to show besides it, if there
    is one. Raises UserError if the port is taken."""
    links = Links()
    indexes = Indexes(options.index_dir or options.cache_dir / "indexes", options.index_gib, is_on=options.has_index)
    site = Site(Runs(options.folders), links, options.folders, indexes)
    app = WebApp(site, Renderer(links, plain=options.plain, live=options.is_live), is_live=options.is_live)
    with options.address.bind() as listening:
        host, port = options.address.host, listening.getsockname()[1]
        access = Access(options.cache_dir, host=host, port=port)
        application = web.Application()
        access.protect(application)
        app.add_to(application)
        try:
            async with served(application, listening):
                on_ready(access.link(f"http://{options.address.in_url}:{port}/"), access.note)
                await asyncio.Event().wait()
        finally:
            await app.live.close()
            indexes.close()
            site.runs.close()
