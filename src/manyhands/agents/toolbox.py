"""A set of tools made ready for an agent, in which names that a model got slightly wrong are found, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.text import LONGEST, closest
from manyhands.tools.protocol import Tool

SIMILARITY = 0.7
"""How alike two names must be (difflib's ratio, 0 to 1) for one to be taken for the other."""


def repair_name(name: str, known: Collection[str]) -> str | None:
    """The known name that was meant, or None.

    Tried in order: the name itself; in lower case; with hyphens and spaces as underscores; the same, ignoring the case
    of known names too; the most similar known name.
    """
    if name in known:
        return name
    if len(name) > LONGEST:
        return None
    plain = _plain(name)
    for candidate in (name.strip().lower(), plain):
        if candidate in known:
            return candidate
    by_plain = {_plain(each): each for each in sorted(known, reverse=True)}
    if plain in by_plain:
        return by_plain[plain]
    found = closest(plain, sorted(by_plain), cutoff=SIMILARITY)
    return by_plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


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
