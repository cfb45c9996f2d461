"""A set of tools made ready for an agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from manyhands.agents.tool_names import repair_name
from manyhands.core.digests import digest
from manyhands.tools.protocol import Tool

CACHED = 512
"""How many sets of tools are kept ready."""


class Toolbox:
    """Tools by name, sorted, with what is worked out once for all conversations: definitions for the wire and their
    digest."""

    __slots__ = ("definitions", "digest", "names", "tools")

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
        if len(self.tools) != len(tools):
            raise ValueError("two tools have the same name")
        self.names = tuple(self.tools)
        self.definitions: tuple[dict[str, Any], ...] = tuple(_definition(tool) for tool in self.tools.values())
        self.digest = digest("tools", list(self.definitions)).hex()

    @classmethod
    def of(cls, tools: Sequence[Tool] | Toolbox) -> Toolbox:
        """The box of these very tool objects, from a cache where it was asked for before."""
        if isinstance(tools, Toolbox):
            return tools
        key = tuple(map(id, tools))
        found = _boxes.get(key)
        if found is None:
            # The box keeps its tools alive, so an id in the cache can't come to mean another object.
            found = _boxes[key] = cls(tools)
            if len(_boxes) > CACHED:
                _boxes.popitem(last=False)
        return found

    def find(self, name: str) -> str | None:
        """The tool that a model meant by a name, or None."""
        return repair_name(name, self.tools)


_boxes: OrderedDict[tuple[int, ...], Toolbox] = OrderedDict()
NO_TOOLS = Toolbox(())


def _definition(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
