"""Makes a run of evaluations from its settings, or continues one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from manyhands.agents.run_settings import COST_AT_END, check_prices, warn_of_budget
from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.core.text import expand_home
from manyhands.engine.contract import BEHIND_INPUT, ItemRow
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath
from manyhands.models.settings import ModelSettings
from manyhands.runs.folders import free_name, is_made, open_reader
from manyhands.runs.making import Opened, keep_files, make_run, other_name, recorded_run, refuse_unless_resumed
from manyhands.runs.options import resume_spec
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.task_folders.agents import command_template
from manyhands.task_folders.contents import Task
from manyhands.task_folders.images import add_images, add_rebuilt, add_task, images_of
from manyhands.task_folders.settings import ORACLE, TaskLimitSettings
from manyhands.task_folders.variables import references, refused_variable, unused_notice
from manyhands.workloads.evals.edits import Edits, edits_of
from manyhands.workloads.evals.evalfile.contents import AFTER_ALL, EvalFile, Invalid, Test, Workspace
from manyhands.workloads.evals.evalfile.files import Config
from manyhands.workloads.evals.evalfile.interpolation import has_reference
from manyhands.workloads.evals.evalfile.sources.given import NO_FILE, NOTHING, Given
from manyhands.workloads.evals.items import DEPENDENCY_FAILED, FAILED, PASSED_BEFORE, RERUN
from manyhands.workloads.evals.prepared import FileTargets, LoadedEvals, PreparedEval, load
from manyhands.workloads.evals.results.result_lines import WITHOUT_SCORE, grouped_results
from manyhands.workloads.evals.results.writing import check_output, named_outputs
from manyhands.workloads.evals.settings import EvalSpec, check_trace_name
from manyhands.workloads.evals.targets.checks import TargetCheck, check_usable
from manyhands.workloads.evals.targets.definitions import TOOL_KEYS, Target, identity
from manyhands.workloads.evals.targets.images import images_of_targets
from manyhands.workloads.evals.workload import EvalsWorkload, ignore_notice

MAX_INVALID = 20
"""Tests that were left out as invalid that are named."""


async def open_eval(
    options: EvalSpec,
    *,
    resume: bool,
    notice: Notice,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    tell: Notice = ignore_notice,
    given: Given = NOTHING,
) -> Opened[EvalsWorkload]:
    """Make or continue the run that the settings name; a new run without a name gets one of its first dataset and the time. ``tell``: shows
    the person a line while the run is executed; ``given``: in Python, and to be given again when the run is continued.

    Everything that can be wrong is found before anything is made. Raises UserError, RunError if the name is taken (or settings
    changed), StorageError.
    """
    options = options.resolved()
    if options.retry_errors and not resume:
        raise UserError("--retry_errors goes with --resume, which says what run to continue")
    if options.rerun_failed and options.run_name is None:
        raise UserError("--rerun_failed needs --run_name: the run whose tests are run again")
    check_prices(options)
    if options.agent_command is not None:
        command_template(options.agent_command)
    if options.run_name is None and resume:
        raise UserError("--resume needs --run_name: the run to continue")
    if options.run_name is not None:
        folder = Path(options.data_dir) / options.run_name
        if is_made(folder):
            refuse_unless_resumed(resume or options.rerun_failed, folder)
            return await _continued(folder, options, notice, environ, tell, given)
        if options.rerun_failed:
            raise UserError(f"--rerun_failed: there is no run {options.run_name} in {options.data_dir}")
    options = _with_defaults(options, clock or SystemClock())
    check_executor(options, given)
    loaded = load(options, environ, notice, given=given)
    if options.executor == "ray":
        check_for_nodes(options, (test for file in loaded.files for test in file.tests))
    _check_for_tasks(options, loaded, notice)
    _tell_invalid(loaded, notice)
    options = _with_budget(options, loaded.files, notice)
    if options.regrade is None:
        targets, here = [each for file in loaded.prepared.files for each in file.targets], Path(loaded.prepared.here)
        await check_usable(targets, (), here, environ, notice)
        demands = _image_demands(loaded)
        said: list[str] = []

        def noted(line: str) -> None:
            said.append(line)
            notice(line)

        pins = await images_of_targets(
            targets, here, environ, noted, demands=demands, skip_invalid=options.skip_invalid
        )
        services = _services_of(targets, here, environ)
        loaded = _without_lacking(
            replace(loaded, prepared=replace(loaded.prepared, pins=pins, services=services)), demands, said
        )
    if options.run_name is None:
        options = options.changed({"run_name": _default_name(loaded, options, clock or SystemClock())})
    return _made(replace(loaded, prepared=replace(loaded.prepared, options=options)), notice, tell, given)


def check_executor(options: EvalSpec, given: Given) -> None:
    """Raises UserError for functions that exist in this process alone where others are to call them."""
    if options.executor != "local" and given.functions:
        raise UserError(
            f"--executor={options.executor}: other processes can't get functions that are given in Python "
            f"({', '.join(given.functions)}); name them as module:function, or leave --executor=local"
        )


def check_for_nodes(options: EvalSpec, tests: Iterable[Test]) -> None:
    """Raises UserError for what takes one machine."""
    if options.regrade is not None:
        raise UserError(
            "--executor=ray: the answers of another run are on this machine; --regrade goes with local or processes"
        )
    for test in tests:
        workspace = test.workspace
        if workspace is not None and (workspace.shared or workspace.after_all or _ends_all(workspace)):
            what = (
                "its workspace is one that tests share"
                if workspace.shared
                else "after_all runs after all tests of a workspace"
            )
            raise test.location.error(
                f"{what}, which takes one machine; --executor=ray has several, so choose local or processes"
            )


def _ends_all(workspace: Workspace) -> bool:
    return any(stage == AFTER_ALL for _, stage, _ in workspace.of_targets)


def _services_of(targets: Iterable[Target], here: Path, environ: Mapping[str, str]) -> dict[str, Mapping[str, Json]]:
    """What was chosen of services for the tools of targets, by what identifies each. Raises UserError with the location of a target."""
    check, found = TargetCheck(SearchPath.of(here), environ), dict[str, Mapping[str, Json]]()
    for target in targets:
        settings = check.settings(target, Findings())
        try:
            services = {} if settings is None else settings.services(environ)
        except UserError as error:
            raise target.location.error(str(error)) from None
        if services:
            found[identity(target)] = services
    return found


def _with_defaults(options: EvalSpec, clock: Clock) -> EvalSpec:
    """With what the configuration of the current folder says where the settings say nothing."""
    around = SearchPath.of(Path.cwd())
    config = Config.near(around.here, around)
    execution = config.execution
    seconds = execution.agent_timeout
    if seconds is None and execution.agent_timeout_ms is not None:
        seconds = execution.agent_timeout_ms / 1000
    found: dict[str, object] = {
        "verbose": execution.verbose,
        "keep_workspaces": None if options.cleanup_workspaces else execution.keep_workspaces,
        "max_retries": None if "max_attempts" in options.given else execution.max_retries,
        "agent_timeout": seconds,
    }
    if execution.trace_file is not None:
        moment = datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        path = expand_home(execution.trace_file.replace("{timestamp}", moment))
        check_trace_name(path)
        found["trace_file"] = str((config.folder or around.here) / path)
    return options.changed(
        {name: value for name, value in found.items() if value is not None and name not in options.given}
    )


def _with_budget(options: EvalSpec, files: Sequence[EvalFile], notice: Notice) -> EvalSpec:
    """With the eval files' budget for the run where the settings say nothing: the lowest of several, so that none is exceeded."""
    budgets = [(file.budget_usd, file.location.file) for file in files if file.budget_usd is not None]
    if not budgets or "max_cost" in options.given:
        return options
    lowest, named = min(budgets)
    if len(files) > 1:
        notice(f"the run may cost ${lowest:g}, which is the least budget of its files ({named})")
    return options.changed({"max_cost": lowest})


