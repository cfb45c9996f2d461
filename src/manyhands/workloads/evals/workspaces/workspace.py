"""Workspaces: the folder in which a target answers one test.

Every sample of a test has one of its own with every target: a copy of the template, made afresh whenever the target is run from the
beginning. It lies in the attempt's folder, so it is there as long as graders may look at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import Outcome
from manyhands.core.redaction import Redactor
from manyhands.engine.contract import Context, Effect
from manyhands.engine.workspaces import KEEP
from manyhands.io.files import make_private
from manyhands.processes.commands import CommandRunner
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import NotPlain, open_folder
from manyhands.workloads.evals.evalfile.contents import Test, Workspace
from manyhands.workloads.evals.workspaces.changes import file_changes
from manyhands.workloads.evals.workspaces.templates import AFTER_EACH, BEFORE_EACH, TREE, Hooks, Templates, copy_tree

STEP = "workspace"
"""The kind of a step that makes a workspace, looks at what changed in it, or runs a hook."""
BASELINE = "baseline"
"""The folder beside a workspace with what was in it before the target came, where that is more than its template."""
WORKSPACE_KEY = "workspace"
"""The key of an item's record that says where its workspace is in the run folder."""
_SCRATCH = "changes"
_OUTPUT = "workspace"
"""The key in the output of a step in which a target worked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What graders get to know of a workspace."""

    path: Path | None
    """None if it is not there any more."""
    changes: str | None
    """The diff of what the target did; None where it is not known."""


@dataclass(frozen=True, slots=True)
class WorkspaceTools:
    """What workspaces are made with, in one session."""

    templates: Templates
    hooks: Hooks
    runner: CommandRunner
    redactor: Redactor
    live: bool = True
    """Whether anything may happen outside."""


