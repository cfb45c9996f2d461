"""From settings to an import that can be executed: made anew, or continued."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.agents.run_settings import (
    check_prices,
    headers_for,
    key_secrets,
    usable_keys,
    warn_of_budget,
    with_endpoint,
)
from manyhands.core.errors import RunError, UserError
from manyhands.core.text import counted
from manyhands.export.readers.reader import load_reader
from manyhands.models.headers import as_secrets
from manyhands.runs.folders import free_name, is_made
from manyhands.runs.making import Opened, keep_files, make_run, other_name, recorded_run
from manyhands.runs.options import check_cluster, resume_spec
from manyhands.runs.progress import Notice
from manyhands.workloads.imported.planning import NAMED, LeftOut, files_identity
from manyhands.workloads.imported.spec import ImportSpec
from manyhands.workloads.imported.workload import JUDGE_KEY, ImportedWorkload

if TYPE_CHECKING:
    from manyhands.graders.conversations.grade_file import GradeFile

_MAX_NAME = 100


def make_import(options: ImportSpec, notice: Notice, environ: Mapping[str, str]) -> Opened[ImportedWorkload]:
    """Read the files that the settings name, and make a run of their conversations.

    Raises UserError for what can't be imported, RunError if the name is taken, StorageError; nothing is made then.
    """
    options = options.resolved()
    check_cluster(options, options.given)
    load_reader(options.from_)
    options, secrets = _with_judge(options, notice, environ)
    identity = files_identity(options)
    folder = Path(options.data_dir) / (options.run_name or free_name(Path(options.data_dir), name_for(options)))
    if is_made(folder):
        go_on, other = f"manyhands resume {shlex.quote(str(folder))}", f"--run_name={other_name(folder)}"
        raise RunError(
            f"{folder}: a run of this name exists already; continue it with {go_on}, or start another with {other}"
        )
    workload = ImportedWorkload({"options": options.recorded(), "identity": identity}, folder)
    workload.set_secrets(secrets)
    opened = Opened(folder, workload)
    make_run(opened, options, notice)
    if workload.left_out.count:
        workload.spec["left_out"] = workload.left_out.to_json()
        _name_left_out(workload.left_out, notice)
        opened = replace(opened, spec_changed=True)
    return opened


def continue_import(
    folder: Path, given: ImportSpec, notice: Notice, environ: Mapping[str, str]
) -> Opened[ImportedWorkload]:
    """Go on with an import: with the grading of its conversations. Raises UserError, RunError for settings that it does not take."""
    run = recorded_run(folder, ImportedWorkload.name)
    recorded = ImportSpec.from_record(run.spec["options"], data_dir=str(folder.parent))
    options = resume_spec(recorded, given.resolved())
    if options.grade_checks != recorded.grade_checks and recorded.grade_checks is None:
        raise RunError(f"{folder}: a run keeps its graders, and this one has none; import the files again with --grade")
    options, secrets = _with_judge(options, notice, environ)
    keep_files(options, folder)
    workload = ImportedWorkload({**run.spec, "options": options.recorded()}, folder)
    workload.set_secrets(secrets)
    return Opened(folder, workload, spec_changed=workload.spec != run.spec)


def name_for(options: ImportSpec) -> str:
    """A run's name from that of its first file or folder."""
    if not options.input_files:
        raise UserError("--input_files: no file is named")
    path = Path(options.input_files[0])
    name = path.name
    if not path.is_dir():
        name = name.removesuffix(".gz")
        name = name.removesuffix(Path(name).suffix)
    plain = "".join(character if character.isprintable() and character != "\\" else "_" for character in name)
    return plain[:_MAX_NAME].strip(" .-") or "import"


def _with_judge(options: ImportSpec, notice: Notice, environ: Mapping[str, str]) -> tuple[ImportSpec, dict[str, str]]:
    """The settings with the endpoint of the judge, and the secrets that calling it takes. Raises UserError for a missing key, and for
    files that can't be used."""
    if options.grade_checks is None:
        return options, {}
    from manyhands.graders.conversations.grade_file import GradeFile  # graders take long to import

    checks: GradeFile = GradeFile.from_json(options.grade_checks)
    for line in checks.notices:
        notice(line)
    checks.environment(environ)  # that its files can be read is found out now
    check_prices(options)
    if not checks.asks_judge:
        return options, {}
    options = with_endpoint(options, options.model, environ, notice)
    judge = checks.judge_options(options)
    warn_of_budget(options, [judge], notice)
    keys, headers = usable_keys(judge, environ), headers_for(judge, environ)
    return options, key_secrets(JUDGE_KEY, keys) | as_secrets(headers, JUDGE_KEY)


def _name_left_out(left_out: LeftOut, notice: Notice) -> None:
    for line in left_out.named:
        notice(f"{line}; the row is left out")
    if left_out.count > NAMED:
        notice(f"… and {counted(left_out.count - NAMED, 'more row')} left out")