def _made(loaded: LoadedEvals, notice: Notice, tell: Notice, given: Given) -> Opened[EvalsWorkload]:
    options = loaded.prepared.options
    folder = Path(options.data_dir) / (options.run_name or "")
    workload = EvalsWorkload(loaded.prepared.to_json(), folder, files=loaded.files, tell=tell, given=given)
    _check_outputs(options, folder, workload)
    opened = Opened(folder, workload, retry_failed=False)
    make_run(opened, options, notice)
    _warn_of_budget(loaded.prepared, notice)
    _tell_uncached(loaded.prepared, notice)
    _tell_toolless(loaded, notice)
    return opened


def _tell_uncached(prepared: PreparedEval, notice: Notice) -> None:
    """Say which targets are run although answers of earlier runs may be taken."""
    options = prepared.options
    if options.regrade is not None:
        return
    cached = [file for file in prepared.files if (file.cache if options.cache is None else options.cache)]
    for name in dict.fromkeys(target.name for file in cached for target in file.targets if target.batching):
        notice(f"target {name} answers all tests at once, and is invoked whatever is in the cache")


def _tell_toolless(loaded: LoadedEvals, notice: Notice) -> None:
    """Say which targets are to do tasks without any tool: such an agent can change nothing, whatever its score says."""
    names = dict[str, None]()
    for file, of_file in zip(loaded.files, loaded.prepared.files, strict=True):
        if any(test.task for test in file.tests):
            names |= {each.name: None for each in of_file.targets if _is_toolless(each, loaded.prepared.options)}
    for name in names:
        notice(
            f"target {name} has no tools, so it can do nothing in its tasks; give it, for example, "
            "toolsets: [terminal, file]"
        )


