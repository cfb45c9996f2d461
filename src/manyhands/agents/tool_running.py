"""Running the tool calls of one turn: as steps, at the same time, each within a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from manyhands.agents.reading import parse_arguments
from manyhands.agents.task import AgentSettings
from manyhands.agents.time_limit import ELAPSED, TimeLimit
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import TOOL, TOOLS, from_record, recorded, refusal
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, ManyhandsError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.messages import ToolCall
from manyhands.core.redaction import KNOWN
from manyhands.core.usage import ZERO
from manyhands.engine.contract import Context, Effect
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.services.steps import ToolSteps, together

MAX_CONCURRENT = 32
"""Maximum concurrent calls of one conversation: each may have processes and descriptors, of which a sandbox and a process have only so
many. The others wait for their turn, which does not count as their time."""
GRACE = 10.0
"""Seconds that a tool gets beyond its own time limit to end by itself."""


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that can be run."""

    turn: str
    """The address of the model step that asked for it."""
    index: int
    """Its position there."""
    call_id: str
    tool: Tool
    arguments: dict[str, Any]

    def request(self) -> dict[str, Any]:
        """What a step records of it."""
        return {"index": self.index, "id": self.call_id, "name": self.tool.name, "arguments": self.arguments}


class ToolRunner:
    """Runs the calls of one conversation."""

    __slots__ = ("_at_once", "_context", "_environment", "_limit", "_settings", "_toolbox", "_world")

    def __init__(
        self,
        context: Context,
        toolbox: Toolbox,
        environment: ToolEnvironment,
        world: World | None,
        settings: AgentSettings,
        limit: TimeLimit | None = None,
    ) -> None:
        """``limit``: the conversation's time limit."""
        self._context = context
        self._limit = limit
        self._toolbox = toolbox
        self._environment = environment
        self._world = world
        self._settings = settings
        self._at_once = asyncio.Semaphore(MAX_CONCURRENT)

    def expect(self) -> None:
        """The model is about to be called, and may answer with tool calls."""
        if self._world is not None and self._toolbox.changes_world:
            self._world.expect()

    async def run(
        self, turn: str, calls: Sequence[ToolCall], refused: Mapping[int, ToolResult]
    ) -> dict[int, ToolResult]:
        """The results of a turn's calls by index. ``turn``: the address of the model step that asked; ``refused``:
        answers to calls that are not run.

        Raises ItemError(TOOL_ERROR) if a tool breaks; what the engine raises passes through. Nothing is left running.
        """
        ready = [self._ready(turn, index, call) for index, call in enumerate(calls) if index not in refused]
        results = dict(refused)
        if self._settings.sequential_tools:
            for group in _stretches(ready):
                results.update(await self._branch(turn, group))
            return results
        for part in await together([self._branch(turn, group) for group in _branches(ready)]):
            results.update(part)
        return results

    def _ready(self, turn: str, index: int, call: ToolCall) -> ReadyCall:
        function = call["function"]
        tool = self._toolbox.tools[function["name"]]
        return ReadyCall(turn, index, call["id"], tool, parse_arguments(function["arguments"]))

    async def _branch(self, turn: str, calls: Sequence[ReadyCall]) -> dict[int, ToolResult]:
        if calls[0].tool.changes_world:
            return await self._shared_step(turn, calls)
        return {call.index: await self._own_step(turn, call) for call in calls}

    async def _own_step(self, turn: str, call: ReadyCall) -> ToolResult:
        ran = False
        scope = self._context.scope(f"call-{turn}-{call.index}")
        address = scope.address

        async def effect() -> Effect:
            nonlocal ran
            ran = True
            return await self._timed(lambda: self._record(call, lambda: scope.parts(address)))

        output = await scope.step(TOOL, {"turn": turn, "call": call.request()}, effect)
        result = from_record(output)
        if not ran:
            self._note_replayed(output)
            self._restore(call, result)
        return result

    async def _shared_step(self, turn: str, calls: Sequence[ReadyCall]) -> dict[int, ToolResult]:
        ran = False
        address = self._context.address
        changing = not all(getattr(call.tool, "reads_world", False) for call in calls)  # tools of others may lack it

        async def effect() -> Effect:
            nonlocal ran
            ran = True
            if self._world is not None and changing:
                await self._world.begin_step(address)

            parts = cache(lambda: self._context.parts(address))

            async def results() -> dict[str, Json]:
                return {"results": await self._records(calls, parts)}

            return await self._timed(results)

        output = await self._context.step(TOOLS, {"turn": turn, "calls": [call.request() for call in calls]}, effect)
        results = {call.index: from_record(record) for call, record in zip(calls, output["results"], strict=True)}
        if not ran:
            self._note_replayed(output)
            for call in calls:
                self._restore(call, results[call.index])
        if self._world is not None:
            await _note_step(self._world, address, ran=ran, changing=changing)
        return results

    async def _timed(self, output: Callable[[], Awaitable[dict[str, Any]]]) -> Effect:
        """The effect of calls, with what of the conversation's time was used up after them."""
        if self._limit is None:
            return Effect(await output())
        with self._limit.working():
            found = await output()
            return Effect({**found, ELAPSED: self._limit.elapsed})

    def _note_replayed(self, output: Mapping[str, Any]) -> None:
        if self._limit is not None:
            self._limit.replayed(output)

    async def _records(self, calls: Sequence[ReadyCall], parts: Callable[[], Context]) -> list[Json]:
        def recording(call: ReadyCall) -> Coroutine[Any, Any, dict[str, Any]]:
            return self._record(call, lambda: parts().scope(f"call-{call.index}"))

        if self._settings.sequential_tools:
            return [await recording(call) for call in calls]
        return await together([recording(call) for call in calls])

    async def _record(self, call: ReadyCall, open_parts: Callable[[], Context]) -> dict[str, Any]:
        services = self._environment.services
        steps = ToolSteps(call.tool.name, open_parts, artifacts=None if services is None else services.artifacts)
        try:
            async with self._at_once:
                result = await self._call(call, steps)
            usage = steps.usage
            return recorded(result if usage is ZERO else replace(result, usage=usage), self._settings.max_result)
        except ManyhandsError:
            raise
        except Exception as error:
            raise _broken(call, error) from error

    async def _call(self, call: ReadyCall, steps: ToolSteps) -> ToolResult:
        environment = replace(self._environment_of(call), steps=steps)
        seconds = self._settings.tool_timeout
        if seconds is None:
            seconds = environment.timeout + GRACE
        if self._limit is not None:
            left = self._limit.left
            if left <= 0:
                return refusal("The call was not made, as the time for the whole task is over.")
            environment = replace(environment, timeout=min(environment.timeout, left))
            seconds = min(seconds, left + GRACE)
        limit = asyncio.timeout(seconds)
        if self._limit is None:
            environment = replace(environment, untimed=lambda: _paused(limit))
        try:
            async with limit:
                return await call.tool.call(call.arguments, environment)
        except ToolError as error:
            return refusal(str(error))
        except TimeoutError:
            if not limit.expired():
                raise
            return refusal(
                f"The call was stopped because it took longer than {seconds:g} seconds. "
                "Ask for less at once, or do the work in smaller steps."
            )

    def _environment_of(self, call: ReadyCall) -> ToolEnvironment:
        context, parent = self._context, self._environment.parent
        run = "" if parent is None else parent.run_id
        key = f"{run}/{context.item.number}/{context.attempt}/{call.turn}/{call.index}"
        return replace(self._environment, call_key=key)

    def _restore(self, call: ReadyCall, result: ToolResult) -> None:
        try:
            call.tool.restore(call.arguments, result, self._environment_of(call))
        except Exception as error:
            raise _broken(call, error) from error


