"""A worker process: forked, or ``python -m manyhands.engine.executors.worker DESCRIPTOR``; on another machine see ``remote``."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported is no garbage, and to look for some takes a fifth of the time

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.redaction import describe, protect, protect_environment
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, Ended, Failed, Stopped, run_attempt
from manyhands.engine.contract import (
    GIVEN_BACK,
    CallReport,
    OneOf,
    OwnLimit,
    Workload,
    WorkloadFactory,
    import_attribute,
)
from manyhands.engine.executors import wire
from manyhands.engine.executors.node_folder import NodeFolder
from manyhands.engine.journal.records import StepRow
from manyhands.engine.old_contract import current
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.interpreters import freeze_objects
from manyhands.processes.output import safe_streams
from manyhands.processes.system import die_with_parent

CLEAN_UP_SECONDS = 8.0
"""How long items may take to clean up when the owner is gone."""
APART_SECONDS = 3.0
"""The same on another machine, where nobody else sees to it that a worker without an owner ends."""
ALONE_SECONDS = 4.5
"""How long a worker on another machine goes on without its owner at most."""
BRING_BACK_SECONDS = 5.0
"""How often a worker on another machine brings back what its items have left so far."""


class Owner:
    """The owner as seen from here: journal and limits over the socket."""

    def __init__(self, channel: wire.Channel) -> None:
        self._channel = channel
        self._requests: dict[int, asyncio.Future[wire.Granted]] = {}
        self._last = 0

    async def record(self, row: StepRow) -> None:
        await self._ask(wire.Record(self._next(), row))

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        return (await self._ask(wire.Acquire(self._next(), key, reserve))).permit

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        granted = await self._ask(wire.Acquire(self._next(), wanted, reserve))
        return granted.permit, granted.key or wanted.keys[0]

    def release(self, permit: int, report: CallReport) -> None:
        self._channel.send(wire.Release(permit, report))

    def granted(self, answer: wire.Granted) -> None:
        future = self._requests.pop(answer.request, None)
        if future is None or future.done():
            if answer.permit:
                self.release(answer.permit, GIVEN_BACK)
        elif answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer)

    def _next(self) -> int:
        self._last += 1
        return self._last

    async def _ask(self, message: wire.Record | wire.Acquire) -> wire.Granted:
        request = message.request
        future: asyncio.Future[wire.Granted] = asyncio.get_running_loop().create_future()
        self._requests[request] = future
        self._channel.send(message)
        try:
            return await future
        except asyncio.CancelledError:
            self._requests.pop(request, None)
            if not future.done() or future.cancelled():
                self._channel.send(wire.Forget(request))
            elif future.exception() is None and future.result().permit:  # it came in the same turn of the loop
                self.release(future.result().permit, GIVEN_BACK)
            raise


class FilesFirst:
    """The owner's journal for attempts on another machine: what a step left is sent before the step. Else an attempt that goes on elsewhere
    would have the step, and not its files."""

    def __init__(self, owner: Owner, channel: wire.Channel, node: NodeFolder) -> None:
        self._owner = owner
        self._channel = channel
        self._node = node

    async def record(self, row: StepRow) -> None:
        with suppress(OSError):  # which the item fails of at its end
            await self._node.bring_back_step(self._channel, f"{row.item}-{row.attempt}")
        await self._owner.record(row)


class Worker:
    """Executes what the owner sends until the socket closes."""

    def __init__(
        self, channel: wire.Channel, begin: wire.Begin, workload: Workload, node: NodeFolder | None = None
    ) -> None:
        """``node``: what stands in for the run's folder on another machine."""
        self._channel = channel
        self._node = node
        self._over: set[asyncio.Task[None]] = set()
        self._farewell: wire.Farewell | None = None
        self._workload = current(workload)
        self._begin = begin
        self._owner = Owner(channel)
        journal = self._owner if node is None else FilesFirst(self._owner, channel, node)
        self._settings = AttemptSettings(journal, self._owner, SystemClock(), begin.seed, Path(begin.folder))
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """What executes items, by their tickets."""
        self._abandoned: set[int] = set()

    async def work(self) -> None:
        async with self._workload.opened(), self._bringing_back():
            self._channel.send(wire.Ready())
            while self._farewell is None and (message := await self._channel.receive()) is not None:
                match message:
                    case wire.Granted():
                        self._owner.granted(message)
                    case wire.Execute(ticket, claim):
                        self._settings.cancelled.discard(claim.item.number)  # that came too late for its last execution
                        self._tasks[ticket] = asyncio.create_task(self._execute(ticket, claim))
                    case _:
                        self._steer(message)
            if self._node is not None and self._farewell is None:
                signal.setitimer(signal.ITIMER_REAL, ALONE_SECONDS)  # whatever still runs then ends with this process
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CLEAN_UP_SECONDS if self._node is None else APART_SECONDS)
        if self._node is not None:
            await asyncio.gather(*self._over, return_exceptions=True)
            await self._node.close(self._workload, over=self._farewell is not None and self._farewell.over)

    @asynccontextmanager
    async def _bringing_back(self) -> AsyncIterator[None]:
        """Now and then, send the owner what items have left on this machine."""
        if self._node is None:
            yield
            return
        task = asyncio.create_task(self._bring_back_often(self._node))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _bring_back_often(self, node: NodeFolder) -> None:
        while True:
            await asyncio.sleep(BRING_BACK_SECONDS)
            with suppress(OSError):  # what matters is sent once more at the end of its item
                await node.bring_back(self._channel)

    async def _attempt_over(self, node: NodeFolder, attempt: str, failed: bool | None) -> None:
        if (stays := await node.over(attempt, failed, self._workload)) is not None:
            self._channel.send(wire.Stays(attempt, stays))

    def _steer(self, message: wire.Message) -> None:
        settings = self._settings
        match message:
            case wire.Stop():
                settings.stopping = True
                settings.pause.end()
            case wire.Pause(active):
                if active:
                    settings.pause.begin()
                else:
                    settings.pause.end()
            case wire.Cancel(items):
                settings.cancelled.update(items)
                settings.pause.wake()
            case wire.Over(attempt, failed) if self._node is not None:
                task = asyncio.create_task(self._attempt_over(self._node, attempt, failed))
                self._over.add(task)
                task.add_done_callback(self._over.discard)
            case wire.Farewell():
                self._farewell = message
            case wire.Abandon(ticket):
                if ticket in self._tasks and ticket not in self._abandoned:
                    self._abandoned.add(ticket)
                    # A task that is cancelled before it has begun would never report its end.
                    asyncio.get_running_loop().call_soon(self._tasks[ticket].cancel)

    async def _execute(self, ticket: int, claim: Claim) -> None:
        try:
            await self._executed(ticket, claim)
        except asyncio.CancelledError:
            if ticket not in self._abandoned:
                raise
            self._channel.send(wire.Done(ticket, Stopped(), left=self._node is not None))
        finally:
            del self._tasks[ticket]
            self._abandoned.discard(ticket)
            self._settings.cancelled.discard(claim.item.number)

    async def _executed(self, ticket: int, claim: Claim) -> None:
        try:
            result = await run_attempt(self._workload, self._settings, claim, self._begin.item_timeout)
        except StorageError as error:
            self._channel.send(wire.Done(ticket, None, StorageError(str(error))))
        except UserError as error:
            self._channel.send(wire.Done(ticket, None, UserError(str(error))))
        else:
            attempt = f"{claim.item.number}-{claim.attempt}"
            if self._node is not None:
                result = await self._brought_back(self._node, attempt, result)
            self._report(ticket, result, left=self._node is not None and self._node.keeps(attempt))

    async def _brought_back(self, node: NodeFolder, attempt: str, result: AttemptResult) -> AttemptResult:
        """The end of an attempt, whose files the owner has."""
        try:
            await node.bring_back(self._channel, attempt)
        except OSError as error:
            why = f"what it left can't be brought back: {error.strerror or error}"
            return Failed(ItemError(Cause.SANDBOX_LOST, why)) if isinstance(result, Ended) else result
        return result

    def _report(self, ticket: int, result: AttemptResult, *, left: bool) -> None:
        try:
            self._channel.send(wire.Done(ticket, result, left=left))
        except Exception as error:  # noqa: BLE001 - pickling runs the code of whatever the workload put in its record
            failure = ItemError(Cause.INTERNAL, f"the outcome can't be sent: {describe(error)}")
            self._channel.send(wire.Done(ticket, Failed(failure), left=left))


async def serve(channel: wire.Channel, node: NodeFolder | None = None) -> None:
    """Work for the owner at the other end of a channel. ``node``: what stands in for the run's folder on another machine."""
    begin: wire.Begin | None = await channel.receive()
    if begin is None:
        return
    if node is not None:
        begin = replace(begin, folder=str(node.path))
    protect_environment(os.environ)
    protect(begin.secrets.values())
    try:
        factory: WorkloadFactory = import_attribute(begin.workload)
        workload = factory(begin.spec, Path(begin.folder))
        freeze_objects()
        gc.enable()
        workload.set_secrets(begin.secrets)
        await Worker(channel, begin, workload, node).work()
    except UserError as error:
        channel.send(wire.Unusable(str(error)))
    finally:
        channel.close()


def main(descriptor: int) -> None:
    """Work for the owner at the other end of the socket with this descriptor."""
    parent = os.getppid()
    die_with_parent()  # nobody is to go on spending for a run without an owner
    if parent != os.getppid():
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with safe_streams():
        run_on_loop(_serve_over(descriptor))


async def _serve_over(descriptor: int) -> None:
    await serve(await wire.Channel.over(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
