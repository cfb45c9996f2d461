"""From targets as they are recorded to targets that answer, judges that judge, and the workspaces that tests have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.agents.run_settings import NeverCalled, chat_settings, model_of
from manyhands.agents.toolset_tools import ToolOffer, mcp_record
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError, UserError
from manyhands.core.jsonio import Json
from manyhands.core.redaction import Redactor
from manyhands.engine.contract import Context
from manyhands.graders.protocol import Judge
from manyhands.io.dotenv_files import additions, environment
from manyhands.io.search_paths import Surroundings
from manyhands.models.openai.errors import ONCE
from manyhands.models.protocol import ChatModel
from manyhands.processes.commands import CommandRunner
from manyhands.processes.python_functions import load_function
from manyhands.runs.making import keep_files
from manyhands.sandboxes.protocol import SandboxBackend
from manyhands.sandboxes.selection import PacedBackend, choose_backend
from manyhands.workloads.evals.batch.command import BatchCommand, BatchJob
from manyhands.workloads.evals.batch.reports import TARGETS, write_report
from manyhands.workloads.evals.batch.target import BatchTarget
from manyhands.workloads.evals.batch.tests_file import FILE, BatchScope, TestsFile
from manyhands.workloads.evals.batch.workspaces import InvocationWorkspaces
from manyhands.workloads.evals.evalfile.variables import Interpolation
from manyhands.workloads.evals.items import TestItem
from manyhands.workloads.evals.prepared import PreparedEval, regraded_folder
from manyhands.workloads.evals.targets.agent import AgentTarget
from manyhands.workloads.evals.targets.command import CommandInvoker, CommandTarget
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.function import FunctionTarget
from manyhands.workloads.evals.targets.kinds import (
    AgentSettings,
    CliSettings,
    MockSettings,
    ModelSettings,
    PythonSettings,
    ReplaySettings,
)
from manyhands.workloads.evals.targets.protocol import LiveTarget, MockTarget
from manyhands.workloads.evals.targets.recorded import (
    CACHE_FOLDER,
    AnswerCache,
    CachedTarget,
    RecordedTarget,
    content,
    named_files,
    open_recorded,
    source_file,
)
from manyhands.workloads.evals.workspaces.hooks import Hooks, Tell
from manyhands.workloads.evals.workspaces.templates import Templates
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, WorkspaceTools, with_template


@dataclass(slots=True)
class Openings:
    """What targets and judges are opened with. One for a session; closed by its ``stack``. ``tell``: shows a line to the person."""

    prepared: PreparedEval
    run_folder: Path
    environ: Mapping[str, str]
    runner: CommandRunner | None
    mark: str
    stack: AsyncExitStack
    workspaces: WorkspaceTools
    tell: Tell

    async def live(self, file: int, trial: int, *, target: Target) -> LiveTarget:
        """A target of a file, started where that is due. ``trial``: of a command that answers all tests at once.

        Raises UserError for what can't be used.
        """
        if self.prepared.options.regrade is not None:
            return self._recorded(file, target)
        environ = self._environ_of(target)
        settings = target.resolved(environ).settings
        if isinstance(settings, CliSettings):
            extra = additions(target.folder, Surroundings.of(Path(self.prepared.here)), self.environ)
            settings = replace(settings, command=replace(settings.command, additions=extra))
        match settings:
            case CliSettings(batching=True):
                return await self._batch(file, trial, target, settings, environ)
            case ReplaySettings():
                return await self._replayed(file, target, settings)
            case MockSettings():
                return MockTarget(settings)
            case CliSettings():
                files = await asyncio.to_thread(named_files, settings.command.template, settings.command.folder)
                asked = CommandInvoker(
                    settings.command, self._needed_runner(), environ=environ, tell=self._teller(target, settings)
                )
                command = CommandTarget(asked, identity(target), keep_files=settings.command.keep_files)
                if settings.command.template.uses("EVAL_FILE", "EVAL_DIR"):
                    path = Path(self.prepared.files[file].path)
                    files |= {str(path): await asyncio.to_thread(content, path)}
                return self._cached(file, target, command, files)
            case PythonSettings():
                function = load_function(settings.function, settings.folder, target.place.at("function").error)
                live = FunctionTarget(settings, function, identity(target))
                return self._cached(file, target, live, source_file(function), told=("criteria", "metadata"))
            case ModelSettings():
                agent = await self._agent(settings)
                return agent if (settings.options.temperature or 0) > 0 else self._cached(file, target, agent, {})
        raise UserError(f"{target.place}: a target of kind {target.kind} can't be questioned")

    def template(self, target: Target) -> Path | None:
        """The folder that is copied for a target, if it names one itself. Raises UserError."""
        if target.settings.get("workspace_template") is None:
            return None
        settings = target.resolved(self._environ_of(target)).settings
        return settings.workspace_template if isinstance(settings, CliSettings) else None

    def judge(self, target: Target) -> Judge:
        """A model to judge with. Raises GraderError if the target is no model, or can't be used."""
        try:
            settings = target.resolved(self._environ_of(target)).settings
            if not isinstance(settings, ModelSettings):
                raise GraderError(f"target {target.name!r} can't judge: it is no model but of kind {target.kind}")
            model = self._model(settings)
        except UserError as error:
            raise GraderError(f"the judge {target.name!r} can't be used: {error}") from error
        return Judge(target.name, model, chat_settings(settings.options))

    async def _batch(
        self, file: int, trial: int, target: Target, settings: CliSettings, environ: Mapping[str, str]
    ) -> BatchTarget:
        folder, scope = self._folder(file, trial, target), self._scope(file, trial, target)
        self.stack.callback((folder / FILE).unlink, missing_ok=True)
        tests = await asyncio.to_thread(scope.tests, folder / FILE)
        workspace = with_template(tests.workspace, settings.workspace_template)
        of_file = self.prepared.files[file].path
        workspaces = None if workspace is None else InvocationWorkspaces(of_file, workspace, self.workspaces)
        job = BatchJob(
            folder=folder,
            ids=tests.ids,
            known=tests.known,
            settings=settings.command,
            runner=self._needed_runner(),
            tests=TestsFile(folder / FILE, len(tests.ids)),
            files=tests.files,
            environ=environ,
            workspaces=workspaces,
            notice=self._teller(target, settings),
        )
        batch = await BatchCommand.opened(job)
        self.stack.push_async_callback(self._close, batch, file, trial, target)
        await batch.start()
        rerun_for = scope.unfinished if self.prepared.options.rerun == "missing" else None
        return BatchTarget(batch, len(tests.ids), rerun_for=rerun_for, workspaces=workspaces)

    async def _replayed(self, file: int, target: Target, settings: ReplaySettings) -> BatchTarget:
        """Every trial gets the same answer: there is but one."""
        tests = await asyncio.to_thread(self._scope(file, 0, target).tests)
        job = BatchJob(folder=self._folder(file, 0, target), ids=tests.ids, known=tests.known)
        batch = await BatchCommand.replayed(settings.path, job)
        self.stack.push_async_callback(self._close, batch, file, 0, target)
        return BatchTarget(batch, len(tests.ids), ran=False)

    def _scope(self, file: int, trial: int, target: Target) -> BatchScope:
        return BatchScope(self.run_folder, file, target.name, trial, self.prepared.files[file].others)

    async def _close(self, batch: BatchCommand, file: int, trial: int, target: Target) -> None:
        await batch.close()
        dataset, folder = self.prepared.files[file].dataset, self._folder(file, trial, target)
        write_report(folder, batch.report(), dataset=dataset, target=target.name, trial=trial)

    def _recorded(self, file: int, target: Target) -> RecordedTarget:
        reader = open_recorded(regraded_folder(self.prepared.options))
        self.stack.callback(reader.close)
        dataset = self.prepared.files[file].dataset
        return RecordedTarget(reader, dataset, target.name)

    def _cached(
        self, file: int, target: Target, live: LiveTarget, files: Mapping[str, Json], told: tuple[str, ...] = ()
    ) -> LiveTarget:
        """With the answers of earlier runs, if that is wanted. ``files``: those that make the target another one if they change;
        ``told``: what it is told of a test besides the prompt and the input."""
        options, of_file = self.prepared.options, self.prepared.files[file]
        if not (of_file.cache if options.cache is None else options.cache):
            return live
        named = options.cache_dir or of_file.cache_path
        cache = AnswerCache(Path(options.data_dir) / CACHE_FOLDER if named is None else Path(named))
        who: Json = {"target": target.name, "is": identity(target), "files": dict(files)}
        return CachedTarget(live, cache, {**who, "values": self._values_of(target)}, told)

    def _values_of(self, target: Target) -> dict[str, Json]:
        """A target's settings as they are here, without its key."""
        interpolation, values = Interpolation(self._environ_of(target)), {}
        for name, value in target.settings.items():
            if name != "api_key":
                with suppress(UserError):  # of a setting that need not be given
                    values[name] = interpolation.value(value, target.at(name))
        return values

    async def _agent(self, settings: ModelSettings) -> AgentTarget:
        options = settings.options
        names = tuple(options.toolsets or ()) if isinstance(settings, AgentSettings) else ()
        offer = await self.stack.enter_async_context(ToolOffer.opened(await mcp_record(options.mcp_config)))
        tools = offer.tools(names)
        backend: SandboxBackend = NeverCalled()
        if any(tool.changes_world for tool in tools):
            backend = PacedBackend(choose_backend(options.sandbox, asks_for_image=False))
        return AgentTarget(options, tools, model=self._model(settings), backend=backend, mark=self.mark)

    def _model(self, settings: ModelSettings) -> ChatModel:
        key = None if settings.api_key is None else settings.api_key.get_secret_value()
        options = settings.options
        if options.prices is not None:
            keep_files(options, self.run_folder)
        elif self.prepared.options.prices is not None:
            options = options.model_copy(update={"prices": self.prepared.options.prices})
        run = self.prepared.options
        options = options.model_copy(update={"max_cost": run.max_cost, "max_total_tokens": run.max_total_tokens})
        retries = ONCE if run.retries == 0 else options.retries()
        model = model_of(options, key, self.run_folder, retries=retries)
        self.stack.push_async_callback(model.close)
        return model

    def _environ_of(self, target: Target) -> dict[str, str]:
        return environment(target.folder, Surroundings.of(Path(self.prepared.here)), self.environ)

    def _folder(self, file: int, trial: int, target: Target) -> Path:
        name = "".join(mark if mark.isalnum() or mark in "-_." else "_" for mark in target.name)[:60]
        number = f"-trial-{trial + 1}" if trial else ""
        return self.run_folder / TARGETS / f"{file}-{name}-{identity(target)[:8]}{number}"

    def _teller(self, target: Target, settings: CliSettings) -> Tell | None:
        """What is told of every command that a target runs, if that is wanted."""
        if not (settings.verbose or self.prepared.options.verbose):
            return None
        return lambda command: self.tell(f"{target.name}: {command}")

    def _needed_runner(self) -> CommandRunner:
        if self.runner is None:
            raise RuntimeError("no commands can be run here")
        return self.runner