async def _note_step(world: World, address: str, *, ran: bool, changing: bool) -> None:
    """Have the world know of a recorded step of calls in it."""
    if not changing:
        world.looked(address)
    elif ran:
        await world.end_step()
    else:
        world.replayed(address)


def _branches(calls: Sequence[ReadyCall]) -> list[list[ReadyCall]]:
    """The groups that run at the same time: all calls that share the world as one, all of one queue as one, every other call for itself."""
    shared = [call for call in calls if call.tool.changes_world]
    queues: dict[str, list[ReadyCall]] = {}
    for call in calls:
        if not call.tool.changes_world:
            queues.setdefault(getattr(call.tool, "queue", "") or f"call {call.index}", []).append(call)
    return [shared, *queues.values()] if shared else [*queues.values()]


def _stretches(calls: Sequence[ReadyCall]) -> list[list[ReadyCall]]:
    """The same in call order: neighbours that share the world as one step."""
    stretches: list[list[ReadyCall]] = []
    for call in calls:
        if call.tool.changes_world and stretches and stretches[-1][-1].tool.changes_world:
            stretches[-1].append(call)
        else:
            stretches.append([call])
    return stretches


@contextmanager
def _paused(limit: asyncio.Timeout) -> Iterator[None]:
    """Within it, the time does not run."""
    loop, when = asyncio.get_running_loop(), limit.when()
    if when is None:
        yield
        return
    left = when - loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(loop.time() + left)


def _broken(call: ReadyCall, error: Exception) -> ItemError:
    text = " ".join(KNOWN.text(f"{type(error).__name__}: {error}").split())
    return ItemError(Cause.TOOL_ERROR, f"tool {call.tool.name!r} broke: {text[:1000]}")
