"""From settings to a run that can be executed: made anew, continued, or adopted from the original program."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import (
    API_KEY,
    COST_AT_END,
    check_prices,
    check_tool_choice,
    headers_for,
    key_secrets,
    sandbox_limits,
    standard_toolsets,
    usable_keys,
    warn_of_budget,
    with_endpoint,
)
from manyhands.agents.toolbox import RunTools, changed_functions, own_toolsets, services_of, with_functions
from manyhands.agents.worlds.furnishing import (
    as_secret,
    check_commands,
    check_world,
    limit_notices,
    with_template,
)
from manyhands.agents.worlds.settings import looked_up
from manyhands.agents.worlds.templates import check_apart
from manyhands.core.errors import RunError, UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import are, counted
from manyhands.export.sharegpt import HERMES_NAME, template_name
from manyhands.io.tables.formats import dataset_notices
from manyhands.io.tables.standard_input import STANDARD_STREAM, kept_input
from manyhands.models.headers import as_secrets
from manyhands.models.settings import ModelSettings
from manyhands.runs.folders import is_made, open_reader
from manyhands.runs.making import (
    KEPT,
    Opened,
    keep_files,
    make_run,
    other_name,
    recorded_run,
    refuse_unless_resumed,
)
from manyhands.runs.options import check_cluster, resume_spec
from manyhands.runs.progress import Notice
from manyhands.runs.registry import TOOLSETS
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.lifecycle.building import LOGS
from manyhands.sandboxes.lifecycle.planning import planned_images
from manyhands.task_folders.agents import command_template, named_model, program_of
from manyhands.task_folders.contents import Task
from manyhands.task_folders.images import add_images, add_rebuilt
from manyhands.task_folders.reading import read_tasks
from manyhands.task_folders.rules import TaskRules
from manyhands.task_folders.session import is_external, variables_as_secret
from manyhands.task_folders.settings import ORACLE
from manyhands.task_folders.variables import allowed_names, unused_notice
from manyhands.tools.distributions import availability_notice
from manyhands.tools.services.registry import service_secrets
from manyhands.workloads.trajectories.dataset.rows import BAD_ROWS_KEPT
from manyhands.workloads.trajectories.dataset.task_rows import TASK, is_task_dataset
from manyhands.workloads.trajectories.items import Adoption, PromptItem
from manyhands.workloads.trajectories.original import is_left_by_original, set_aside
from manyhands.workloads.trajectories.prepared import Prepared, dataset_identity, prepare, with_project
from manyhands.workloads.trajectories.records import JUDGE_KEY, LOW_SCORE, NO_REASONING, TAGS_IN_VALUES, UNKNOWN_TOOL
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload

if TYPE_CHECKING:
    from manyhands.graders.conversations.grade_file import GradeFile

_FOR_TASKS = (
    "agent_command",
    "end_processes",
    "override_task",
    "timeout_multiplier",
    "reward",
    "skip_invalid",
    "task_env",
)
"""Settings that mean nothing without tasks."""
BAD_ROWS_SHOWN = 20


async def open_batch(
    options: BatchSpec,
    *,
    resume: bool,
    notice: Notice,
    environ: Mapping[str, str],
    standard_input: BinaryIO | None = None,
) -> Opened[TrajectoryWorkload]:
    """Make or continue the run that the settings name. ``standard_input``: where the dataset of a new run comes from if it is called
    ``-``; the run folder keeps a copy.

    Everything that can be wrong is found before anything is made. Raises UserError, RunError if the name is taken (or settings changed),
    StorageError.
    """
    if options.dry_run:
        raise UserError("--dry_run is for the command line, which only estimates: nothing is executed with it")
    if options.dataset_file == STANDARD_STREAM and standard_input is not None:
        run_folder = options.run_folder.absolute()
        if not is_made(run_folder):
            with kept_input(standard_input, run_folder / KEPT, f"dataset-{uuid.uuid4().hex[:8]}") as dataset:
                copied = options.changed({"dataset_file": str(dataset)})
                return await open_batch(copied, resume=resume, notice=notice, environ=environ)
        options = options.changed({"dataset_file": str(_kept_dataset(run_folder))})
    options = with_project(options.resolved())
    folder = options.run_folder
    if is_made(folder):
        refuse_unless_resumed(resume, folder)
        return await _continued(folder, options, notice, environ)
    original = is_left_by_original(folder)
    if original:
        refuse_unless_resumed(resume, folder, "the folder holds results of the original batch runner")
    return await _made(folder, options, notice, environ, adopt=original)


def _kept_dataset(folder: Path) -> Path:
    """The copy of what a run was made of. Raises RunError if that was a file."""
    found = recorded_dataset(folder)
    if found.parent != folder / KEPT:
        raise RunError(f"{folder}: the run was not made from standard input; name its dataset")
    return found


def recorded_dataset(folder: Path) -> Path:
    """What a run was made of. A copy of standard input is where the run folder is now. Raises RunError if it is a run of another kind."""
    recorded = Path(recorded_run(folder, TrajectoryWorkload.name).spec["options"]["dataset_file"])
    kept = folder.absolute() / KEPT / recorded.name
    return kept if recorded.parent.name == KEPT and kept.is_file() else recorded


async def _made(
    folder: Path, options: BatchSpec, notice: Notice, environ: Mapping[str, str], *, adopt: bool
) -> Opened[TrajectoryWorkload]:
    if adopt and options.grade_checks is not None:
        raise UserError("--grade can't score what the original program did, of which no conversation is recorded")
    check_cluster(options, options.given)
    external = is_external(options, options.agent)
    options = _without_model(options) if external else with_endpoint(options, options.model, environ, notice)
    options = _with_rules(options)
    secrets = _secrets(options, environ)
    check_prices(options)
    _warn(options, notice)
    options = with_template(options, None, notice)
    with _build_logs(folder) as logs:

        def tell(line: str) -> None:
            notice(line.replace(str(logs), str(folder / LOGS)))

        plan_images = partial(_planned_images, options, _once(tell), build_logs=logs)
        prepared = await prepare(options, plan_images=plan_images, environ=environ)
        check_tool_choice(options, prepared.tools)
        _check_worlds(prepared, folder, notice)
        secrets |= _task_variables(prepared, environ, notice)
        secrets |= service_secrets(services_of(prepared.mcp), options, environ)
        _dataset_notices(prepared, notice)
        kept = set_aside(folder) if adopt else None
        opened = Opened(folder, _workload(prepared, folder, secrets))
        make_run(opened, options, notice)
    if kept is not None:
        _adoption_notices(opened.workload.adoption, kept, options, notice)
    return opened


def _at_once(options: BatchSpec, recorded: BatchSpec, given: BatchSpec, notice: Notice) -> BatchSpec:
    """Without a recorded maximum in all, where a resume names another number of workers or of prompts in each."""
    names = {"num_workers", "concurrency"}
    changed = any(getattr(options, name) != getattr(recorded, name) for name in names)
    if options.max_concurrency is None or "max_concurrency" in given.given or not changed:
        return options
    notice(f"max_concurrency was {options.max_concurrency} and is now unset, as other numbers are given")
    return options.changed({"max_concurrency": None})


async def _continued(
    folder: Path, given: BatchSpec, notice: Notice, environ: Mapping[str, str]
) -> Opened[TrajectoryWorkload]:
    run = recorded_run(folder, TrajectoryWorkload.name)
    recorded = Prepared.from_json(run.spec, folder.parent)
    options = _at_once(resume_spec(recorded.options, given), recorded.options, given, notice)
    if not is_external(options, options.agent):
        options = with_endpoint(options, options.model, environ, notice)
    if _grader_names(recorded.options) != _grader_names(options):
        raise RunError(f"{folder}: a run keeps its graders; start another with --run_name={other_name(folder)}")
    if options.batch_files != recorded.options.batch_files:
        raise RunError(f"{folder}: a run keeps --batch_files; start another with --run_name={other_name(folder)}")
    secrets = _secrets(options, environ)
    check_prices(options)
    _warn(options, notice)
    if options.max_samples != recorded.options.max_samples:
        notice(f"max_samples was {_count(recorded.options.max_samples)} and is now {_count(options.max_samples)}")
    pins = recorded.pins
    same_input = run.planned is not None and dataset_identity(options, pins.missing) in (None, run.planned["identity"])
    tools_changed = _tools_of(options) != _tools_of(recorded.options)
    left = _images_left(folder) if recorded.images else ImageDemand(unnamed=1)
    if same_input and not tools_changed:
        if left.count() or left.unnamed:
            planned = await _planned_images(options, notice, left, recorded=pins, needed=left.references)
            pins = replace(planned, missing=pins.missing)
        prepared = replace(recorded, options=options, pins=pins)
    else:
        prepared = await prepare(
            options,
            recorded=None if tools_changed else recorded,
            made=recorded,
            plan_images=partial(_planned_images, options, _once(notice), recorded=pins, needed=left.references),
            environ=environ,
        )
        prepared = replace(prepared, tools=tuple(sorted({*prepared.tools, *recorded.tools})))
        _dataset_notices(prepared, notice)
    if options.tools and not tools_changed:
        prepared = _with_functions_now(prepared, recorded, notice)
    counts_tags = recorded.counts_tags or options.tags_in_values != "keep"
    prepared = replace(prepared, counts_tags=counts_tags)
    prepared = replace(prepared, options=with_template(options, recorded.options, notice))
    _check_worlds(prepared, folder, notice)
    secrets |= _task_variables(prepared, environ, notice)
    secrets |= service_secrets(services_of(prepared.mcp), options, environ)
    keep_files(options, folder)
    workload = _workload(prepared, folder, secrets)
    return Opened(
        folder,
        workload,
        spec_changed=workload.spec != run.spec,
        rewrite_outputs=_shape(prepared) != _shape(recorded),
        judge_again=_kept_now(recorded.options, options),
    )


async def _planned_images(
    options: BatchSpec,
    notice: Notice,
    demand: ImageDemand,
    *,
    recorded: Pins = NO_PINS,
    needed: Collection[str] | None = None,
    build_logs: Path | None = None,
) -> Pins:
    """See ``planned_images``."""
    return await planned_images(
        options,
        demand,
        notice,
        recorded=recorded,
        needed=needed,
        skip_missing=options.skip_missing_images,
        skip_unbuilt=options.skip_invalid,
        build_logs=build_logs,
    )


def _once(notice: Notice) -> Notice:
    """Tells each line once: where rows are left out, images are planned again for the others."""
    said = set[str]()

    def tell(line: str) -> None:
        if line not in said:
            said.add(line)
            notice(line)

    return tell


def _images_left(folder: Path) -> ImageDemand:
    """The images of a run's items that have not ended well."""
    demand = ImageDemand()
    with closing(open_reader(folder)) as reader:
        for row in reader.items():
            if not row.left_input and (not row.state.final or row.state is ItemState.FAILED):
                payload = PromptItem.of(row.item)
                if not payload.task:
                    demand.add(payload.image, payload.line)
                    continue
                demand.unit, task = TASK, Task.from_json(payload.task, "")
                add_images(demand, task)
                add_rebuilt(demand, task)
    return demand


