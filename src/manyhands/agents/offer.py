"""What tools an agent is offered: from names of toolsets to tools that can be called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from manyhands.agents.mcp_record import recorded_registry
from manyhands.agents.optional import is_optional, load_optional
from manyhands.agents.toolbox import Toolbox
from manyhands.core.jsonio import Json
from manyhands.tools.protocol import Tool
from manyhands.tools.registry import Registry
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import EVERYTHING, STANDARD, Toolset, Toolsets, with_groups


class ToolOffer:
    """The tools of a run, by toolset. ``extra``: toolsets besides the standard ones and those that plug-ins and servers bring.
    Optional toolsets (``agents.optional``) are there from when they are first named."""

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
        from manyhands.tools.mcp import mounted  # needs an extra, and much time to import
        from manyhands.tools.mcp_config import McpConfig

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
