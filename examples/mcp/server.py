"""A small MCP server over standard streams, to be mounted by ``mcp.json``."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("units", log_level="ERROR")


@server.tool()
def celsius(fahrenheit: float) -> float:
    """Convert a temperature from degrees Fahrenheit to degrees Celsius."""
    return round((fahrenheit - 32) / 1.8, 2)


@server.tool()
def kilometres(miles: float) -> float:
    """Convert a distance from miles to kilometres."""
    return round(miles * 1.609344, 3)


if __name__ == "__main__":
    server.run()
