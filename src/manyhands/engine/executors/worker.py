"""The worker process of the ``processes`` executor: forked, or ``python -m manyhands.engine.executors.worker DESCRIPTOR``."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported is no garbage, and to look for some takes a fifth of the time

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.redaction import describe, protect, protect_environment
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, Failed, Stopped, run_attempt
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
from manyhands.engine.journal.records import StepRow
from manyhands.engine.old_contract import current
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.interpreters import freeze_objects
from manyhands.processes.output import safe_streams
from manyhands.processes.system import die_with_parent

CLEAN_UP_SECONDS = 8.0
"""How long items may take to clean up when the owner is gone."""


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


class Worker:
    """Executes what the owner sends until the socket closes."""

    def __init__(self, channel: wire.Channel, begin: wire.Begin, workload: Workload) -> None:
        self._channel = channel
        self._workload = current(workload)
        self._begin = begin
        self._owner = Owner(channel)
        self._settings = AttemptSettings(self._owner, self._owner, SystemClock(), begin.seed, Path(begin.folder))
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """What executes items, by their tickets."""
        self._abandoned: set[int] = set()

    async def work(self) -> None:
        async with self._workload.opened():
            self._channel.send(wire.Ready())
            while (message := await self._channel.receive()) is not None:
                match message:
                    case wire.Granted():
                        self._owner.granted(message)
                    case wire.Execute(ticket, claim):
                        self._settings.cancelled.discard(claim.item.number)  # that came too late for its last execution
                        self._tasks[ticket] = asyncio.create_task(self._execute(ticket, claim))
                    case _:
                        self._steer(message)
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CLEAN_UP_SECONDS)

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
            self._channel.send(wire.Done(ticket, Stopped()))
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
            self._report(ticket, result)

    def _report(self, ticket: int, result: AttemptResult) -> None:
        try:
            self._channel.send(wire.Done(ticket, result))
        except Exception as error:  # noqa: BLE001 - pickling runs the code of whatever the workload put in its record
            failure = ItemError(Cause.INTERNAL, f"the outcome can't be sent: {describe(error)}")
            self._channel.send(wire.Done(ticket, Failed(failure)))


async def serve(descriptor: int) -> None:
    """Work for the owner at the other end of a socket."""
    channel = await wire.Channel.over(socket.socket(fileno=descriptor))
    begin: wire.Begin | None = await channel.receive()
    if begin is None:
        return
    protect_environment(os.environ)
    protect(begin.secrets.values())
    try:
        factory: WorkloadFactory = import_attribute(begin.workload)
        workload = factory(begin.spec, Path(begin.folder))
        freeze_objects()
        gc.enable()
        workload.set_secrets(begin.secrets)
        await Worker(channel, begin, workload).work()
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
        run_on_loop(serve(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
