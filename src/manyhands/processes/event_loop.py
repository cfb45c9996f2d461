"""The event loop: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from manyhands.processes.interpreters import are_objects_frozen

MANY_FILES = 65536
MAX_SWITCH_INTERVAL = 0.001
"""Seconds for which a thread runs while another one waits."""
_Result = TypeVar("_Result")
_lock = threading.Lock()
_before: list[tuple[tuple[int, int, int], float, bool]] = []
"""How the interpreter was set when each of the runs of this process began, and whether that froze what there was."""
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


def keep_exit_codes() -> None:
    """Have the system keep the exit codes of our child processes where whoever started this program ignores SIGCHLD. What a process
    ignores, the programs that it starts ignore too (execve(2)), and then every command seems to end with 0 (wait(2))."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        with suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def run_on_loop(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end on a new loop."""
    allow_many_files()
    keep_exit_codes()
    with interpreter_settings(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


@contextmanager
def on_stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within it, SIGINT (Ctrl-C) and SIGTERM call ``stop`` in the running event loop, and do nothing else."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


@contextmanager
def interpreter_settings() -> Iterator[None]:
    """How the interpreter does best with one busy event loop and a thread that writes a journal.

    Garbage cycles are searched for more rarely than by default. Thousands of items in flight are hundreds of thousands of live
    objects, through which each search goes again; next to nothing of what a run makes is cyclic, so that the searches cost a
    quarter of its CPU (measured) and find nothing. And threads take turns more often than by default: each statement of the
    journal's thread ends with a wait for its turn, and all items of the commit wait with it.
    """
    with _lock:  # a program may execute runs in several threads at once: the first one sets, the last one restores
        freezes = not (_before or are_objects_frozen())
        _before.append((gc.get_threshold(), sys.getswitchinterval(), freezes))
        if freezes:
            gc.freeze()  # what there is already stays, and need not be searched either
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        sys.setswitchinterval(min(sys.getswitchinterval(), MAX_SWITCH_INTERVAL))
    try:
        yield
    finally:
        with _lock:
            thresholds, turn, freezes = _before.pop()
            if not _before:
                sys.setswitchinterval(turn)
                gc.set_threshold(*thresholds)
            if freezes:
                gc.unfreeze()
