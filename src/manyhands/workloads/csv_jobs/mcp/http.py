"""The tools over streamable HTTP, for this machine only.

Everything on the machine can reach a loopback port, also a page in a browser. So three things are required of every request before the
protocol sees it: a ``Host`` that is this server's own, so that no foreign name leads here (DNS rebinding); an ``Origin``, where a
browser sends one, that is this server's own; and a token that was printed where the server was started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from manyhands.io.loopback import Address, hosts_at, is_foreign_origin, requested_host, same_secret
from manyhands.workloads.csv_jobs.mcp.tools import JobTools
from manyhands.workloads.csv_jobs.workers.reports import MAX_RESULT_BYTES

PATH = "/mcp"
MAX_BODY_BYTES = MAX_RESULT_BYTES + (1 << 20)
"""Bytes of a request at most. Tables are named by their paths, so that the result of a row is the largest that comes."""
MAX_CONNECTIONS = 200
_CLOSING_SECONDS = 3


class Guard:
    """Lets a request through to the application if it is for this server, from no foreign page, and brings the token."""

    def __init__(self, application: ASGIApp, *, hosts: frozenset[str], token: str) -> None:
        self._application = application
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._application(scope, receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        if requested_host(headers.getlist("host"), self._hosts.__contains__) is None:
            return _refused(421, "the Host header names another server; use the address that was printed at the start")
        if is_foreign_origin(headers.getlist("origin"), self._hosts):
            return _refused(403, "requests from web pages of another origin are not accepted")
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return _refused(401, "a token is needed: send the header 'Authorization: Bearer TOKEN'")
        if not same_secret(token.strip(), self._token):
            return _refused(401, "the token is not the one that this server was started with")
        return None


async def serve_http(
    server: Server[Any],
    tools: JobTools,
    address: Address,
    token: str,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve ``server``, whose tools are ``tools``, until ``stop`` is set. ``on_ready`` is called with the address to use.

    Raises UserError if the port is taken.
    """
    with address.bind() as listening:
        port = listening.getsockname()[1]
        web = _WebServer(_configuration(_application(server, address, port, token)))
        on_ready(f"http://{address.in_url}:{port}{PATH}")
        running = asyncio.ensure_future(web.serve([listening]))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        tools.stop_waiting()
        # Streams that clients hold open are cut off, and each of them ends with an exception that need not be logged.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        web.should_exit = True
        await running
    await tools.settled()


class _WebServer(uvicorn.Server):
    """Leaves signals to its caller."""

    def capture_signals(self) -> Any:
        return nullcontext()


def _application(server: Server[Any], address: Address, port: int, token: str) -> ASGIApp:
    # Without sessions: nothing is lost when the server is started anew, and any client may continue where another one stopped.
    application = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, max_request_body_size=MAX_BODY_BYTES, host=address.host
    )
    return Guard(application, hosts=hosts_at(address, port), token=token)


def _configuration(application: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        ws="none",
    )


def _refused(status: int, reason: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": reason}, status, headers=headers)
