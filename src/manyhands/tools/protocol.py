"""What a tool is to an agent, and what an agent is to a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from manyhands.core.clock import Clock
from manyhands.core.errors import ToolError
from manyhands.core.jsonio import Json
from manyhands.core.usage import ZERO, Usage
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.protocol import Sandbox

if TYPE_CHECKING:
    from manyhands.tools.services.artifacts import ArtifactStore
    from manyhands.tools.services.registry import ToolServices
    from manyhands.tools.services.steps import ToolSteps

ServiceT = TypeVar("ServiceT")
JOBS = "jobs"
"""The folder in a run's folder with what its agents started: a folder for each attempt, as ``3-1``, and in it the runs."""


@dataclass(slots=True)  # not frozen: see Outcome
class ParentRun:
    """The run to which a tool's calls belong, for tools that start runs of their own."""

    run_id: str
    """The run's id."""
    folder: Path
    """The run's folder."""
    attempt: str
    """This attempt's name within the run: its item's number and its own, as ``3-1``."""
    options: Mapping[str, Any]
    """The recorded settings of its agents."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What is not recorded of them."""
    depth: int = 0
    """In how many runs, one started within the other, its agents work beyond the first."""
    max_depth: int = 1
    """Agents at that depth may start none."""

    @property
    def jobs(self) -> Path:
        """The folder in the run's folder where this attempt's runs are kept."""
        return self.folder.absolute() / JOBS / self.attempt


@dataclass(slots=True)
class ToolEnvironment:
    """What a tool may use. Use as ``async with``, so that what tools keep open is closed when the attempt ends."""

    sandbox: Callable[[], Awaitable[Sandbox]]
    """The item's sandbox, made on first use."""
    clock: Clock
    timeout: float = 180.0
    """Seconds that one call may take."""
    max_output: int = 50_000
    """Maximum characters of a result."""
    state: dict[str, Any] = field(default_factory=dict)
    """Lives as long as the attempt. A tool that keeps something here implements ``Tool.restore``, which rebuilds it on a replay."""
    call_key: str = ""
    """What names the call: no other call of the attempt has it (of any run, where there is a ``parent``), and a call that is
    repeated after a crash has it again."""
    parent: ParentRun | None = None
    """The run that the call belongs to, if that is known."""
    services: ToolServices | None = None
    """What there is of search services, browsers and further models."""
    steps: ToolSteps | None = None
    """The steps of the call's own, for requests that are paid for. An agent gives each call others; None: the call takes none."""
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Where tools put what is to be closed when the attempt ends, however it ends."""
    untimed: Callable[[], AbstractContextManager[object]] = nullcontext
    """Within what it gives, a call waits for something that other items have, which does not count as its time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self.closing.__aexit__(kind, error, trace))

    @property
    def own_steps(self) -> ToolSteps:
        """The steps, for tools that can't do without. Raises ToolError if there are none."""
        if self.steps is None:
            raise ToolError("this tool can't be called here")
        return self.steps

    @property
    def artifacts(self) -> ArtifactStore:
        """Where files are kept that tools get or make. Raises ToolError if there is no such place."""
        if self.services is None:
            raise ToolError("this tool is not set up in this run")
        return self.services.artifacts

    def service(self, kind: type[ServiceT]) -> ServiceT:
        """The run's service of a class. Raises ToolError if it has none."""
        if self.services is None:
            raise ToolError("this tool is not set up in this run")
        return self.services.of(kind)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model gets as the result of a call."""

    content: Json
    """JSON (objects go to the model as JSON text) or plain text."""
    failed: bool = False
    """Whether the call failed as a call (a command that exits with 1 did not)."""
    ends: bool = False
    """Unless it failed, the conversation is over after this turn, as the call was the answer."""
    usage: Usage = ZERO
    """What the call's own steps used, where it took any (``ToolEnvironment.steps``). Whoever runs the call fills it in."""
    kept: Json = None
    """What ``Tool.restore`` needs besides the content; the model does not get it. No secrets, as it is recorded."""


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
        whole after a crash. A tool that only looks at the world may say so by a further attribute, ``reads_world = True``: then there is
        nothing to undo, and no checkpoint is needed before it. Calls of one turn are made at the same time, but for those that change the
        world, and those of tools whose further attribute ``queue`` has the same text: these are made one after the other."""
        ...

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        """Check the arguments and run. Raises ToolError (for the model) or ItemError (ends the attempt); never
        anything else for what a model can cause."""
        ...

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        """Called instead of ``call`` when the call is replayed from the journal: brings ``environment.state`` to where
        it was."""
        ...