def _with_rules(options: BatchSpec) -> BatchSpec:
    """With what the settings say of all tasks, as a record can't tell which of them were given. Raises UserError for settings that
    contradict each other, and where there are no tasks, for those that are for tasks alone."""
    if not is_task_dataset(options.dataset_file):
        given = [name for name in _FOR_TASKS if name in options.given]
        given += ["agent=oracle"] if options.agent == ORACLE else []
        if given:
            raise UserError(f"--{given[0]} is for task folders, and {options.dataset_file} is none and holds none")
        return options
    if options.sandbox == "local":
        raise UserError(
            "--sandbox local: task folders need a sandbox with folders of its own, such as bubblewrap or docker"
        )
    if options.grade_checks is not None:
        raise UserError("--grade: the verifiers of the task folders score their trajectories; leave it out")
    if options.agent_command is not None:
        if options.agent is not None:
            raise UserError("--agent and --agent_command are two agents; leave one of them out")
        command_template(options.agent_command)
    rules = TaskRules.of(
        options,
        sandbox_limits(options),
        multiplier=options.timeout_multiplier,
        override=options.override_task,
        time_limit=options.time_limit,
    )
    return options.changed({"task_rules": rules.to_json()})


def _without_model(options: BatchSpec) -> BatchSpec:
    """Of a run that calls no model itself."""
    return options.changed({"model": named_model(options.agent_command) or program_of(options.agent_command)})


