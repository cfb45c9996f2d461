"""The sandbox of an attempt: made when it is first needed, and brought back after a crash."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from manyhands.engine.contract import Context
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest

_NUMBERS = re.compile(r"\d+")


class World:
    """What the steps of an attempt change outside the journal.

    As long as steps are replayed no sandbox is made. When the first step that is not replayed needs one and the attempt
    had begun a step in it before, the sandbox is re-attached, or else a new attempt is called for: going on in another
    world than the recorded steps left would be wrong.

    Use as ``async with World(context, backend, request) as world``. ``request`` is asked what to make when it comes to that:
    most conversations of some runs need no sandbox.
    """

    def __init__(self, context: Context, backend: SandboxBackend, request: Callable[[], SandboxRequest]) -> None:
        self._context = context
        self._backend = backend
        self._request = request
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._last_replayed: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def sandbox(self) -> Sandbox:
        """The sandbox.

        Raises ItemError(SANDBOX_LOST) if it can't be made, and what ``Context.new_attempt_needed`` gives if its former
        state is gone.
        """
        if self._sandbox is not None:
            return self._sandbox
        async with self._opening:
            if self._sandbox is None:
                sandbox = await self._backend.create(self._request())
                try:
                    await self._restore(sandbox)
                except BaseException:
                    await asyncio.shield(sandbox.close())
                    raise
                self._sandbox = sandbox
        return self._sandbox

    async def begin_step(self, place: str) -> None:
        """To be called before a step at ``place`` changes the world (not when it is replayed)."""
        sandbox = await self.sandbox()
        await sandbox.begin_step(place)

    def replayed(self, place: str) -> None:
        """Note that a step at ``place`` that had changed the world was replayed from the journal."""
        self._last_replayed = place

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Within this nothing runs in the sandbox, so that what is in its folder can be looked at."""
        sandbox = self._sandbox
        if sandbox is None:
            yield
            return
        await sandbox.freeze()
        try:
            yield
        finally:
            await asyncio.shield(sandbox.thaw())

    async def close(self) -> None:
        """Stop everything inside. Idempotent; finishes even when cancelled."""
        if self._sandbox is None and not self._opening.locked():
            return
        async with self._opening:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await asyncio.shield(sandbox.close())

    async def _restore(self, sandbox: Sandbox) -> None:
        """Bring the sandbox to the state after the last recorded step."""
        open_step, last = sandbox.open_step, self._last_replayed
        if open_step is None:
            if last is not None:
                raise self._context.new_attempt_needed(f"the sandbox folder that step {last} had changed is gone")
            return
        recorded = open_step == last
        if not recorded and last is not None and _number(open_step) < _number(last):
            raise self._context.new_attempt_needed(f"the sandbox folder is older than the recorded step {last}")
        if not await sandbox.reattach(recorded, open_step):
            raise self._context.new_attempt_needed("the sandbox could not be brought back to the last recorded step")


def _number(place: str) -> tuple[int, ...]:
    """Orders places: those of a later turn come behind those of an earlier one."""
    return tuple(map(int, _NUMBERS.findall(place)))
