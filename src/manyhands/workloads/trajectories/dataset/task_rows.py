"""Task folders as the rows of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.agents.worlds.settings import Variables
from manyhands.io.tables.base import Unit
from manyhands.task_folders.contents import Task
from manyhands.task_folders.images import images_of
from manyhands.task_folders.reading import Refused, holds_tasks, read_tasks
from manyhands.task_folders.variables import refused_variable

TASK: Unit = "task"
"""What a row of such a dataset is called."""


def is_task_dataset(path: Path | str) -> bool:
    """Whether a dataset is a task folder, or a folder of them."""
    return holds_tasks(Path(path))


def tasks_in_order(
    path: Path, allowed: Variables, missing_images: Collection[str] = (), *, solutions: bool
) -> Iterator[tuple[int, Task | Refused]]:
    """The tasks of a dataset, numbered from 1. ``allowed``: the variables that they may have; ``missing_images``: those that do not exist,
    or could not be built; ``solutions``: whether their own solutions are run."""
    for number, task in zip(count(1), read_tasks(path), strict=False):
        lacking = isinstance(task, Task) and next((each for each in images_of(task) if each in missing_images), None)
        if isinstance(task, Task) and lacking:
            built = lacking in (
                task.image if task.built else None,
                task.verifier_image if task.verifier_built else None,
            )
            why = "its Dockerfile does not build" if built else f"its image {lacking} does not exist"
            yield number, Refused(task.name, f"{task.folder}: task {task.name}: {why}", left_out=True)
        elif isinstance(task, Task) and (refused := refused_variable(task, allowed, solution=solutions)) is not None:
            yield number, Refused(task.name, refused)
        else:
            yield number, task


def source_of(task: Task) -> dict[str, Any]:
    """What an author says of a task, as the other fields of a row."""
    about = {"task": task.name, **task.config.metadata}
    if task.config.task is not None and task.config.task.keywords:
        about.setdefault("keywords", list(task.config.task.keywords))
    if task.config.source is not None:
        about.setdefault("source", task.config.source)
    return about