def _task_variables(prepared: Prepared, environ: Mapping[str, str], notice: Notice) -> dict[str, str]:
    """The values of variables that tasks may have, as secrets. Raises UserError for one that is not set, and, of a run that is continued
    without reading its tasks again, for one that a task needs and may not have."""
    allowed = prepared.options.task_env
    for name, task in prepared.variables.items():
        if task is not None and name not in allowed_names(allowed):
            raise UserError(f"task {task} takes this machine's variable {name}; --task_env {name} lets tasks have it")
    if (unused := unused_notice(allowed, prepared.variables)) is not None:
        notice(unused)
    return variables_as_secret(looked_up(allowed, environ, option="task_env"))


@contextmanager
def _build_logs(folder: Path) -> Iterator[Path]:
    """A folder for what builds print, moved into the run's when there is one. Without a run it stays if the error names it, as that of an
    image that does not build does."""
    logs = Path(tempfile.mkdtemp(prefix="manyhands-builds-"))
    try:
        yield logs
        if any(logs.iterdir()):
            shutil.copytree(logs, folder / LOGS, dirs_exist_ok=True)
    except BaseException as error:
        if str(logs) in str(error):
            raise
        shutil.rmtree(logs, ignore_errors=True)
        raise
    shutil.rmtree(logs, ignore_errors=True)


