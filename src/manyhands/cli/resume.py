"""``manyhands resume``: continue any run from its folder alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from manyhands.cli.batch import perform_session
from manyhands.cli.console import err, notice, out
from manyhands.cli.evals import run as eval_command
from manyhands.cli.evals.run import present_names
from manyhands.cli.execution import perform, print_ending, print_ledger, print_usage
from manyhands.cli.jobs import rerun as jobs_run
from manyhands.cli.memory import benchmark as memory_view
from manyhands.cli.memory.judge import perform_scores
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.core.errors import RunError
from manyhands.engine.journal.reader import JOURNAL
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run, load_recorded, open_reader
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.memory.opening import reopen_memory
from manyhands.workloads.memory.published.rejudging import reopen_scores
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.spec import BatchSpec

PROGRAM = "manyhands resume RUN"
DESCRIPTION = (
    "Continues a run from its folder: what is recorded is not done again, failed items are tried again (tests of an evaluation "
    "with --retry_errors). RUN is the folder, or the run's name under --data_dir. Options may be given to change settings; what is "
    "not given is as it was. A change that would make it another run is refused unless --override names it."
)
NOT_FOR_RESUME = ("run_name", "resume", "list_distributions")


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text(BatchSpec, PROGRAM, DESCRIPTION, without=NOT_FOR_RESUME, recorded=True))
        return 0 if argv else _usage("name the run to resume")
    name, rest = argv[0], argv[1:]
    if name.startswith("-"):
        return _usage("name the run first: manyhands resume RUN [OPTIONS]")
    folder = find_run(name, _data_dir(rest))
    return _resumers().get(_workload_of(folder), _resume_any)(folder, rest)


def _resumers() -> dict[str, Callable[[Path, list[str]], int]]:
    return {
        "trajectories": _resume_batch,
        "csv_jobs": _resume_job,
        "evals": _resume_eval,
        "memory": _resume_memory,
        "memory_scores": _resume_scores,
    }


def _resume_batch(folder: Path, rest: list[str]) -> int:
    line = parse(BatchSpec, rest, PROGRAM)
    if line.help:
        print(help_text(BatchSpec, PROGRAM, DESCRIPTION, without=NOT_FOR_RESUME, recorded=True))
        return 0
    recorded = _recorded_options(folder)
    values = {"dataset_file": recorded["dataset_file"], "batch_size": recorded["batch_size"], **line.values}
    values |= {"run_name": folder.resolve().name, "data_dir": str(folder.resolve().parent)}
    options = make(BatchSpec, values, PROGRAM)
    return perform_session(run_on_loop(open_batch(options, resume=True, notice=notice, environ=os.environ)))


def _resume_job(folder: Path, rest: list[str]) -> int:
    """As ``manyhands jobs run``, with failed rows put back, as everywhere in this command."""
    words = [word for word in rest if word not in ("-h", "--help")]
    return jobs_run.run([str(folder), "--retry_failed", *words] if words == rest else ["--help"])


def _resume_eval(folder: Path, rest: list[str]) -> int:
    line = parse(EvalSpec, present_names(rest, PROGRAM), PROGRAM, repeated=eval_command.REPEATED)
    if line.help:
        print(help_text(EvalSpec, PROGRAM, DESCRIPTION, without=NOT_FOR_RESUME, recorded=True))
        return 0
    values = {"eval_files": _recorded_options(folder)["eval_files"], **eval_command.given_values(line)}
    values |= {"run_name": folder.resolve().name, "data_dir": str(folder.resolve().parent)}
    options = make(EvalSpec, values, PROGRAM)
    return eval_command.perform_session(run_on_loop(open_eval(options, resume=True, notice=notice, environ=os.environ)))


def _resume_memory(folder: Path, rest: list[str]) -> int:
    """All sessions of the run; with other settings, ``manyhands memory run`` continues it."""
    words = [word for word in rest if word not in ("--data_dir", "--data-dir", _data_dir(rest))]
    if [word for word in words if not word.startswith(("--data_dir=", "--data-dir="))]:
        raise UsageError(f"{folder}: continue it with other settings by manyhands memory run")
    return memory_view.perform_all([reopen_memory(folder, environ=os.environ)])


def _resume_scores(folder: Path, rest: list[str]) -> int:
    """With other settings, ``manyhands memory rescore`` continues it."""
    if [word for word in rest if not word.startswith(("--data_dir", "--data-dir"))]:
        raise UsageError(f"{folder}: continue it with other settings by manyhands memory rescore")
    return perform_scores(reopen_scores(folder, environ=os.environ))


def _resume_any(folder: Path, rest: list[str]) -> int:
    """A workload without settings of its own on this command line."""
    if [word for word in rest if not word.startswith(("--data_dir", "--data-dir"))]:
        raise UsageError(f"this kind of run takes no options: {' '.join(rest)}")
    reader = open_reader(folder)
    try:
        workload = load_recorded(reader)
    finally:
        reader.close()
    result = perform(folder, workload)
    console = out()
    print_ledger(console, result.summary)
    print_usage(console, result.summary)
    print_ending(console, err(), result)
    return result.exit_code


def _workload_of(folder: Path) -> str:
    reader = open_reader(folder)
    try:
        return str(reader.meta("workload"))
    finally:
        reader.close()


def _recorded_options(folder: Path) -> dict[str, object]:
    reader = open_reader(folder)
    try:
        spec = reader.meta("spec")
        options: dict[str, object] | None = spec.get("options") if isinstance(spec, dict) else None
        if not isinstance(options, dict):
            raise RunError(f"{folder / JOURNAL}: the settings recorded there can't be used")
        return options
    finally:
        reader.close()


def _data_dir(words: list[str]) -> str:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == "__data_dir":
            return value if equals else "".join(words[place + 1 : place + 2])
    return "data"


def _usage(message: str) -> int:
    raise UsageError(f"{message} (see manyhands resume --help)")
