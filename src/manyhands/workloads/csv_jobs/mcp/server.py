"""The tools over MCP, by the official SDK: a server over standard streams or HTTP.

Nothing is kept between two calls. A client that cancels a call, or disconnects, has stopped waiting, and that is all: what the call was
to change is changed, and jobs are executed by processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from manyhands.core.errors import ManyhandsError, ToolError
from manyhands.core.jsonio import line, loads, without_surrogates
from manyhands.io.loopback import Address
from manyhands.processes.event_loop import on_stop_signals
from manyhands.processes.strays import SANDBOX_VARIABLE
from manyhands.runs.progress import Notice
from manyhands.workloads.csv_jobs.mcp.calls import Reply, status_text
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS, EXPORT, Declaration
from manyhands.workloads.csv_jobs.mcp.settings import (
    DEFAULT_CONCURRENCY_LIMIT,
    TOKEN_VARIABLE,
    McpSettings,
    ToolPaths,
    ToolSettings,
)
from manyhands.workloads.csv_jobs.mcp.tools import UNKNOWN_DEPTH, Caller, JobTools
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import INTERRUPTED, JobStatus
from manyhands.workloads.csv_jobs.spec import JobSpec, concurrency_limit
from manyhands.workloads.csv_jobs.workers.reports import SECRET

NAME = "manyhands"
WORKER_HEADER = "x-manyhands-worker"
INSTRUCTIONS = (
    "Sets one agent to work on each row of a table. spawn_agents_on_csv makes a job and starts it; the job goes on by itself. "
    "wait_agent_job and get_agent_job_status tell how far it is; when it ends its results are in output_csv_path. Jobs are named by "
    "job_id in every later call, from any session."
)
WORKER_INSTRUCTIONS = (
    "You work on one row of a job. When you are done, call report_agent_job_result once with the job_id and item_id you were given and "
    "your result, a JSON object. If it is not accepted, correct what the answer names and report again."
)
JOB_VARIABLE = "MANYHANDS_JOB_ID"
_NOT_INHERITED = frozenset({TOKEN_VARIABLE, SANDBOX_VARIABLE})
"""Variables that no job needs. By the mark of a worker's processes they are killed with it, which a job must not be."""
_SETTLING_SECONDS = 60.0
_ANSWERING_SECONDS = 0.1
"""Seconds in which the last answers are written."""
_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and to whom."""

    tools: JobTools
    caller: Caller
    """Who speaks over standard streams, or over HTTP without the header of a worker."""
    own_exports: bool = False
    """Exports go only into the folders of the jobs, so that the export tool changes nothing of the user's."""


async def serve(settings: McpSettings, values: Mapping[str, Any], environ: Mapping[str, str], notice: Notice) -> None:
    """Serve until the input ends, or a signal comes.

    ``values``: the options as they were given, of which jobs get those of ``JobSpec``; ``environ``: what runners of jobs inherit.
    Raises UserError for options that can't be used.
    """
    environ = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
    worker = {name: value for name, value in values.items() if name in JobSpec.fields}
    service = JobService(Path(settings.data_dir).absolute(), environ=environ)
    tools = JobTools(service, _tool_settings(settings, worker, environ))
    caller = _own_caller(environ, tools)
    if settings.http is not None:
        caller = Caller(depth=caller.depth)  # over HTTP, each client speaks for itself
    serving = Serving(tools, caller, settings.own_exports)
    continuing = None
    if settings.run_interrupted and caller.depth == 0:
        continuing = asyncio.ensure_future(_continue_jobs(service, tools, notice))
    stop = asyncio.Event()
    try:
        with on_stop_signals(stop.set):
            if settings.http is None:
                await _serve_streams(serving, stop)
            else:
                await _serve_http(settings, serving, notice, stop)
    finally:
        if continuing is not None:
            continuing.cancel()


async def _serve_streams(serving: Serving, stop: asyncio.Event) -> None:
    running, stopping = asyncio.ensure_future(serve_streams(serving)), asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        serving.tools.stop_waiting()
        with suppress(TimeoutError):
            await asyncio.wait_for(serving.tools.settled(), _SETTLING_SECONDS)
        await asyncio.sleep(_ANSWERING_SECONDS)
        # A thread of the SDK waits for input, and nothing but input ends it; the interpreter would wait for the thread.
        sys.stderr.flush()
        os._exit(0)
    stopping.cancel()
    running.result()


