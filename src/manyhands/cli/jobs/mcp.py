"""``manyhands mcp``: the tools for jobs over MCP, on standard streams or over HTTP."""

from __future__ import annotations

import os
from types import ModuleType

from manyhands.cli.console import notice
from manyhands.cli.main import imported
from manyhands.cli.options import help_text, make, parse
from manyhands.core.errors import UserError
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.options import check_cluster
from manyhands.workloads.csv_jobs.mcp.settings import McpSettings, with_environment

PROGRAM = "manyhands mcp"
DESCRIPTION = (
    "Serves the tools for CSV jobs (spawn_agents_on_csv and eight others) to an MCP client such as Codex or Claude Code: over "
    "standard input and output, or with --http over streamable HTTP on this machine. Clients choose the table and the instruction; "
    "the options here choose what executes them (model, sandbox, toolsets, worker command …). A job outlives the call, the client and "
    "this server."
)


def run(argv: list[str]) -> int:
    """Serve until the input ends, or a signal comes; 0."""
    line = parse(McpSettings, argv, PROGRAM)
    if line.help:
        print(help_text(McpSettings, PROGRAM, DESCRIPTION))
        return 0
    values = with_environment(line.values, os.environ)
    settings = make(McpSettings, values, PROGRAM)
    check_cluster(settings, settings.given)
    settings.resolved()  # reports what can't be used now, and not at the first call
    run_on_loop(_server().serve(settings, values, os.environ, notice))
    return 0


def _server() -> ModuleType:
    """What needs the MCP SDK. Raises UserError if that is not installed."""
    try:
        return imported("manyhands.workloads.csv_jobs.mcp.server")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("manyhands"):
            raise
        raise UserError(f"{PROGRAM} needs an extra: pip install 'manyhands[mcp]' ({error.name} is missing)") from None
