"""The tests of one session of a run: answered by their targets, and graded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Context
from manyhands.graders.protocol import Candidate, Score
from manyhands.workloads.evals.batch.target import BatchTarget
from manyhands.workloads.evals.grading.conversation import Conversing, SharedWorkspace, converse
from manyhands.workloads.evals.grading.graded_answer import TestGrader, answer_record
from manyhands.workloads.evals.items import (
    ERROR,
    FAILED,
    PASSED,
    TestItem,
    ended_by_dependencies,
    left_out,
    stopping_early,
)
from manyhands.workloads.evals.opening import Openings, SessionJudges, SessionWorkspaces, TargetJudges
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.scheduling import SECONDS, Facts, stop_rules_of, threshold_of
from manyhands.workloads.evals.session.waiting import Concurrency, ItemTime, SampleOrder, within
from manyhands.workloads.evals.targets.answers import Answer, read_text
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.live import Conversational, LiveTarget, Talk
from manyhands.workloads.evals.targets.recorded import CachedTarget, RecordedSample, RecordedTarget
from manyhands.workloads.evals.workspaces.workspace import WORKSPACE_KEY, Seen, TestWorkspace


class SessionExecutor:
    """Executes items of one session, in one process."""

    def __init__(
        self,
        prepared: PreparedEval,
        run_folder: Path,
        openings: Openings,
        grader: TestGrader,
        *,
        replay: bool,
    ) -> None:
        """``openings``: opens targets and judges, and closes them too; ``replay``: nothing is run, so that every sample that was made is
        needed."""
        self._replay = replay
        self._concurrency = Concurrency(prepared, replay=replay)
        self._samples = SampleOrder()
        self._time = ItemTime(prepared.options.item_timeout)
        self._prepared = prepared
        self._folder = run_folder
        self._openings = openings
        self._grader = grader
        self._workspaces = SessionWorkspaces(prepared, openings)
        self._judges = SessionJudges(prepared, openings)
        self._targets: dict[tuple[int, str], tuple[Target, TargetJudges]] = {}
        self._live_targets: dict[tuple[int, str, int], asyncio.Future[LiveTarget]] = {}
        self._batches: dict[tuple[int, str, int], BatchTarget] = {}
        self.graded = 0
        """Tests that are graded, and wait for the end of the command that answers all of them."""

    async def run(self, context: Context) -> Outcome:
        """Execute one item. Raises ItemError, with the record, where its target or a grader fails."""
        try:
            return await self._run(context, context.facts or {})
        except ItemError as failure:
            if (seconds := self._time.used(context.item.number)) is not None:
                failure.record[SECONDS] = seconds
            raise
        finally:
            self._time.used(context.item.number)

    async def _run(self, context: Context, facts: Facts) -> Outcome:
        item = self._openings.item(context.item.payload)
        target = self._target(item)[0]
        if "depends_on" in item.written:
            ended = ended_by_dependencies(item, facts.get("failed", ()))
            if ended is not None:
                return ended
        batch = self._batches.get((item.file, item.target, item.sample))
        if batch is not None:  # neither the order of samples nor workspaces concern it
            return await self._run_in_batch(context, item, batch)
        rules = stop_rules_of(self._prepared, item, target)
        if rules is None:
            return await self._run_alone(context, item, target)
        with self._samples.running(item, facts) as turn:
            if not self._replay and (reason := await turn.needless(rules)) is not None:
                return left_out(reason)
            outcome = await self._run_alone(context, item, target)
            turn.ended(outcome.record, passed=outcome.record.get("status") == PASSED)
        return stopping_early(outcome) if rules.at_first_pass else outcome

    async def _run_alone(self, context: Context, item: TestItem, target: Target) -> Outcome:
        workspace = self._workspaces.of(context, item, target)
        if workspace is None:
            return await self._answered_and_graded(context, item, target, None)
        outcome = await workspace.settled(lambda: self._answered_and_graded(context, item, target, workspace))
        if outcome.record.get("status") == FAILED:
            await asyncio.to_thread(workspace.keep)
        return outcome

    async def _answered_and_graded(
        self, context: Context, item: TestItem, target: Target, workspace: TestWorkspace | None
    ) -> Outcome:
        lasting = bool(workspace is not None or item.written.get("task")) or (
            "conversation" in item.written and target.facts.conversational
        )
        facts: Facts = context.facts or {}
        cached = not (lasting or facts.get("rerun"))
        live, concurrency = await self._live_target(item, target, cached=cached), self._concurrency
        if isinstance(live, BatchTarget):
            self._batches[item.file, item.target, item.sample] = live
            return await self._run_in_batch(context, item, live)
        recorded: RecordedSample | None = None
        if isinstance(live, RecordedTarget):
            live = live.for_item()
            recorded = live.sample(item)
        if recorded is not None and recorded.reason is not None:
            return left_out(recorded.reason)
        if "conversation" in item.written:
            async with concurrency.for_target(context, item.file, target), concurrency.for_test(context, item.file):
                outcome = await self._conversed(context, item, live, workspace)
            return stopping_early(outcome) if recorded is not None and recorded.stops_early else outcome
        async with AsyncExitStack() as work:
            async with concurrency.for_target(context, item.file, target):
                await work.enter_async_context(concurrency.for_test(context, item.file))
                answer = await self._answered(context, item, live, workspace)
            seen = None if workspace is None else workspace.seen
            if isinstance(live, RecordedTarget):
                seen = live.seen(item)
            outcome = await self._graded(context, item, live, answer, seen)
        return stopping_early(outcome) if recorded is not None and recorded.stops_early else outcome

    async def _run_in_batch(self, context: Context, item: TestItem, live: BatchTarget) -> Outcome:
        """A test of a target that answers all tests at once. Whoever waits for that keeps nobody from work."""
        answer = await self._answered(context, item, live)
        seen = await live.seen(item.test_id) if live.has_workspaces else None
        try:
            async with self._concurrency.for_test(context, item.file):
                outcome = await self._graded(context, item, live, answer, seen)
        except ItemError as failure:
            # Its end waits for the command's, so that this is not cut off when its last test has ended.
            contradiction = await self._settled(item, live, failure.record)
            raise failure if contradiction is None else _contradicted(contradiction, failure.record) from failure
        if seen is not None and seen.path is not None:
            folder = self._folder.absolute()
            path = str(seen.path.relative_to(folder) if seen.path.is_relative_to(folder) else seen.path)
            outcome = replace(outcome, record={**outcome.record, WORKSPACE_KEY: path})
        # The record was made for this outcome alone, so that it can be added to.
        contradiction = await self._settled(item, live, outcome.record)
        if contradiction is not None:
            raise _contradicted(contradiction, outcome.record)
        return outcome

    async def _settled(self, item: TestItem, live: BatchTarget, record: dict[str, Any]) -> str | None:
        """Wait for the command's end; how it contradicts the answer, None if it does not."""
        self.graded += 1
        try:
            return await live.settle(item.test_id, record)
        finally:
            self.graded -= 1

    async def _conversed(
        self, context: Context, item: TestItem, live: LiveTarget, workspace: TestWorkspace | None
    ) -> Outcome:
        """Have a target answer the turns of a test one after the other."""
        grader, shared = self._grader, None
        if workspace is not None:
            await workspace.begin()
            shared = SharedWorkspace(workspace)
        judges, answering = self._target(item)[1], live
        talk: Talk | None = None

        async def ask(scope: Context, turn: TestItem, number: int) -> Answer:
            if isinstance(live, RecordedTarget):
                return self._counted(item, live.turn(item, number))
            return await self._answered(scope, turn, answering, shared)

        async def grade(scope: Context, entries: Sequence[Mapping[str, Any]], candidate: Candidate) -> Sequence[Score]:
            limited = partial(self._time.running, context)
            async with talk.still() if talk is not None and workspace is not None else nullcontext():
                return await grader.scores(scope, item, entries, candidate, judges=judges, limited=limited)

        def seen() -> Seen | None:
            if isinstance(live, RecordedTarget):
                return live.seen(item)
            return None if workspace is None else workspace.seen

        async def answered() -> None:
            await stack.aclose()  # what the target left running must not change what is looked at now
            if workspace is not None:
                await workspace.end()

        means = Conversing(
            ask=ask,
            grade=grade,
            threshold=threshold_of(self._prepared, item),
            folder=Path(self._prepared.files[item.file].path).parent,
            judged=judges.own is not None,
            simulated=lambda: live.simulated,
            seen=seen,
            answered=answered,
        )
        async with AsyncExitStack() as stack:
            if isinstance(live, Conversational):
                answering = talk = await stack.enter_async_context(live.conversing(context, item.test))
            return await converse(context, item, means)

    async def _answered(
        self, context: Context, item: TestItem, live: LiveTarget, workspace: TestWorkspace | None = None
    ) -> Answer:
        seconds = self._prepared.options.agent_timeout
        try:
            if isinstance(live, BatchTarget):  # its time limit is the command's
                return await live.answer_to(context, item.test_id, item.graders)
            limit = within(context, seconds, f"no answer within {seconds or 0:g} s (--agent_timeout)")
            async with self._time.running(context), limit:
                return self._counted(item, await live.answer(context, item.test, item.sample, workspace))
        except ItemError as failure:
            record = answer_record(item, read_text("", error=failure.message), simulated=live.simulated)
            raise ItemError(
                failure.cause,
                failure.message,
                retry_after=failure.retry_after,
                record={**record, "error": failure.message},
            ) from failure

    def _counted(self, item: TestItem, answer: Answer) -> Answer:
        """An answer that says how its tokens are counted: of a model that this program asks, as its endpoint counts them."""
        return replace(answer, cached_in_input=True) if self._target(item)[0].facts.calls_models else answer

    async def _graded(
        self, context: Context, item: TestItem, live: LiveTarget, answer: Answer, seen: Seen | None
    ) -> Outcome:
        limited = partial(self._time.running, context)
        judges = self._target(item)[1]
        return await self._grader.outcome(
            context, item, answer, judges=judges, simulated=live.simulated, limited=limited, seen=seen
        )

    def _target(self, item: TestItem) -> tuple[Target, TargetJudges]:
        """A test's target, and its judges."""
        key = (item.file, item.target)
        found = self._targets.get(key)
        if found is None:
            target = self._prepared.target_of(*key)
            found = target, TargetJudges(self._judges, item.file, self._prepared.judge_of(item.file, target))
            self._targets[key] = found
        return found

    async def _live_target(self, item: TestItem, target: Target, *, cached: bool) -> LiveTarget:
        """A target, opened when the first of its tests is executed; a command that answers all tests at once, for each sample. ``cached``:
        whether an answer of an earlier run will do."""
        key = (item.file, target.name, item.sample if target.batching else 0)
        future = self._live_targets.get(key)
        if future is None:
            opening = self._openings.live(*key[::2], target=target)
            future = self._live_targets[key] = asyncio.ensure_future(opening)
        live = future.result() if future.done() else await asyncio.shield(future)
        # Samples are there to see how answers differ.
        cached = cached and item.samples == 1
        return live.target if isinstance(live, CachedTarget) and not cached else live


def _contradicted(message: str, record: Mapping[str, Any]) -> ItemError:
    record = {**record, "status": ERROR, "score": None, "verdict": None, "error": message}
    return ItemError(Cause.TARGET_ERROR, message, record=record)
