"""Templates of workspaces as they are copied: a run's own copies, in which ``before_all`` has run.

``workspace_templates/<digest>/`` in the run folder holds ``workspace/``, of which every workspace is a copy, and ``state.json``, which is
there once ``before_all`` has ended well: then a resumed run takes what is there. When no test is left, ``after_all`` runs in it, and
``workspace/`` is removed; tests that are tried again later have it made anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps, loads
from manyhands.io.files import bytes_written_aside, make_private
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import Found, Tree, make_folder, open_folder
from manyhands.sandboxes.files.trees import copy_tree as copy_entries
from manyhands.sandboxes.project import is_run_folder
from manyhands.workloads.evals.evalfile.tests import Workspace
from manyhands.workloads.evals.workspaces.changes import LEFT_OUT
from manyhands.workloads.evals.workspaces.hooks import AFTER_ALL, BEFORE_ALL, Hooks

FOLDER = "workspace_templates"
TREE = "workspace"
"""The folder that is copied, in its own; and its copy, in the folder of whoever works in it."""
STATE = "state.json"
_WORKSPACE: TypeAdapter[Workspace] = TypeAdapter(Workspace)


@dataclass(frozen=True, slots=True)
class TemplateState:
    """What is known of a template. ``eval_file``: whose tests use it; ``workspace``: its settings, as JSON; outputs: None of hooks that
    there are not, or that did not run yet; ``ended``: ``after_all`` has had its turn; ``problem``: how that failed."""

    eval_file: str
    workspace: Mapping[str, Any]
    before_all_output: str | None = None
    after_all_output: str | None = None
    ended: bool = False
    problem: str | None = None


class Templates:
    """The templates of a run."""

    def __init__(self, run_folder: Path, hooks: Hooks) -> None:
        self._run_folder = run_folder.absolute()
        self._hooks = hooks
        self._making: dict[str, asyncio.Task[Path]] = {}

    async def ready(self, eval_file: str, workspace: Workspace) -> Path:
        """The folder to copy, for tests of an eval file; made when it is first asked for.

        Raises UserError if ``before_all`` fails, or the template can't be copied: then no test of it may be put to anything.
        """
        name = template_name(eval_file, workspace)
        task = self._making.get(name)
        if task is None:
            task = self._making[name] = asyncio.create_task(self._made(name, eval_file, workspace))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop what is still being made."""
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def finish(self, *, keep: bool) -> None:
        """No test is left: run what is to run after all of them. ``keep``: the folders stay."""
        for folder, state in template_states(self._run_folder):
            if not state.ended:
                await self._finished(folder, state)
            if not keep:
                await asyncio.to_thread(remove_tree, folder / TREE)

    async def _made(self, name: str, eval_file: str, workspace: Workspace) -> Path:
        folder = self._run_folder / FOLDER / name
        tree, state = folder / TREE, read_state(folder)
        if state is not None and not state.ended and tree.is_dir():
            return tree
        try:
            await asyncio.to_thread(remove_tree, folder)
            await asyncio.to_thread(make_private, folder.parent)
            await asyncio.to_thread(folder.mkdir)
            source = workspace.template and workspace.template.resolve()  # a person's own, which may well be a link
            await asyncio.to_thread(copy_tree, source, tree, self._run_folder.parent)
        except OSError as error:
            raise UserError(
                f"{eval_file}: the workspace's template {workspace.template} can't be copied: {error}"
            ) from error
        output = None
        if workspace.before_all is not None:
            end = await self._hooks.run(BEFORE_ALL, workspace.before_all, tree)
            if end.problem is not None:
                raise UserError(f"{eval_file}: {end.problem}")
            if not tree.is_dir():
                raise UserError(f"{eval_file}: {BEFORE_ALL}: its workspace is gone")
            output = end.output
        settings = _WORKSPACE.dump_python(workspace, mode="json")
        await asyncio.to_thread(_write, folder, TemplateState(eval_file, settings, output))
        return tree

    async def _finished(self, folder: Path, state: TemplateState) -> None:
        hook = _WORKSPACE.validate_python(state.workspace).after_all
        found: dict[str, Any] = {}
        if hook is not None:
            end = await self._hooks.run(AFTER_ALL, hook, folder / TREE)
            found = {"after_all_output": end.output, "problem": end.problem}
        await asyncio.to_thread(_write, folder, TemplateState(**{**asdict(state), **found, "ended": True}))


def template_name(eval_file: str, workspace: Workspace) -> str:
    """What tells a template from others: the eval file, what is copied, and what runs before and after all."""
    told = {
        "eval_file": eval_file,
        "template": None if workspace.template is None else str(workspace.template),
        **{name: None if hook is None else [*hook.argv, str(hook.folder)] for name, hook in _of_all(workspace)},
    }
    return digest("workspace template", told).hex()[:16]


def template_states(run_folder: Path) -> Iterator[tuple[Path, TemplateState]]:
    """Those that were made in a run, each with its folder."""
    root = run_folder / FOLDER
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        state = read_state(folder)
        if state is not None:
            yield folder, state


def read_state(folder: Path) -> TemplateState | None:
    """None if there is none that can be read."""
    try:
        value = loads((folder / STATE).read_bytes())
        return TemplateState(**{name: value[name] for name in (each.name for each in fields(TemplateState))})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def copy_tree(source: Path | None, target: Path, left_out: Path | None = None) -> None:
    """Copy a folder without what is in ``.git``, folders of runs, sockets, pipes and devices; links stay links, set-id bits are dropped.
    What root copies gets the owner of the folder that ``target`` is made in. ``source``: None for an empty folder; ``left_out``: a folder
    of it that is not copied. Raises OSError."""
    with open_folder(target.parent, ()) as parent:
        made = make_folder(parent, target.name)
        try:
            if source is not None:
                skipped = _inside(source, left_out)
                with Tree(source) as tree:
                    copy_entries(tree, made, lambda found: _left_out(source, found, skipped))
        finally:
            os.close(made)


def _left_out(source: Path, found: Found, skipped: str | None) -> bool:
    return found.name == LEFT_OUT or found.path == skipped or is_run_folder(f"{source}/{found.path}")


def _inside(source: Path, folder: Path | None) -> str | None:
    """Where a folder is in another one; None if it is not in it."""
    if folder is None or not folder.resolve().is_relative_to(source.resolve()):
        return None
    return os.fspath(folder.resolve().relative_to(source.resolve()))


def _of_all(workspace: Workspace) -> list[tuple[str, Any]]:
    return [(BEFORE_ALL, workspace.before_all), (AFTER_ALL, workspace.after_all)]


def _write(folder: Path, state: TemplateState) -> None:
    with bytes_written_aside(folder / STATE) as file:
        file.write(dumps(asdict(state)) + b"\n")
