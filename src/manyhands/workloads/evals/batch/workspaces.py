"""Workspaces of commands that answer all tests at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.files import written_aside
from manyhands.sandboxes.files.trees import Tree
from manyhands.workloads.evals.evalfile.tests import Workspace
from manyhands.workloads.evals.workspaces.changes import MAX_CHARACTERS
from manyhands.workloads.evals.workspaces.templates import TREE
from manyhands.workloads.evals.workspaces.workspace import (
    Seen,
    WorkspaceTools,
    fresh_copy,
    make_sure,
    workspace_changes,
)

CHANGES = "file_changes.diff"
"""The file in an invocation's folder that says what it changed in its workspace."""
_MAX_BYTES = 8 * MAX_CHARACTERS


class InvocationWorkspaces:
    """One for each invocation, in its folder."""

    def __init__(self, eval_file: str, workspace: Workspace, tools: WorkspaceTools) -> None:
        self._eval_file = eval_file
        self._settings = workspace
        self._tools = tools

    async def make(self, folder: Path) -> Path:
        """A fresh one. ``folder``: the invocation's. Raises UserError if it can't be made."""
        folder = folder.absolute()
        source = await self._tools.templates.ready(self._eval_file, self._settings)
        try:
            await asyncio.to_thread(fresh_copy, source, folder / TREE)
        except OSError as error:
            raise UserError(f"{self._eval_file}: the workspace can't be made: {error}") from error
        return folder / TREE

    async def look(self, folder: Path) -> None:
        """The command has ended: write down what it changed. Raises StorageError."""
        folder = folder.absolute()
        await asyncio.to_thread(make_sure, folder / TREE)
        before = await self._tools.templates.ready(self._eval_file, self._settings)
        changes, _ = await workspace_changes(before, folder, self._tools)
        if changes is not None:
            await asyncio.to_thread(_written, folder / CHANGES, changes)

    async def seen(self, folder: Path) -> Seen:
        """What graders get to know of it."""
        folder = folder.absolute()
        try:
            changes = await asyncio.to_thread(_read, folder)
        except (OSError, ValueError):
            return Seen(folder / TREE, None)  # the command was cut off
        return Seen(folder / TREE, changes)


def _read(folder: Path) -> str:
    with Tree(folder) as tree:
        return tree.read(CHANGES, _MAX_BYTES).decode()


def _written(path: Path, text: str) -> None:
    with written_aside(path) as file:
        file.write(text)
