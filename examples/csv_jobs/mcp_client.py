"""An MCP client that has five rows worked on, as an agent with the tools would.

    python examples/csv_jobs/mcp_client.py [--folder FOLDER] [OPTIONS OF manyhands mcp]

It makes a table, calls ``spawn_agents_on_csv`` and ``wait_agent_job`` of a ``manyhands mcp`` that it starts, and prints where the results
are and how they begin. Without options for the server the simulated model plays the agents.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

PATHS = (
    "codex-rs/core/src/tools/handlers/agent_jobs.rs",
    "codex-rs/core/src/tools/handlers/shell.rs",
    "codex-rs/core/src/agent/control.rs",
    "codex-rs/core/src/exec_policy.rs",
    "codex-rs/core/src/tools/handlers/mcp.rs",
)
INSTRUCTION = (
    "read the file (relative to repo root), skim first 200 lines, score security relevance 1-10, "
    "output JSON with keys path, score, rationale, signals array."
)
SCHEMA = Path(__file__).with_name("schema.json")


def make_table(path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("path", "area"), *((name, "core") for name in PATHS)])


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers. Ends the program if that is an error."""
    result = await client.call_tool(tool, arguments)
    if result.is_error or not isinstance(result.structured_content, dict):
        sys.exit(f"{tool}: {result.content}")
    return result.structured_content


async def perform(folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """Have the job done; its status at the end."""
    make_table(folder / "security_rank_input_demo.csv")
    # The key of a model would come from the environment, of which the SDK hands on little by itself.
    command = ["-m", "manyhands", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        job = await call(
            client,
            "spawn_agents_on_csv",
            csv_path=str(folder / "security_rank_input_demo.csv"),
            instruction=INSTRUCTION,
            output_csv_path=str(folder / "security_rank_output_demo.csv"),
            output_schema=json.loads(SCHEMA.read_text(encoding="utf-8")),
        )
        waited = await call(client, "wait_agent_job", job_id=job["job_id"])
        while waited["timed_out"]:
            waited = await call(client, "wait_agent_job", job_id=job["job_id"])
    status: dict[str, Any] = waited["status"]
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="where the table and the results go")
    known, options = parser.parse_known_args()
    status = asyncio.run(perform(known.folder.absolute(), options or ["--model=simulated"]))
    print(f"{status['status']}: {status['completed_items']} of {status['total_items']} rows")
    print(status["output_csv_path"], flush=True)
    return subprocess.run(["head", "-n", "6", status["output_csv_path"]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
