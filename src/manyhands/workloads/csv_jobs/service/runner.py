"""The process that executes a job: ``python -m manyhands.workloads.csv_jobs.service.runner FOLDER``, started by ``control.launch``.

It owns the job's journal, listens on the job's socket, and ends when nothing is left to do or it is stopped. Its log is
``runner.log`` in the job's folder.
"""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the process that started it need not wait for it; before anything large is loaded
    gc.disable()  # what is imported is no garbage, and searching for some takes a fifth of the time

import asyncio
import json
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.agents.trajectory import item_lines
from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import ManyhandsError, RunError, UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import protect, protect_environment
from manyhands.engine.contract import Item
from manyhands.engine.journal.store import Store
from manyhands.engine.scheduler import CANCEL_SECONDS
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.fork_server import ForkServer, fork_server
from manyhands.processes.interpreters import freeze_objects
from manyhands.processes.output import SafeStream
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.ledger import REMOVED, ledger_of, left_to_do
from manyhands.runs.making import Opened
from manyhands.runs.on_end import run_on_end
from manyhands.runs.progress import Progress
from manyhands.runs.steering.control import ControlServer, Message
from manyhands.workloads.csv_jobs.prepared import PreparedJob
from manyhands.workloads.csv_jobs.service.control import READY, START_ERRORS, RunnerStart
from manyhands.workloads.csv_jobs.service.status import (
    CANCELLED,
    CANCELLED_ON_REQUEST,
    COMPLETED,
    END,
    FAILED,
    INTERRUPTED,
    LIMIT_REACHED,
    STARTED,
    WITH_FAILURES,
    rfc3339,
)
from manyhands.workloads.csv_jobs.workers.reports import Acceptance
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload

MAX_NOTES = 20
"""Maximum notes for those who follow a job."""
BY_WORKER = "cancelled by worker request"


class JobRunner:
    """Executes one job whose journal it has opened. Requests over the socket come to ``answer``."""

    def __init__(
        self, store: Store, job: PreparedJob, clock: Clock, start: RunnerStart, forks: ForkServer | None = None
    ) -> None:
        self._store = store
        self._forks = forks
        self._workload = CsvJobsWorkload(job.to_json(), store.folder, on_stop=self._stopped_by_worker)
        self._workload.set_secrets(start.secrets)
        self._clock = clock
        self._retry_failed = start.retry_failed
        self._controls = Controls()
        self._stopped: tuple[str, str] | None = None
        """Why it was stopped: the job's state from then on, and the reason."""
        self._progress: Progress | None = None
        self._notes: list[str] = []
        """Messages for those who follow the job."""
        self.control = ControlServer(store.folder, self.answer)

    def begin(self) -> None:
        """Record that the job has begun, and not ended."""
        self._store.set_meta(**{END: None, STARTED: self._store.reader.meta(STARTED) or self._clock.now()})

    async def run(self, *, spec_changed: bool) -> RunResult:
        """Execute the job until nothing is left to do, or until it is stopped, and record how it ended."""
        result = await execute_run(
            Opened(self._store.folder, self._workload, spec_changed=spec_changed, retry_failed=self._retry_failed),
            notice=self._noted,
            controls=self._controls,
            on_progress=self._show,
            on_outcome=self._ended,
            on_wait=say,
            clock=self._clock,
            store=self._store,
            forks=self._forks,
        )
        state, error = self._ending(result)
        end: dict[str, Any] = {"state": state, "error": error, "at": self._clock.now()}
        if result.error is not None and isinstance(result.error.__cause__, UserError):
            end["unwritable"] = True
        self._store.set_meta(**{END: end})
        say(f"the job is {state}" + (f": {error}" if error else ""))
        return result

    def stop(self, state: str, reason: str, *, firm: bool = False) -> None:
        """Claim no more rows and let those in progress end; a second time, or with ``firm``, stop them now."""
        again = self._stopped is not None
        if self._stopped is None or state == CANCELLED:
            self._stopped = (state, reason)
        if not again:
            self._controls.stop(reason)
        if again or firm:
            self._controls.stop(reason)
        elif state == CANCELLED:
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._controls.stop, reason)

    async def answer(self, message: Message) -> Message:
        """The reply to a request."""
        operation = message.get("op")
        if operation == "report":
            return await self._reported(message)
        if operation == "progress":
            return self._figures()
        if operation == "steer":
            return await self._controls.steer(message)
        if operation in ("cancel", "stop"):
            state, reason = (
                (CANCELLED, CANCELLED_ON_REQUEST) if operation == "cancel" else (INTERRUPTED, "stopped on request")
            )
            self.stop(state, str(message.get("reason") or reason), firm=bool(message.get("firm")))
            return {"ok": True}
        return {"error": f"unknown request {operation!r}"}

    async def _reported(self, message: Message) -> Message:
        inbox = self._workload.inbox
        if inbox is None:
            return asdict(Acceptance(False, "this job's workers do not report here"))
        return await inbox.answer(message)

    def _ended(self, item: Item, outcome: Outcome) -> None:
        """A row's end is on disk."""
        if self._workload.job.options.verbose:
            self._describe(item, outcome)
        if outcome.state is ItemState.FAILED:
            reason = self._workload.threshold_reached
            if reason is not None and self._stopped is None:
                self.stop(FAILED, reason)
        elif outcome.record.get("stop"):
            self._stopped_by_worker()

    def _stopped_by_worker(self) -> None:
        if self._stopped is None:
            self.stop(CANCELLED, BY_WORKER)

    def _describe(self, item: Item, outcome: Outcome) -> None:
        why = f"via {outcome.record['via']}" if "via" in outcome.record else f"{outcome.cause}: {outcome.message}"
        preview = self._workload.job.options.log_prefix_chars
        for line in item_lines(item.key, item, outcome, why, self._store.reader, preview):
            say(line)

    def _show(self, progress: Progress) -> None:
        self._progress = progress
        self.control.publish(self._figures())

    def _figures(self) -> Message:
        progress = self._progress
        if progress is None:
            return {"stopping": self._stopped is not None}
        ended = progress.finished - progress.finished_before
        eta = round(left_to_do(ledger_of(self._store.reader)) * progress.seconds / ended) if ended else None
        return {
            "finished": progress.finished,
            "in_flight": progress.in_flight,
            "eta_seconds": eta,
            "stopping": self._stopped is not None,
            "waiting": [wait.text() for wait in progress.waits[:1]],
            "notes": self._notes,
        }

    def _noted(self, text: str) -> None:
        """Log a message, and keep it for those who follow the job."""
        say(text)
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    def _ending(self, result: RunResult) -> tuple[str, str | None]:
        """The job's state, and the reason for it."""
        if result.error is not None:
            return FAILED, str(result.error)
        if not result.done:
            return self._stopped or (FAILED, result.stopped or "it stopped before its end")
        found = result.ledger
        if found["pending"]:
            return LIMIT_REACHED, None
        removed = found["by_cause"].get(ItemState.CANCELLED, {}).get(REMOVED, 0)
        return (COMPLETED if found["completed"] == found["items"] - removed else WITH_FAILURES), None


