"""What holds for every answer of the viewer: its headers, small pages that refuse or report a failure, and how connections are served."""

from __future__ import annotations

import asyncio
import html
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from manyhands.core.errors import ManyhandsError, RunError, UserError
from manyhands.core.jsonio import compact_line
from manyhands.core.text import one_line
from manyhands.view.source import NotFound

SECURITY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types manyhands"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
"""Headers of every answer, of errors too."""
MAX_CONNECTIONS = 200
"""At once, each page that is watched live included. For a further one, the oldest over which no request
came that was let in is closed; if all were let in, the further one is."""
MAX_MESSAGE = 2000
"""Characters of a failure's message on a page."""
_MAX_LINE, _MAX_FIELD, _MAX_HEADERS = 8190, 1 << 15, 128
"""Bytes of a request's first line and of one header (cookies of all servers at the same host name come along), and number of headers."""
_KEEPING_SECONDS, _LINGERING_SECONDS, _CLOSING_SECONDS = 75.0, 1.0, 1.0
STRANGER_SECONDS = 20.0
"""After which a connection is closed over which no request came that was let in: it would take the place of one that is needed."""
_SMALL_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{head}<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
<p>{text}</p>
{body}</body>
</html>
"""
_log = logging.getLogger(__name__)


def small_page(status: int, title: str, text: str, *, head: str = "", body: str = "") -> web.Response:
    """A page that stands alone. ``title`` and ``text`` are escaped here; ``head`` and ``body`` are lines of HTML."""
    words = {"title": html.escape(title), "text": html.escape(text)}
    page = _SMALL_PAGE.format(**words, head=head, body=body)
    return _Answer(status=status, text=page, content_type="text/html")


def failure(request: web.BaseRequest, status: int, title: str, text: str, *, body: str = "") -> web.Response:
    """A refusal or failure in one line: a small page, with ``body`` as lines of HTML below, or ``{"error": …}`` for ``?format=json``."""
    text = one_line(text, MAX_MESSAGE)
    if request.query.get("format") == "json":
        return _Answer(status=status, body=compact_line({"error": text}), content_type="application/json")
    return small_page(status, title, text, body=body)


def not_allowed(request: web.BaseRequest) -> web.Response:
    """The answer to any method but GET and HEAD."""
    answer = failure(request, 405, "Method Not Allowed", "the viewer changes nothing: only GET and HEAD are answered")
    answer.headers[hdrs.ALLOW] = "GET, HEAD"
    return answer


def link(target: str, words: str) -> str:
    """A line of HTML that leads to a path of this server."""
    return f'<p><a href="{html.escape(target)}">{html.escape(words)}</a></p>\n'


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Give an answer the headers that all have. For ``Application.on_response_prepare``."""
    response.headers.update(SECURITY_HEADERS)
    response.headers.popall(hdrs.SERVER, None)


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns what a handler raises on purpose into a page of one clear line.

    An ``HTTPException`` of aiohttp keeps its status and text; redirects pass. Of our own, NotFound becomes 404, UserError 400 (RunError
    409: the run can't be shown as it is) and any other ManyhandsError 500.
    """
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        return failure(request, error.status, error.reason, _text_of(error))
    except NotFound as error:
        return failure(request, 404, "Not found", str(error))
    except UserError as error:
        _log.debug("%s can't be shown", request.path, exc_info=True)
        return failure(request, 409 if isinstance(error, RunError) else 400, "This can't be shown", str(error))
    except RecursionError:
        return failure(request, 409, "This can't be shown", "it holds JSON that is nested too deeply")
    except ManyhandsError as error:
        _log.debug("%s failed", request.path, exc_info=True)
        return failure(request, 500, "This page could not be made", str(error))


@asynccontextmanager
async def served(application: web.Application, listening: socket.socket) -> AsyncIterator[None]:
    """Serve the application on a listening socket inside of the block. ``AppRunner`` with a site would do the same, but for answers to
    requests that can't be read, which would lack our headers. At the end, answers in progress have a second to end."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSING_SECONDS)
    await runner.setup()
    try:
        loop = asyncio.get_running_loop()
        assert runner.server is not None  # it is there from the setup to the cleanup
        server = await loop.create_server(partial(Connection, runner.server, loop=loop), sock=listening)
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


class _Answer(web.Response):
    """One that also goes out where no application is asked for headers: to requests that can't be read."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.update(SECURITY_HEADERS)
        self.headers.popall(hdrs.SERVER, None)


class Connection(web.RequestHandler):
    """Answers failures with small pages, and logs them for whoever looks for them."""

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=_KEEPING_SECONDS,
            lingering_time=_LINGERING_SECONDS,
            access_log=None,  # type: ignore[arg-type] # its own declaration is narrower than what it takes
            logger=_log,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_FIELD,
            max_headers=_MAX_HEADERS,
            auto_decompress=False,
        )
        self._server = server
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit = self._loop.call_later(STRANGER_SECONDS, self.force_close)
        # In the order in which they came. One that was told to close is there until it has.
        there = [
            each
            for each in self._server.connections
            if isinstance(each, Connection) and each.transport is not None and not each.transport.is_closing()
        ]
        if len(there) > MAX_CONNECTIONS:
            # Not simply the newest: other users of this machine, who can connect too, would keep the owner out.
            next(each for each in there if not each._is_known).force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)

    def let_in(self) -> None:
        """Keep the connection as long as it is used: whoever is at its other end may come in."""
        self._is_known = True
        self._limit.cancel()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        kw.setdefault("exc_info", True)
        self.logger.debug(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if status < 500:
            answer = failure(request, status, "Bad request", "the request can't be read")
        else:
            answer = failure(
                request,
                status,
                "This page could not be made",
                "an error in the viewer: report it, with what was opened",
            )
        answer.force_close()
        return answer


def _text_of(error: web.HTTPException) -> str:
    usual = f"{error.status}: {error.reason}"
    text = error.text or usual
    if text == usual:
        text = "there is no such page" if error.status == 404 else error.reason
    return text
