"""The sandbox of an attempt: made when it is needed, or while a model is called that probably needs it; brought back after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from manyhands.engine.contract import Context, Effect
from manyhands.network.counts import NETWORK, HostCounts
from manyhands.processes.children import to_the_end
from manyhands.processes.strays import remove_tree
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest


@dataclass(slots=True)
class _Demand:
    """How many conversations needed their sandbox, and how many that might have did not, or not yet."""

    needed: int = 0
    unneeded: int = 0

    @property
    def likely(self) -> bool:
        """Whether the next one is expected to need its own: the first of all, and then while most did. As those that have only begun
        count as without need, few sandboxes are made in vain by many conversations that begin together."""
        return self.needed > self.unneeded or not self.needed + self.unneeded


@dataclass(frozen=True, slots=True)
class _Early:
    """A sandbox that nobody has requested yet."""

    survived: bool
    """Whether its folder was there before."""
    folder: Path
    making: asyncio.Task[Sandbox]

    async def give_up(self) -> None:
        """Leave nothing of it."""
        self.making.cancel()
        await asyncio.wait([self.making])
        if not self.making.cancelled() and self.making.exception() is None:
            await self.making.result().close()
        if not self.survived:
            with suppress(OSError):  # what is left of it is removed by the engine, or named by it
                await asyncio.to_thread(remove_tree, self.folder)


_demands: WeakKeyDictionary[SandboxBackend, _Demand] = WeakKeyDictionary()
"""Of each backend of this process."""
_proven: WeakKeyDictionary[SandboxBackend, set[tuple[str | None, ...]]] = WeakKeyDictionary()
"""For each backend of this process, the images, directories and users of which a sandbox could be made."""


class World:
    """What the steps of an attempt change outside the journal.

    As long as steps are replayed no sandbox is made. When the first step that is not replayed needs one and the attempt
    had begun a step in it before, the sandbox is re-attached, or else a new attempt is called for: going on in another
    world than the recorded steps left would be wrong. Steps that change the world are taken one after the other, whatever their
    scopes, so the one that the sandbox names as begun is the last recorded one, or the one that was cut off behind it, or, in a
    folder that is not what it was, an earlier one.

    Use as ``async with World(context, backend, request) as world``. ``request`` is called for what to make when it comes to that:
    most conversations of some runs need no sandbox. Where most do, a sandbox starts while the model is called (``expect``).
    """

    def __init__(self, context: Context, backend: SandboxBackend, request: Callable[[], SandboxRequest]) -> None:
        self._context = context
        self._backend = backend
        self._request = request
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._early: _Early | None = None
        self._expected = False
        self._demand = _demands.setdefault(backend, _Demand())
        self._last_replayed: str | None = None
        self._replayed: set[str] = set()
        self._looked: set[str] = set()
        self._hosts = HostCounts()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        used = self._sandbox is not None or bool(self._replayed or self._looked)
        await self.close()
        if used and kind is None:
            await self._record_hosts()

    def expect(self) -> None:
        """A model is about to be called that may use the sandbox: begin to make it meanwhile, if it is likely to be needed and no step
        was replayed. If that fails, whoever needs the sandbox learns it."""
        if self._expected or self._sandbox is not None:
            return
        likely, self._expected = self._demand.likely, True
        self._demand.unneeded += 1
        if likely and self._last_replayed is None:
            request = replace(self._request(), ahead=True)
            self._early = _Early(request.folder.exists(), request.folder, asyncio.ensure_future(self._made(request)))

    async def sandbox(self) -> Sandbox:
        """The sandbox.

        Raises ItemError(SANDBOX_LOST) if it can't be made, and what ``Context.new_attempt_needed`` gives if its former
        state is gone.
        """
        return await self._opened(None)

    async def prove(self) -> None:
        """Have the sandbox made, unless one of the same image, ``cwd`` and user was made in this process: whether these can be used shows
        when it is made. To be called before a model is, which would be paid in vain. Raises what ``sandbox`` raises."""
        request, proven = self._request(), _proven.setdefault(self._backend, set())
        like = (request.image, request.cwd, request.user)
        if like not in proven:
            await self.sandbox()
            proven.add(like)

    async def begin_step(self, address: str) -> None:
        """To be called before the step at ``address`` changes the world (not when it is replayed)."""
        sandbox = await self._opened(address)
        await sandbox.begin_step(address)

    async def end_processes(self, address: str) -> bool:
        """To be called before ``begin_step`` if nothing of what earlier steps started is to run in this one; whether anything did."""
        sandbox = await self._opened(address)
        return await sandbox.end_processes()

    async def end_step(self) -> None:
        """To be called when such a step has ended. Raises ItemError(SANDBOX_LIMIT)."""
        if self._sandbox is not None:
            await self._sandbox.end_step()

    def replayed(self, address: str) -> None:
        """Note that the step at ``address`` that had changed the world was replayed from the journal."""
        self._last_replayed = address
        self._replayed.add(address)

    def looked(self, address: str) -> None:
        """Note that a step that had only looked at the world was replayed. Earlier versions begun it in the world, too."""
        self._looked.add(address)

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
            await self._close_unneeded()
            return
        async with self._opening:
            sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await to_the_end(sandbox.close())

    async def _close_unneeded(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            await to_the_end(early.give_up())

    async def _opened(self, address: str | None) -> Sandbox:
        """``address``: of the step that it is opened for, if that is one which changes the world."""
        if self._sandbox is not None:
            return self._sandbox
        async with self._opening:
            if self._sandbox is None:
                early, self._early = self._early, None
                self._sandbox = await (early.making if early else self._made(self._request(), address))
                self._demand.needed += 1
                self._demand.unneeded -= self._expected
        return self._sandbox

    async def _made(self, request: SandboxRequest, address: str | None = None) -> Sandbox:
        sandbox = await self._backend.create(replace(request, hosts=self._hosts))
        try:
            await self._restore(sandbox, address)
        except BaseException:
            await to_the_end(sandbox.close())
            raise
        return sandbox

    async def _record_hosts(self) -> None:
        """Record which hosts commands asked for since the sandbox was made or brought back, where only some are allowed."""
        limits = self._request().limits
        if limits.network_allow and not limits.network:

            async def effect() -> Effect:
                return Effect({"hosts": self._hosts.to_json()})

            await self._context.scope(NETWORK).step(NETWORK, {"allowed": list(limits.network_allow)}, effect)

    async def _restore(self, sandbox: Sandbox, address: str | None) -> None:
        """Bring the sandbox to the state after the last recorded step. ``address``: of the step that follows, if it is known."""
        open_step, last = sandbox.open_step, self._last_replayed
        if open_step is None:
            if last is not None:
                raise self._context.new_attempt_needed(f"the sandbox folder that step {last} had changed is gone")
            return
        recorded = open_step == last or open_step in self._looked
        if not recorded and (open_step in self._replayed or (address is not None and open_step != address)):
            what = "the first step" if last is None else f"the recorded step {last}"
            raise self._context.new_attempt_needed(f"the sandbox folder is older than {what}")
        if not await sandbox.reattach(recorded, open_step):
            why = getattr(sandbox, "lost_because", None)  # only some kinds of sandboxes can say
            reason = "the sandbox could not be brought back to the last recorded step"
            raise self._context.new_attempt_needed(f"{reason}: {why}" if why else reason)
