"""The runs that are shown: found under folders, listed without reading what has not changed, and read within limits of time."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from manyhands.core.errors import ManyhandsError, RunError, StorageError, UserError
from manyhands.core.jsonio import check_depth, line
from manyhands.core.text import cut
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser
from manyhands.engine.journal.reader import JOURNAL, run_id_of
from manyhands.runs.folders import find_runs
from manyhands.runs.summaries import RunSummary, run_summary

_Result = TypeVar("_Result")
THREADS = 4
"""That read journals: one slow query delays no other page."""
MAX_SECONDS = 3.0
"""That the queries for a page may take together, also on a busy machine."""
_LIVE = ("running", "paused")
_NAMES = 50
"""Models or targets of a run that a list names."""
_MAX_NAME = 300
"""Characters of such a name."""
_MAX_ID = 200
"""Characters of a run's id, which stands in every address of its pages."""


class NotFound(UserError):
    """There is nothing of that name (any more)."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run in the list, or what may be one."""

    folder: Path
    problem: str | None
    """Why it can't be shown; None for one that can."""
    summary: RunSummary | None
    """Without the workload's own figures; None of one that can't be shown."""
    models: Sequence[str]
    """The models or targets that were asked, as far as its settings say so: no more than ``_NAMES``."""
    max_cost: float | None
    """US dollars; None without a limit."""
    started_at: float | None
    """When its latest session began, in seconds since 1970 UTC."""
    copy: int = 0
    """From 1 for folders that are copies of another one's run, or say so: they have its ``run_id``."""
    same_id: tuple[Path, ...] = ()
    """Other folders with its ``run_id``."""

    @property
    def id(self) -> str:
        """What it is called in addresses."""
        if self.summary is None:
            return ""
        return f"{self.summary['run_id']}.{self.copy}" if self.copy else self.summary["run_id"]

    @property
    def row_id(self) -> str:
        """What its row in the list is called, also if it can't be shown: of such a run nothing but the folder is known, whose name may be
        of any bytes."""
        return f"run-{self.id}" if self.id else f"unreadable-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()}"

    @property
    def state(self) -> str:
        return "unreadable" if self.summary is None else self.summary["state"]

    @property
    def is_live(self) -> bool:
        """Whether a process executes it."""
        return self.state in _LIVE


class Runs:
    """The runs under some folders. Its methods may be called by several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """``folders``: run folders, and folders under which runs lie."""
        self._folders = folders
        self._known: dict[Path, tuple[tuple[int, ...], ShownRun]] = {}
        self._by_id: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "pages")

    def close(self) -> None:
        """End the threads. What they read is given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def listed(self) -> list[ShownRun]:
        """All runs, those that were made last first. A folder that can't be looked into has a problem, and disturbs no other."""
        with self._lock:
            found = {folder: self._looked_at(folder) for folder in self._run_folders()}
            self._tell_apart(found)
            self._known = found
            self._by_id = {run.id: folder for folder, (_, run) in found.items() if run.id}
        return sorted((run for _, run in found.values()), key=_newest_first)

    def folder(self, run_id: str) -> Path:
        """The folder of a run. Raises NotFound."""
        found = self._by_id.get(run_id)
        if found is None or not self._is_still_there(found):
            self.listed()
            found = self._by_id.get(run_id)
        if found is None:
            raise NotFound("there is no such run under the folders that are shown (any more)")
        return found

    def shown(self, run_id: str) -> ShownRun:
        """A run as the list has it, looked at now. Raises NotFound."""
        folder = self.folder(run_id)
        self._known[folder] = found = self._looked_at(folder)
        return found[1]

    def open(self, run_id: str, *, any_thread: bool = False) -> JournalBrowser:
        """A reader of the run, for one thread, or for several one after the other (``any_thread``). Raises NotFound, RunError."""
        return JournalBrowser(self.folder(run_id), any_thread=any_thread)

    async def read(
        self, run_id: str, look: Callable[[JournalBrowser], _Result], *, seconds: float = MAX_SECONDS
    ) -> _Result:
        """What ``look`` finds in a run, in a thread. Raises NotFound, RunError, and TooSlow if its queries take longer."""

        def work() -> _Result:
            with closing(self.open(run_id)) as reader, reader.limited(seconds), explained(reader.folder):
                return look(reader)

        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """The result of something that takes a moment, computed in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _tell_apart(self, found: dict[Path, tuple[tuple[int, ...], ShownRun]]) -> None:
        """Give each run an id of its own. A folder keeps what it had: no other takes the place of a run by saying that it is that run."""
        folders: dict[str, list[Path]] = {}
        for folder, (_, run) in found.items():
            if run.summary is not None:
                folders.setdefault(run.summary["run_id"], []).append(folder)
        ids = {run.id for folder, (_, run) in found.items() if self._by_id.get(run.id) == folder}
        for same in folders.values():
            for folder in same:
                signature, run = found[folder]
                copy = run.copy
                if self._by_id.get(run.id) != folder:
                    copy = next(each for each in count() if replace(run, copy=each).id not in ids)
                others = tuple(each for each in same if each != folder)
                if (copy, others) != (run.copy, run.same_id):
                    run = replace(run, copy=copy, same_id=others)
                    found[folder] = signature, run
                ids.add(run.id)

    def _is_still_there(self, folder: Path) -> bool:
        """Whether the journal in a folder is that of the run that was looked at: folders may be moved, and others take their places."""
        known = self._known.get(folder)
        if known is None or not os.path.isfile(folder / JOURNAL):
            return False
        signature, run = known
        if signature == _signature(folder):
            return True
        try:
            return run.summary is not None and run_id_of(folder) == run.summary["run_id"]
        except ManyhandsError:
            return True  # whoever reads it says what is wrong

    def _run_folders(self) -> Iterator[Path]:
        seen = set()
        for folder in self._folders:
            for each in _runs_in(folder):
                if each not in seen:
                    seen.add(each)
                    yield each

    def _looked_at(self, folder: Path) -> tuple[tuple[int, ...], ShownRun]:
        signature = _signature(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == signature and not known[1].is_live:
            return known
        run = look_at(folder)
        return signature, run if known is None else replace(run, copy=known[1].copy, same_id=known[1].same_id)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raises RunError for what else reading a run raises that is damaged, or of a form that nobody here knows."""
    try:
        yield
    except ManyhandsError:
        raise
    except (*UNREADABLE, OSError) as error:
        what = f"damaged, or of a form that this version does not know ({error!r})"
        raise RunError(f"{folder / JOURNAL}: {what}") from error


