"""Policies around tools: each an object around a tool, not a flag within it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tool under another name."""

    inner: Tool
    name: str

    @property
    def description(self) -> str:
        return self.inner.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.inner.parameters

    @property
    def changes_world(self) -> bool:
        return self.inner.changes_world

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        return await self.inner.call(arguments, environment)

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        self.inner.restore(arguments, result, environment)


def prefixed(tools: Iterable[Tool], prefix: str) -> list[Tool]:
    """The tools with the prefix before each name."""
    return [Renamed(each, prefix + each.name) for each in tools]


def filtered(tools: Iterable[Tool], keep: Callable[[Tool], bool]) -> list[Tool]:
    """The tools that ``keep`` is true for."""
    return [each for each in tools if keep(each)]
