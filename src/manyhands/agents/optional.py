"""Toolsets that nobody has unless they are asked for by name: ``all`` does not mean them, and nothing of them is loaded before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from manyhands.tools.protocol import Tool
from manyhands.tools.toolsets import Toolset, Toolsets

COLLAB = "collab"
_TOOLSETS = {COLLAB: ("Starting agents on the rows of a table.", "manyhands.csv_jobs.collab:collab_tools")}
"""By name: the description, and the function that gives the tools. It lies in a package above this one, hence by name."""


def is_optional(name: str) -> bool:
    """Whether a toolset of that name can be asked for."""
    return name in _TOOLSETS


def with_optional(toolsets: Toolsets) -> Toolsets:
    """The toolsets, with those that can be asked for beside them: without their tools, as names to check against."""
    return toolsets.extended(Toolset(name, about) for name, (about, _) in _TOOLSETS.items() if name not in toolsets)


def load_optional(name: str) -> tuple[Toolset, Sequence[Tool]]:
    """A toolset and its tools. Raises KeyError if there is none of that name."""
    about, target = _TOOLSETS[name]
    module, _, attribute = target.partition(":")
    make: Callable[[], Sequence[Tool]] = getattr(import_module(module), attribute)
    tools = make()
    return Toolset(name, about, tuple(tool.name for tool in tools)), tools
