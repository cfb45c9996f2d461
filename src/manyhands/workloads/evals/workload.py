"""The workload of evaluations: targets answer tests, and graders score the answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from manyhands.agents.trajectory import describe_step
from manyhands.core.errors import ItemError
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Context, Execution, Item, PlannedItem, RecordedStep, RunReader, Workload, Worlds
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.io.search_paths import SearchPath, additions
from manyhands.processes.commands import CommandRunner
from manyhands.processes.scripts import Scripts
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.lifecycle.keeping import worlds_of
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.workloads.evals.edits import Edits
from manyhands.workloads.evals.evalfile.contents import EvalFile, judge_needs
from manyhands.workloads.evals.evalfile.sources.given import NOTHING, Given
from manyhands.workloads.evals.executing import SessionExecutor
from manyhands.workloads.evals.grading.conversation import written_graders
from manyhands.workloads.evals.grading.graded_answer import GradingSettings, TestGrader
from manyhands.workloads.evals.items import plan_tests
from manyhands.workloads.evals.opening import Openings, finish_workspaces, workspace_tools
from manyhands.workloads.evals.prepared import PreparedEval, chosen_names, load
from manyhands.workloads.evals.results.writing import write_results
from manyhands.workloads.evals.scheduling import SessionSchedule, slots
from manyhands.workloads.evals.settings import GRADER_SECONDS
from manyhands.workloads.evals.targets.checks import check_usable
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.images import sandboxes_of_targets


def ignore_notice(text: str) -> None:
    """Shows nothing."""


class EvalsWorkload(Workload):
    """Tests become scores. ``spec`` is what ``PreparedEval.to_json`` gives."""

    name = "evals"
    concurrency_setting = "workers"

    def __init__(
        self,
        spec: dict[str, Any],
        run_folder: Path,
        *,
        files: tuple[EvalFile, ...] | None = None,
        edits: Sequence[Edits] = (),
        tell: Callable[[str], None] = ignore_notice,
        given: Given = NOTHING,
    ) -> None:
        """``files``: the eval files, if they were read and their targets checked already; ``edits``: what is different in them since the
        run was made; ``tell``: shows the person a line while the run is executed; ``given``: in Python."""
        self.spec = spec
        self._folder = run_folder
        self._prepared = PreparedEval.from_json(spec, run_folder.parent)
        self._depends = any(file.depends for file in self._prepared.files)
        self._loaded = files
        self._checked = files is not None
        self._test_files: set[str] = set()
        self._executor: SessionExecutor | None = None
        self._edits = edits
        self._tell = tell
        self._given = given

    @property
    def prepared(self) -> PreparedEval:
        return self._prepared

    @property
    def graded(self) -> int:
        """How many tests are graded, and wait for the end of the command that answers all of them."""
        return 0 if self._executor is None else self._executor.graded

    def files_read(self) -> set[Path]:
        """The files in which tests and targets stand."""
        files = self._prepared.files
        targets = {target.location.file for file in files for target in (*file.targets, *file.judges)}
        return {Path(name).absolute() for name in {*self._test_files, *targets, *(file.path for file in files)}}

    @property
    def execution(self) -> Execution:
        options = self._prepared.options
        return options.execution(
            executor="local",
            workers=1,
            concurrency=slots(self._prepared),
            max_attempts=None,  # the method of that name counts otherwise
            item_timeout=None,  # tests have limits of their own, which don't count what they wait for
            keep_workspaces=options.keep_workspaces,
            remove_workspaces=options.cleanup_workspaces,
        )

    def resize(self, max_concurrency: int) -> int:
        return self._opened.schedule.concurrency.resize(max_concurrency)

    def reopened(self, reader: RunReader, numbers: Sequence[int]) -> None:
        if self._depends:
            with closing(JournalReader(self._folder)) as journal:
                for number in numbers:
                    if (row := journal.item(str(number))) is not None:
                        self._opened.schedule.dependencies.reopened(row.item)

    @property
    def counts_failures(self) -> bool:
        return any(file.fail_on_error for file in self._prepared.files)

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        return self._opened.schedule.max_attempts(item, failure)

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        return self._opened.schedule.stop_reason(item, outcome)

    def must_wait(self, item: Item) -> bool:
        return self._depends and self._opened.schedule.dependencies.holds(item)

    def freed(self) -> Sequence[int]:
        return self._opened.schedule.dependencies.freed() if self._depends else ()

    def input_identity(self) -> str | None:
        return "imported"  # tests count as they were when the run was made

    def plan(self) -> Iterable[PlannedItem]:
        options = self._prepared.options
        if self._loaded is None:
            self._loaded = load(options, os.environ, lambda text: None, given=self._given).files
        loaded, self._loaded = self._loaded, None  # from here on they are in the journal
        for file in loaded:
            file.keep_pictures(ArtifactStore(self._folder))
        for item in plan_tests(loaded, chosen_names(self._prepared), options.trials):
            if "test" in item.payload:
                self._test_files.add(item.payload["test"]["place"]["file"])
            yield item

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        options = self._prepared.options
        async with AsyncExitStack() as stack:
            mark = process_mark(run_id_of(self._folder))
            runner = await stack.enter_async_context(CommandRunner.opened(mark, os.environ))
            scripts = await stack.enter_async_context(
                Scripts.opened(mark, os.environ, at_once=options.grader_processes)
            )
            said = self._tell if options.verbose else ignore_notice
            around, run_id = SearchPath.of(Path(self._prepared.here)), run_id_of(self._folder)
            tools = workspace_tools(self._folder, run_id, runner, os.environ, said, around, live=not replay)
            stack.push_async_callback(tools.templates.close)
            functions = self._given.functions
            openings = Openings(
                self._prepared, self._folder, os.environ, runner, mark, stack, tools, self._tell, functions
            )
            schedule = SessionSchedule(self._prepared, self._folder, replay=replay)
            stack.callback(schedule.close)
            seconds = options.grader_timeout or options.agent_timeout or GRADER_SECONDS
            folders = [Path(file.path).parent for file in self._prepared.files]
            environments = [{} if replay else additions(folder, around, os.environ) for folder in folders]
            settings = GradingSettings(self._prepared.thresholds, folders, seconds, environments, functions)
            grader = TestGrader(settings, scripts)
            self._executor = SessionExecutor(self._prepared, self._folder, openings, grader, schedule)
            if not replay:
                await self._check_targets()
            yield
            if not replay:
                await finish_workspaces(self._folder, tools.templates, options)
            self._executor = None

    def run(self, context: Context) -> Coroutine[Any, Any, Outcome]:
        return self._opened.run(context)

    def worlds(self) -> Worlds | None:
        targets = [target for file in self._prepared.files for target in file.targets]
        return worlds_of(
            sandboxes_of_targets(targets, Path(self._prepared.here), os.environ, self._prepared.pins), self._folder
        )

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def export(self, reader: RunReader) -> None:
        write_results(reader, self._prepared, self._folder, self._edits)

    @property
    def _opened(self) -> SessionExecutor:
        if self._executor is None:
            raise RuntimeError("no session of the run is open")
        return self._executor

    async def _check_targets(self) -> None:
        """Look after all targets and judges that will be used, before any of them is, unless that was done just before the run was made.
        Raises UserError."""
        if self._checked:
            self._checked = False
            return
        targets, judges = await asyncio.to_thread(self._left_to_ask)
        if self._prepared.options.regrade is not None:
            targets = []
        await check_usable(targets, judges, Path(self._prepared.here), os.environ, self._tell)

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
                needs = [need for need in judge_needs(graders) if need.certain]
                for judge in self._prepared.judges_of(file, found, needs):
                    judges[file, judge.name] = judge
        return list(targets.values()), list(judges.values())
