"""The project: a folder of the host's that commands may read and start in.

In an isolated sandbox it is seen at ``PROJECT`` and can't be changed. With ``local`` it is the folder itself, unprotected.
What is in it is shown as it is, also sockets and named pipes, which a read-only view does not keep anybody from using.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import SandboxRequest

PROJECT = "/project"
"""Where an isolated sandbox shows it."""
PROJECT_VARIABLE = "PROJECT"
"""In the environment of commands, where there is a project: its path as they see it."""
WORKSPACE_VARIABLE = "WORKSPACE"
"""The same for the workspace."""
_MOUNTS = Path("/proc/self/mountinfo")


def checked_project(value: str | Path, *, sandbox: str) -> Path:
    """The folder that a person named, absolute and without links. ``sandbox``: the value of ``--sandbox``. Raises UserError."""
    path = Path(value).expanduser()
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


def read_only(path: str, project: str, workspace: str) -> str:
    """What to tell a model that tried to change the project."""
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
        place = Path(fields.split(" ")[4])
        if source.startswith("proc ") and (place == path or path in place.parents or place in path.parents):
            return f"{path} shows this machine's processes ({place}); name a smaller folder"
    return None
