"""The tools over MCP, by the official SDK: one server object, which speaks over standard streams or HTTP.

Nothing is kept between two calls. A client that cancels a call, or goes away, has stopped waiting, and that is all: what the call was
to change is changed, and jobs are executed by processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import line, loads, without_surrogates
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS, EXPORT, Declaration
from manyhands.workloads.csv_jobs.mcp.replies import Reply, status_text
from manyhands.workloads.csv_jobs.mcp.tools import UNKNOWN_DEPTH, Caller, JobTools
from manyhands.workloads.csv_jobs.service.status import JobStatus

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
_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served and to whom. ``caller``: who speaks over standard streams, or over HTTP without saying that it is a worker.
    ``own_exports``: exports go into the folders of the jobs only, so that the export tool changes nothing of the user's."""

    tools: JobTools
    caller: Caller
    own_exports: bool = False


def make_server(serving: Serving) -> Server[Any]:
    """The server, without a transport."""

    async def on_list_tools(context: _Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        offered = serving.tools.offered(_caller(serving, context))
        return types.ListToolsResult(tools=[_tool(tool, serving) for tool in offered])

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
    """Who calls: over HTTP a header says whether it is a worker."""

    async def on_progress(status: JobStatus) -> None:
        await reporter.tell(status)

    reporter = _Reporter(context)
    secret, depth = serving.caller.secret, serving.caller.depth
    said = context.request.headers.get(WORKER_HEADER) if context.request is not None else None
    if said:
        secret, depth = said, UNKNOWN_DEPTH
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
