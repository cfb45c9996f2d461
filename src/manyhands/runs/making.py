"""Making a run, and opening one to go on with it: the same for every workload."""

from __future__ import annotations

import os
import shlex
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from manyhands.core import VERSION
from manyhands.core.clock import SystemClock
from manyhands.core.errors import RunError, StorageError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import protect, protect_environment
from manyhands.core.text import counted
from manyhands.engine.contract import Workload
from manyhands.engine.journal.lock import LOCK
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.store import Store
from manyhands.io.files import written_aside
from manyhands.runs.folders import free_name, is_made, open_reader
from manyhands.runs.ledger import LIMIT
from manyhands.runs.options import PriceSettings
from manyhands.runs.progress import Notice

KEPT = "settings"
"""The folder in the run folder that holds copies of files that the settings name."""

WorkloadT = TypeVar("WorkloadT", bound=Workload, covariant=True)


@dataclass(frozen=True, slots=True)
class Opened(Generic[WorkloadT]):
    """A run folder and its workload, ready for ``execute_run``."""

    folder: Path
    workload: WorkloadT
    spec_changed: bool = False
    """The workload's spec is not the recorded one, and becomes that."""
    rewrite_outputs: bool = False
    """All output lines are written again, as they would look different now."""
    retry_failed: bool = True
    """Failed items are executed again."""
    retry_cancelled: bool = False
    """Items that a person cancelled are executed again."""
    rerun: tuple[int, ...] = ()
    """The numbers of ended items that are executed again from nothing; what they had come to is kept."""
    rerun_for: str = ""
    """Why they are."""
    judge_again: tuple[str, ...] = ()
    """Items discarded for these reasons are judged again, which replays what is recorded of them."""


def make_run(opened: Opened[Workload], options: PriceSettings, notice: Notice) -> None:
    """Make the run of an opened workload: plan its items, and keep what executing it needs besides the recorded settings.

    Raises RunError if the folder holds a run already, UserError for unusable input, StorageError.
    """
    workload = opened.workload
    create_run(opened.folder, workload.name, workload, version=VERSION, notice=notice)
    keep_files(options, opened.folder)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run was made of."""

    spec: dict[str, Any]
    planned: Json
    """The identity of the input that was planned and its generation; None where planning was cut short."""


def recorded_run(folder: Path, workload: str) -> Recorded:
    """What is recorded of a run. Raises RunError if it is one of another workload."""
    with closing(open_reader(folder)) as reader:
        if (name := reader.meta("workload")) != workload:
            raise RunError(f"{folder}: a run of another kind ({name})")
        return Recorded(reader.meta("spec"), reader.meta("planned"))


def refuse_unless_resumed(resume: bool, folder: Path, why: str = "a run of this name exists already") -> None:
    """Raises RunError for a name that is taken, if the run is not to be continued."""
    if not resume:
        raise RunError(
            f"{folder}: {why}; continue it with --resume, or start another with --run_name={other_name(folder)}"
        )


def other_name(folder: Path) -> str:
    """A name to propose for another run than the one in a folder, as it is typed."""
    return shlex.quote(free_name(folder.parent, folder.name))


def keep_files(options: PriceSettings, run_folder: Path) -> None:
    """Copy into the run folder what executing the run needs besides the recorded settings."""
    if options.prices is None or not Path(options.prices).exists():
        return
    target = kept_file(run_folder, options.prices)
    with written_aside(target) as handle:
        handle.write(Path(options.prices).read_text(encoding="utf-8"))


def kept_file(run_folder: Path, named: str) -> Path:
    """Where the copy of a named file is."""
    return run_folder / KEPT / Path(named).name


# --- The journal of a new run


def create_run(
    folder: Path, name: str, workload: Workload, *, version: str, notice: Notice, run_id: str | None = None
) -> None:
    """Make a run folder and plan all items. A crash in the middle leaves a run that the next opening plans again.

    ``run_id``: its identity where that is known already.

    Raises RunError if the folder holds a run already, UserError for unusable input, StorageError.
    """
    if is_made(folder):
        raise RunError(f"{folder}: there is a run here already")
    clock = SystemClock()
    protect_secrets(workload)
    _make_folder(folder)
    store = Store(folder, clock, notice)
    if store.reader.meta("run_id") is not None:  # made by another process since we looked
        store.close()
        raise RunError(f"{folder}: there is a run here already")
    try:
        store.set_meta(
            run_id=run_id or uuid.uuid4().hex,
            workload=name,
            spec=workload.spec,
            seed=workload.execution.seed,
            created_at=clock.now(),
            version=version,
            **({} if workload.execution.limit is None else {LIMIT: workload.execution.limit}),
        )
        plan(store, workload, notice)
    except BaseException:  # nothing has been executed yet, so that nothing is lost by leaving no half-made run
        store.close()
        for leftover in (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LOCK):
            (folder / leftover).unlink(missing_ok=True)
        _remove_if_empty(folder)
        raise
    store.close()


def protect_secrets(workload: Workload) -> None:
    """Whatever is recorded or written from now on has none of the secrets that are known."""
    protect_environment(os.environ)
    protect(workload.secrets().values())


def plan(store: Store, workload: Workload, notice: Notice) -> None:
    """Enter the items of the input, if it changed since it was last planned, or if that planning was cut short."""
    identity = workload.input_identity()
    planned = store.reader.meta("planned")
    latest = store.reader.meta("generation", planned["generation"] if planned else 0)
    if planned is not None and identity is None:
        notice("the input is not there any more; going on with the items that were planned from it")
        return
    if planned is not None and planned == {"identity": identity, "generation": latest}:
        return
    store.set_meta(generation=latest + 1)
    store.plan(workload.plan(), latest + 1)
    removed = store.removed(latest + 1)
    if not workload.plans_in_parts:
        _name_removed(removed, notice)
    store.set_meta(planned={"identity": identity, "generation": latest + 1})


def _name_removed(removed: list[tuple[int, str, str]], notice: Notice) -> None:
    if not removed:
        return
    numbers = ", ".join(str(number) for number, _, _ in removed[:10]) + (" …" if len(removed) > 10 else "")
    finished = sum(state == ItemState.COMPLETED for _, _, state in removed)
    notice(
        f"{counted(len(removed), 'item')} no longer in the input (number {numbers}): "
        f"{finished} had finished and stay in the journal, the others are cancelled"
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: the folder can't be made ({error.strerror})") from error


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
