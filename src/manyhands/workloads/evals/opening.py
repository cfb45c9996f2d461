"""What a session opens of what is recorded: targets that answer, judges, and the workspaces of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from manyhands.agents.run_settings import headers_for, model_of
from manyhands.agents.worlds.settings import environment_of, looked_up
from manyhands.core.errors import GraderError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import Redactor
from manyhands.core.settings import Secret
from manyhands.engine.contract import Context
from manyhands.engine.journal.reader import JournalReader
from manyhands.graders.protocol import Judge
from manyhands.io.search_paths import SearchPath, additions, environment
from manyhands.models.openai.errors import ONCE
from manyhands.models.protocol import ChatModel
from manyhands.processes.commands import CommandRunner
from manyhands.processes.python_functions import Function
from manyhands.runs.making import keep_files
from manyhands.runs.options import BudgetSettings
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.images.pins import NO_PINS
from manyhands.workloads.evals.batch.command import BatchCommand, BatchJob
from manyhands.workloads.evals.batch.invocation import InvocationWorkspaces
from manyhands.workloads.evals.batch.reports import TARGETS, BatchReport, write_report
from manyhands.workloads.evals.batch.target import BatchScope, BatchTarget
from manyhands.workloads.evals.evalfile.contents import Workspace, with_variables
from manyhands.workloads.evals.evalfile.files import TASK_FOLDERS
from manyhands.workloads.evals.items import PASSED, TestItem
from manyhands.workloads.evals.prepared import PreparedEval, regraded_folder
from manyhands.workloads.evals.targets.command import CommandSettings
from manyhands.workloads.evals.targets.definitions import Target, identity
from manyhands.workloads.evals.targets.keys import Interpolation
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.live import LiveTarget
from manyhands.workloads.evals.targets.recorded import (
    CACHE_FOLDER,
    AnswerCache,
    CachedTarget,
    RecordedTarget,
    open_recorded,
)
from manyhands.workloads.evals.workspaces.repositories import Repositories
from manyhands.workloads.evals.workspaces.templates import TREE, Hooks, Tell, Templates, template_name, template_states
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, WorkspaceTools, with_template


@dataclass(slots=True)
class Openings:
    """Opens the targets and judges of one session."""

    prepared: PreparedEval
    run_folder: Path
    environ: Mapping[str, str]
    """The real environment."""
    runner: CommandRunner | None
    """Starts commands; None where none may be started."""
    mark: str
    """By which processes of this run are known."""
    stack: AsyncExitStack
    """Closes what was opened."""
    workspaces: WorkspaceTools
    tell: Tell
    """Shows a line to the person."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """Those that were given in Python, by what they are recorded as."""

    async def live(self, file: int, sample: int, *, target: Target) -> LiveTarget:
        """A target of a file, started where that is due. ``sample``: of a command that answers all tests at once.

        Raises UserError for what can't be used.
        """
        if self.prepared.options.regrade is not None:
            return self._recorded(file, target)
        opening = SessionOpening(self, file, sample, target)
        return await target.resolved(opening.environ).open(opening)

    def template(self, target: Target) -> Path | None:
        """The folder that is copied for a target, if it names one itself. Raises UserError."""
        if not target.has_template:
            return None
        return target.resolved(self.environ_of(target)).workspace_template

    def judge(self, target: Target) -> Judge:
        """A target to judge with. Raises GraderError if it can't judge, or can't be used."""
        try:
            opening = SessionJudging(self, target)
            judge = target.resolved(opening.environ).judge(target.name, opening)
        except UserError as error:
            raise GraderError(f"the judge {target.name!r} can't be used: {error}") from error
        if judge is None:
            raise GraderError(f"target {target.name!r} of kind {target.kind} can't judge")
        return judge

    def model(self, options: AgentTargetOptions, api_keys: Sequence[Secret]) -> ChatModel:
        """A model, which is closed at the end of the session."""
        keys, run = [key.text for key in api_keys], self.prepared.options
        budget: BudgetSettings = run
        if options.prices is not None:
            keep_files(options, self.run_folder)
            budget = run.changed({"prices": options.prices})
        retries = ONCE if run.retries == 0 else options.retries()
        headers = headers_for(options, self.environ)
        model = model_of(options, keys, self.run_folder, budget, retries=retries, headers=headers)
        self.stack.push_async_callback(model.close)
        return model

    def environ_of(self, target: Target) -> dict[str, str]:
        """The environment variables that a target's settings may name."""
        return environment(target.folder, SearchPath.of(Path(self.prepared.here)), self.environ)

    def task_environ(self, folder: Path) -> dict[str, str]:
        """The variables of this machine that tasks in a folder may have. Raises UserError for one that is not set."""
        allowed = self.prepared.options.task_env
        return environment_of(allowed, looked_up(allowed, self._variables(folder), option="task_env"))

    def item(self, payload: Mapping[str, Json]) -> TestItem:
        """The item of a payload, with the secrets of its test put in. Raises UserError for one that is not set."""
        item = TestItem.from_json(payload)
        folder = Path(self.prepared.files[item.file].path).parent
        item.written = with_variables(item.written, lambda: self._variables(folder))
        return item

    def _variables(self, folder: Path) -> Mapping[str, str]:
        return environment(folder, SearchPath.of(Path(self.prepared.here)), self.environ)

    def _recorded(self, file: int, target: Target) -> RecordedTarget:
        reader = open_recorded(regraded_folder(self.prepared.options))
        self.stack.callback(reader.close)
        dataset = self.prepared.files[file].dataset
        return RecordedTarget(reader, dataset, target.name)