class TestWorkspace:
    """The workspace of one item. ``path``: its folder, absolute."""

    __test__ = False  # it is no test of pytest's

    def __init__(
        self, context: Context, eval_file: str, test: Test, workspace: Workspace, tools: WorkspaceTools
    ) -> None:
        self._folder = context.workspace.absolute()
        self.path = self._folder / TREE
        self._scope = context.scope(STEP)
        self._after_scope = context.scope(AFTER_EACH)
        self._new_attempt = context.new_attempt_needed
        self._eval_file = eval_file
        self._test = test
        self._settings = workspace
        self._tools = tools
        self._found: dict[str, Any] = {}
        self._notices: list[str] = []
        self._begun = self._answered = self._open = False

    @property
    def seen(self) -> Seen:
        return Seen(self.path, self._found.get("file_changes"))

    def around(self, effect: Callable[[], Awaitable[Effect]]) -> Callable[[], Awaitable[Effect]]:
        """An effect in which a target answers, with a fresh workspace before it and a look at that behind. ``recall`` takes its output."""

        async def with_workspace() -> Effect:
            made = await self._make()
            self._take(made)
            self._open = True
            done = await effect()
            self._open = False
            return Effect({**done.output, _OUTPUT: {**made, **await self._look()}}, done.usage)

        return with_workspace

    async def recall(self, output: Mapping[str, Json]) -> None:
        """Take what is known from the output of ``around``'s effect."""
        self._take(output[_OUTPUT])
        self._answered = True
        await self._forget_baseline()
        self.check()

    async def begin(self) -> None:
        """A fresh workspace, for a target whose answer takes several steps; these go on in it after an interruption."""

        async def effect() -> Effect:
            return Effect(await self._make())

        self._take(await self._scope.step(STEP, {"test": self._test.id}, effect))
        self._begun = True
        self.check()

    async def end(self) -> None:
        """Look at what has changed, for the like."""

        async def effect() -> Effect:
            return Effect(await self._look())

        self._take(await self._scope.step(STEP, {"changes": True}, effect))
        self._answered = True
        await self._forget_baseline()

    async def settled(self, execute: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """The outcome of the test, answered and graded by ``execute``, with what is recorded of the workspace; what runs after each test
        has run. Raises UserError if the template can't be made, and ``execute``'s ItemError with the same added to its record."""
        if self._tools.live:
            await self._tools.templates.ready(self._eval_file, self._settings)
        try:
            outcome = await execute()
        except ItemError as failure:
            await self._after(failure)
            record = self._added(failure.record)
            raise ItemError(failure.cause, failure.message, retry_after=failure.retry_after, record=record) from failure
        await self._after()
        return replace(outcome, record=self._added(outcome.record))

    def check(self) -> None:
        """Raises what starts a new attempt if the workspace that recorded steps worked in is gone."""
        if self._tools.live and not self.path.is_dir():
            raise self._new_attempt("its workspace is gone")

    async def _after(self, failure: ItemError | None = None) -> None:
        """Run what runs after each test, if that is due. ``failure``: what ended the test's attempt."""
        if self._open:  # the target failed, and what it has changed until then is not known yet
            self._take(await self._look())
            await self._forget_baseline()
        hook = self._settings.after_each
        if hook is None:
            return

        async def effect() -> Effect:
            end = await self._tools.hooks.run(AFTER_EACH, hook, self.path, self._test)
            return Effect({"after_each_output": end.output, "notices": [end.problem] if end.problem else []})

        if self._open:  # nothing of this is recorded, and all of it is done anew if the test is tried again
            self._take((await effect()).output)
        elif self._answered or (self._begun and failure is not None and _ends(failure.cause)):
            self._take(await self._after_scope.step(STEP, {"hook": AFTER_EACH}, effect))

    def keep(self) -> None:
        """Have it stay when the item has ended."""
        if self._tools.live and self._folder.is_dir():
            keep_folder(self._folder)

    async def _make(self) -> dict[str, Any]:
        source = await self._tools.templates.ready(self._eval_file, self._settings)
        try:
            await asyncio.to_thread(fresh_copy, source, self.path)
            output = await self._before_each()
            await asyncio.to_thread(remove_tree, self._folder / BASELINE)
            if self._settings.before_each is not None:  # else it is as its template
                await asyncio.to_thread(fresh_copy, self.path, self._folder / BASELINE)
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"the workspace can't be made: {error}") from error
        return {"before_each_output": output}

    async def _before_each(self) -> str | None:
        hook = self._settings.before_each
        if hook is None:
            return None
        end = await self._tools.hooks.run(BEFORE_EACH, hook, self.path, self._test)
        if end.problem is not None:
            self._found["before_each_output"] = end.output
            raise ItemError(Cause.TARGET_ERROR, end.problem)
        return end.output

    async def _look(self) -> dict[str, Any]:
        await asyncio.to_thread(make_sure, self.path)
        before = self._folder / BASELINE
        if self._settings.before_each is None:
            before = await self._tools.templates.ready(self._eval_file, self._settings)
        changes, notices = await workspace_changes(before, self._folder, self._tools)
        return {"file_changes": changes, "notices": notices}

    async def _forget_baseline(self) -> None:
        if self._tools.live and self._settings.before_each is not None:
            await asyncio.to_thread(remove_tree, self._folder / BASELINE)

    def _added(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record with what is known of the workspace, and its path in the run folder."""
        notices = [*(record.get("notices") or ()), *self._notices]
        return {**record, **self._found, "notices": notices, WORKSPACE_KEY: "/".join(self.path.parts[-3:])}

    def _take(self, output: Mapping[str, Any]) -> None:
        self._notices += output.get("notices") or []
        self._found |= {name: value for name, value in output.items() if name != "notices" and value is not None}


async def workspace_changes(before: Path, folder: Path, tools: WorkspaceTools) -> tuple[str | None, list[str]]:
    """The diff from a folder to the workspace in another one, None if that is not known; and notices."""
    if not before.is_dir():
        return None, ["what changed in the workspace is not known: the copy from before is gone"]
    try:
        changes = await file_changes(before, folder / TREE, folder / _SCRATCH, tools.runner)
    except (OSError, RecursionError) as error:  # folders too deep, or closed to us
        return None, [f"what changed in the workspace is not known: {error}"]
    return tools.redactor.text(changes), []


def with_template(workspace: Workspace | None, template: Path | None) -> Workspace | None:
    """A test's workspace with the target's own template, which counts more than the test's. None if neither says anything."""
    return workspace if template is None else replace(workspace or Workspace(), template=template)


def fresh_copy(source: Path, target: Path) -> None:
    """A copy of a folder in place of whatever is there. Raises OSError."""
    remove_tree(target)
    make_private(target.parent)
    copy_tree(source, target)


def make_sure(tree: Path) -> None:
    """A target may have removed its workspace, or put something else in its place: then it is an empty folder."""
    tree.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open_folder(tree, ()):
            return
    except (FileNotFoundError, NotADirectoryError, NotPlain):
        remove_tree(tree)
        tree.mkdir()
    except OSError:  # for whoever reads it to find
        return


def keep_folder(folder: Path) -> None:
    """Have an attempt's folder stay."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KEEP).touch()


def _ends(cause: Cause) -> bool:
    """Whether a conversation is over with a failure; after others it goes on where it was, if the test is tried again."""
    rule = FAILURES[cause]
    return rule.fresh_attempt or not (rule.retried or rule.stops_run or cause is Cause.TIMEOUT)
