"""An external command as a worker: launched for each row, it reports over MCP, or prints the result.

Each launch is one step. Its output is recorded before the worker learns that its report is accepted; the command may then end by itself,
for a few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.agents.programs import Account, AgentProgram, read_account
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.models.pricing import PriceTable
from manyhands.processes.commands import CommandRunner, RunningCommand
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.csv_jobs.rows.prompts import corrected
from manyhands.workloads.csv_jobs.workers.input_echo import WorkerInput
from manyhands.workloads.csv_jobs.workers.launch_files import LaunchFiles, LaunchFolders
from manyhands.workloads.csv_jobs.workers.printed_result import NoResult, result_in
from manyhands.workloads.csv_jobs.workers.reports import (
    SECRET,
    WORKER_STEP,
    Accepted,
    Assignment,
    Corrections,
    PendingReport,
    Report,
    ReportInbox,
    missing_report_error,
    tail,
    tail_line,
    timeout_error,
)

EXIT_GRACE_SECONDS = 5.0
"""Seconds that a command may run on after its report was accepted."""
COST_GRACE_SECONDS = 60.0
"""The same if its costs are awaited, which it reports at its end."""
MAX_ROW_BYTES = 100_000
"""Bytes of a row as JSON in the environment; a larger one is only in the file."""
MAX_TAIL_CHARS = 8_000
"""Characters that are recorded of the end of what a command printed."""
EARLIER_USAGE = "used_before"
"""The key of a row's facts for what recorded launches of earlier sessions used."""
COST = "cost"
"""The kind of a step that records the costs of a launch that ended after its report."""

REPORTED, PRINTED, UNFIT, SILENT = "reported", "printed", "unfit", "silent"
REFUSED, OVERDUE, FAILED = "refused", "overdue", "failed"
"""How a launch ended: with a report that was accepted, with one that was printed, with a printed one that does not fit, without any;
with too many reports that do not fit, at the time limit, with an exit code other than 0."""
_WITH_RESULT = {REPORTED: "mcp", PRINTED: "stdout"}
_NAME = "--worker_command"
_BUDGET_KEY = "worker_command"
_BUDGET_NAME = "the worker command"
_UNKNOWN = Usage(calls=1, unpriced_calls=1)


class _NothingToNote(Exception):
    """A launch had reported its costs before its end was recorded, or reports none."""


