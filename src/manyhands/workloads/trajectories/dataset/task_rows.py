"""Task folders as the rows of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.io.tables.base import Unit
from manyhands.sandboxes.images.demand import Build
from manyhands.task_folders.contents import Task
from manyhands.task_folders.reading import Refused, holds_tasks, read_tasks
from manyhands.task_folders.schema import Environment
from manyhands.task_folders.variables import references

TASK: Unit = "task"
"""What a row of such a dataset is called."""


def is_task_dataset(path: Path | str) -> bool:
    """Whether a dataset is a task folder, or a folder of them."""
    return holds_tasks(Path(path))


def tasks_in_order(path: Path, missing_images: Collection[str] = ()) -> Iterator[tuple[int, Task | Refused]]:
    """The tasks of a dataset, numbered from 1. ``missing_images``: those that do not exist, or could not be built."""
    for number, task in zip(count(1), read_tasks(path), strict=False):
        lacking = isinstance(task, Task) and next((each for each in images_of(task) if each in missing_images), None)
        if isinstance(task, Task) and lacking:
            built = lacking in (
                task.image if task.built else None,
                task.verifier_image if task.verifier_built else None,
            )
            why = "its Dockerfile does not build" if built else f"its image {lacking} does not exist"
            yield number, Refused(task.name, f"{task.folder}: task {task.name}: {why}", left_out=True)
        else:
            yield number, task


def images_of(task: Task) -> list[str]:
    """The images of a task, each once."""
    return list(dict.fromkeys(each for each in (task.image, task.verifier_image) if each is not None))


def builds_of(task: Task) -> Iterator[tuple[str, Build]]:
    """The images of a task that are built, by their tags."""
    environment = task.config.environment
    if task.image is not None and task.built is not None:
        yield task.image, Build(task.folder / task.built, environment.build_timeout_sec, task.name)
    if task.verifier_image is not None and task.verifier_built is not None:
        own = task.config.verifier.environment or environment
        yield task.verifier_image, Build(task.folder / task.verifier_built, own.build_timeout_sec, task.name)


def named_variables(task: Task) -> Iterator[tuple[str, str | None]]:
    """The variables of this machine that a task names: (name, default)."""
    config = task.config
    environments: list[Environment] = [config.environment]
    if config.verifier.environment is not None:
        environments.append(config.verifier.environment)
    for values in (*(each.env for each in environments), config.verifier.env, config.solution.env):
        yield from references(values.values())


def source_of(task: Task) -> dict[str, Any]:
    """What an author says of a task, as the other fields of a row."""
    about = {"task": task.name, **task.config.metadata}
    if task.config.task is not None and task.config.task.keywords:
        about.setdefault("keywords", list(task.config.task.keywords))
    if task.config.source is not None:
        about.setdefault("source", task.config.source)
    return about