def _is_toolless(target: Target, options: EvalSpec) -> bool:
    """Whether a target is a model or a built-in agent that has no tools."""
    given = target.settings
    does_itself = given.get("agent") is not None or target.calls_no_model(options.agent_command)
    return target.facts.calls_models and not does_itself and not any(given.get(name) for name in TOOL_KEYS)


def _warn_of_budget(prepared: PreparedEval, notice: Notice) -> None:
    """Say what of the budget can't be kept, or changes how models are called."""
    options = prepared.options
    named = [target for file in prepared.files for target in (*file.targets, *file.judges)]
    external = [target for target in named if target.calls_no_model(options.agent_command)]
    models = [target.settings for target in named if target.facts.calls_models and target not in external]
    settings_by_model = {model: settings for settings in models if isinstance(model := settings.get("model"), str)}
    called = [
        ModelSettings(model=model, max_tokens=1 if "max_tokens" in settings else None)
        for model, settings in settings_by_model.items()
        if not has_reference(model)
    ]
    outside = bool(external) or any(target.facts.cost_at_end for target in named)
    warn_of_budget(options, called, notice, programs=COST_AT_END if outside else None)


async def _continued(
    folder: Path, given: EvalSpec, notice: Notice, environ: Mapping[str, str], tell: Notice, in_python: Given
) -> Opened[EvalsWorkload]:
    run = recorded_run(folder, EvalsWorkload.name)
    recorded = PreparedEval.from_json(run.spec, folder.parent)
    with closing(open_reader(folder)) as reader:
        edits = edits_of(reader.items(), recorded, environ, in_python)
        left = reader.left(BEHIND_INPUT)
        demands = _demands_left(reader.items(), recorded) if recorded.pins and left else {}
    options = resume_spec(recorded.options, given)
    check_executor(options, in_python)
    if options.executor == "ray":
        with closing(open_reader(folder)) as reader:
            tests = (each["test"] for each in reader.payloads() if "workspace" in each.get("test", {}))
            check_for_nodes(options, map(Test.from_json, tests))
    if recorded.pins and left:
        targets = [each for file in recorded.files for each in file.targets]
        pins = await images_of_targets(targets, Path(recorded.here), environ, notice, recorded.pins, demands=demands)
        recorded = replace(recorded, pins=pins)
    if options.targets != recorded.options.targets:
        notice("--targets has no effect on a run that was made already: it keeps the targets it was made with")
    workload = EvalsWorkload(
        replace(recorded, options=options).to_json(), folder, edits=edits, tell=tell, given=in_python
    )
    _check_outputs(options, folder, workload)
    _tell_edits(edits, recorded, folder, notice)
    keep_files(options, folder)
    _warn_of_budget(workload.prepared, notice)
    again: tuple[str, ...] = (PASSED_BEFORE,) if workload.prepared.thresholds != recorded.thresholds else ()
    again += (DEPENDENCY_FAILED,) if given.retry_errors or given.rerun_failed else ()
    return Opened(
        folder,
        workload,
        spec_changed=workload.spec != run.spec,
        retry_failed=given.retry_errors,
        retry_cancelled=given.retry_errors or given.rerun_failed,
        rerun=_to_rerun(folder, workload.prepared, notice) if given.rerun_failed else (),
        rerun_for=RERUN,
        judge_again=again,
    )