async def _serve_http(settings: McpSettings, serving: Serving, notice: Notice, stop: asyncio.Event) -> None:
    from manyhands.workloads.csv_jobs.mcp.http import serve_http  # not for streams, which start faster without

    address = Address.of(settings.host, settings.http or 0)
    given = settings.checked_token
    token = given or secrets.token_urlsafe(32)

    def say(url: str) -> None:
        if given is None:
            notice(f"clients must send the header  Authorization: Bearer {token}")
        notice(f"MCP server at {url} (Ctrl-C ends it; jobs continue)")

    await serve_http(make_server(serving), serving.tools, address, token, say, stop)


def _tool_settings(settings: McpSettings, worker: Mapping[str, Any], environ: Mapping[str, str]) -> ToolSettings:
    roots = settings.roots
    if roots is None and settings.http is not None:
        roots = (".",)
    limit = settings.max_concurrency_limit or concurrency_limit(environ) or DEFAULT_CONCURRENCY_LIMIT
    return ToolSettings(
        paths=ToolPaths.of(Path.cwd(), roots, own_exports=settings.own_exports),
        worker=worker,
        max_concurrency=limit,
        wait_limit=settings.wait_limit,
        max_depth=settings.max_depth,
    )


def _own_caller(environ: Mapping[str, str], tools: JobTools) -> Caller:
    """Who speaks over standard streams: a worker, if its environment is the one that a job's runner makes."""
    secret = environ.get(SECRET)
    return Caller(secret, tools.depth_in(environ.get(JOB_VARIABLE, ""))) if secret else Caller()


async def _continue_jobs(service: JobService, tools: JobTools, notice: Notice) -> None:
    """Continue jobs that no process executes though they were not ended."""
    try:
        jobs = await asyncio.to_thread(service.list)
    except (ManyhandsError, OSError) as error:
        notice(f"can't look for interrupted jobs: {error}")
        return
    for job in jobs:
        if job.state != INTERRUPTED or job.last_error is not None:  # a runner that was stopped has recorded why
            continue
        try:
            if await tools.go_on(job):
                notice(f"continuing job {job.job_id}, whose runner was killed")
        except (ManyhandsError, OSError) as error:
            notice(f"can't continue job {job.job_id}: {error}")


# --- The server


def make_server(serving: Serving) -> Server[Any]:
    """The server, without a transport."""

    async def on_list_tools(context: _Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        available = serving.tools.available(_caller(serving, context))
        return types.ListToolsResult(tools=[_tool(tool, serving) for tool in available])

    async def on_call_tool(context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        caller = _caller(serving, context)
        try:
            return _result(await serving.tools.call(params.name, params.arguments, caller))
        except ToolError as error:
            text = without_surrogates(str(error))
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)

    return Server(
        NAME,
        version=_version(),
        title="manyhands: agents on the rows of a table",
        instructions=INSTRUCTIONS if serving.caller.secret is None else WORKER_INSTRUCTIONS,
        get_tool_input_schema=_input_schema,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )


async def serve_streams(serving: Serving) -> None:
    """Serve over standard input and output until the input ends."""
    server = make_server(serving)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
    await serving.tools.settled()


def _tool(tool: Declaration, serving: Serving) -> types.Tool:
    hints = tool.hints
    read_only = hints.read_only or (tool.name == EXPORT and serving.own_exports)
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=dict(tool.result),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=read_only,
            destructive_hint=hints.destructive and not read_only,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _input_schema(name: str) -> Mapping[str, Any] | None:
    tool = DECLARATIONS.get(name)
    return None if tool is None else tool.parameters


def _caller(serving: Serving, context: _Context) -> Caller:
    """Who calls: over HTTP, a worker sends a header."""

    async def on_progress(status: JobStatus) -> None:
        await reporter.tell(status)

    reporter = _Reporter(context)
    secret, depth = serving.caller.secret, serving.caller.depth
    worker = context.request.headers.get(WORKER_HEADER) if context.request is not None else None
    if worker:
        secret, depth = worker, UNKNOWN_DEPTH
    return Caller(secret, depth, on_progress)


class _Reporter:
    """Sends progress notifications for one call. MCP wants each to be further than the one before."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self._last = -1

    async def tell(self, status: JobStatus) -> None:
        ended = status.total_items - status.pending_items - status.running_items
        if ended > self._last:
            self._last = ended
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client is gone
                await self._context.session.report_progress(ended, status.total_items, status_text(status))


def _result(reply: Reply) -> types.CallToolResult:
    # Clients that know of structured content show the model that; the others get the sentence and the JSON.
    as_json = without_surrogates(line(reply.content))
    sentence = without_surrogates(reply.text)
    content: list[types.ContentBlock] = [types.TextContent(text=sentence), types.TextContent(text=as_json)]
    return types.CallToolResult(content=content, structured_content=loads(as_json))


def _version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return ""
