"""The indexes of runs that somebody looks at: their processes are started here, and ended with the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, time

from manyhands.core.errors import ManyhandsError
from manyhands.engine.journal.reader import JournalReader
from manyhands.view.index.database import NoIndex
from manyhands.view.index.process import IndexProcess
from manyhands.view.index.queries import RunIndex, progress_of
from manyhands.view.source import ShownRun

MAX_PROCESSES = 4
"""Indexes that are made or kept up at once. Of those that are complete, the one that was looked at longest ago makes room."""
_WAITING = 0.4
"""Seconds that the first page of a run waits for its index: that of a small run is there by then."""
_AGAIN = 5.0
"""Seconds after which a process is started again for a run whose index is not up to date."""


class Indexes:
    """Used on the event loop, but for ``opened``, which is for any thread."""

    def __init__(self, folder: Path, max_gib: float, *, is_on: bool = True) -> None:
        """``folder``: where they are kept. ``max_gib``: GiB of all together. ``is_on``: whether there are any."""
        self._folder = folder
        self._max_gib = max_gib
        self._is_on = is_on
        self._processes: dict[str, tuple[IndexProcess, float]] = {}
        self._complete: set[str] = set()
        """Runs of which a complete index was seen."""

    async def wanted(self, run: ShownRun) -> None:
        """Somebody looks at a run: have its index made, or brought up to date. Small ones are waited for."""
        if not self._is_on or run.summary is None or run.copy:
            return
        found = self._processes.get(run.id)
        if found is not None and (found[0].is_going_on or monotonic() - found[1] <= _AGAIN):
            self._processes[run.id] = (found[0], monotonic() if found[0].is_going_on else found[1])
        elif await asyncio.to_thread(self._is_current, run) or not self._start(run):
            return
        process, until = self._processes[run.id][0], monotonic() + _WAITING
        while monotonic() < until and process.is_going_on and not await asyncio.to_thread(self._can_be_shown, run):
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """End all processes. What is made so far stays."""
        for process, _ in self._processes.values():
            process.stop()
        self._processes.clear()

    @contextmanager
    def opened(self, run: ShownRun, reader: JournalReader) -> Iterator[tuple[RunIndex | None, str]]:
        """The index of a run, if it can be used, and a line that says what to know of it, as that it is behind its journal. An index that
        turns out to be damaged while it is used is none."""
        index, note = self._found(run, reader)
        if index is None:
            yield None, note
            return
        with closing(index):
            yield index, note

    def is_coming(self, run: ShownRun) -> bool:
        """Whether the index of a run is being made, and can't be used yet."""
        process = self._processes.get(run.id)
        return process is not None and process[0].is_going_on and not self._is_there(run)

    def _found(self, run: ShownRun, reader: JournalReader) -> tuple[RunIndex | None, str]:
        if not self._is_on:
            return None, ""
        if run.copy:
            return (
                None,
                "There is no sorting and searching: this folder is a copy of another one that is shown, which has it.",
            )
        process = self._processes.get(run.id)
        try:
            index = RunIndex.open(run.folder, run.id, self._folder)
            if index is not None:
                self._complete.add(run.id)
                return index, self._behind(run, index, reader)
            found = progress_of(run.folder, run.id, self._folder)
        except NoIndex as error:
            return None, str(error)
        except ManyhandsError as error:
            return None, f"There is no sorting and searching: {error}"
        problem = process[0].problem if process is not None else None
        if problem is not None:
            return None, f"There is no sorting and searching: {problem}"
        if process is None:
            return None, "There is no sorting and searching yet: the indexes of other runs are being made."
        if found is None or not found.total:
            return None, "Sorting and searching come in a moment: the index of the run is being made."
        return None, f"Sorting and searching come soon: {found.done / found.total:.0%} of the index is made."

    def _behind(self, run: ShownRun, index: RunIndex, reader: JournalReader) -> str:
        """A line that says by how much an index is behind its journal; nothing if it is not, or is kept up."""
        process = self._processes[run.id][0] if run.id in self._processes else None
        is_kept_up = process is not None and process.is_going_on
        if (run.is_live and is_kept_up and time() - index.progress.at < _AGAIN) or not index.is_behind(reader):
            return ""
        items = index.difference(reader)
        behind = "The index is behind the run" + (f", in {items:,} item{'' if items == 1 else 's'}" if items else "")
        if is_kept_up:
            return f"{behind}: it is being brought up to date."
        return f"{behind}: {process.problem}" if process is not None and process.problem else f"{behind}."

    def _can_be_shown(self, run: ShownRun) -> bool:
        """Whether there is an index, and of a run that nobody executes, all of it."""
        return self._is_there(run) and (run.is_live or self._is_current(run))

    def _is_there(self, run: ShownRun) -> bool:
        try:
            found = progress_of(run.folder, run.id, self._folder)
        except ManyhandsError:
            return False
        return found is not None and found.is_complete

    def _is_current(self, run: ShownRun) -> bool:
        """Whether the index of a run that nobody executes has all of it."""
        if run.is_live:
            return False
        try:
            index = RunIndex.open(run.folder, run.id, self._folder)
            if index is None:
                return False
            with closing(index), closing(JournalReader(run.folder)) as reader:
                return not index.is_behind(reader)
        except ManyhandsError:
            return False

    def _start(self, run: ShownRun) -> bool:
        """Start a process for a run; whether there is room for one. Those that are making an index are left to end."""
        going_on = {name: each for name, each in self._processes.items() if each[0].is_going_on}
        if len(going_on) >= MAX_PROCESSES:
            name, (process, _) = min(going_on.items(), key=lambda each: each[1][1])
            if name not in self._complete:
                return False
            process.stop()
            del going_on[name]
        self._processes = going_on
        self._processes[run.id] = (IndexProcess.start(run.folder, self._folder, self._max_gib), monotonic())
        return True
