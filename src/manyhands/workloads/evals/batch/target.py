"""A target whose command answers all tests in one invocation: its answers, and its tests as the journal holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json, dumps, exact_line
from manyhands.engine.contract import Context
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.evals.batch.command import BatchCommand
from manyhands.workloads.evals.batch.invocation import InvocationWorkspaces
from manyhands.workloads.evals.batch.reports import BatchReport, Fault
from manyhands.workloads.evals.evalfile.contents import Test, Workspace, each_once, with_variables
from manyhands.workloads.evals.targets.answers import Answer, read_text
from manyhands.workloads.evals.targets.live import record_cost
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
        keep: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        """``batch``: started, for so many tests; ``ran``: whether a command wrote the output in this run, so that its duration is known;
        ``rerun_for``: if given, it is invoked again, once, for those of these tests that have no record when it has ended;
        ``workspaces``: where it works; ``keep``: writes down how the command went, once that is known."""
        self._batch = batch
        self._workspaces = workspaces
        self._tests = tests
        self._ran = ran
        self._end: asyncio.Task[BatchReport] | None = None
        self._rerun: asyncio.Task[None] | None = None
        self._rerun_for = rerun_for
        self._keep = keep

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        return await self.answer_to(context, test.id, test.graders)

    async def answer_to(self, context: Context, test_id: str, graders: Sequence[Mapping[str, Any]]) -> Answer:
        """The answer to a test of which only the id and the graders are known."""
        found = await self._batch.answer(test_id)
        if isinstance(found, Fault) and self._rerun_for is not None:
            await self._invoked_again()
            found = await self._batch.answer(test_id)
        if isinstance(found, Fault):
            return read_text("", error=found.message)
        if self._ran and found.cost_usd:
            await record_cost(context, "target", found.cost_usd)
        if self._ran and found.duration_ms is None and wants_duration(graders):
            return found.timed((await self._ended()).share_ms(self._tests))
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
        report = await self._ended()
        if self._ran and record.get("duration_ms") is None:
            record["duration_ms"] = share = report.share_ms(self._tests)
            record["trace"] = {**(record.get("trace") or {}), "duration_ms": share}
        if test_id not in report.retracted:
            return None
        found = await self._batch.answer(test_id)  # says which lines these are
        return found.message if isinstance(found, Fault) else report.retracted[test_id]

    async def _ended(self) -> BatchReport:
        """The end of the last invocation that there will be."""
        if self._end is None:  # a report takes long to make, and every test wants it
            self._end = asyncio.create_task(self._find_end())
        return self._end.result() if self._end.done() else await asyncio.shield(self._end)

    async def _find_end(self) -> BatchReport:
        report = await self._batch.wait()
        if self._rerun_for is not None and report.missing:
            await self._invoked_again()
            report = await self._batch.wait()
        await asyncio.to_thread(self._keep, report)  # before any test ends
        return report

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


@dataclass(frozen=True, slots=True)
class BatchTests:
    """The tests that one command answers."""

    ids: tuple[str, ...]
    """In order."""
    files: tuple[Path, ...]
    """All their input files, each once."""
    known: frozenset[str]
    """Further ids of the eval file."""
    workspace: Workspace | None = None
    """The one that all of them have."""


@dataclass(frozen=True, slots=True)
class BatchScope:
    """Which tests of a run a command answers: those of an eval file, for a target and one sample."""

    run_folder: Path
    file: int
    """The eval file's index among the run's."""
    target: str
    sample: int
    """From 0."""
    others: tuple[str, ...] = ()
    """Ids of the eval file that are not in the run."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables whose values tests may have that are not recorded."""

    def tests(self) -> BatchTests:
        """The tests, read in one pass."""
        ids: dict[str, None] = {}
        files: dict[Path, None] = {}
        known = set(self.others)
        workspace: Workspace | None = None
        with closing(JournalReader(self.run_folder)) as reader:
            for payload in self._of_file(reader):
                test = payload["test"]
                if not self._covers(payload):
                    known.add(test["id"])
                    continue
                if not ids and test.get("workspace"):
                    workspace = Test.from_json(with_variables(test, lambda: self.environ)).workspace
                ids[test["id"]] = None
                files |= dict.fromkeys(_files(test))
        return BatchTests(tuple(ids), each_once(files), frozenset(known - ids.keys()), workspace)

    def lines(self, ids: Collection[str]) -> Iterator[bytes]:
        """What the command reads of these tests: an object each, a line of JSON without its end, in the order of all tests."""
        wanted = frozenset(ids)
        with closing(JournalReader(self.run_folder)) as reader:
            for payload in self._of_file(reader):
                if self._covers(payload) and payload["test"]["id"] in wanted:
                    yield exact_line(_line(with_variables(payload["test"], lambda: self.environ)))[:-1]

    def unfinished(self) -> frozenset[str]:
        """The ids of the tests that have not ended."""
        with closing(JournalReader(self.run_folder)) as reader:
            rows = (row for row in reader.items() if not (row.state.final or row.left_input))
            return frozenset(row.payload["test"]["id"] for row in rows if self._covers(row.payload))

    def _of_file(self, reader: JournalReader) -> Iterator[Json]:
        """The payloads of the eval file's items, but for invalid tests."""
        return (each for each in reader.payloads() if each["file"] == self.file and "test" in each)

    def _covers(self, payload: Json) -> bool:
        return bool(
            payload["file"] == self.file and payload["target"] == self.target and payload["trial"] == self.sample
        )


def _files(test: Json) -> Sequence[Path]:
    return Test.from_json(test).all_files if test.get("references") else ()


def _line(test: Json) -> dict[str, Json]:
    return {
        "id": test["id"],
        "input": test["input"],
        "criteria": test.get("criteria", ""),
        "metadata": test.get("metadata", {}),
        "files": [str(path) for path in _files(test)],
    }
