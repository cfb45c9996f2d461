"""Building the images that datasets bring as Dockerfiles, before a run is made or continued."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.text import counted
from manyhands.processes.strays import remove_tree
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import Build, ImageDemand
from manyhands.sandboxes.images.store import ImageStore

AT_ONCE = 2
LOGS = "builds"
"""The folder of a run with what builds printed."""


async def built_images(
    sandbox: str,
    store: ImageStore | None,
    demand: ImageDemand,
    notice: Notice,
    logs: Path | None,
    *,
    known: Collection[str] = (),
    skip: bool = False,
) -> list[str]:
    """Build the images of a demand that are not here yet; the tags of those that can't be built, if these are to be left out.

    ``sandbox``: the kind, for messages; ``logs``: a folder for what builds print, one file each (None: one of its own, which is left where
    one failed); ``known``: tags that the run had before.
    Raises UserError, one line for each image that can't be built.
    """
    wanted = {tag: build for tag, build in demand.builds.items() if tag not in known}
    if not wanted:
        return []
    if store is None:
        raise UserError(f"--sandbox {sandbox} can't build images, and {_wanting(wanted)} a Dockerfile")
    notice(f"building {counted(len(wanted), 'image')} where they are not here yet")
    problems: dict[str, str] = {}
    waiting = iter(wanted.items())

    async def work(folder: Path) -> None:
        for tag, build in waiting:
            problem = await _built(store, tag, build, folder)
            if problem is not None:
                problems[tag] = problem

    aside = logs or Path(tempfile.mkdtemp(prefix="manyhands-"))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(wanted))):
                group.create_task(work(aside))
    finally:
        if logs is None and not problems:  # else a message names what lies there
            remove_tree(aside)
    if problems and not skip:
        raise UserError("\n".join(problems[tag] for tag in wanted if tag in problems))
    for tag in wanted:
        if tag in problems:
            notice(problems[tag])
    return [tag for tag in wanted if tag in problems]


async def _built(store: ImageStore, tag: str, build: Build, logs: Path) -> str | None:
    """Why an image can't be built; None if it is here now."""
    log = logs / f"{tag.rpartition(':')[2]}.log"
    try:
        await store.build(build.folder, tag=tag, timeout=build.seconds, log=log)
    except UserError as error:
        return f"task {build.wanted_by}: {error}"
    except ItemError as error:
        return f"task {build.wanted_by}: its image can't be built: {error.message}"
    return None


def _wanting(builds: dict[str, Build]) -> str:
    names = sorted({build.wanted_by for build in builds.values()})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'has' if len(names) == 1 else 'have'}"
