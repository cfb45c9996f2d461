"""Where jobs are kept, and how one is found by what a person or a program calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from manyhands.core.errors import RunError, StorageError
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import find_runs, is_made, open_reader

WORKLOAD = "csv_jobs"
SHORT = 8
"""Characters of a job's id that are enough to name it."""
_UNFIT = re.compile(r"[^\w.()+@=-]+")
_MAX_NAME_CHARS = 100


def job_folder(data_dir: Path, name: str | None, job_id: str) -> Path:
    """Where a new job is to be kept. Raises RunError if there is a job of that name."""
    if name is None:
        return data_dir / job_id
    folder = data_dir / (_folder_name(name) or job_id)
    if not is_made(folder):
        return folder
    with closing(open_reader(folder)) as reader:
        if reader.meta("workload") == WORKLOAD and recorded_name(reader) == name:
            raise RunError(
                f"{folder}: there is a job called {name!r} already (id {reader.meta('run_id')}); "
                "continue it with run, or choose another name"
            )
    return folder.with_name(f"{folder.name}-{job_id[:SHORT]}")


def find_job(data_dir: Path, job: str, *, folders: bool = False) -> Path:
    """The folder of a job by its id, the beginning of its id, its name, or its folder's name; with ``folders`` also by the
    folder itself, wherever it is.

    Raises RunError if there is none, or more than one.
    """
    plain = bool(job.strip()) and job not in (".", "..") and "/" not in job and "\0" not in job
    for folder in [data_dir / job] * plain + [Path(job)] * folders:
        if is_made(folder) and _is_job(folder):
            return folder
    found = [folder for folder, job_id, name in _jobs(data_dir) if job in (job_id, name) or _begins(job_id, job)]
    if len(found) > 1:
        raise RunError(f"{job!r} names more than one job: {', '.join(folder.name for folder in found)}")
    if not found:
        raise RunError(f"agent job {job} not found")
    return found[0]


def job_folders(data_dir: Path) -> Iterator[Path]:
    """The folders of all jobs, by name."""
    return (folder for folder, _, _ in _jobs(data_dir))


def recorded_name(reader: JournalReader) -> str:
    """A job's name."""
    return str(reader.meta("spec")["name"])


def default_name(job_id: str) -> str:
    """The name of a job that was given none."""
    return f"agent-job-{job_id[:SHORT]}"


def unreadable_runs(data_dir: Path) -> Iterator[tuple[Path, str]]:
    """Folders that may be jobs, but can't be read, and why not."""
    for folder in find_runs(data_dir):
        try:
            with closing(open_reader(folder)) as reader:
                reader.meta("workload")
                reader.counts()
        except (StorageError, RunError) as error:
            yield folder, " ".join(str(error).split())


def _jobs(data_dir: Path) -> Iterator[tuple[Path, str, str]]:
    for folder in find_runs(data_dir):
        known = _known(folder)
        if known is not None:
            yield folder, *known


def _known(folder: Path) -> tuple[str, str] | None:
    """A job's id and name; None for other runs, and for what is half made."""
    try:
        with closing(open_reader(folder)) as reader:
            spec: dict[str, Any] | None = reader.meta("spec")
            if reader.meta("workload") != WORKLOAD or spec is None:
                return None
            return str(reader.meta("run_id")), str(spec["name"])
    except (StorageError, RunError, KeyError, TypeError):
        return None


def _is_job(folder: Path) -> bool:
    with closing(open_reader(folder)) as reader:
        return bool(reader.meta("workload") == WORKLOAD)


def _begins(job_id: str, text: str) -> bool:
    return len(text) >= SHORT and job_id.startswith(text.lower())


def _folder_name(name: str) -> str:
    """A name as a plain folder name; empty if nothing of it is fit for one."""
    return _UNFIT.sub("-", name).strip("-.")[:_MAX_NAME_CHARS].rstrip("-.")
