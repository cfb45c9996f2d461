"""Items executed as a worker on another machine does it: in a folder that has of the run's only what the workload names."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState
from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, Ended, run_attempt
from manyhands.engine.contract import Workload
from manyhands.engine.journal.reader import JOURNAL
from manyhands.engine.journal.store import Store
from manyhands.testing.context import NoLimits

STAYS = {"workspaces", "states", "images", "reports", f"{JOURNAL}-wal", f"{JOURNAL}-shm"}
"""Names in a run's folder of what belongs to the machine on which an attempt is executed."""


def node_folder(run_folder: Path, workload: Workload, top: Path) -> Path:
    """What stands in for a run's folder on a node: the files that the workload names, and a journal without steps, and without items
    unless they are read. ``top``: where it is made."""
    folder = top.joinpath(*run_folder.absolute().parts[-3:])
    folder.mkdir(parents=True, exist_ok=True)
    for name in workload.worker_files:
        source = run_folder / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, folder / name)
    _copy_journal(run_folder / JOURNAL, folder / JOURNAL, ["meta", *(["items"] if workload.reads_items else [])])
    return folder


def _copy_journal(source: Path, target: Path, tables: Iterable[str]) -> None:
    with closing(sqlite3.connect(source)) as whole, closing(sqlite3.connect(target)) as copy:
        whole.backup(copy)
        for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if name not in tables:
                copy.execute(f"DELETE FROM {name}")
        copy.commit()


class Elsewhere:
    """A worker process on another machine, but for the process and the machine: what it records is in the owner's journal. Made by
    ``opened``."""

    def __init__(self, store: Store, folder: Path, workload: Workload, owner: Workload) -> None:
        self.store = store
        self.folder = folder
        """The node's."""
        self._workload = workload
        self._owner = owner
        self._given = set(os.listdir(folder))
        self._settings = AttemptSettings(store, NoLimits(), SystemClock(), 0, folder)

    @classmethod
    @asynccontextmanager
    async def opened(cls, run_folder: Path, owner: Workload, top: Path) -> AsyncIterator[Elsewhere]:
        """``owner``: the workload as the owner has it; ``top``: where the node's folder is."""
        folder = node_folder(run_folder, owner, top)
        workload: Workload = type(owner)(owner.spec, folder)  # type: ignore[call-arg]
        workload.set_secrets(owner.secrets())
        with closing(Store(run_folder, SystemClock(), lambda text: None)) as store:
            store.begin()
            owner.begin(store.reader)
            try:
                async with workload.opened():
                    yield cls(store, folder, workload, owner)
            finally:
                await store.end("finished")

    async def run(self, key: str, attempt: int = 1) -> AttemptResult:
        """Execute an item, or go on with it."""
        row = self.store.reader.item_by_key(key)
        assert row is not None, key
        recorded = self.store.reader.recorded_outputs(row.number, attempt)
        facts = self._owner.facts(row.item, attempt, begun=bool(recorded))
        return await run_attempt(self._workload, self._settings, Claim(row.item, attempt, recorded, facts=facts), None)

    async def completed(self, key: str, attempt: int = 1) -> dict[str, Any]:
        """The same of an item that is completed: its record."""
        result = await self.run(key, attempt)
        assert isinstance(result, Ended), result
        assert result.outcome.state is ItemState.COMPLETED, result
        record: dict[str, Any] = result.outcome.record
        return record

    def kinds(self, key: str, attempt: int = 1) -> list[str]:
        """The kinds of the steps that are recorded, in order."""
        row = self.store.reader.item_by_key(key)
        assert row is not None, key
        return [step.kind for step in self.store.reader.steps(row.number, attempt)]

    def written(self) -> set[str]:
        """What is in the node's folder now that was not sent there, but for what stays on a node."""
        return set(os.listdir(self.folder)) - self._given - STAYS
