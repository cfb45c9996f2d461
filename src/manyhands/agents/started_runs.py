"""Runs that agents start themselves: where they are kept, and what they are told of the run that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.engine.contract import Context
from manyhands.tools.protocol import ParentRun
from manyhands.tools.toolsets import Toolset

JOBS = "jobs"
"""The folder in a run's folder with what its agents started: a folder for each attempt, as ``3-1``, and in it the runs."""


def parent_run(
    context: Context,
    run_folder: Path,
    run_id: str,
    options: Mapping[str, Any],
    secrets: Mapping[str, str],
    *,
    depth: int = 0,
    max_depth: int = 1,
) -> ParentRun:
    """What the tools of an attempt get to know of its run. ``options``: the agents' settings as they are recorded, with
    ``toolsets``, the names of those that this agent has; ``depth`` and ``max_depth``: see ``ParentRun``."""
    jobs = run_folder.absolute() / JOBS / f"{context.item.number}-{context.attempt}"
    return ParentRun(run_id, run_folder, jobs, options, secrets, depth, max_depth)


def standard_toolsets(names: Sequence[str], own: Sequence[Toolset]) -> list[str]:
    """Toolsets by name, with those that a person made up (``own``) replaced by what they include, as nobody else knows them."""
    includes = {toolset.name: toolset.includes for toolset in own}
    found: list[str] = []
    for name in names:
        found += standard_toolsets(includes[name], own) if name in includes else [name]
    return list(dict.fromkeys(found))


def own_folders(run_folder: Path) -> tuple[Path, ...]:
    """The folders that a run's agents should not see in a project, as all journals of theirs and others are there: the run's,
    the data folder it is in, and the same of the runs that it comes from."""
    folders = [run_folder, run_folder.parent]
    while folders[-1].parent.name == JOBS:
        run = folders[-1].parent.parent
        folders += [run, run.parent]
    return tuple(folders)
