"""What tools an agent is offered: from names of toolsets to tools that can be called.

Optional toolsets are had by those only who ask for them by name: ``all`` does not mean them, and nothing of them is loaded before.

A run records the MCP servers that it mounts, so that it can be replayed without them. The record is None without servers, or
``{"config": …, "tools": [{"name", "description", "parameters"}], "groups": {server: [tool]}}``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from manyhands.agents.toolbox import Toolbox
from manyhands.core.errors import ToolError
from manyhands.core.imports import import_attribute
from manyhands.core.jsonio import Json
from manyhands.runs.registry import TOOLSETS
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.registry import Registry
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import EVERYTHING, STANDARD, Toolset, Toolsets, with_groups


def is_optional(name: str) -> bool:
    """Whether a toolset of that name can be asked for."""
    return name in TOOLSETS


def with_optional(toolsets: Toolsets) -> Toolsets:
    """The toolsets, with those that can be asked for beside them: without their tools, as names to check against."""
    return toolsets.extended(Toolset(name, about) for name, (about, _) in TOOLSETS.items() if name not in toolsets)


def load_optional(name: str) -> tuple[Toolset, Sequence[Tool]]:
    """A toolset and its tools. Raises KeyError if there is none of that name."""
    about, target = TOOLSETS[name]
    make: Callable[[], Sequence[Tool]] = import_attribute(target)
    tools = make()
    return Toolset(name, about, tuple(tool.name for tool in tools)), tools


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
    from manyhands.tools.mcp.config import load_mcp_config
    from manyhands.tools.mcp.tools import mounted  # needs an extra, and much time to import

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


class ToolOffer:
    """The tools of a run, by toolset. ``extra``: toolsets besides the standard ones and those that plug-ins and servers bring.
    Optional toolsets (``agents.toolset_tools``) are there from when they are first named."""

    def __init__(self, registry: Registry, extra: Sequence[Toolset] = ()) -> None:
        self.registry = registry
        self.toolsets: Toolsets = with_groups(STANDARD, registry)
        self._boxes: dict[tuple[str, ...], Toolbox] = {}
        self.admit(included for toolset in extra for included in toolset.includes)
        self.toolsets = self.toolsets.extended(extra)

    @classmethod
    def recorded(cls, mcp: Json, extra: Sequence[Toolset] = ()) -> ToolOffer:
        """Without connecting to anything: tools of MCP servers as they were when the run was made. ``mcp``: their record."""
        return cls(recorded_registry(mcp), extra)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, mcp: Json, extra: Sequence[Toolset] = (), *, replay: bool = False
    ) -> AsyncIterator[ToolOffer]:
        """Ready to be called; MCP servers are started, and stopped at the end. Raises UserError if one does not start."""
        if replay or mcp is None:
            yield cls.recorded(mcp, extra)
            return
        from manyhands.tools.mcp.config import McpConfig
        from manyhands.tools.mcp.tools import mounted  # needs an extra, and much time to import

        async with mounted(McpConfig(**mcp["config"])) as servers:
            yield cls(servers.added_to(standard_registry()), extra)

    def admit(self, toolsets: Iterable[str]) -> None:
        """Add those of the named toolsets that are optional and not there yet.

        Raises UserError if a tool of theirs has the name of another one.
        """
        for name in toolsets:
            if is_optional(name) and name not in self.toolsets:
                toolset, tools = load_optional(name)
                self.registry = self.registry.extended(tools)
                self.toolsets = self.toolsets.extended([toolset])

    def tools(self, toolsets: Sequence[str]) -> list[Tool]:
        """The available tools of these toolsets, by name. Raises UserError for a name that is no toolset."""
        self.admit(toolsets)
        return [self.registry.get(name) for name in self.registry.available(self.toolsets.tools(toolsets))]

    def offered(self, toolsets: Sequence[str]) -> list[str]:
        """Those of the toolsets that have a tool on offer. One that lacks tools and includes others is replaced by those of them that
        have some. Raises UserError for a name that is no toolset."""
        self.admit(toolsets)
        found: dict[str, None] = {}
        for name in toolsets:
            found.update(dict.fromkeys(self._offered(name)))
        return list(found)

    def _offered(self, name: str) -> list[str]:
        tools = self.toolsets.tools([name])
        available = self.registry.available(tools)
        includes = () if name in EVERYTHING else self.toolsets[name].includes
        if not available or not includes or len(available) == len(tools):
            return [name] if available else []
        own = self.registry.available(self.toolsets[name].tools)
        return [*([name] if own else []), *(part for each in includes for part in self._offered(each))]

    def toolbox(self, toolsets: Sequence[str]) -> Toolbox:
        """The same, made ready for an agent."""
        key = tuple(toolsets)
        box = self._boxes.get(key)
        if box is None:
            box = self._boxes[key] = Toolbox(self.tools(key))
        return box
