"""Workload 2: tests are put to targets, and graders score the answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.agents.command import CommandRunner
from manyhands.agents.describe import describe_step
from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import Outcome
from manyhands.engine.context import Context
from manyhands.engine.reader import JournalReader, run_id_of
from manyhands.engine.strays import process_mark
from manyhands.engine.workload import Execution, FinishedItem, PlannedItem, RecordedStep, RunReader
from manyhands.evals.answerers.batch import BatchAnswerer
from manyhands.evals.answerers.cached import CachedAnswerer
from manyhands.evals.answerers.recorded import RecordedAnswerer
from manyhands.evals.answering import Answerer, Conversational
from manyhands.evals.checking import check_usable
from manyhands.evals.conversation import Conversing, SharedWorkspace, converse, written_graders
from manyhands.evals.dependencies import unperformed
from manyhands.evals.file_references import Surroundings
from manyhands.evals.grading import ERROR, FAILED, PASSED, GradingSettings, TestGrader, answer_record, grader_broken
from manyhands.evals.items import TestItem, plan_tests
from manyhands.evals.judge_needs import judge_needs
from manyhands.evals.model import EvalFile
from manyhands.evals.opening import Openings
from manyhands.evals.places import slots
from manyhands.evals.prepared import PreparedEval, chosen_names, load
from manyhands.evals.records import Answer, read_text
from manyhands.evals.results import counting_of, write_results
from manyhands.evals.results_process import ResultsProcess, closed_on_error
from manyhands.evals.retrying import within
from manyhands.evals.run_control import RunControl
from manyhands.evals.session_workspaces import SessionWorkspaces, workspace_tools
from manyhands.evals.spec import GRADER_SECONDS
from manyhands.evals.targets import Target
from manyhands.evals.trial_order import left_out, stopping_early
from manyhands.evals.workspace_ends import finish_workspaces
from manyhands.evals.workspaces import PLACE, Seen, TestWorkspace
from manyhands.graders.dotenv_files import additions
from manyhands.graders.protocol import Candidate, Judge, Score
from manyhands.graders.script_pool import Scripts


class EvalsWorkload:
    """Tests become scores. ``spec`` is what ``PreparedEval.to_json`` gives."""

    name = "evals"

    def __init__(self, spec: dict[str, Any], run_folder: Path) -> None:
        self.spec = spec
        self._folder = run_folder
        self._prepared = PreparedEval.from_json(spec, run_folder.parent)
        self._loaded: tuple[EvalFile, ...] | None = None
        self._checked = False
        self._test_files: set[str] = set()
        self._openings: Openings | None = None
        self._grader: TestGrader | None = None
        self._control: RunControl | None = None
        self._answerers: dict[tuple[int, str, int], asyncio.Future[Answerer]] = {}
        self._together: dict[tuple[int, str, int], BatchAnswerer] = {}
        self._judges: dict[str, Judge] = {}
        self._targets: dict[tuple[int, str], tuple[Target, _OwnJudge]] = {}
        self._workspaces: SessionWorkspaces | None = None
        self._results: ResultsProcess | None = None
        self.tell: Callable[[str], None] = _say_nothing
        """Shows the person a line while the run is performed."""

    @property
    def prepared(self) -> PreparedEval:
        return self._prepared

    def have(self, files: tuple[EvalFile, ...]) -> None:
        """Take what was read already for planning. Its targets were looked after."""
        self._loaded, self._checked = files, True

    def files_read(self) -> set[Path]:
        """The files in which tests and targets stand."""
        files = self._prepared.files
        targets = {target.place.file for file in files for target in (*file.targets, *file.judges)}
        return {Path(name).absolute() for name in {*self._test_files, *targets, *(file.path for file in files)}}

    @property
    def execution(self) -> Execution:
        options = self._prepared.options
        return Execution(
            executor="local",
            workers=1,
            concurrency=slots(self._prepared),
            item_timeout=None,  # tests have limits of their own, which don't count what they wait for
            max_cost=options.max_cost,
            max_total_tokens=options.max_total_tokens,
            max_seconds=options.max_seconds,
            keep_workspaces=options.keep_workspaces,
            remove_workspaces=options.cleanup_workspaces,
            on_divergence=options.on_divergence,
            tries=lambda item, failure: self._opened.tries(item, failure),
            stops=lambda item, outcome: self._opened.stops(item, outcome),
            **self._waiting(),
        )

    def _waiting(self) -> dict[str, Any]:
        """How tests wait for others, if any do."""
        if not any(file.depends for file in self._prepared.files):
            return {}
        return {
            "holds": lambda item: self._opened.dependencies.holds(item),
            "freed": lambda: self._opened.dependencies.freed(),
        }

    def input_identity(self) -> str | None:
        return "imported"  # tests count as they were when the run was made

    def plan(self) -> Iterable[PlannedItem]:
        options = self._prepared.options
        if self._loaded is None:
            self._loaded = load(options, os.environ, lambda text: None).files
        loaded, self._loaded = self._loaded, None  # from here on they are in the journal
        for item in plan_tests(loaded, chosen_names(self._prepared), options.trials):
            if "test" in item.payload:
                self._test_files.add(item.payload["test"]["place"]["file"])
            yield item

    def secrets(self) -> dict[str, str]:
        return {}

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        return

    @asynccontextmanager
    async def performing(self, *, replay: bool = False) -> AsyncIterator[None]:
        options = self._prepared.options
        async with AsyncExitStack() as stack:
            mark = process_mark(run_id_of(self._folder))
            runner = await stack.enter_async_context(CommandRunner.opened(mark, os.environ))
            scripts = await stack.enter_async_context(
                Scripts.opened(mark, os.environ, at_once=options.grader_processes)
            )
            said = self._say if options.verbose else _say_nothing
            around, run_id = Surroundings.of(Path(self._prepared.here)), run_id_of(self._folder)
            tools = workspace_tools(self._folder, run_id, runner, os.environ, said, around, live=not replay)
            stack.push_async_callback(tools.templates.close)
            self._openings = Openings(self._prepared, self._folder, os.environ, runner, mark, stack, tools, self._say)
            self._workspaces = SessionWorkspaces(self._prepared, self._openings)
            self._control = RunControl(self._prepared, self._folder, replay=replay)
            stack.callback(self._control.order.close)
            stack.callback(self._control.dependencies.close)
            seconds = options.grader_timeout or options.agent_timeout or GRADER_SECONDS
            folders = [Path(file.path).parent for file in self._prepared.files]
            environments = [{} if replay else additions(folder, around, os.environ) for folder in folders]
            settings = GradingSettings(self._prepared.limits, folders, seconds, environments)
            self._grader = TestGrader(settings, scripts)
            if not replay:
                await self._check_targets()
                self._results = ResultsProcess.where_it_pays(self._folder, counting_of(self._prepared))
            with closed_on_error(self._results):
                yield
            if not replay:
                await finish_workspaces(self._folder, tools.templates, options)
            self._openings = self._grader = self._control = self._workspaces = None
            self._answerers.clear()
            self._together.clear()
            self._judges.clear()

    async def perform(self, context: Context) -> Outcome:
        item = TestItem.from_json(context.item.payload)
        target, control = self._asked(item)[0], self._opened
        if "depends_on" in item.written and (ended := unperformed(item, control.dependencies.failed(item))) is not None:
            return ended
        together = self._together.get((item.file, item.target, item.trial))
        if together is not None:  # neither trials' order nor workspaces concern it
            return await self._put_to_all(context, item, target, together)
        rules = control.rules(item, target)
        if rules is None:
            return await self._performed(context, item, target)
        with control.order.performing(item, control.limit(item)) as turn:
            if not control.replay and (reason := await turn.needless(rules)) is not None:
                return left_out(reason)
            outcome = await self._performed(context, item, target)
            turn.told(outcome.record, passed=outcome.record.get("status") == PASSED)
        return stopping_early(outcome) if rules.at_first_pass else outcome

    async def _performed(self, context: Context, item: TestItem, target: Target) -> Outcome:
        if self._workspaces is None:
            raise RuntimeError("no targets are open")
        workspace = self._workspaces.of(context, item, target)
        if workspace is None:
            return await self._put(context, item, target, None)
        outcome = await workspace.settled(lambda: self._put(context, item, target, workspace))
        if outcome.record.get("status") == FAILED:
            await asyncio.to_thread(workspace.keep)
        return outcome

    async def _put(self, context: Context, item: TestItem, target: Target, workspace: TestWorkspace | None) -> Outcome:
        lasting = workspace is not None or ("conversation" in item.written and target.kind == "agent")
        answerer, places = await self._answerer(item, target, cached=not lasting), self._opened.places
        if isinstance(answerer, BatchAnswerer):
            self._together[item.file, item.target, item.trial] = answerer
            return await self._put_to_all(context, item, target, answerer)
        recorded = answerer.trial(item) if isinstance(answerer, RecordedAnswerer) else None
        if recorded is not None and recorded.reason is not None:
            return left_out(recorded.reason)
        if "conversation" in item.written:
            async with places.at_target(item.file, target), places.in_work(item.file) or nullcontext():
                outcome = await self._conversed(context, item, answerer, workspace)
            return stopping_early(outcome) if recorded is not None and recorded.stops_early else outcome
        async with AsyncExitStack() as work:
            async with places.at_target(item.file, target):
                await work.enter_async_context(places.in_work(item.file) or nullcontext())
                answer = await self._answered(context, item, answerer, workspace)
            seen = None if workspace is None else workspace.seen
            if isinstance(answerer, RecordedAnswerer):
                seen = answerer.seen(item)
            outcome = await self._graded(context, item, target, answerer, answer, seen)
        return stopping_early(outcome) if recorded is not None and recorded.stops_early else outcome

    async def _put_to_all(self, context: Context, item: TestItem, target: Target, answerer: BatchAnswerer) -> Outcome:
        """To what answers all tests. Whoever waits for that keeps nobody from work."""
        answer = await self._answered(context, item, answerer)
        seen = await answerer.seen(item.test_id) if answerer.has_workspaces else None
        work = self._opened.places.in_work(item.file)
        try:
            if work is None:
                outcome = await self._graded(context, item, target, answerer, answer, seen)
            else:
                async with work:
                    outcome = await self._graded(context, item, target, answerer, answer, seen)
        except ItemError as failure:
            raise await _settled_failure(item, answerer, failure) from failure
        if seen is not None and seen.path is not None:
            place = str(seen.path.relative_to(self._folder.absolute()))
            outcome = replace(outcome, record={**outcome.record, PLACE: place})
        contradiction = await answerer.settle(
            item.test_id, outcome.record
        )  # the record was made for this outcome alone
        if contradiction is not None:
            raise _contradicted(contradiction, outcome.record)
        return outcome

    async def _conversed(
        self, context: Context, item: TestItem, answerer: Answerer, workspace: TestWorkspace | None
    ) -> Outcome:
        """Put the turns of a test to a target one after the other."""
        grader, shared = self._needed_grader(), None
        if workspace is not None:
            await workspace.begin()
            shared = SharedWorkspace(workspace)
        judges, told = self._asked(item)[1], answerer

        async def ask(scope: Context, turn: TestItem, number: int) -> Answer:
            if isinstance(answerer, RecordedAnswerer):
                return answerer.turn(item, number)
            return await self._answered(scope, turn, told, shared)

        async def grade(scope: Context, entries: Sequence[Mapping[str, Any]], candidate: Candidate) -> Sequence[Score]:
            limited = partial(self._opened.time.running, context.item.number)
            return await grader.scores(scope, item, entries, candidate, judges=judges, limited=limited)

        def seen() -> Seen | None:
            if isinstance(answerer, RecordedAnswerer):
                return answerer.seen(item)
            return None if workspace is None else workspace.seen

        async def answered() -> None:
            if workspace is not None:
                await workspace.end()

        limit, folder = self._opened.limit(item), Path(self._prepared.files[item.file].path).parent
        judged = judges.own is not None
        means = Conversing(ask, grade, limit, folder, judged, lambda: answerer.simulated, seen, answered)
        async with AsyncExitStack() as stack:
            if isinstance(answerer, Conversational):
                told = await stack.enter_async_context(answerer.conversing(context))
            return await converse(context, item, means)

    async def _answered(
        self, context: Context, item: TestItem, answerer: Answerer, workspace: TestWorkspace | None = None
    ) -> Answer:
        seconds = self._prepared.options.agent_timeout
        try:
            if isinstance(answerer, BatchAnswerer):  # its time limit is the command's
                return await answerer.answer_to(context, item.test_id, item.graders)
            limit = within(seconds, f"no answer within {seconds or 0:g} s (--agent_timeout)")
            async with self._opened.time.running(context.item.number), limit:
                return await answerer.answer(context, item.test, item.trial, workspace)
        except ItemError as failure:
            record = answer_record(item, read_text("", error=failure.message), simulated=answerer.simulated)
            raise ItemError(
                failure.cause,
                failure.message,
                retry_after=failure.retry_after,
                record={**record, "error": failure.message},
            ) from failure

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        return None  # results are written from the journal, in the order of the tests

    def export(self, reader: RunReader) -> None:
        process, self._results = self._results, None
        figures = None if process is None else process.figures()
        write_results(reader, self._prepared, self._folder, figures)

    async def _graded(
        self,
        context: Context,
        item: TestItem,
        target: Target,
        answerer: Answerer,
        answer: Answer,
        seen: Seen | None,
    ) -> Outcome:
        grader = self._needed_grader()
        simulated, judges = answerer.simulated, self._asked(item)[1]
        try:
            return await grader.outcome(
                context,
                item,
                answer,
                judges=judges,
                simulated=simulated,
                limited=lambda: self._opened.time.running(context.item.number),
                seen=seen,
            )
        except ItemError as failure:
            raise grader_broken(item, answer, failure, simulated=simulated) from failure

    def _needed_grader(self) -> TestGrader:
        if self._grader is None:
            raise RuntimeError("no grader is open")
        return self._grader

    @property
    def _opened(self) -> RunControl:
        if self._control is None:
            raise RuntimeError("nothing is being performed")
        return self._control

    def _say(self, text: str) -> None:
        self.tell(text)

    def _asked(self, item: TestItem) -> tuple[Target, _OwnJudge]:
        """A test's target, and its judges."""
        key = (item.file, item.target)
        found = self._targets.get(key)
        if found is None:
            target = self._prepared.target_of(*key)
            found = target, _OwnJudge(self, item.file, self._prepared.judge_of(item.file, target))
            self._targets[key] = found
        return found

    async def _answerer(self, item: TestItem, target: Target, *, cached: bool) -> Answerer:
        """A target, opened when the first of its tests is performed; a command that takes all tests at once, for each trial. ``cached``:
        whether an answer of an earlier run will do."""
        key = (item.file, target.name, item.trial if target.batching else 0)
        future = self._answerers.get(key)
        if future is None:
            if self._openings is None:
                raise RuntimeError("no targets are open")
            opening = self._openings.answerer(*key[::2], target=target)
            future = self._answerers[key] = asyncio.ensure_future(opening)
        answerer = future.result() if future.done() else await asyncio.shield(future)
        # Trials are there to see how answers differ.
        cached = cached and item.trials == 1
        return answerer.target if isinstance(answerer, CachedAnswerer) and not cached else answerer

    async def _check_targets(self) -> None:
        """Look after all targets and judges that will be asked, before any of them is, unless that was done just before the run was made.
        Raises UserError."""
        if self._checked:
            self._checked = False
            return
        targets, judges = await asyncio.to_thread(self._left_to_ask)
        if self._prepared.options.regrade is not None:
            targets = []
        await check_usable(targets, judges, Path(self._prepared.here), os.environ)

    def _left_to_ask(self) -> tuple[list[Target], list[Target]]:
        """The targets that have tests before them, and the judges of these tests."""
        targets, judges = dict[tuple[int, str], Target](), dict[tuple[int, str], Target]()
        with closing(JournalReader(self._folder)) as reader:
            for row in reader.items():
                if row.state.final or row.left_input:
                    continue
                file, graders = row.payload["file"], written_graders(row.payload["test"])
                found = self._prepared.target_of(file, row.payload["target"])
                targets[file, found.name] = found
                for judge in self._prepared.judges_of(file, found, judge_needs(graders)):
                    judges[file, judge.name] = judge
        return list(targets.values()), list(judges.values())

    def judge(self, target: Target) -> Judge:
        """A judge, made ready when it is first needed. Raises GraderError."""
        if self._openings is None:
            raise GraderError("no judges are open")
        if target.name not in self._judges:
            self._judges[target.name] = self._openings.judge(target)
        return self._judges[target.name]

    def judge_named(self, file: int, name: str) -> Target:
        """Raises GraderError if the run knows no judge of that name."""
        known = (*self._prepared.files[file].judges, *self._prepared.files[file].targets)
        found = next((target for target in known if target.name == name), None)
        if found is None:
            raise GraderError(f"no judge is called {name!r}; name it in judge_target, or give --judge_target")
        return found


async def _settled_failure(item: TestItem, answerer: BatchAnswerer, failure: ItemError) -> ItemError:
    """What is known of a test that is an error when the command has ended: its end waits for that, so that the command is not cut off
    when its last test has ended."""
    contradiction = await answerer.settle(item.test_id, failure.record)
    return failure if contradiction is None else _contradicted(contradiction, failure.record)


def _contradicted(message: str, record: Mapping[str, Any]) -> ItemError:
    record = {**record, "status": ERROR, "score": None, "verdict": None, "error": message}
    return ItemError(Cause.TARGET_ERROR, message, record=record)


def _say_nothing(text: str) -> None:
    return


class _OwnJudge:
    """The judges of the graders of a file's tests, one of which is that of a target."""

    def __init__(self, workload: EvalsWorkload, file: int, own: Target | None) -> None:
        self._workload = workload
        self._file = file
        self.own = own

    async def judge(self, name: str | None) -> Judge:
        if name is not None:
            return self._workload.judge(self._workload.judge_named(self._file, name))
        if self.own is None:
            raise GraderError("no judge is configured: give the target a judge_target, or --judge_target")
        return self._workload.judge(self.own)
