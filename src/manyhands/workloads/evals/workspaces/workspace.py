"""Workspaces: the folder in which a target answers one test.

Every sample of a test has one of its own with every target: a copy of the template, made afresh whenever the target is run from the
beginning. It lies in the attempt's folder, so it is there as long as graders may look at it.

Where tests share one, they have it one after the other, and each works in a copy of what the last one left; or, where the person names an
existing folder, in that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
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
from manyhands.workloads.evals.evalfile.contents import AFTER_EACH, BEFORE_EACH, Test, Workspace
from manyhands.workloads.evals.workspaces.changes import file_changes, put_back
from manyhands.workloads.evals.workspaces.templates import TREE, Hooks, Templates, copy_tree, inside

STEP = "workspace"
"""The kind of a step that makes a workspace, looks at what changed in it, or runs a hook."""
BASELINE = "baseline"
"""The folder beside a workspace with what was in it before the target came, where that is more than its template."""
WORKSPACE_KEY = "workspace"
"""The key of an item's record that says where its workspace is in the run folder."""
SCRATCH = "changes"
"""The folder beside a workspace in which its changes are looked at."""
_SHARED = "shared"
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
    data_folder: Path
    """In which the run is."""
    live: bool = True
    """Whether anything may happen outside."""


class TestWorkspace:
    """The workspace of one item. ``path``: its folder, absolute."""

    __test__ = False  # it is no test of pytest's

    def __init__(
        self, context: Context, eval_file: str, test: Test, workspace: Workspace, tools: WorkspaceTools
    ) -> None:
        self._folder = context.workspace.absolute()
        in_place = workspace.in_place and workspace.path is not None
        self.path = workspace.path if in_place and workspace.path is not None else self._folder / TREE
        self._left_out = inside(self.path, tools.data_folder) if in_place else None
        self._scope = context.scope(STEP)
        self._after_scope = context.scope(AFTER_EACH)
        self._shared_scope = context.scope(_SHARED)
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
        templates = self._tools.templates
        shared = self._settings.shared and self._tools.live
        async with templates.turn(self._eval_file, self._settings) if shared else nullcontext():
            if self._tools.live:
                with suppress(ItemError):  # which ends the test when it wants its workspace
                    await templates.ready(self._eval_file, self._settings)
            try:
                outcome = await execute()
            except ItemError as failure:
                await self._after(failure)
                raise ItemError(
                    failure.cause,
                    failure.message,
                    retry_after=failure.retry_after,
                    record=self._added(failure.record),
                ) from failure
            await self._after()
            await self._pass_on()
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
        if not (self._settings.hooks(AFTER_EACH) or self._puts_back(AFTER_EACH)):
            return

        async def effect() -> Effect:
            notices = [] if not self._puts_back(AFTER_EACH) else await self._put_back()
            end = await self._tools.hooks.run(AFTER_EACH, self._settings, self.path, self._test)
            if end is None:
                return Effect({"notices": notices})
            return Effect(
                {"after_each_output": end.output, "notices": notices + ([end.problem] if end.problem else [])}
            )

        if self._open:  # nothing of this is recorded, and all of it is done anew if the test is tried again
            self._take((await effect()).output)
        elif self._answered or (self._begun and failure is not None and _ends(failure.cause)):
            self._take(await self._after_scope.step(STEP, {"hook": AFTER_EACH}, effect))

    def _puts_back(self, stage: str) -> bool:
        """Whether the workspace is put back to its beginning: one that no other test has needs no such thing."""
        return self._settings.shared and self._settings.resets(stage)

    async def _put_back(self) -> list[str]:
        """Notices, if that failed."""
        first = self._tools.templates.first(self._eval_file, self._settings)
        try:
            if self._settings.in_place:
                await asyncio.to_thread(put_back, first, self.path, self._left_out)
            else:
                await asyncio.to_thread(fresh_copy, first, self.path)
        except (OSError, RecursionError) as error:
            return [f"the workspace can't be put back: {error}"]
        return []

    async def _pass_on(self) -> None:
        """Leave a shared workspace, as it is now, to the next test."""
        if not self._settings.shared or self._settings.in_place or not self._answered:
            return

        async def effect() -> Effect:
            try:
                await self._tools.templates.pass_on(self._eval_file, self._settings, self.path)
            except OSError as error:
                return Effect({"notices": [f"the next test does not find this one's workspace: {error}"]})
            return Effect({})

        self._take(await self._shared_scope.step(STEP, {"shared": True}, effect))

    def keep(self) -> None:
        """Have it stay when the item has ended."""
        if self._tools.live and not self._settings.in_place and self._folder.is_dir():
            keep_folder(self._folder)

    async def _make(self) -> dict[str, Any]:
        templates, settings = self._tools.templates, self._settings
        source = await templates.ready(self._eval_file, settings)
        if settings.shared and not settings.in_place:
            again = self._puts_back(BEFORE_EACH)
            source = source if again else await templates.latest(self._eval_file, settings)
        try:
            if not settings.in_place:
                await asyncio.to_thread(fresh_copy, source, self.path)
            elif self._puts_back(BEFORE_EACH):
                await asyncio.to_thread(put_back, templates.first(self._eval_file, settings), self.path, self._left_out)
            output = await self._before_each()
            await asyncio.to_thread(remove_tree, self._folder / BASELINE)
            if self._has_baseline:
                await asyncio.to_thread(baseline, self.path, self._folder / BASELINE, self._tools.data_folder)
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"the workspace can't be made: {error}") from error
        return {"before_each_output": output}

    @property
    def _has_baseline(self) -> bool:
        """Whether what was in it before the target came is more than its template."""
        return bool(self._settings.hooks(BEFORE_EACH)) or self._settings.shared

    async def _before_each(self) -> str | None:
        end = await self._tools.hooks.run(BEFORE_EACH, self._settings, self.path, self._test)
        if end is not None and end.problem is not None:
            self._found["before_each_output"] = end.output
            raise ItemError(Cause.TARGET_ERROR, end.problem)
        return None if end is None else end.output

    async def _look(self) -> dict[str, Any]:
        if not self._settings.in_place:
            await asyncio.to_thread(make_sure, self.path)
        before = self._folder / BASELINE
        if not self._has_baseline:
            before = await self._tools.templates.ready(self._eval_file, self._settings)
        scratch = self._folder / SCRATCH
        changes, notices = await workspace_changes(before, self.path, scratch, self._tools, self._left_out)
        return {"file_changes": changes, "notices": notices}

    async def _forget_baseline(self) -> None:
        if self._tools.live and self._has_baseline:
            await asyncio.to_thread(remove_tree, self._folder / BASELINE)

    def _added(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record with what is known of the workspace, and its path in the run folder."""
        notices = [*(record.get("notices") or ()), *self._notices]
        path = str(self.path) if self._settings.in_place else "/".join(self.path.parts[-3:])
        return {**record, **self._found, "notices": notices, WORKSPACE_KEY: path}

    def _take(self, output: Mapping[str, Any]) -> None:
        self._notices += output.get("notices") or []
        self._found |= {name: value for name, value in output.items() if name != "notices" and value is not None}


async def workspace_changes(
    before: Path, tree: Path, scratch: Path, tools: WorkspaceTools, left_out: str | None = None
) -> tuple[str | None, list[str]]:
    """The diff from a folder to a workspace, None if that is not known; and notices. ``scratch``: a folder that is made for it, and
    removed; ``left_out``: a folder of the workspace that is not looked at."""
    if not before.is_dir():
        return None, ["what changed in the workspace is not known: the copy from before is gone"]
    try:
        changes = await file_changes(before, tree, scratch, tools.runner, left_out=left_out)
    except (OSError, RecursionError) as error:  # folders too deep, or closed to us
        return None, [f"what changed in the workspace is not known: {error}"]
    return tools.redactor.text(changes), []


def with_template(workspace: Workspace | None, template: Path | None) -> Workspace | None:
    """A test's workspace with the target's own template, which counts more than the test's. None if neither says anything."""
    return workspace if template is None else replace(workspace or Workspace(), template=template)


def fresh_copy(source: Path, target: Path) -> None:
    """A copy of one of our folders in place of whatever is there. Raises OSError."""
    remove_tree(target)
    make_private(target.parent)
    copy_tree(source, target, whole=True)


def baseline(source: Path, target: Path, data_folder: Path) -> None:
    """A copy of what is compared in a workspace. Raises OSError."""
    make_private(target.parent)
    copy_tree(source, target, data_folder)


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