class SessionJudging:
    """A ``JudgeOpening``: makes a target ready to judge with what a session has."""

    def __init__(self, session: Openings, target: Target) -> None:
        self._session = session
        self._target = target
        self.at = target.at
        self.environ = session.environ_of(target)
        self.model = session.model
        self.functions = session.functions

    @property
    def additions(self) -> Mapping[str, str]:
        here = SearchPath.of(Path(self._session.prepared.here))
        return additions(self._target.folder, here, self._session.environ)

    @property
    def runner(self) -> CommandRunner:
        if self._session.runner is None:
            raise RuntimeError("no commands can be run here")
        return self._session.runner

    def teller(self, verbose: bool) -> Tell | None:
        if not (verbose or self._session.prepared.options.verbose):
            return None
        return lambda command: self._session.tell(f"{self._target.name}: {command}")


class SessionOpening(SessionJudging):
    """A ``TargetOpening``: opens one target of an eval file with what a session has."""

    def __init__(self, session: Openings, file: int, sample: int, target: Target) -> None:
        """``sample``: of a command that answers all tests at once."""
        super().__init__(session, target)
        self._file = file
        self._sample = sample
        self._of_file = session.prepared.files[file]
        self.identity = identity(target)
        self.dataset = self._of_file.dataset
        self.mark = session.mark
        self.stack = session.stack
        self.run_folder = session.run_folder
        run = session.prepared.options
        self.has_tasks = Path(self._of_file.path).name == TASK_FOLDERS
        self.task_limits = {"multiplier": run.timeout_multiplier, "override": run.override_task}
        self.end_processes = run.end_processes
        self.agent_command = run.agent_command
        self.task_environ = session.task_environ(self.eval_file.parent) if self.has_tasks else {}
        self.pins = session.prepared.pins.get(self.identity, NO_PINS)
        self.services = session.prepared.services.get(self.identity, {})

    @property
    def eval_file(self) -> Path:
        return Path(self._of_file.path)

    async def test_ids(self) -> Sequence[str]:
        return (await asyncio.to_thread(self._scope(0).tests)).ids

    def cached(self, live: LiveTarget, files: Mapping[str, Json], fields: tuple[str, ...] = ()) -> LiveTarget:
        options, of_file = self._session.prepared.options, self._of_file
        if not (of_file.cache if options.cache is None else options.cache):
            return live
        named = options.cache_dir or of_file.cache_path
        cache = AnswerCache(Path(options.data_dir) / CACHE_FOLDER if named is None else Path(named))
        who: Json = {"target": self._target.name, "is": self.identity, "files": dict(files)}
        return CachedTarget(live, cache, {**who, "values": self._values()}, fields)

    async def batch(self, command: CommandSettings, workspace_template: Path | None, tell: Tell | None) -> BatchTarget:
        scope = self._scope(self._sample)
        tests = await asyncio.to_thread(scope.tests)
        workspace, tools = with_template(tests.workspace, workspace_template), self._session.workspaces
        workspaces = None
        if workspace is not None:
            workspaces = InvocationWorkspaces(self._of_file.path, workspace.of(self._target.name), tools)
        job = BatchJob(
            folder=self._folder(self._sample),
            ids=tests.ids,
            known=tests.known,
            settings=command,
            runner=self.runner,
            tests=scope.lines,
            files=tests.files,
            environ=self.environ,
            workspaces=workspaces,
            notice=tell,
        )
        batch = await BatchCommand.opened(job)
        self.stack.push_async_callback(self._close, batch, self._sample)
        await batch.start()
        rerun_for = scope.unfinished if self._session.prepared.options.rerun == "missing" else None
        keep = partial(self._keep_report, self._sample)
        return BatchTarget(batch, len(tests.ids), rerun_for=rerun_for, workspaces=workspaces, keep=keep)

    async def answers_in(self, path: Path) -> BatchTarget:
        """Every sample gets the same answer: there is but one."""
        tests = await asyncio.to_thread(self._scope(0).tests)
        job = BatchJob(folder=self._folder(0), ids=tests.ids, known=tests.known)
        batch = await BatchCommand.replayed(path, job)
        self.stack.push_async_callback(self._close, batch, 0)
        return BatchTarget(batch, len(tests.ids), ran=False, keep=partial(self._keep_report, 0))

    async def _close(self, batch: BatchCommand, sample: int) -> None:
        await batch.close()
        self._keep_report(sample, batch.report())

    def _keep_report(self, sample: int, report: BatchReport) -> None:
        dataset, name = self._of_file.dataset, self._target.name
        write_report(self._folder(sample), report, dataset=dataset, target=name, sample=sample)

    def _scope(self, sample: int) -> BatchScope:
        return BatchScope(
            self._session.run_folder, self._file, self._target.name, sample, self._of_file.others, self.environ
        )

    def _folder(self, sample: int) -> Path:
        name = "".join(mark if mark.isalnum() or mark in "-_." else "_" for mark in self._target.name)[:60]
        number = f"-trial-{sample + 1}" if sample else ""
        return self._session.run_folder / TARGETS / f"{self._file}-{name}-{self.identity[:8]}{number}"

    def _values(self) -> dict[str, Json]:
        """The target's settings as they are here, without its key."""
        interpolation, values = Interpolation(self.environ), {}
        for name, value in self._target.settings.items():
            if name != "api_key":
                with suppress(UserError):  # of a setting that need not be given
                    values[name] = interpolation.value(value, self.at(name))
        return values


