"""What tools a prompt's agent is offered: from drawn toolsets to tools that can be called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from manyhands.agents.toolbox import Toolbox
from manyhands.tools.registry import Registry
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import STANDARD, Toolsets, with_groups
from manyhands.trajectories.prepared import Prepared, recorded_tools


class ToolOffer:
    """The tools of a run, by toolset."""

    def __init__(self, registry: Registry, prepared: Prepared) -> None:
        self.registry = registry
        self.toolsets: Toolsets = with_groups(STANDARD, registry).extended(prepared.toolsets)
        self._boxes: dict[tuple[str, ...], Toolbox] = {}

    @classmethod
    def recorded(cls, prepared: Prepared) -> ToolOffer:
        """Without connecting to anything: tools of MCP servers as they were when the run was made."""
        groups = (prepared.mcp or {}).get("groups")
        return cls(standard_registry().extended(recorded_tools(prepared.mcp), groups=groups), prepared)

    @classmethod
    @asynccontextmanager
    async def opened(cls, prepared: Prepared, *, replay: bool = False) -> AsyncIterator[ToolOffer]:
        """Ready to be called; MCP servers are started, and stopped at the end. Raises UserError if one does not start."""
        if replay or prepared.mcp is None:
            yield cls.recorded(prepared)
            return
        from manyhands.tools.mcp import mounted  # needs an extra, and much time to import
        from manyhands.tools.mcp_config import McpConfig

        async with mounted(McpConfig(**prepared.mcp["config"])) as servers:
            yield cls(servers.added_to(standard_registry()), prepared)

    def toolbox(self, toolsets: Sequence[str]) -> Toolbox:
        """The available tools of these toolsets."""
        key = tuple(toolsets)
        box = self._boxes.get(key)
        if box is None:
            names = self.registry.available(self.toolsets.tools(key))
            box = self._boxes[key] = Toolbox([self.registry.get(name) for name in names])
        return box