def _with_functions_now(prepared: Prepared, recorded: Prepared, notice: Notice) -> Prepared:
    """With the person's own functions as they are now. Raises UserError if they can't be loaded."""
    record = with_functions(prepared.mcp, prepared.options.tools or ())
    for file in changed_functions(recorded.mcp):
        notice(
            f"{file} changed since the run was made; prompts whose recorded steps no longer match begin afresh, "
            "or with --on_divergence=stop end the run"
        )
    names = (tool["name"] for tool in record["tools"])
    return replace(prepared, mcp=record, tools=tuple(sorted({*prepared.tools, *names})))


def _workload(prepared: Prepared, folder: Path, secrets: Mapping[str, str]) -> TrajectoryWorkload:
    workload = TrajectoryWorkload(prepared.to_json(), folder)
    workload.set_secrets(secrets)
    return workload


def _secrets(options: BatchSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of the endpoints. Raises UserError if one is missing, the agent can't be used, or settings about scores have none to be
    about."""
    if not is_external(options, options.agent):
        load_agent(options.agent)
    for name in ("min_score", "best_of"):
        if getattr(options, name) not in (None, False) and not options.is_graded:
            raise UserError(f"--{name} needs scores: give graders with --grade=FILE")
    if options.best_of and options.samples == 1:
        raise UserError("--best_of needs several samples of each row: give --samples=N")
    checks = _checks(options)
    if checks is not None:
        checks.environment(environ)  # that its files can be read is found out now
    judge = None if checks is None else checks.judge_options(options)
    called = {API_KEY: options, **({} if judge is None else {JUDGE_KEY: judge})}
    if is_external(options, options.agent):
        del called[API_KEY]
    secrets: dict[str, str] = {}
    for name, model in called.items():
        secrets |= key_secrets(name, usable_keys(model, environ)) | as_secrets(headers_for(model, environ), name)
    return secrets | as_secret(looked_up(options.container_env, environ))


def _check_worlds(prepared: Prepared, folder: Path, notice: Notice) -> None:
    """Raises UserError for what the items' sandboxes can't be given."""
    options = prepared.options
    _check_toolsets(prepared)
    check_world(options, options, images=prepared.images > 0 or options.image is not None)
    check_commands(options, prepared.command_fields)
    if options.workspace is not None:
        check_apart(Path(options.workspace), folder)
    for line in limit_notices(sandbox_limits(options), prepared.max_memory, prepared.max_cpus):
        notice(line)


def _check_toolsets(prepared: Prepared) -> None:
    """Raises UserError for toolsets with which agents start runs, where these would be left on the nodes of a cluster."""
    if prepared.options.executor != "ray":
        return
    named = [*(name for name, _ in prepared.distribution.toolsets), *own_toolsets(prepared.mcp)]
    if starting := [name for name in standard_toolsets(named, prepared.toolsets) if name in TOOLSETS]:
        raise UserError(
            f"toolset {starting[0]}: agents on the nodes of a cluster can't start jobs; leave it out with --executor=ray"
        )


def _checks(options: BatchSpec) -> GradeFile | None:
    if options.grade_checks is None:
        return None
    from manyhands.graders.conversations.grade_file import GradeFile  # graders take long to import

    return GradeFile.from_json(options.grade_checks)


def _grader_names(options: BatchSpec) -> list[str] | None:
    """What lines have fields of; None without graders."""
    return None if options.grade_checks is None else options.grade_checks["names"]


def _warn(options: BatchSpec, notice: Notice) -> None:
    checks = _checks(options)
    judge = None if checks is None else checks.judge_options(options)
    external = is_external(options, options.agent)
    called: list[ModelSettings] = [] if external else [options]
    if judge is not None and (external or judge.model != options.model):
        called.append(judge)
    warn_of_budget(options, called, notice, programs=COST_AT_END if external else None)


def _dataset_notices(prepared: Prepared, notice: Notice) -> None:
    for line in (prepared.options.grade_checks or {}).get("notices", ()):
        notice(line)
    for number, reason in prepared.bad_rows[:BAD_ROWS_SHOWN]:
        where = "" if prepared.tasks else f"{prepared.options.dataset_file}, line {number}: "
        notice(f"{where}{reason}; the {'task' if prepared.tasks else 'row'} is skipped")
    if prepared.bad_count > BAD_ROWS_SHOWN:
        listed = "them" if prepared.bad_count <= BAD_ROWS_KEPT else f"the first {BAD_ROWS_KEPT:,}"
        notice(f"… and {prepared.bad_count - BAD_ROWS_SHOWN} more rows are skipped (failures.jsonl lists {listed})")
    for line in _reading_notices(prepared):
        notice(line)
    _chat_notices(prepared, notice)
    run_tools = RunTools.recorded(prepared.mcp, prepared.toolsets)
    run_tools.admit(name for name, _ in prepared.distribution.toolsets)
    for line in run_tools.registry.notices:
        notice(line)
    for line in availability_notice(prepared.distribution, run_tools.registry, run_tools.toolsets):
        notice(line)


def _reading_notices(prepared: Prepared) -> Sequence[str]:
    dataset = Path(prepared.options.dataset_file)
    if not prepared.tasks:
        return dataset_notices(dataset, **prepared.options.reading)
    found: dict[str, None] = {}
    for _ in read_tasks(dataset, lambda line: found.setdefault(line)):
        pass
    return list(found)


def _chat_notices(prepared: Prepared, notice: Notice) -> None:
    if prepared.own_systems:
        rows = counted(prepared.own_systems, "row")
        added = ", with --ephemeral_system_prompt behind it" if prepared.options.ephemeral_system_prompt else ""
        notice(f"{rows} with a system prompt of their own: it is sent in place of ours{added}")
    if prepared.own_messages:
        notice(f"{counted(prepared.own_messages, 'row')} with messages: the conversation begins with them")


def _adoption_notices(adoption: Adoption, kept: Path, options: BatchSpec, notice: Notice) -> None:
    wording = ""
    if template_name(options.system_template_text) != HERMES_NAME:
        wording = f"; new lines have another wording of the system turn, unless --system_template={HERMES_NAME}"
    notice(
        f"adopted from the original program: {adoption.finished} finished and {adoption.discarded} discarded prompts; "
        f"its files are kept in {kept}"
    )
    if adoption.finished:
        notice(
            "adopted lines are marked (metadata.adopted), because their system prompt is unknown; "
            f"statistics.json counts them by model{wording}"
        )
    if adoption.other_work:
        rows = f"{counted(adoption.other_work, 'row')} with a system prompt or messages of their own"
        notice(f"{rows} {are(adoption.other_work)} run anew: the original used neither")
    if adoption.cut_off:
        notice(
            f"{counted(adoption.cut_off, 'adopted conversation')} without an answer: the original saved them when a model call failed"
        )
    for problem in adoption.problems:
        notice(f"{problem}; it is not taken over")
    if adoption.problem_count > len(adoption.problems):
        notice(f"… and {adoption.problem_count - len(adoption.problems)} more lines that can't be used")
    if adoption.left_out_count:
        more = ", …" if adoption.left_out_count > len(adoption.left_out) else ""
        lines = ", ".join(adoption.left_out) + more
        notice(f"{adoption.left_out_count} finished lines belong to no row of the dataset and are left out: {lines}")


def _shape(prepared: Prepared) -> tuple[Any, ...]:
    """What all output lines depend on. If it changes, those that were written already no longer go with new ones."""
    options = prepared.options
    wording = (
        options.system_template_text,
        options.keep_synthetic,
        options.tags_in_values == "keep",
        prepared.counts_tags,
    )
    return (prepared.source_fields, prepared.columns, options.batch_size, wording)


def _kept_now(before: BatchSpec, now: BatchSpec) -> tuple[str, ...]:
    kept = (
        (NO_REASONING, now.keep_unreasoned and not before.keep_unreasoned),
        (UNKNOWN_TOOL, now.keep_unknown_tools and not before.keep_unknown_tools),
        (TAGS_IN_VALUES, before.tags_in_values == "discard" != now.tags_in_values),
        (LOW_SCORE, before.min_score is not None and (now.min_score is None or now.min_score < before.min_score)),
    )
    return tuple(reason for reason, is_kept in kept if is_kept)


def _count(samples: int | None) -> str:
    return "all" if samples is None else str(samples)


def _tools_of(options: BatchSpec) -> tuple[str | None, ...]:
    return (options.distribution, options.distributions_file, options.mcp_config, *(options.tools or ()))