class SessionWorkspaces:
    """The workspaces of a session's tests."""

    def __init__(self, prepared: PreparedEval, openings: Openings) -> None:
        """``openings``: knows the targets' own templates."""
        self._prepared = prepared
        self._openings = openings
        self._templates: dict[tuple[int, str], Path | None] = {}

    def of(self, context: Context, item: TestItem, target: Target) -> TestWorkspace | None:
        """Where a target works on a test; None if that has no workspace, nothing is run, or a command has one for all its tests.

        Raises UserError if the target can't be used.
        """
        if target.batching or target.facts.one_file_for_all or self._prepared.options.regrade is not None:
            return None
        settings = self._settings(item, target)
        if settings is None:
            return None
        eval_file = self._prepared.files[item.file].path
        return TestWorkspace(context, eval_file, item.test, settings, self._openings.workspaces)

    def settings(self, template: str) -> Workspace | None:
        """The settings of a template, by its name; None where they hold a secret that is not there any more."""
        with closing(JournalReader(self._openings.run_folder)) as reader:
            for payload in reader.payloads():
                with suppress(UserError):
                    item = self._openings.item(payload) if "test" in payload else None
                    found = item and self._settings(item, self._prepared.target_of(item.file, item.target))
                    if item and found and template_name(self._prepared.files[item.file].path, found) == template:
                        return found
        return None

    def _settings(self, item: TestItem, target: Target) -> Workspace | None:
        key = (item.file, target.name)
        if key not in self._templates:
            self._templates[key] = self._openings.template(target)
        settings = with_template(item.test.workspace, self._templates[key])
        return None if settings is None else settings.of(target.name)


