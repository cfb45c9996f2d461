"""From what a person types for a run to its folder and its workload."""

from __future__ import annotations

from pathlib import Path

from manyhands.core.errors import RunError
from manyhands.engine.folders import find_runs, is_made, open_reader, places_of_runs
from manyhands.engine.reader import JOURNAL, JournalReader
from manyhands.engine.workload import Workload, load_workload


def find_run(name: str, data_dir: str) -> Path:
    """A run by its folder's path, or by its name under the data folder.

    Raises RunError, naming what there is.
    """
    for folder in (Path(name), *(place / name for place in places_of_runs(Path(data_dir)))):
        if is_made(folder):
            return folder
        if (folder / JOURNAL).is_file():
            raise RunError(f"{folder}: making this run was cut short before anything began; make it again")
    known = [folder.name for folder in find_runs(Path(data_dir))]
    there = f"runs in {data_dir}: {', '.join(known[:20])}" if known else f"there are no runs in {data_dir}"
    raise RunError(f"no run {name!r} ({there})")


def load_recorded(reader: JournalReader) -> Workload:
    """The workload of a run, from the spec recorded with it."""
    workload = load_workload(reader.meta("workload"))
    try:
        return workload(reader.meta("spec"), reader.folder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"{reader.folder / JOURNAL}: the settings recorded there can't be used ({error!r})") from error


def open_run(name: str, data_dir: str) -> JournalReader:
    """Open a run to look at it. Raises RunError if there is none."""
    return open_reader(find_run(name, data_dir))
