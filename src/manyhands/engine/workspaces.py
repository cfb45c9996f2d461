"""The folders of attempts: where they are, which stay when their items have ended, and the removal of the others."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import Execution, Worlds
from manyhands.engine.journal.store import Store
from manyhands.processes.strays import remove_tree

WORKSPACES = "workspaces"
STATES = "states"
"""The folder in a run's folder with what attempts need after a crash besides steps and workspaces: a folder for each, as ``3-1``. It goes
when the item has ended, however it ended."""
KEEP = "keep"
"""A file of this name in an attempt's folder: whoever made it wants the folder to stay when the item has ended."""


def workspace_of(run_folder: Path, item: int, attempt: int) -> Path:
    """The folder that belongs to one attempt alone."""
    return Path(_path_of(run_folder, item, attempt))


def _path_of(run_folder: Path, item: int, attempt: int) -> str:
    return f"{run_folder}/{WORKSPACES}/{item}-{attempt}"


class Workspaces:
    """The folders of a run's attempts, as its owner looks after them."""

    def __init__(
        self,
        store: Store,
        execution: Execution,
        on_error: Callable[[Exception], None] = lambda error: None,
        worlds: Worlds | None = None,
    ) -> None:
        """``on_error`` is called when a folder can't be removed; ``worlds``: what belongs to the folders and is removed before them."""
        self._store = store
        self._execution = execution
        self._worlds = worlds
        self._on_error = on_error
        self._root = store.folder / WORKSPACES
        self._unneeded: list[Path] = []
        self._removal: asyncio.Task[None] | None = None
        self._looked_at = -1
        self._any = False

    async def sweep(self) -> None:
        """Remove folders that a crash left behind: those of items that ended well, and of attempts that were given up."""
        await asyncio.to_thread(
            _remove_all, [each for each in self._store.folder.glob(f"{STATES}/*") if self._is_over(each)]
        )
        if self._execution.keep_workspaces or not self._root.is_dir():
            return
        unneeded = [folder for folder in self._root.iterdir() if not self.still_needed(folder)]
        await self._discard(unneeded)
        await asyncio.to_thread(_remove_all, unneeded)
        if not any(self._root.iterdir()):
            shutil.rmtree(self._root)

    def item_ended(self, item: int, attempt: int, state: ItemState) -> None:
        """An item's end is on disk: begin to remove its folder, unless that stays."""
        if not self._may_be_any() or not os.path.exists(_path_of(self._store.folder, item, attempt)):
            return
        folder = workspace_of(self._store.folder, item, attempt)
        if self._stays(folder, state):
            return
        self._unneeded.append(folder)
        if self._removal is None:
            self._removal = asyncio.create_task(self._remove_unneeded())

    async def remove(self, item: int, attempt: int) -> None:
        """Remove an attempt's folder, if there is one and the run does not keep all of them."""
        folder = workspace_of(self._store.folder, item, attempt)
        if not self._execution.keep_workspaces and folder.exists():
            await self._discard([folder])
            await asyncio.to_thread(remove_tree, folder)

    async def removed(self) -> None:
        """Done when all removals that were begun are."""
        while self._removal is not None:
            await asyncio.wait([self._removal])

    async def _remove_unneeded(self) -> None:
        """Remove folders until there are none to be removed; what is added meanwhile goes together."""
        try:
            while self._unneeded:
                folders, self._unneeded = self._unneeded, []
                await self._discard(folders)
                await asyncio.to_thread(_remove_all, folders)
        except Exception as error:  # noqa: BLE001 - it stops the run, which nobody else would hear of
            self._on_error(error)
        finally:
            self._removal = None

    async def _discard(self, folders: Sequence[Path]) -> None:
        if self._worlds is not None and folders:
            await self._worlds.discard(folders)

    def _may_be_any(self) -> bool:
        """Whether any item has a folder. Looked up once for all items that a commit ended: what these made was there before it."""
        commits = self._store.writer.commits
        if commits != self._looked_at:
            self._looked_at = commits
            self._any = not self._execution.keep_workspaces and os.path.exists(self._root)
        return self._any

    def still_needed(self, folder: Path) -> bool:
        """Whether the folder of an attempt stays, by what is on disk now."""
        if self._execution.keep_workspaces:
            return True
        state = self.state_of(folder.name)
        return state is not None and self._stays(folder, state)

    def _is_over(self, folder: Path) -> bool:
        state = self.state_of(folder.name)
        return state is None or state.final

    def state_of(self, attempt: str) -> ItemState | None:
        """The state of the item of an attempt (``3-1``: item 3, attempt 1); None if nobody goes on with that attempt."""
        number, _, attempt = attempt.partition("-")
        row = self._store.reader.item(number) if number.isdecimal() else None
        return row.state if row is not None and attempt == str(row.attempt) else None

    def _stays(self, folder: Path, state: ItemState) -> bool:
        if not state.final:
            return True
        return not self._execution.remove_workspaces and (state is ItemState.FAILED or (folder / KEEP).exists())


def _remove_all(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.exists():
            remove_tree(folder)
