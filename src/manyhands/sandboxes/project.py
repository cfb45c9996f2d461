"""The project: a folder of the host's that commands may read and start in.

In an isolated sandbox it is seen at ``PROJECT`` and can't be changed. With ``local`` it is the folder itself, unprotected.
What is in it is shown as it is, also sockets and named pipes, which a read-only view does not keep anybody from using.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.text import expand_home
from manyhands.engine.journal.reader import JOURNAL
from manyhands.sandboxes.protocol import SandboxRequest

PROJECT = "/project"
"""Where an isolated sandbox shows it."""
PROJECT_VARIABLE = "PROJECT"
"""In the environment of commands, where there is a project: its path as they see it."""
WORKSPACE_VARIABLE = "WORKSPACE"
"""The same for the workspace."""
_SQLITE = b"SQLite format 3\0"
_MAX_DEPTH = 8
_MAX_ENTRIES = 100_000
_SEARCH_SECONDS = 5.0
_KNOWN_SECONDS = 5.0
_known_data: dict[Path, tuple[float, list[Path]]] = {}
_MOUNTS = Path("/proc/self/mountinfo")


def checked_project(value: str | Path, *, sandbox: str) -> Path:
    """The folder that a person named, absolute and without links. ``sandbox``: the value of ``--sandbox``. Raises UserError."""
    path = expand_home(value)
    problem = _problem(path) if sandbox == "local" else _problem(path) or _too_much(path.resolve())
    if problem is not None:
        raise UserError(f"project: {problem}")
    return path.resolve()


def project_note(project: str | Path, *, sandbox: str) -> str:
    """A paragraph for a model on where it may read and write. It is the same for all items of a run, and after a resume."""
    if sandbox == "local":
        return (
            f"Commands and relative paths start in the project, {project}. It belongs to the person who asked: change nothing "
            f"there unless the task says so. Files of your own go to the workspace, whose path is in ${WORKSPACE_VARIABLE}."
        )
    return (
        f"Commands and relative paths start in the project, {PROJECT}, which can be read but not changed. "
        "The workspace, /workspace, can be written to: files of your own go there."
    )


def project_of(request: SandboxRequest, *, isolated: bool) -> Path | None:
    """The project's folder on the host, without links. Raises ItemError(INVALID_INPUT) if it can't be used."""
    if request.project is None:
        return None
    problem = _problem(request.project)
    if problem is None and isolated:
        problem = _too_much(request.project.resolve())
    if problem is not None:
        raise ItemError(Cause.INVALID_INPUT, f"project: {problem}")
    return request.project.resolve()


def variables(project: str | None, workspace: str) -> dict[str, str]:
    """What the environment of commands says of the project, as they see it; nothing where there is none."""
    return {} if project is None else {PROJECT_VARIABLE: project, WORKSPACE_VARIABLE: workspace}


def hidden_below(project: Path, hidden: Iterable[Path]) -> list[str]:
    """Those of the folders that are in the project, relative to it: outermost ones only."""
    found: set[Path] = set()
    for folder in hidden:
        real = folder.resolve()
        if project in real.parents and real.is_dir():
            found.add(real.relative_to(project))
    return sorted(os.fspath(path) for path in found if not found & set(path.parents))


def data_folders(project: Path) -> list[Path]:
    """Folders in a project that hold runs: each folder with a journal, and each that holds nothing but such folders. Searched breadth first
    within bounds, and known for some seconds: not for the event loop's thread."""
    known = _known_data.get(project)
    if known is None or time.monotonic() - known[0] > _KNOWN_SECONDS:
        known = _known_data[project] = (time.monotonic(), _searched(project))
    return known[1]


def is_run_folder(folder: str) -> bool:
    """Whether a folder holds a run's journal."""
    try:
        with open(f"{folder}/{JOURNAL}", "rb", buffering=0, opener=_without_waiting) as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _searched(project: Path) -> list[Path]:
    found: list[Path] = []
    folders, left = deque([(os.fspath(project), 0)]), _MAX_ENTRIES
    deadline = time.monotonic() + _SEARCH_SECONDS
    while folders and left > 0 and time.monotonic() < deadline:
        folder, depth = folders.popleft()
        inner, entries = _folders_in(folder)
        left -= entries
        runs = [each for each in inner if is_run_folder(each)]
        found += map(Path, runs)
        if runs and len(runs) == entries and depth > 0:
            found.append(Path(folder))  # so that runs that are made in it later are hidden too
        elif depth < _MAX_DEPTH:
            folders.extend((each, depth + 1) for each in inner if each not in runs)
    return found


def _folders_in(folder: str) -> tuple[list[str], int]:
    """The folders in a folder, and how many entries there are in all."""
    try:
        with os.scandir(folder) as entries:
            listed = list(islice(entries, _MAX_ENTRIES))
    except OSError:
        return [], 0
    return [each.path for each in listed if each.is_dir(follow_symlinks=False) and each.name != ".git"], len(listed)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_only(path: str, project: str, workspace: str) -> str:
    """The message for a model that tried to change the project."""
    return f"can't change {path}: the project {project} is read-only; write below the workspace, {workspace}"


def _problem(path: Path) -> str | None:
    if not path.exists():
        return f"there is no folder {path}"
    return None if path.is_dir() else f"{path} is not a folder"


def _too_much(path: Path) -> str | None:
    """Why a folder can't be shown without giving away the host: by its ``/proc``, its other processes and all their files
    are in reach."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, source = line.partition(" - ")
        mount_point = Path(fields.split(" ")[4])
        if source.startswith("proc ") and (
            mount_point == path or path in mount_point.parents or mount_point in path.parents
        ):
            return f"{path} shows this machine's processes ({mount_point}); name a smaller folder"
    return None
