"""A real MCP server for the tests, over standard streams or HTTP. Run as ``mcp_server_for_tests.py stdio`` or ``… http
PORT``."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import time
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("for-tests", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def whoami() -> dict[str, Any]:
    """The server's process, and a variable of its environment."""
    return {"pid": os.getpid(), "token": os.environ.get("TOKEN", "")}


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """Text and a picture."""
    return ["a dot", Image(data=base64.b64decode("iVBORw0KGgo="), format="png")]


@server.tool()
def fail(message: str) -> str:
    """Fails."""
    raise ToolError(message)


@server.tool()
def long(size: int) -> str:
    """Much text."""
    return "x" * size


@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """Ends the server."""
    print("about to die", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def child() -> int:
    """Starts a process that ignores everything; returns its number."""
    command = "trap '' TERM INT HUP; sleep 300"
    return subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


@server.tool(name="odd name!")
def odd() -> str:
    """A name that no endpoint takes."""
    return "odd"


if __name__ == "__main__":
    how = sys.argv[1]
    if how == "stdio":
        print("hello from stderr", file=sys.stderr, flush=True)
        server.run("stdio")
    elif how == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    elif how == "hang":
        time.sleep(300)
    elif how == "exit":
        print(f"no licence for {os.environ.get('TOKEN', 'anyone')}", file=sys.stderr, flush=True)
        sys.exit(4)
