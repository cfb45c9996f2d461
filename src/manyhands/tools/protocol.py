"""What a tool is to an agent, and what an agent is to a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from manyhands.core.clock import Clock
from manyhands.core.jsonio import Json
from manyhands.sandboxes.protocol import Sandbox


@dataclass(slots=True)
class ToolEnvironment:
    """What a tool may use: the item's sandbox (made on first use), its clock, and ``state``, a dict that lives as long
    as the attempt is performed (rebuilt by ``Tool.restore`` on replay, so a tool that keeps state there must implement
    it)."""

    sandbox: Callable[[], Awaitable[Sandbox]]
    clock: Clock
    timeout: float = 180.0
    """Seconds that one call may take."""
    max_output: int = 50_000
    """Characters of a result at most."""
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told. ``content``: JSON (objects go to the model as JSON text) or plain text; ``failed``:
    whether the call failed as a call (a command that exits with 1 did not fail as a call)."""

    content: Json
    failed: bool = False


class Tool(Protocol):
    """One tool. ``parameters`` is a strict JSON Schema object (``additionalProperties: false``)."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...

    @property
    def changes_world(self) -> bool:
        """Whether a call may change (or depends on) the sandbox's world, so that it must be undone or repeated as a
        whole after a crash."""
        ...

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Check the arguments and run. Raises ToolError (for the model) or ItemError (ends the performance); never
        anything else for what a model can cause."""
        ...

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        """Called instead of ``call`` when the call is replayed from the journal: brings ``environment.state`` to where
        it was."""
        ...