class SessionJudges:
    """The judges of a session, made ready when one is first needed."""

    def __init__(self, prepared: PreparedEval, openings: Openings) -> None:
        self._prepared = prepared
        self._openings = openings
        self._judges: dict[str, Judge] = {}

    def of(self, target: Target) -> Judge:
        """A target as a judge. Raises GraderError."""
        if target.name not in self._judges:
            self._judges[target.name] = self._openings.judge(target)
        return self._judges[target.name]

    def named(self, file: int, name: str) -> Judge:
        """One that a test of a file names. Raises GraderError."""
        known = (*self._prepared.files[file].judges, *self._prepared.files[file].targets)
        found = next((target for target in known if target.name == name), None)
        if found is None:
            raise GraderError(f"no judge is called {name!r}; name it in judge_target, or give --judge_target")
        return self.of(found)


class TargetJudges:
    """The judges of the graders of one target's tests in an eval file."""

    def __init__(self, judges: SessionJudges, file: int, own: Target | None) -> None:
        """``own``: the target's, which is used where none is named."""
        self._judges = judges
        self._file = file
        self.own = own

    async def judge(self, name: str | None) -> Judge:
        """The judge of that name, or the target's own. Raises GraderError if there is none, or it can't be used."""
        if name is not None:
            return self._judges.named(self._file, name)
        if self.own is None:
            raise GraderError("no judge is configured: give the target a judge_target, or --judge_target")
        return self._judges.of(self.own)


def workspace_tools(
    run_folder: Path,
    run_id: str,
    runner: CommandRunner,
    environ: Mapping[str, str],
    tell: Tell,
    around: SearchPath,
    *,
    live: bool,
) -> WorkspaceTools:
    """``environ``: the real environment, whose secrets are kept out of what is recorded; ``tell``: shows the hooks that are run;
    ``around``: where the command was given; ``live``: whether anything may happen outside."""
    hooks, redactor, data = (
        Hooks(runner, environ, run_id, tell, around),
        Redactor.of(environ),
        run_folder.absolute().parent,
    )
    repositories = Repositories(data, runner, redactor, tell)
    return WorkspaceTools(Templates(run_folder, hooks, repositories, runner), hooks, runner, redactor, data, live)


def are_workspaces_done(run_folder: Path) -> bool:
    """Whether there are workspaces, and no test is left that may want one."""
    made = any(not state.ended for _, state in template_states(run_folder))
    if not (made or _of_invocations(run_folder)):
        return False
    with closing(JournalReader(run_folder)) as reader:
        return all(ItemState(state).final for state, _ in reader.counts())


async def finish_workspaces(openings: Openings) -> None:
    """No test is left: run what runs after all of them, and remove what nobody needs any more."""
    run_folder, options = openings.run_folder, openings.prepared.options
    cleaned = not options.keep_workspaces and (
        options.cleanup_workspaces or await asyncio.to_thread(_all_passed, run_folder)
    )
    settings = SessionWorkspaces(openings.prepared, openings).settings
    await openings.workspaces.templates.finish(settings, keep=options.keep_workspaces, keep_shared=not cleaned)
    if cleaned:
        for folder in _of_invocations(run_folder):
            await asyncio.to_thread(remove_tree, folder)


def _of_invocations(run_folder: Path) -> Sequence[Path]:
    """The workspaces of commands that answer all tests at once."""
    return list((run_folder / TARGETS).glob(f"*/*/{TREE}"))


def _all_passed(run_folder: Path) -> bool:
    with closing(JournalReader(run_folder)) as reader:
        return all((row.record or {}).get("status") == PASSED for row in reader.items() if not row.left_input)