class ReadySignal:
    """Reports to the process that started this one that it has begun, or why not; once."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def say(self, message: Message) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")
                os.close(self._descriptor)
            self._descriptor = None


def say(text: str) -> None:
    """A line for ``runner.log``; without it if the disk is full, which must not end the job."""
    with suppress(OSError):
        print(f"{rfc3339(SystemClock().now())} {text}", flush=True)


async def run_job(folder: Path, start: RunnerStart, ready: ReadySignal, forks: ForkServer | None = None) -> None:
    """Open a job and execute it. ``forks``: what makes worker processes. Raises what keeps it from beginning, or breaks it."""
    clock = SystemClock()
    store = Store(folder, clock, say)
    runner = None
    try:
        if store.reader.meta(END) != start.end:
            raise RunError(f"{folder}: the job was ended before its runner began")
        recorded = store.reader.meta("spec")
        job = PreparedJob.from_json(recorded, store.folder.parent).continued(start.changes)
        runner = JobRunner(store, job, clock, start, forks)
        await runner.control.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, runner.stop, INTERRUPTED, "stopped by a signal")
        runner.begin()  # before it is reported that the job has begun
        ready.say({"ready": True})
        result = await runner.run(spec_changed=job.to_json() != recorded)
    except ManyhandsError as error:
        if runner is not None:
            _note(store, clock, error)
        raise
    finally:
        if runner is not None:
            runner.control.withdraw()  # as long as no other process can own the job, and publish its own socket
        store.close()
        if runner is not None:
            await runner.control.close(ended=True)
    await run_on_end(job.options.on_end, result, result.exit_code, say)


def _note(store: Store, clock: Clock, error: ManyhandsError) -> None:
    """Record that the job broke; best effort, because what broke may be the disk."""
    with suppress(ManyhandsError, OSError):
        store.set_meta(**{END: {"state": FAILED, "error": str(error), "at": clock.now()}})


def main() -> int:
    """Execute the job whose folder is named; the exit code."""
    freeze_objects()
    gc.enable()
    text = os.environ.pop(READY, "")
    ready = ReadySignal(int(text) if text.isdecimal() else None)
    start = RunnerStart.from_text(sys.stdin.read())
    sys.stdin.close()
    sys.stdout, sys.stderr = SafeStream(sys.stdout), SafeStream(sys.stderr)
    protect_environment(os.environ)
    protect(start.secrets.values())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with fork_server() as forks:
            run_on_loop(run_job(Path(sys.argv[1]), start, ready, forks))
    except ManyhandsError as error:
        kind = next((name for name, kind in START_ERRORS.items() if isinstance(error, kind)), "StorageError")
        ready.say({"error": kind, "message": str(error)})
        say(f"error: {error}")
        return 1
    except Exception as error:
        ready.say({"error": "StorageError", "message": f"the runner broke: {type(error).__name__}: {error}"})
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
