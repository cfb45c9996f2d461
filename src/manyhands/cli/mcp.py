"""``manyhands mcp``: the tools for CSV jobs over MCP, on standard streams or over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path as FilePath
from types import ModuleType
from typing import Annotated, Any, ClassVar

from manyhands.cli.console import notice
from manyhands.cli.main import imported
from manyhands.cli.options import help_text, make, parse
from manyhands.core.errors import ManyhandsError, UserError
from manyhands.core.settings import (
    About,
    Flag,
    OptionalList,
    OptionalSecret,
    Path,
    Text,
    number,
    optional_whole,
    setting,
)
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.strays import SANDBOX_VARIABLE
from manyhands.workloads.csv_jobs.mcp.arguments import ToolPaths
from manyhands.workloads.csv_jobs.mcp.tools import (
    DEFAULT_CONCURRENCY_LIMIT,
    DEFAULT_WAIT_LIMIT,
    Caller,
    JobTools,
    ToolSettings,
)
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import INTERRUPTED, JobStatus
from manyhands.workloads.csv_jobs.spec import JobSpec, concurrency_limit
from manyhands.workloads.csv_jobs.workers.reports import SECRET

PROGRAM = "manyhands mcp"
DESCRIPTION = (
    "Offers the tools for CSV jobs (spawn_agents_on_csv and eight others) to an MCP client such as Codex or Claude Code: over "
    "standard input and output, or with --http over streamable HTTP on this machine. Clients say what is to be done with which "
    "table; what does it (model, sandbox, toolsets, worker command …) is said here. A job outlives the call, the client and "
    "this server."
)
TOKEN_VARIABLE = "MANYHANDS_MCP_TOKEN"
JOB_VARIABLE = "MANYHANDS_JOB_ID"
DATA_DIR_VARIABLE = "MANYHANDS_DATA_DIR"
_NOT_FOR_JOBS = frozenset({TOKEN_VARIABLE, SANDBOX_VARIABLE})
"""Variables that no job needs. By the mark of a worker's processes they are ended with it, which a job must not be."""
_SERVER = "Server"
_SHORTEST_TOKEN = 16
_SETTLING_SECONDS = 60.0
_ANSWERING_SECONDS = 0.1
"""Seconds in which the last answers are written."""
_OF_ONE_JOB = frozenset(
    {
        "csv_path",
        "instruction",
        "instruction_file",
        "id_column",
        "job_name",
        "output_csv_path",
        "output_schema",
        "max_workers",
        "table_format",
        "verbose",
        "quiet",
        "override",
        "log_prefix_chars",
    }
)
"""Settings of a job that calls make, or that mean nothing where nobody looks on."""


class McpSettings(JobSpec):
    """The options of ``manyhands mcp``: those of the server, and the settings of all jobs that its clients make."""

    headings: ClassVar[tuple[str, ...]] = (_SERVER, *JobSpec.headings)

    csv_path: Path = setting("-", "Each call names its table.", typed=False)
    http: Annotated[int | None, optional_whole(0, 65535)] = setting(
        None, "Serve streamable HTTP on this port of this machine (0: a free one).", group=_SERVER, value="PORT"
    )
    host: Text = setting(
        "127.0.0.1", "Loopback address to listen on, with --http.", group=_SERVER, value="127.0.0.1|::1|localhost"
    )
    token: OptionalSecret = setting(
        None,
        f"What HTTP clients must send as their bearer token; {TOKEN_VARIABLE} is better, because others see command lines. "
        "Without either, one is made and printed.",
        group=_SERVER,
        secret=True,
        recorded=False,
    )
    roots: OptionalList = setting(
        None,
        "Folders that paths in calls must be in. Over HTTP the current one if not given; otherwise any path is accepted.",
        group=_SERVER,
    )
    own_exports: Flag = setting(
        False,
        "The export tool writes only into the jobs' own folders, and is offered as read-only.",
        group=_SERVER,
    )
    wait_limit: Annotated[float, number(1, 100_000)] = setting(
        DEFAULT_WAIT_LIMIT, "Seconds for which a call waits at most; most clients give up after 300.", group=_SERVER
    )
    run_interrupted: Flag = setting(
        True, "Go on with jobs whose runner was killed, when the server starts.", group=_SERVER
    )

    @classmethod
    def about(cls, name: str) -> About:
        about = super().about(name)
        return replace(about, typed=False) if name in _OF_ONE_JOB else about