def look_at(folder: Path) -> ShownRun:
    """A run as a list shows it. Nothing is raised for one that can't be read."""
    try:
        with closing(JournalBrowser(folder)) as reader, reader.limited(MAX_SECONDS), explained(folder):
            reader.is_current()  # raises RunError for a journal of a later version
            summary, spec = run_summary(reader, with_figures=False), reader.meta("spec")
            last = reader.sessions(1)
            check_depth(line(summary))  # raises TypeError for what is no JSON, and all of it is sent within a list
            started = _number(last[0].started_at) if last else None
            models, max_cost = _models(spec), _number(_options(spec).get("max_cost"))
    except ManyhandsError as error:
        return _unreadable(folder, str(error))
    except RecursionError:
        return _unreadable(folder, f"{folder / JOURNAL}: damaged: it holds JSON that is nested too deeply")
    if summary["run_id"] is None:
        return _unreadable(folder, "making it was cut short; make it again")
    if not _is_sound(summary):
        return _unreadable(folder, f"{folder / JOURNAL}: damaged: its facts and figures can't be read")
    return ShownRun(folder, None, summary, models, max_cost, started)


def _unreadable(folder: Path, problem: str) -> ShownRun:
    return ShownRun(folder, problem, None, (), None, None)


def _is_sound(summary: RunSummary) -> bool:
    """Whether a summary holds what it is for: SQLite takes anything in each column."""
    ledger = [value for name, value in summary["ledger"].items() if name != "by_cause"]
    numbers = (*ledger, *summary["usage"].values(), summary["working_seconds"], summary["running"])
    texts = (summary["run_id"], summary["workload"])
    return (
        all(isinstance(each, str) for each in texts)
        and _is_id(summary["run_id"])
        and all(isinstance(each, (int, float)) and isfinite(each) for each in numbers)
    )


def _is_id(text: str) -> bool:
    """Whether a text can stand in addresses: not every one can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(text) <= _MAX_ID


def _runs_in(folder: Path) -> Iterator[Path]:
    """A run folder itself, or those under a folder; a folder that can't be looked into."""
    if os.path.lexists(folder / JOURNAL):
        yield folder
        return
    try:
        yield from find_runs(folder, sub_runs=True)
    except StorageError:
        yield folder


def _models(spec: Any) -> Sequence[str]:
    """What was asked, where the recorded settings say it as most workloads do."""
    found: list[Any] = []
    if isinstance(spec, dict):
        targets = spec.get("targets")
        listed = targets.values() if isinstance(targets, dict) else targets if isinstance(targets, list) else ()
        found += [each["name"] for each in listed if isinstance(each, dict) and "name" in each]
        found += [options["model"] for options in (_options(spec),) if options.get("model")]
    return list(dict.fromkeys(cut(each, _MAX_NAME) for each in found if isinstance(each, str)))[:_NAMES]


def _options(spec: Any) -> dict[str, Any]:
    options = spec.get("options") if isinstance(spec, dict) else None
    return options if isinstance(options, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _newest_first(run: ShownRun) -> tuple[bool, str, str]:
    made = "" if run.summary is None else run.summary["created_at"] or ""
    return run.summary is None, "".join(chr(0x10FFFF - ord(mark)) for mark in made), run.folder.name


def _signature(folder: Path) -> tuple[int, ...]:
    """Of the journal's files: sizes and times of the last change. An empty log does not count: looking at a run makes one."""
    found: list[int] = []
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        try:
            state = os.stat(folder / name)
            found += [state.st_mtime_ns, state.st_size, state.st_ino] if state.st_size else [0, 0, 0]
        except OSError:
            found += [0, 0, 0]
    return tuple(found)
