"""``manyhands tasks check``: a batch in which each task is done by its own solution, and a line for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from manyhands.agents.worlds.settings import Variables
from manyhands.cli.batch.short_form import DEFAULTS, run_name_for
from manyhands.cli.console import notice, out
from manyhands.cli.execution import execute
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.cli.plain import shown_path
from manyhands.core.errors import UserError
from manyhands.core.outcomes import GRADE, ItemState
from manyhands.core.text import cut
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.folders import free_name
from manyhands.task_folders.reading import Refused, holds_tasks
from manyhands.task_folders.settings import ORACLE
from manyhands.workloads.trajectories.dataset.task_rows import tasks_in_order
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.tasks import REWARDS, VERIFIER

PROGRAM = "manyhands tasks check"
USAGE = f"{PROGRAM} FOLDER"
DESCRIPTION = (
    "Runs the solution of a task folder, or of each in a folder of them, and its verifier. Exit code: 0 if all get a reward of 1, 1 if "
    "some don't, 2 for tasks that can't be taken. It is a batch (its run stays in the data folder), and takes the options of one."
)
_OURS = ("agent", "agent_command")
_MAX_MESSAGE = 160


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(BatchSpec, argv, PROGRAM, positional="dataset_file")
    if line.help or not argv:
        print(help_text(BatchSpec, USAGE, DESCRIPTION, positional="dataset_file"))
        return 0 if line.help else ExitCode.USAGE
    given = next((name for name in _OURS if line.values.get(name) is not None), None)
    if given is not None:
        raise UsageError(f"--{given}: the tasks' own solutions are run; use manyhands batch for other agents")
    folder = Path(str(line.values.get("dataset_file")))
    if not holds_tasks(folder):
        raise UserError(f"{folder} is no task folder, and holds none")
    options = _options(folder, line.values)
    session = run_on_loop(open_batch(options, resume=options.resume, notice=notice, environ=os.environ))
    result = execute(session, quiet=options.quiet or not sys.stderr.isatty())
    with closing(JournalReader(session.folder)) as reader:
        rows = [_line(row) for row in reader.items() if not row.left_input]
    skipped = _skipped(folder, options.task_env) if options.skip_invalid else []
    out().print_table("Tasks", ("task", "solution", "reward", ""), [*rows, *skipped], right=("reward",))
    good = sum(row[1] == "ok" for row in rows)
    out().print(f"{good} of {len(rows) + len(skipped)} solutions get a reward of 1  ({shown_path(session.folder)})")
    if result.exit_code not in (ExitCode.DONE, ExitCode.FAILED):
        return result.exit_code
    return ExitCode.DONE if good == len(rows) + len(skipped) else ExitCode.FAILED


def _options(folder: Path, values: dict[str, Any]) -> BatchSpec:
    name = free_name(Path(str(values.get("data_dir", "data"))), f"check-{run_name_for(str(folder))}")
    own = {"run_name": name, "agent": ORACLE, "concurrency": 2, "batch_files": False}
    return make(BatchSpec, {**DEFAULTS, **own, **values}, PROGRAM)


def _line(row: ItemRow) -> Sequence[str]:
    """A task's line: its name, ``ok`` or what its solution came to, the reward, and what is to be said."""
    record, name = row.record or {}, str(row.payload.get("id"))
    if row.state is not ItemState.COMPLETED:
        return name, row.cause or row.state.value, "", cut(row.message or "", _MAX_MESSAGE)
    score, rewards = record[GRADE]["score"], record.get(REWARDS) or {}
    shown = ", ".join(f"{key} {value:g}" for key, value in rewards.items())
    stopped = record.get("stop_reason")
    ended = score < 1 and (record.get(VERIFIER) or {}).get("ended_processes")
    why = "; what it left running was ended before the verifier, see --end_processes" if ended else ""
    return (
        name,
        "ok" if score >= 1 else "too low",
        f"{score:g}",
        f"{shown}{'' if stopped == 'answered' else f' ({stopped})'}{why}",
    )


def _skipped(folder: Path, allowed: Variables) -> list[Sequence[str]]:
    refused = (task for _, task in tasks_in_order(folder, allowed, solutions=True) if isinstance(task, Refused))
    return [(task.name, "not taken", "", cut(task.reason, _MAX_MESSAGE)) for task in refused]