def _to_rerun(folder: Path, prepared: PreparedEval, notice: Notice) -> tuple[int, ...]:
    """The items of the tests that have failed, or ended in errors: all samples of each that were made, as the better ones alone would be
    no sample. Raises UserError where that would give the same answers."""
    if prepared.options.regrade is not None or prepared.options.from_output is not None:
        raise UserError("--rerun_failed: the answers of this run were given to it, and would be the same")
    found, targets = list[int](), dict[tuple[int, str], None]()
    with closing(open_reader(folder)) as reader:
        for rows, result in grouped_results(reader.items(), prepared.thresholds):
            if result.status in (FAILED, *WITHOUT_SCORE):
                made = [row for row in rows if row.state in (ItemState.COMPLETED, ItemState.FAILED)]
                found += [row.number for row in made]
                targets |= dict.fromkeys((row.payload["file"], row.payload["target"]) for row in made)
    for target in (prepared.target_of(*key) for key in targets):
        if target.batching or target.facts.one_file_for_all:
            raise UserError(
                f"--rerun_failed: target {target.name} answers all tests at once, so that some of them can't be run again alone; "
                "make another run"
            )
    if not found:
        notice("--rerun_failed: no test of this run has failed or ended in an error")
    return tuple(found)


def _tell_edits(edits: Sequence[Edits], recorded: PreparedEval, folder: Path, notice: Notice) -> None:
    """Say what differs in the eval files, and how to have their tests as they are now."""
    for each in edits:
        for line in each.lines():
            notice(line)
    in_python = any(Path(path).name == NO_FILE for path in recorded.options.eval_files)
    if not edits or in_python or any(each.problem is not None for each in edits):
        return  # a file that can't be read makes no other run
    around = SearchPath.of(Path.cwd())
    files = shlex.join(around.shown(Path(path)) for path in recorded.options.eval_files)
    notice(
        f"to have the tests as they are now, make another run:  manyhands eval {files} --run_name={other_name(folder)}"
    )
    if recorded.options.regrade is None and all(each.only_graders for each in edits):
        notice(f"to grade the answers of this run as the file says now, add  --regrade={shlex.quote(folder.name)}")


def _check_outputs(options: EvalSpec, folder: Path, workload: EvalsWorkload) -> None:
    """Refuses files of results that would take each other's place, or that of what the run is made of."""
    given = [Path(path).resolve() for path in (options.targets, options.from_output) if path is not None]
    taken = {*given, *(path.resolve() for path in workload.files_read())}
    for path in named_outputs(options):
        target_path = check_output(path, folder)
        if target_path in taken:
            raise UserError(f"{path}: results would take the place of another file of this run")
        taken.add(target_path)


def _demand(unit: str) -> ImageDemand:
    return ImageDemand(unit, noun=unit, skip="--skip_invalid")


def _image_demands(loaded: LoadedEvals) -> dict[str, ImageDemand]:
    """What the tests need that targets answer, by what identifies each target; without those that need nothing."""
    found: dict[str, ImageDemand] = {}
    for file, of_file in zip(loaded.files, loaded.prepared.files, strict=True):
        for target in of_file.targets:
            for test in file.tests:
                if test.targets is not None and target.name not in test.targets:
                    continue
                if test.task:
                    demand = found.setdefault(identity(target), _demand("task"))
                    add_task(demand, Task.from_json(test.task, ""))
                elif target.kind == "agent":
                    demand = found.setdefault(identity(target), _demand("test"))
                    demand.add(None if test.workspace is None else test.workspace.image, test.id)
    return _needed(found)


def _needed(demands: Mapping[str, ImageDemand]) -> dict[str, ImageDemand]:
    return {who: demand for who, demand in demands.items() if demand.count() or demand.unit == "task"}


