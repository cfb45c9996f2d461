"""What a run records of the MCP servers that it mounts, so that it can be replayed without them.

The record is None without servers, or ``{"config": …, "tools": [{"name", "description", "parameters"}], "groups": {server:
[tool]}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import ToolError
from manyhands.core.jsonio import Json
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import Registry
from manyhands.tools.standard import standard_registry


class RecordedTool:
    """A tool as the journal knows it: enough to replay and to render, but not to call."""

    changes_world = False

    def __init__(self, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        raise ToolError(f"{self.name} can't be called here")

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        return


async def mcp_record(config_file: str | None) -> Json:
    """Start the servers of a configuration file, if one is given, and record what they offer.

    Raises UserError naming the file or the server that can't be used.
    """
    if config_file is None:
        return None
    from manyhands.tools.mcp import mounted  # needs an extra, and much time to import
    from manyhands.tools.mcp_config import load_mcp_config

    config = load_mcp_config(Path(config_file))
    async with mounted(config) as servers:
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in servers.tools
        ]
        groups = {name: list(names) for name, names in servers.groups.items()}
    return {"config": config.model_dump(mode="json"), "tools": tools, "groups": groups}


def recorded_tools(mcp: Json) -> list[RecordedTool]:
    """The tools of MCP servers, as they were when the run was made."""
    return [
        RecordedTool(tool["name"], tool["description"], tool["parameters"]) for tool in (mcp or {}).get("tools", [])
    ]


def recorded_registry(mcp: Json) -> Registry:
    """The tools of this program and its plug-ins, with those of a run's MCP servers as they were recorded."""
    return standard_registry().extended(recorded_tools(mcp), groups=(mcp or {}).get("groups"))
