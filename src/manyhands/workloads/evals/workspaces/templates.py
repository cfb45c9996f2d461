"""Hooks, which are commands that run before and after tests, and templates of workspaces: a run's own copies, in which ``before_all`` has
run.

``workspace_templates/<digest>/`` in the run folder holds ``workspace/``, of which every workspace is a copy, and ``state.json``, which is
there once ``before_all`` has ended well: then a resumed run takes what is there. When no test is left, ``after_all`` runs in it, and
``workspace/`` is removed; tests that are tried again later have it made anew.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.io.files import bytes_written_aside, make_private
from manyhands.io.search_paths import SearchPath, additions
from manyhands.processes.commands import CommandEnd, CommandRunner, failure_of
from manyhands.processes.templates import PREFIX
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import Found, Tree, make_folder, open_folder
from manyhands.sandboxes.files.trees import copy_tree as copy_entries
from manyhands.sandboxes.project import is_run_folder
from manyhands.workloads.evals.evalfile.contents import Hook, Test, Workspace
from manyhands.workloads.evals.workspaces.changes import LEFT_OUT

BEFORE_ALL, AFTER_ALL, BEFORE_EACH, AFTER_EACH = "before_all", "after_all", "before_each", "after_each"
BEFORE_SECONDS, AFTER_SECONDS = 60.0, 30.0
"""The time limit of a hook that has none of its own."""
MAX_OUTPUT = 8_000
"""Characters that are kept of the end of what a hook printed."""
PATH_VARIABLES = (f"{PREFIX}WORKSPACE", "AGENTV_WORKSPACE_PATH")
"""In the environment of hooks: the workspace."""
Tell = Callable[[str], None]
"""Shows the person a line."""


@dataclass(frozen=True, slots=True)
class HookEnd:
    """How a hook ended."""

    output: str
    """What it printed, standard output before standard error."""
    problem: str | None = None
    """Why it did not end as it should, in one line with the hook's name; None if it did."""


class Hooks:
    """Runs hooks. A hook gets a JSON object on standard input: ``workspace_path``, ``eval_run_id``, and of the test, where it runs for one,
    ``test_id``, ``case_input`` (the question, as text) and ``case_metadata``. It may leave it unread. What it leaves running is ended with
    it."""

    def __init__(
        self, runner: CommandRunner, environ: Mapping[str, str], run_id: str, tell: Tell, around: SearchPath
    ) -> None:
        """``environ``: the real environment, whose secrets are kept out of outputs; ``tell``: shows the commands that are run;
        ``around``: where ``.env`` files are looked for, from the folder upwards in which a hook starts."""
        self._runner = runner
        self._environ = environ
        self._around = around
        self._run_id = run_id
        self._tell = tell

    async def run(self, name: str, hook: Hook, workspace: Path, test: Test | None = None) -> HookEnd:
        """Run a hook to its end or its time limit. Raises ItemError(SANDBOX_LOST) if this machine can't start a further process."""
        if not hook.folder.is_dir():
            return HookEnd("", f"{name}: there is no folder {hook.folder} to start it in")
        try:
            extra = await asyncio.to_thread(additions, hook.folder, self._around, self._environ)
        except UserError as error:
            return HookEnd("", f"{name}: {error}")
        redactor = Redactor.of({**self._environ, **extra})
        limit = hook.seconds or (AFTER_SECONDS if name in (AFTER_ALL, AFTER_EACH) else BEFORE_SECONDS)
        self._tell(f"{name}: {redactor.text(shlex.join(hook.argv))}")
        try:
            end = await self._runner.run(
                hook.argv,
                folder=hook.folder,
                additions={**extra, **dict.fromkeys(PATH_VARIABLES, str(workspace))},
                input=dumps(self._hook_input(workspace, test)) + b"\n",
                timeout=limit,
            )
        except ItemError as error:
            if error.cause is Cause.SANDBOX_LOST:
                raise
            return HookEnd("", f"{name}: {error.message}")
        return _hook_end(name, end, limit, redactor)

    def _hook_input(self, workspace: Path, test: Test | None) -> dict[str, Any]:
        return {
            "workspace_path": str(workspace),
            "test_id": None if test is None else test.id,
            "eval_run_id": self._run_id,
            "case_input": None if test is None else test.question,
            "case_metadata": None if test is None else dict(test.metadata),
        }


def _hook_end(name: str, end: CommandEnd, limit: float, redactor: Redactor) -> HookEnd:
    errors = redactor.text(decode(end.errors))
    printed = redactor.text(decode(end.output))
    both = "\n".join(text.strip("\n") for text in (printed, errors) if text.strip())
    failure = failure_of(end.exit_code, limit if end.exit_code is None else None, errors.strip() or printed)
    return HookEnd(both[-MAX_OUTPUT:], None if failure is None else f"{name}: {failure}")


# --- Templates

FOLDER = "workspace_templates"
TREE = "workspace"
"""The folder that is copied, in its own; and its copy, in the folder of whoever works in it."""
STATE = "state.json"


@dataclass(frozen=True, slots=True)
class TemplateState:
    """What is known of a template, as ``state.json`` holds it."""

    eval_file: str
    """The file whose tests use it."""
    workspace: Workspace
    """Its settings."""
    before_all_output: str | None = None
    """What ``before_all`` printed; None if there is no such hook."""
    after_all_output: str | None = None
    """What ``after_all`` printed; None if there is no such hook, or it did not run yet."""
    ended: bool = False
    """Whether ``after_all`` has had its turn."""
    problem: str | None = None
    """How that failed."""


_STATE: TypeAdapter[TemplateState] = TypeAdapter(TemplateState)


class Templates:
    """The templates of a run."""

    def __init__(self, run_folder: Path, hooks: Hooks) -> None:
        self._run_folder = run_folder.absolute()
        self._hooks = hooks
        self._making: dict[str, asyncio.Task[Path]] = {}

    async def ready(self, eval_file: str, workspace: Workspace) -> Path:
        """The folder to copy, for tests of an eval file; made when it is first requested.

        Raises UserError if ``before_all`` fails, or the template can't be copied: then none of its tests may be executed.
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
        await asyncio.to_thread(_write, folder, TemplateState(eval_file, workspace, output))
        return tree

    async def _finished(self, folder: Path, state: TemplateState) -> None:
        hook, ended = state.workspace.after_all, replace(state, ended=True)
        if hook is not None:
            end = await self._hooks.run(AFTER_ALL, hook, folder / TREE)
            ended = replace(ended, after_all_output=end.output, problem=end.problem)
        await asyncio.to_thread(_write, folder, ended)


def template_name(eval_file: str, workspace: Workspace) -> str:
    """What tells a template from others: the eval file, what is copied, and what runs before and after all."""
    contents = {
        "eval_file": eval_file,
        "template": None if workspace.template is None else str(workspace.template),
        **{name: None if hook is None else [*hook.argv, str(hook.folder)] for name, hook in _of_all(workspace)},
    }
    return digest("workspace template", contents).hex()[:16]


def template_states(run_folder: Path) -> Iterator[tuple[Path, TemplateState]]:
    """The templates that were made in a run, each with its folder."""
    root = run_folder / FOLDER
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        state = read_state(folder)
        if state is not None:
            yield folder, state


def read_state(folder: Path) -> TemplateState | None:
    """The state of a template in its folder; None if there is none that can be read."""
    try:
        return _STATE.validate_json((folder / STATE).read_bytes())
    except (OSError, ValueError):
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
        file.write(dumps(_STATE.dump_python(state, mode="json")) + b"\n")