def _without_lacking(loaded: LoadedEvals, demands: Mapping[str, ImageDemand], said: Sequence[str]) -> LoadedEvals:
    """With the tests left out whose images do not exist, or can't be built. ``said``: what was told of these. Raises UserError if none is
    left."""
    lacking = dict[str, str]()
    for who, pins in loaded.prepared.pins.items():
        for tag in pins.missing:
            build = demands[who].builds.get(tag) if who in demands else None
            if build is None:
                lacking[tag] = f"its image does not exist: {tag}"
                continue
            begins = f"task {build.wanted_by}: "
            why = next((line for line in said if line.startswith(begins)), f"{begins}its image can't be built")
            lacking[tag] = why.removeprefix(begins)
    if not lacking:
        return loaded
    files, of_files = list[EvalFile](), list[FileTargets]()
    for file, of_file in zip(loaded.files, loaded.prepared.files, strict=True):
        left, invalid = list[Test](), list(file.invalid)
        for test in file.tests:
            reason = next((lacking[image] for image in _images_of(test) if image in lacking), None)
            if reason is None:
                left.append(test)
            else:
                invalid.append(
                    Invalid(test.location, test.id, (f"{'task' if test.task else 'test'} {test.id}: {reason}",))
                )
        if not left:
            raise file.location.error(f"none of its tests is valid: {invalid[0].message}")
        files.append(replace(file, tests=tuple(left), invalid=tuple(invalid)))
        of_files.append(replace(of_file, tests=len(left)))
    return replace(loaded, files=tuple(files), prepared=replace(loaded.prepared, files=tuple(of_files)))


def _images_of(test: Test) -> Sequence[str]:
    """The images of a test, or of the task that it is."""
    if test.task:
        return images_of(Task.from_json(test.task, ""))
    own = None if test.workspace is None else test.workspace.image
    return () if own is None else (own,)


def _check_for_tasks(options: EvalSpec, loaded: LoadedEvals, notice: Notice) -> None:
    """Raises UserError for settings of tasks where there are none, and for a variable that a solution needs and may not have."""
    taken, found = set[str](), False
    for file, of_file in zip(loaded.files, loaded.prepared.files, strict=True):
        oracle = any(each.settings.get("agent") == ORACLE for each in of_file.targets)
        solved = oracle and options.agent_command is None and options.asks_targets
        for test in file.tests:
            if not test.task:
                continue
            task, found = Task.from_json(test.task, ""), True
            if solved and (why := refused_variable(task, options.task_env, solution=True)) is not None:
                raise UserError(why)
            taken.update(each.variable for each in references(task.config, solution=True))
    usual = TaskLimitSettings()
    given = next((name for name in usual.fields if getattr(options, name) != getattr(usual, name)), None)
    if given is not None and not found:
        raise UserError(f"--{given} is for task folders, and these eval files are none")
    if (unused := unused_notice(options.task_env, taken)) is not None:
        notice(unused)


def _demands_left(rows: Iterable[ItemRow], recorded: PreparedEval) -> dict[str, ImageDemand]:
    """What the tests need that have not ended yet, by what identifies each target; without those that need nothing."""
    found: dict[str, ImageDemand] = {}
    for row in rows:
        test = row.payload.get("test") or {}
        if row.left_input or row.state is ItemState.COMPLETED or not test:
            continue
        target = recorded.target_of(row.payload["file"], row.payload["target"])
        if test.get("task"):
            task, demand = Task.from_json(test["task"], ""), found.setdefault(identity(target), _demand("task"))
            add_images(demand, task)
            add_rebuilt(demand, task)
        elif target.kind == "agent":
            demand = found.setdefault(identity(target), _demand("test"))
            demand.add((test.get("workspace") or {}).get("image"), test["id"])
    return _needed(found)


def _default_name(loaded: LoadedEvals, options: EvalSpec, clock: Clock) -> str:
    """``eval-<dataset>-<time>``, with a number behind it where a run of that second is there already."""
    dataset = re.sub(r"[^\w.-]+", "-", loaded.files[0].dataset)[:60].strip("-.") or "evals"
    moment = datetime.fromtimestamp(clock.now()).strftime("%Y%m%d-%H%M%S")
    return free_name(Path(options.data_dir), f"eval-{dataset}-{moment}")


def _tell_invalid(loaded: LoadedEvals, notice: Notice) -> None:
    invalid = [each for file in loaded.files for each in file.invalid]
    for each in invalid[:MAX_INVALID]:
        notice(f"left out: {each.message}")
    if len(invalid) > MAX_INVALID:
        notice(f"… and {len(invalid) - MAX_INVALID} more")
