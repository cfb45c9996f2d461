"""The short form of ``manyhands batch``: a dataset, and whatever else is said. What is unsaid is chosen here, for a first run as for a
large one; the original's options keep the original's defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.cli.batch import PROGRAM
from manyhands.cli.batch.executing import execute_batch
from manyhands.cli.console import notice, resume_command
from manyhands.cli.options import make
from manyhands.cli.plain import shown_path
from manyhands.cli.resume import resumed_settings
from manyhands.core.errors import RunError
from manyhands.io.tables.standard_input import STANDARD_STREAM
from manyhands.runs.folders import find_runs, free_name, is_made, latest_of
from manyhands.runs.making import KEPT, recorded_run
from manyhands.tools.settings import is_source
from manyhands.workloads.trajectories.opening import recorded_dataset
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload

DEFAULTS: Mapping[str, Any] = {
    "batch_size": 100,
    "distribution": "terminal_only",
    "num_workers": min(4, os.cpu_count() or 1),
    "concurrency": 8,
    "keep_unreasoned": True,
}
"""Settings where the short form differs from the original's."""
_MAX_NAME = 100
"""Characters of a name that is made of a dataset's."""


def execute(values: Mapping[str, Any]) -> int:
    """Execute or continue the run that was typed; the exit code. ``values``: by the names of their settings, as they were typed."""
    data_dir, dataset = Path(str(values.get("data_dir", "data"))), str(values["dataset_file"])
    name, named = run_name_for(dataset), values.get("run_name")
    if values.get("resume") and (folder := _earlier(data_dir, named, name, dataset)) is not None:
        recorded_run(folder, TrajectoryWorkload.name)
        return execute_batch(resumed_settings(BatchSpec, folder, values, ("batch_size",)))
    own = {"run_name": free_name(data_dir, name), **values}
    options = make(BatchSpec, {**_defaults(own), **own}, PROGRAM)
    taken = named is None and options.run_name != name and is_made(data_dir / name)

    def when_made() -> None:
        if taken:
            _say_taken(data_dir / name, options.run_name)

    return execute_batch(options, when_made)


def _defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where toolsets or tools are named, none are sampled; files of functions are added to those that are."""
    tools = BatchSpec.fields["tools"].read(given["tools"]) if "tools" in given else None
    if all(map(is_source, tools or ())):
        return DEFAULTS
    return {name: value for name, value in DEFAULTS.items() if name != "distribution"}


def _say_taken(folder: Path, instead: str) -> None:
    notice(
        f"{shown_path(folder)} is there already, so this run is called {instead}; "
        f"to continue the other:  {resume_command(folder)}"
    )


def _earlier(data_dir: Path, named: str | None, name: str, dataset: str) -> Path | None:
    """The run to continue: the one that is named, or the latest of this dataset that got its name; None if there is none.

    Raises RunError if there is only one whose dataset is gone: whether this is what that was made of, only the person knows.
    """
    if named is not None:
        return latest_of([data_dir / named])
    numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
    alike = [folder for folder in find_runs(data_dir) if numbered.fullmatch(folder.name) and is_made(folder)]
    sources = {folder: _source(folder) for folder in alike}
    wanted = dataset if dataset == STANDARD_STREAM else os.path.realpath(dataset)
    found = latest_of(folder for folder, source in sources.items() if source == wanted)
    gone = latest_of(
        folder for folder, source in sources.items() if os.path.isabs(source) and not os.path.exists(source)
    )
    if found is None and gone is not None and dataset != STANDARD_STREAM:
        raise RunError(
            f"{shown_path(gone)} was made of {shown_path(Path(sources[gone]))}, which is gone; "
            f"if it is to be continued with {dataset}, add --run_name={gone.name}"
        )
    return found


def _source(folder: Path) -> str:
    """What a run was made of: a path, or ``-``; empty for a run of another kind."""
    try:
        recorded = recorded_dataset(folder)
    except RunError:
        return ""
    return STANDARD_STREAM if recorded.parent == folder.absolute() / KEPT else os.path.realpath(recorded)


def run_name_for(dataset: str) -> str:
    """A run's name from the path of its dataset: that of the file or folder, without what says its format."""
    path = Path(os.path.abspath(dataset))
    name = path.name
    if not os.path.isdir(path):
        name = name.removesuffix(".gz")
        name = name.removesuffix(Path(name).suffix)
    plain = "".join(character if character.isprintable() and character != "\\" else "_" for character in name)
    return plain[:_MAX_NAME].strip(" .-") or "batch"
