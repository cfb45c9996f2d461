"""A target whose command answers all tests in one invocation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import dumps
from manyhands.engine.contract import Context
from manyhands.workloads.evals.batch.command import BatchCommand
from manyhands.workloads.evals.batch.reports import BatchReport, Fault
from manyhands.workloads.evals.batch.workspaces import InvocationWorkspaces
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.targets.answers import Answer, read_text
from manyhands.workloads.evals.targets.protocol import record_cost
from manyhands.workloads.evals.workspaces.workspace import Seen, TestWorkspace


class BatchTarget:
    """A ``LiveTarget``. The command's output is kept in the run folder and is read again on a resume, so that taking a record
    from it is no step."""

    simulated = False

    def __init__(
        self,
        batch: BatchCommand,
        tests: int,
        *,
        ran: bool = True,
        rerun_for: Callable[[], Collection[str]] | None = None,
        workspaces: InvocationWorkspaces | None = None,
    ) -> None:
        """``batch``: started, for so many tests; ``ran``: whether a command wrote the output in this run, so that its duration is known;
        ``rerun_for``: if given, it is invoked again, once, for those of these tests that have no record when it has ended;
        ``workspaces``: where it works."""
        self._batch = batch
        self._workspaces = workspaces
        self._tests = tests
        self._ran = ran
        self._end: asyncio.Task[BatchReport] | None = None
        self._rerun: asyncio.Task[None] | None = None
        self._rerun_for = rerun_for
        self._latest: tuple[Sequence[Mapping[str, Any]], bool] = ((), False)
        self._share: tuple[BatchReport | None, int] = (None, 0)

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        return await self.answer_to(context, test.id, test.graders)

    async def answer_to(self, context: Context, test_id: str, graders: Sequence[Mapping[str, Any]]) -> Answer:
        """The same for a test of which only this is known."""
        found = await self._batch.answer(test_id)
        if isinstance(found, Fault) and self._rerun_for is not None:
            await self._invoked_again()
            found = await self._batch.answer(test_id)
        if isinstance(found, Fault):
            return read_text("", error=found.message)
        if self._ran and found.cost_usd:
            await record_cost(context, "target", found.cost_usd)
        if self._ran and found.duration_ms is None and self._wants_duration(graders):
            return found.timed(self._share_ms(await self._ended()))
        return found

    @property
    def has_workspaces(self) -> bool:
        """Whether the command's invocations have workspaces."""
        return self._workspaces is not None

    async def seen(self, test_id: str) -> Seen | None:
        """The workspace of the invocation that answered a test, once that has ended: what is in it may change until then."""
        if self._workspaces is None:
            return None
        await self._ended()
        folder = self._batch.invocation_folder(test_id)
        return None if folder is None else await self._workspaces.seen(folder)

    async def settle(self, test_id: str, record: dict[str, Any]) -> str | None:
        """Enter the command's share as duration into what is recorded of a test, if its own record gives none. Returns how its answer is
        contradicted by what the command wrote later, None if it is not. Waits for the command's end."""
        report = self._end.result() if self._end is not None and self._end.done() else await self._ended()
        if self._ran and record.get("duration_ms") is None:
            record["duration_ms"] = share = self._share_ms(report)
            record["trace"] = {**(record.get("trace") or {}), "duration_ms": share}
        if test_id not in report.retracted:
            return None
        found = await self._batch.answer(test_id)  # says which lines these are
        return found.message if isinstance(found, Fault) else report.retracted[test_id]

    def _wants_duration(self, graders: Sequence[Mapping[str, Any]]) -> bool:
        if graders != self._latest[0]:  # mostly all tests have the same ones
            self._latest = graders, wants_duration(graders)
        return self._latest[1]

    async def _ended(self) -> BatchReport:
        """The end of the last invocation that there will be."""
        if self._end is None:  # a report takes long to make, and every test wants it
            self._end = asyncio.create_task(self._find_end())
        return self._end.result() if self._end.done() else await asyncio.shield(self._end)

    async def _find_end(self) -> BatchReport:
        report = await self._batch.wait()
        if self._rerun_for is not None and report.missing:
            await self._invoked_again()
            return await self._batch.wait()
        return report

    def _share_ms(self, report: BatchReport) -> int:
        """The command's time, divided by its tests."""
        if self._share[0] is not report:
            self._share = report, round(1000 * report.seconds / max(1, self._tests))
        return self._share[1]

    async def _invoked_again(self) -> None:
        """Whoever is the first to find something missing has the command invoked again; the others wait until it has begun."""
        if self._rerun is None:
            self._rerun = asyncio.create_task(self._begin_again())
        await asyncio.shield(self._rerun)

    async def _begin_again(self) -> None:
        report = await self._batch.wait()
        if report.missing and self._rerun_for is not None:
            wanted = await asyncio.to_thread(self._rerun_for)
            await self._batch.rerun([test_id for test_id in report.missing if test_id in wanted])


def wants_duration(graders: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of a test's graders, at any depth, looks at how long the answer took."""
    written = dumps(list(graders))
    return b'"latency"' in written or b'"execution_metrics"' in written
