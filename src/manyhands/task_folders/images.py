"""The images that tasks need."""

from __future__ import annotations

from collections.abc import Iterator

from manyhands.sandboxes.images.demand import Build, ImageDemand
from manyhands.task_folders.contents import IMAGE_SEED, Task, Unreadable, digest_of


def add_task(demand: ImageDemand, task: Task) -> None:
    """Take a task into account."""
    add_images(demand, task)
    for tag, build in _builds_of(task):
        demand.builds.setdefault(tag, build)


def add_images(demand: ImageDemand, task: Task) -> None:
    """Take the images of a task into account, and not that some are built."""
    for image in images_of(task):
        demand.add(image, task.name)
    if task.image is None:
        demand.add(None, task.name)


def add_rebuilt(demand: ImageDemand, task: Task) -> None:
    """Have the images of a task of an earlier session built again if they are gone, as far as the folders that they are made of are what
    they were."""
    for tag, build in _builds_of(task):
        try:
            same = tag.endswith(f":{digest_of(build.folder, seed=IMAGE_SEED)}")
        except (OSError, Unreadable):
            continue
        if same:
            demand.builds.setdefault(tag, build)


def images_of(task: Task) -> list[str]:
    """The images of a task, each once."""
    return list(dict.fromkeys(each for each in (task.image, task.verifier_image) if each is not None))


def _builds_of(task: Task) -> Iterator[tuple[str, Build]]:
    """The images of a task that are built, by their tags."""
    environment = task.config.environment
    if task.image is not None and task.built is not None:
        yield task.image, Build(task.folder / task.built, environment.build_timeout_sec, task.name)
    if task.verifier_image is not None and task.verifier_built is not None:
        own = task.config.verifier.environment or environment
        yield task.verifier_image, Build(task.folder / task.verifier_built, own.build_timeout_sec, task.name)