class LaunchCosts:
    """What the launches of a job's worker command cost, and how the run's budget holds for them."""

    def __init__(self, words: Sequence[str], prices: PriceTable, *, bounded: bool = False) -> None:
        """``words``: of the command line; ``prices``: for programs that report their tokens only; ``bounded``: whether the run has a
        budget in dollars or tokens."""
        self._program = AgentProgram.of(words)
        self._prices = prices
        self.bounded = bounded

    @property
    def awaited(self) -> bool:
        """Whether to wait for what a launch uses, also if it ends after its report: there is a budget, or the program is one that reports
        it."""
        return self.bounded or (self._program.name is not None and self._program.why_silent() is None)

    def read(self, printed: str) -> Account:
        """What a launch printed of its costs."""
        return read_account(printed, self._cost)

    def usage(self, account: Account) -> Usage:
        """What counts for a launch. Without a budget, costs that are not reported count as none."""
        if account.usage is not None:
            return account.usage
        return _UNKNOWN if self.bounded else ZERO

    async def begin(self, context: Context) -> int | None:
        """Wait until a further launch fits the budget: a permit for ``end``. Raises ItemError(OVER_BUDGET)."""
        if not self.bounded:
            return None
        earlier = Usage.from_json((context.facts or {}).get(EARLIER_USAGE, {}))
        count = max(1, earlier.calls)
        reserve = Reserve(
            tokens=-(-earlier.total_tokens // count),
            cost=self._program.max_cost or earlier.cost / count,
            model=_BUDGET_NAME,
            priced=False,
            open=True,
        )
        return await context.limits.acquire(_BUDGET_KEY, reserve)

    def end(self, context: Context, permit: int | None, account: Account | None, *, failed: bool) -> None:
        """Settle a launch. ``account``: None if it was not made. One that failed without reporting its costs counts as the most expensive
        one before."""
        if permit is None:
            return
        report = CallReport(failed=True)
        if account is not None:
            report = CallReport(self.usage(account), failed=failed, unknown=failed and account.usage is None)
        context.limits.release(permit, report)

    def _cost(self, usage: Usage) -> float | None:
        model = self._program.model
        price = None if model is None else self._prices.price(model)
        return None if price is None else price.cost(usage)


class CommandWorker:
    """Executes rows by launches of a command, once it is ``opened``; a replay needs no opening."""

    def __init__(
        self,
        command: str,
        *,
        inbox: ReportInbox,
        folder: Path,
        data_dir: Path,
        environ: Mapping[str, str],
        patience: float = EXIT_GRACE_SECONDS,
        prices: PriceTable | None = None,
        bounded: bool = False,
        keep_folders: bool = False,
    ) -> None:
        """``inbox``: takes its reports, in this process; ``folder``: where commands start; ``environ``: what they inherit; ``patience``:
        seconds that one may run on after its report was accepted; ``prices``, ``bounded``: as of ``LaunchCosts``; ``keep_folders``: whether
        the folder of an attempt is left to others, and not given to another one."""
        self.folders = LaunchFolders(reused=not keep_folders)
        self._line = CommandTemplate.split(command, name=_NAME)
        self._runner: CommandRunner | None = None
        self._inbox = inbox
        self._folder = folder
        self._data_dir = data_dir
        self._environ = environ
        self._redactor = Redactor.of(environ)
        self.costs = LaunchCosts(self._line.words, prices or PriceTable(), bounded=bounded)
        self.patience = COST_GRACE_SECONDS if self.costs.awaited else patience

    @asynccontextmanager
    async def opened(self, mark: str) -> AsyncIterator[CommandWorker]:
        """Ready to launch. ``mark``: of the run's processes (``process_mark``). Raises UserError if the command can't be found."""
        self._line.check(self._folder, self._environ, name=_NAME)
        async with CommandRunner.opened(mark, self._environ) as self._runner:
            yield self

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """As of ``Worker``."""
        corrections = Corrections(assignment.corrections)
        report = self._inbox.open(assignment.job_id, assignment.item_id, assignment.schema, corrections)
        ending = f"item {assignment.item_id} is not being worked on any more"
        try:
            accepted = await self._execute(context, assignment, report)
            ending = "a result was accepted for this item already"
            return accepted
        except ItemError as error:
            ending = f"the item has failed: {error.message}"
            raise
        finally:
            report.close(ending)

    async def _execute(self, context: Context, assignment: Assignment, report: PendingReport) -> Accepted:
        corrections, left = report.corrections, assignment.max_seconds
        request: dict[str, Any] = {"command": list(self._line.words), "prompt": assignment.prompt}
        prompt = assignment.prompt
        for number in count(1):
            launch = _Launch(self, context, assignment, report, prompt, left)
            output = await launch.step({**request, "launch": number})
            # Set from what is recorded, so that it is the same after a crash.
            corrections.refused, corrections.last = output["refused"], output["last_report"]
            corrections.violations = tuple(output["violations"])
            if output["ended"] in _WITH_RESULT:
                launch.done()
                via = _WITH_RESULT[output["ended"]]
                return Accepted(output["result"], output["reported_at"], via, output["stop"], output["refused"])
            if output["ended"] != UNFIT or corrections.used_up:
                raise _failure(output, corrections, assignment)
            left -= output["seconds"]
            prompt = corrected(assignment.prompt, corrections.violations)
            request = {"command": list(self._line.words), "violations": list(corrections.violations)}
        raise AssertionError("unreachable")

    async def start(
        self, files: LaunchFiles, prompt: str, assignment: Assignment, context: Context, secret: str
    ) -> RunningCommand:
        """Launch the command. Raises ItemError as ``CommandRunner.start``."""
        if self._runner is None:
            raise RuntimeError("a replay launched a command")
        values = {
            "prompt": prompt,
            "prompt_file": files.prompt,
            "item_id": assignment.item_id,
            "job_id": assignment.job_id,
            "row_file": files.row,
            "schema_file": files.schema,
        }
        additions = {
            "MANYHANDS_JOB_ID": assignment.job_id,
            "MANYHANDS_ITEM_ID": assignment.item_id,
            "MANYHANDS_ROW_INDEX": str(assignment.row_index),
            "MANYHANDS_ATTEMPT": str(context.attempt),
            "MANYHANDS_ROW_FILE": files.row,
            "MANYHANDS_PROMPT_FILE": files.prompt,
            "MANYHANDS_SCHEMA_FILE": files.schema,
            "MANYHANDS_DATA_DIR": str(self._data_dir.absolute()),
            SECRET: secret,
        }
        if assignment.stage is not None:
            values["stage"] = additions["MANYHANDS_STAGE"] = assignment.stage.name
        row = dumps(assignment.columns)
        if len(row) < MAX_ROW_BYTES:
            additions["MANYHANDS_ROW"] = row.decode()
        given = b"" if self._line.uses("prompt", "prompt_file") else prompt.encode()
        return await self._runner.start(
            self._line.filled(values), folder=self._folder, additions=additions, input=given
        )

    def redactor(self, secret: str) -> Redactor:
        """For what is recorded of a launch."""
        return Redactor([secret], always=self._redactor)


class _Launch:
    """One launch of the command, as a step."""

    def __init__(
        self,
        worker: CommandWorker,
        context: Context,
        assignment: Assignment,
        report: PendingReport,
        prompt: str,
        seconds: float,
    ) -> None:
        self._worker = worker
        self._context = context
        self._assignment = assignment
        self._report = report
        self._prompt = prompt
        self._seconds = seconds
        self._files: LaunchFiles | None = None
        self._command: RunningCommand | None = None
        self._permit: int | None = None
        self._settled = self._recorded = False
        self._late: asyncio.Future[Usage | None] = asyncio.get_running_loop().create_future()

    async def step(self, request: Json) -> dict[str, Any]:
        """What is recorded of it. Nothing of it runs any more afterwards."""
        patience, has_result = 0.0, False
        noting = self._noting(request["launch"])
        try:
            output: dict[str, Any] = await self._context.step(WORKER_STEP, request, self._effect)
            has_result = output["ended"] in _WITH_RESULT
            if output["ended"] == REPORTED:
                self._report.settled(True)
                patience = self._worker.patience
        finally:
            try:
                await self._close(patience, has_result=has_result)
            finally:
                self._settle_late()
                if noting is not None:
                    await noting
        return output

    def done(self) -> None:
        """The row needs no other launch."""
        if self._files is not None:
            self._worker.folders.give_back(self._files)

    def _noting(self, launch: int) -> asyncio.Future[None] | None:
        """Open a step for the costs of a launch that ends after its report was recorded. It begins now, because none begins in a run that
        is about to stop; it is recorded only if the launch reports costs so late."""
        scope = self._context.scope(f"cost-{launch}")
        launches = not self._context.replaying
        if not scope.replaying and not (launches and self._worker.costs.awaited):
            return None

        async def effect() -> Effect:
            usage = await self._late
            if usage is None:
                raise _NothingToNote
            return Effect(None, usage)

        async def note() -> None:
            with suppress(_NothingToNote):
                await scope.step(COST, None, effect)

        return asyncio.ensure_future(note())

    def _settle_late(self) -> None:
        """Count what a launch used that ended after its report, or was cut off."""
        usage = None
        if self._command is not None and not self._settled:
            end = self._command.so_far()
            account = self._worker.costs.read(decode(end.output))
            self._settle(account, failed=end.exit_code != 0)
            usage = self._worker.costs.usage(account) if self._recorded else None
        if not self._late.done():
            self._late.set_result(None if usage is ZERO else usage)

    def _settle(self, account: Account | None, *, failed: bool) -> None:
        """End the launch for the budget. ``account``: None if it was not made."""
        self._settled = True
        permit, self._permit = self._permit, None
        self._worker.costs.end(self._context, permit, account, failed=failed)

    async def _close(self, patience: float, *, has_result: bool) -> None:
        """End the command. ``has_result``: what is recorded is the row's result, also if the row is stopped while the command ends."""
        if self._command is not None:
            try:
                await self._command.close(patience=patience)
            except asyncio.CancelledError:
                if not has_result:
                    raise

    async def _effect(self) -> Effect:
        command = await self._launched()
        report = await self._first(command)
        if report is None and command.exit_code is not None:
            await command.gathered()
        redactor = self._worker.redactor(self._report.secret)
        end = command.so_far()
        printed, errors = redactor.text(decode(end.output)), redactor.text(decode(end.errors))
        account = self._worker.costs.read(printed)
        output = {
            **await self._outcome(report, end.exit_code, printed, account),
            "exit_code": end.exit_code,
            "seconds": round(end.seconds, 3),
            "stdout": printed[-MAX_TAIL_CHARS:],
            "stderr": errors[-MAX_TAIL_CHARS:],
        }
        if output["ended"] == FAILED:
            output["error"] = redactor.text(tail_line(account.error or errors.strip() or printed))
        usage = ZERO
        if output["ended"] != REPORTED:  # else it runs on, and may report its costs yet
            usage = self._worker.costs.usage(account)
            self._settle(account, failed=end.exit_code != 0)
        self._recorded = True
        return Effect(redactor.json(output), usage)

    async def _launched(self) -> RunningCommand:
        """Launch the command once the budget allows it."""
        self._permit = await self._worker.costs.begin(self._context)
        try:
            folder = str(self._context.workspace.absolute())
            self._files = self._worker.folders.written(folder, self._prompt, self._assignment)
            self._command = await self._worker.start(
                self._files, self._prompt, self._assignment, self._context, self._report.secret
            )
        except BaseException:
            self._settle(None, failed=True)
            raise
        return self._command

    async def _first(self, command: RunningCommand) -> Report | None:
        """Wait for a report, for the command's end, for a report too many that does not fit, or for the time limit."""
        arrived, patience = self._report.arrived(), max(0.0, self._seconds)
        await asyncio.wait((command.ended, arrived), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return None if not arrived.done() or arrived.exception() is not None else arrived.result()

    async def _outcome(
        self, report: Report | None, exit_code: int | None, printed: str, account: Account
    ) -> dict[str, Any]:
        """What came of it: how it ended, the result if there is one, and the refusals so far."""
        corrections = self._report.corrections
        why = None
        result, stop = (None, False) if report is None else (report.result, report.stop)
        if report is not None:
            ended = REPORTED
        elif corrections.used_up:
            ended = REFUSED
        elif exit_code is None:
            ended = OVERDUE
        elif exit_code != 0 or account.error is not None:
            ended = FAILED
        else:
            ended, result, stop, why = await self._printed(printed)
        return {
            "ended": ended,
            "result": result,
            "stop": stop,
            "reported_at": self._context.clock.now() if result is not None else None,
            "refused": corrections.refused,
            "last_report": corrections.last,
            "violations": list(corrections.violations),
            **({} if why is None else {"why": why}),
        }

    async def _printed(self, text: str) -> tuple[str, dict[str, Any] | None, bool, str | None]:
        """The outcome of a launch with exit code 0; the result, whether it requests to end the job, and why there is none."""
        given = WorkerInput(self._prompt, dict(self._assignment.row))
        found = await result_in(text, self._assignment.schema, given)
        if isinstance(found, NoResult):
            return SILENT, None, False, found.why
        if found.violations:
            self._report.corrections.refuse(found.result, found.violations)
            return UNFIT, None, False, None
        return PRINTED, found.result, found.stop, None


def _failure(output: Mapping[str, Any], corrections: Corrections, assignment: Assignment) -> ItemError:
    ended = output["ended"]
    if ended in (REFUSED, UNFIT):
        return corrections.failure()
    if ended == OVERDUE:
        return timeout_error(assignment.max_seconds)
    if ended == FAILED:
        error = output.get("error") or tail_line(output["stderr"].strip() or output["stdout"])
        code = output["exit_code"]
        text = f"worker exited with code {code}" if code else "worker reported a failure"
        return ItemError(Cause.WORKER_ERROR, f"{text}: {error}" if error else text)
    record = {**corrections.record(), "last_answer": tail(output["stdout"])}
    return missing_report_error(record, why=output.get("why"))