def run(argv: list[str]) -> int:
    """Serve until the input ends, or a signal comes; 0."""
    line = parse(McpSettings, argv, PROGRAM)
    if line.help:
        print(help_text(McpSettings, PROGRAM, DESCRIPTION))
        return 0
    values = {**_from_environment(os.environ), **line.values, **_of_worker(os.environ)}
    settings = make(McpSettings, values, PROGRAM)
    settings.resolved()  # whatever can't be used is said now, not at the first call
    for_jobs = {name: value for name, value in values.items() if name in JobSpec.model_fields}
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_JOBS}
    return run_on_loop(_serve(settings, for_jobs, environ))


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment says where the command line says nothing."""
    return {"token": environ[TOKEN_VARIABLE]} if environ.get(TOKEN_VARIABLE) else {}


def _of_worker(environ: Mapping[str, str]) -> dict[str, str]:
    """A worker's job is where its runner says, whatever the server's configuration calls the data folder."""
    found = environ.get(DATA_DIR_VARIABLE)
    return {"data_dir": found} if found and environ.get(SECRET) else {}


async def _serve(settings: McpSettings, for_jobs: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    server = _sdk("mcp.server")
    desk = JobService(FilePath(settings.data_dir).absolute(), environ=environ)
    tools = JobTools(desk, _tool_settings(settings, for_jobs, environ))
    caller = _caller(environ, tools)
    if settings.http is not None:
        caller = Caller(depth=caller.depth)  # over HTTP everybody speaks for himself
    serving = server.Serving(tools, caller, settings.own_exports)
    continuing = None
    if settings.run_interrupted and caller.depth == 0:
        continuing = asyncio.ensure_future(_go_on(desk, tools))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    try:
        if settings.http is None:
            await _serve_streams(server.serve_streams(serving), tools, stop)
        else:
            await _serve_http(settings, serving, stop)
    finally:
        if continuing is not None:
            continuing.cancel()
    return 0


async def _serve_streams(serving: Awaitable[None], tools: JobTools, stop: asyncio.Event) -> None:
    running, stopping = asyncio.ensure_future(serving), asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        tools.stop_waiting()
        with suppress(TimeoutError):
            await asyncio.wait_for(tools.settled(), _SETTLING_SECONDS)
        await asyncio.sleep(_ANSWERING_SECONDS)
        # A thread of the SDK waits for input, and nothing but input ends it; the interpreter would wait for the thread.
        sys.stderr.flush()
        os._exit(0)
    stopping.cancel()
    running.result()


async def _serve_http(settings: McpSettings, serving: Any, stop: asyncio.Event) -> None:
    http = _sdk("mcp.http")
    address = http.Address.of(settings.host, settings.http)
    made = settings.token is None
    token = http.new_token() if settings.token is None else _checked(settings.token.get_secret_value())

    def say(url: str) -> None:
        if made:
            notice(f"clients must send the header  Authorization: Bearer {token}")
        notice(f"MCP server at {url} (Ctrl-C ends it; jobs go on)")

    await http.serve_http(serving, address, token, say, stop)


def _tool_settings(settings: McpSettings, for_jobs: Mapping[str, Any], environ: Mapping[str, str]) -> ToolSettings:
    roots = settings.roots
    if roots is None and settings.http is not None:
        roots = (".",)
    limit = settings.max_concurrency_limit or concurrency_limit(environ) or DEFAULT_CONCURRENCY_LIMIT
    return ToolSettings(
        paths=ToolPaths.of(FilePath.cwd(), roots, own_exports=settings.own_exports),
        worker=for_jobs,
        max_concurrency=limit,
        wait_limit=settings.wait_limit,
        max_depth=settings.max_depth,
    )


def _caller(environ: Mapping[str, str], tools: JobTools) -> Caller:
    """Who speaks over standard streams: a worker, if its surroundings are those that a job's runner makes."""
    secret = environ.get(SECRET)
    return Caller(secret, tools.depth_in(environ.get(JOB_VARIABLE, ""))) if secret else Caller()


async def _go_on(desk: JobService, tools: JobTools) -> None:
    """Go on with jobs that nobody performs though nobody ended them."""
    try:
        jobs = await asyncio.to_thread(desk.list)
    except (ManyhandsError, OSError) as error:
        notice(f"can't look for interrupted jobs: {error}")
        return
    for job in filter(was_killed, jobs):
        try:
            if await tools.go_on(job):
                notice(f"going on with job {job.job_id}, whose runner was killed")
        except (ManyhandsError, OSError) as error:
            notice(f"can't go on with job {job.job_id}: {error}")


def was_killed(job: JobStatus) -> bool:
    """Whether a job's runner ended without saying why. One that was told to stop has recorded that."""
    return job.state == INTERRUPTED and job.last_error is None


def _checked(token: str) -> str:
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"--token must be {_SHORTEST_TOKEN} or more visible ASCII characters")
    return token


def _sdk(module: str) -> ModuleType:
    """A module that needs the MCP SDK. Raises UserError if that is not installed."""
    try:
        return imported(f"manyhands.workloads.csv_jobs.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("manyhands"):
            raise
        raise UserError(f"{PROGRAM} needs an extra: pip install 'manyhands[mcp]' ({error.name} is missing)") from None
