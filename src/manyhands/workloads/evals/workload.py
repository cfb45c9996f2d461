"""The workload of evaluations: targets answer tests, and graders score the answers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_node
from manyhands.agents.trajectory import describe_step
from manyhands.core.errors import ItemError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Context, Execution, Item, PlannedItem, RecordedStep, RunReader, Workload, Worlds
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.io.search_paths import SearchPath, additions
from manyhands.models.factory import late_imports
from manyhands.processes.commands import CommandRunner
from manyhands.processes.python_functions import module_of
from manyhands.processes.scripts import Scripts
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.lifecycle.keeping import worlds_of
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.workloads.evals.batch.reports import TARGETS
from manyhands.workloads.evals.edits import Edits
from manyhands.workloads.evals.evalfile.contents import EvalFile, judge_needs
from manyhands.workloads.evals.evalfile.sources.given import NOTHING, Given
from manyhands.workloads.evals.grading.conversation import functions_among, written_graders
from manyhands.workloads.evals.grading.graded_answer import GradingSettings, TestGrader
from manyhands.workloads.evals.items import plan_tests
from manyhands.workloads.evals.opening import Openings, are_workspaces_done, finish_workspaces, workspace_tools
from manyhands.workloads.evals.prepared import PreparedEval, chosen_names, load
from manyhands.workloads.evals.results.writing import write_results
from manyhands.workloads.evals.scheduling import SessionSchedule, slots
from manyhands.workloads.evals.session.executing import SessionExecutor
from manyhands.workloads.evals.settings import GRADER_SECONDS
from manyhands.workloads.evals.targets.checks import check_usable
from manyhands.workloads.evals.targets.definitions import PYTHON, Target, own_tools
from manyhands.workloads.evals.targets.images import sandboxes_of_targets


def ignore_notice(text: str) -> None:
    """Shows nothing."""


def log_line(text: str) -> None:
    """Writes a line to the log of a worker process, which is its standard error."""
    print(text, file=sys.stderr, flush=True)


class EvalsWorkload(Workload):
    """Tests become scores. ``spec`` is what ``PreparedEval.to_json`` gives."""

    name = "evals"
    concurrency_setting = "workers"
    worker_files = ("settings", "artifacts", TARGETS)
    worker_results = ("artifacts", TARGETS)
    reads_items = True

    def __init__(
        self,
        spec: dict[str, Any],
        run_folder: Path,
        *,
        files: tuple[EvalFile, ...] | None = None,
        edits: Sequence[Edits] = (),
        tell: Callable[[str], None] = log_line,
        given: Given = NOTHING,
    ) -> None:
        """``files``: the eval files, if they were read and their targets checked already; ``edits``: what is different in them since the
        run was made; ``tell``: shows the person a line while the run is executed (in a worker process: logs it); ``given``: in Python."""
        self.spec = spec
        self._folder = run_folder
        self._prepared = PreparedEval.from_json(spec, run_folder.parent)
        self._depends = any(file.depends for file in self._prepared.files)
        self._loaded = files
        self._checked = files is not None
        self._test_files: set[str] = set()
        self._schedule: SessionSchedule | None = None
        self._executor: SessionExecutor | None = None
        self._edits = edits
        self._tell = tell
        self._given = given

    @property
    def prepared(self) -> PreparedEval:
        return self._prepared

    @property
    def graded(self) -> int:
        """How many tests are graded in this process, and wait for the end of the command that answers all of them."""
        return 0 if self._executor is None else self._executor.graded

    def files_read(self) -> set[Path]:
        """The files in which tests and targets stand."""
        files = self._prepared.files
        targets = {target.location.file for file in files for target in (*file.targets, *file.judges)}
        return {Path(name).absolute() for name in {*self._test_files, *targets, *(file.path for file in files)}}

    @property
    def execution(self) -> Execution:
        options, at_once = self._prepared.options, slots(self._prepared)
        local = options.executor == "local"
        return options.execution(
            executor=options.executor,
            workers=1 if local else options.num_workers,
            concurrency=at_once,
            max_in_flight=at_once,  # by any of the workers: which of them are busy is not known before
            max_attempts=None,  # the method of that name counts otherwise
            item_timeout=None,  # tests have limits of their own, which don't count what they wait for
            keep_workspaces=options.keep_workspaces,
            remove_workspaces=options.cleanup_workspaces,
        )

    def resize(self, max_concurrency: int) -> int:
        return self._scheduled.resize(max_concurrency)

    def reopened(self, reader: RunReader, numbers: Sequence[int]) -> None:
        self._scheduled.reopened(numbers)

    def group(self, item: Item) -> str | None:
        return self._scheduled.group(item)

    def facts(self, item: Item, attempt: int, *, begun: bool) -> Json:
        facts = self._scheduled.facts(item, attempt)
        if not begun or self._prepared.options.executor != "ray":
            return facts
        steps = self._scheduled.recorded.steps(item.number, attempt)
        return {**facts, **ArtifactStore(self._folder).carried(steps)}  # what they refer to may be on no node

    def own_limit(self, name: str) -> int | None:
        return self._scheduled.own_limit(name)

    @property
    def counts_failures(self) -> bool:
        return any(file.fail_on_error for file in self._prepared.files)

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        return self._scheduled.max_attempts(item, failure)

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        return self._scheduled.stop_reason(item, outcome)

    def must_wait(self, item: Item) -> bool:
        return self._depends and self._scheduled.dependencies.holds(item)

    def freed(self) -> Sequence[int]:
        return self._scheduled.dependencies.freed() if self._depends else ()

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

    @property
    def late_imports(self) -> Sequence[str]:
        models = [
            target.settings for file in self._prepared.files for target in file.targets if target.facts.calls_models
        ]
        return list(dict.fromkeys(name for each in models for name in late_imports(str(each.get("model", "")))))

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        """Those of targets, judges and graders."""
        files, found = self._prepared.files, list[tuple[str, Path]]()
        for target in (target for file in files for target in (*file.targets, *file.judges)):
            if target.kind == PYTHON:
                found.append((module_of(target.settings["function"]), target.folder))
            found += own_tools(target)
        with closing(JournalReader(self._folder)) as reader:
            for payload in reader.payloads():
                folder = Path(files[payload["file"]].path).parent
                found += [(module_of(each), folder) for each in functions_among(payload.get("test", {}))]
        return list(dict.fromkeys(found))

    @asynccontextmanager
    async def session(self, *, replay: bool = False) -> AsyncIterator[None]:
        self._schedule = SessionSchedule(self._prepared, self._folder)
        try:
            if not replay:
                await self._check_targets()
            yield
            if not replay and await asyncio.to_thread(are_workspaces_done, self._folder):
                async with AsyncExitStack() as stack:
                    await finish_workspaces(await self._openings(stack, replay=False))
        finally:
            self._schedule.close()
            self._schedule = None

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        options = self._prepared.options
        if options.executor == "ray" and not replay:
            self._check_node()
        async with AsyncExitStack() as stack:
            openings = await self._openings(stack, replay=replay)
            scripts = await stack.enter_async_context(
                Scripts.opened(openings.mark, os.environ, at_once=options.grader_processes)
            )
            seconds = options.grader_timeout or options.agent_timeout or GRADER_SECONDS
            folders = [Path(file.path).parent for file in self._prepared.files]
            around = self._around
            environments = [{} if replay else additions(folder, around, os.environ) for folder in folders]
            settings = GradingSettings(self._prepared.thresholds, folders, seconds, environments, self._given.functions)
            grader = TestGrader(settings, scripts)
            self._executor = SessionExecutor(self._prepared, self._folder, openings, grader, replay=replay)
            yield
            self._executor = None

    def _check_node(self) -> None:
        """Raises UserError for what this node of a cluster lacks."""
        programs = [
            file for file in self._prepared.files if any(target.facts.starts_programs for target in file.targets)
        ]
        check_node({"--from_output": self._prepared.options.from_output})
        for file in programs:
            check_node({"the folder of the eval file, for programs of its targets": Path(file.path).parent})

    async def _openings(self, stack: AsyncExitStack, *, replay: bool) -> Openings:
        """What opens targets and makes workspaces, until the stack is closed."""
        run_id = run_id_of(self._folder)
        mark = process_mark(run_id)
        runner = await stack.enter_async_context(CommandRunner.opened(mark, os.environ))
        said = self._tell if self._prepared.options.verbose else ignore_notice
        tools = workspace_tools(self._folder, run_id, runner, os.environ, said, self._around, live=not replay)
        stack.push_async_callback(tools.templates.close)
        functions = self._given.functions
        return Openings(self._prepared, self._folder, os.environ, runner, mark, stack, tools, self._tell, functions)

    @property
    def _around(self) -> SearchPath:
        return SearchPath.of(Path(self._prepared.here))

    async def run(self, context: Context) -> Outcome:
        if self._prepared.options.executor == "ray":
            await asyncio.to_thread(ArtifactStore(self._folder).take, context.facts)
        return await self._opened.run(context)

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
            raise RuntimeError("no items of the run can be executed here")
        return self._executor

    @property
    def _scheduled(self) -> SessionSchedule:
        if self._schedule is None:
            raise RuntimeError("no session of the run is open")
        return self._schedule

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
