"""The event loop: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import resource
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

MANY_FILES = 65536
_Result = TypeVar("_Result")
COLLECTION_THRESHOLDS = (50_000, 10, 10)
"""New objects until a search for garbage cycles, and searches of each generation until one of the next."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None for asyncio's default."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def allow_many_files() -> None:
    """Raise this process's limit of open files as far as it may: each connection and each sandbox takes some. Commands in sandboxes
    get limits of their own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_on_loop(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end on a new loop."""
    allow_many_files()
    with rare_collections(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Search for garbage cycles more rarely than Python does by default.

    Thousands of items in flight are hundreds of thousands of live objects, through which each search goes again. Next to
    nothing of what a run makes is cyclic, so the searches cost a quarter of its CPU (measured) and find nothing.
    """
    before = gc.get_threshold()
    gc.freeze()  # what there is already stays, and need not be searched either
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