def identity(target: Target) -> str:
    """What makes a target another one: its kind and settings, as the person wrote them."""
    settings: Json = json.loads(json.dumps(dict(target.settings), sort_keys=True, default=str))
    return digest("target", {"kind": target.kind, "settings": settings}).hex()


class SessionWorkspaces:
    """``openings``: knows the targets' own templates."""

    def __init__(self, prepared: PreparedEval, openings: Openings) -> None:
        self._prepared = prepared
        self._openings = openings
        self._templates: dict[tuple[int, str], Path | None] = {}

    def of(self, context: Context, item: TestItem, target: Target) -> TestWorkspace | None:
        """Where a target works on a test; None if that has no workspace, nothing is run, or a command has one for all its tests.

        Raises UserError if the target can't be used.
        """
        if target.batching or target.kind == "replay" or self._prepared.options.regrade is not None:
            return None
        key = (item.file, target.name)
        if key not in self._templates:
            self._templates[key] = self._openings.template(target)
        settings = with_template(item.test.workspace, self._templates[key])
        if settings is None:
            return None
        eval_file = self._prepared.files[item.file].path
        return TestWorkspace(context, eval_file, item.test, settings, self._openings.workspaces)


def workspace_tools(
    run_folder: Path,
    run_id: str,
    runner: CommandRunner,
    environ: Mapping[str, str],
    tell: Tell,
    around: Surroundings,
    *,
    live: bool,
) -> WorkspaceTools:
    """``environ``: the real environment, whose secrets are kept out of what is recorded; ``tell``: shows the hooks that are run;
    ``around``: where the command was given; ``live``: whether anything may happen outside."""
    hooks = Hooks(runner, environ, run_id, tell, around)
    return WorkspaceTools(Templates(run_folder, hooks), hooks, runner, Redactor.of(environ), live)
