"""The worker process of the ``processes`` executor: ``python -m manyhands.engine.executors.worker DESCRIPTOR``."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported is no garbage, and to look for some takes a fifth of the time

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, StorageError, UserError, describe
from manyhands.core.failures import Cause
from manyhands.core.redaction import protect, protect_environment
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import Performed, Surroundings, perform_item
from manyhands.engine.contract import CallReport, Workload, load_workload
from manyhands.engine.executors import wire
from manyhands.engine.journal.records import StepRow
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.streams import safe_streams

CLEAN_UP_SECONDS = 8.0
"""How long items may take to clean up when the owner is gone."""


class Owner:
    """The owner as seen from here: journal and limits over the socket."""

    def __init__(self, channel: wire.Channel) -> None:
        self._channel = channel
        self._requests: dict[int, asyncio.Future[int]] = {}
        self._last = 0

    async def record(self, row: StepRow) -> None:
        await self._ask(lambda request: wire.Record(request, row))

    async def acquire(self, key: str, reserve: Reserve) -> int:
        return await self._ask(lambda request: wire.Acquire(request, key, reserve))

    def release(self, permit: int, report: CallReport) -> None:
        self._channel.send(wire.Release(permit, report))

    def granted(self, answer: wire.Granted) -> None:
        future = self._requests.pop(answer.request, None)
        if future is None or future.done():
            if answer.permit:
                self.release(answer.permit, CallReport())
        elif answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.permit)

    async def _ask(self, message: Any) -> int:
        self._last += 1
        request = self._last
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._requests[request] = future
        self._channel.send(message(request))
        try:
            return await future
        except asyncio.CancelledError:
            self._requests.pop(request, None)
            if not future.done() or future.cancelled():
                self._channel.send(wire.Forget(request))
            elif future.exception() is None and future.result():  # the permit came in the same turn of the loop
                self.release(future.result(), CallReport())
            raise


class Worker:
    """Performs what the owner sends until the socket closes."""

    def __init__(self, channel: wire.Channel, begin: wire.Begin, workload: Workload) -> None:
        self._channel = channel
        self._workload = workload
        self._begin = begin
        self._owner = Owner(channel)
        self._surroundings = Surroundings(self._owner, self._owner, SystemClock(), begin.seed, Path(begin.folder))
        self._tasks: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        async with self._workload.performing():
            self._channel.send(wire.Ready())
            while (message := await self._channel.receive()) is not None:
                match message:
                    case wire.Granted():
                        self._owner.granted(message)
                    case wire.Perform():
                        self._start(self._perform(message))
                    case wire.Stop():
                        self._surroundings.stopping = True
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CLEAN_UP_SECONDS)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, order: wire.Perform) -> None:
        try:
            performed = await perform_item(self._workload, self._surroundings, order.claim, self._begin.item_timeout)
        except StorageError as error:
            self._channel.send(wire.Done(order.ticket, None, StorageError(str(error))))
        except UserError as error:
            self._channel.send(wire.Done(order.ticket, None, UserError(str(error))))
        else:
            self._report(order.ticket, performed)

    def _report(self, ticket: int, performed: Performed) -> None:
        try:
            self._channel.send(wire.Done(ticket, performed))
        except Exception as error:  # noqa: BLE001 - pickling runs the code of whatever the workload put in its record
            failure = ItemError(Cause.INTERNAL, f"the outcome can't be sent: {describe(error)}")
            self._channel.send(wire.Done(ticket, Performed(failure=failure)))


async def serve(descriptor: int) -> None:
    """Work for the owner at the other end of a socket."""
    channel = await wire.Channel.over(socket.socket(fileno=descriptor))
    begin: wire.Begin | None = await channel.receive()
    if begin is None:
        return
    protect_environment(os.environ)
    protect(begin.secrets.values())
    try:
        workload = load_workload(begin.workload)(begin.spec, Path(begin.folder))
        gc.freeze()
        gc.enable()
        workload.set_secrets(begin.secrets)
        await Worker(channel, begin, workload).work()
    except UserError as error:
        channel.send(wire.Unusable(str(error)))
    finally:
        channel.close()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, so that nobody goes on spending for a run without an owner (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if parent != os.getppid():
        os._exit(1)


def main() -> None:
    die_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with safe_streams():
        run_on_loop(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
