"""Hooks, which are commands that run before and after tests, and templates of workspaces: a run's own copies, in which ``before_all`` has
run.

``workspace_templates/<digest>/`` in the run folder holds ``workspace/``, of which every workspace is a copy, and ``state.json``, which is
there once ``before_all`` has ended well: then other processes, and a resumed run, take what is there. When no test is left, ``after_all``
runs in it, and
``workspace/`` is removed; tests that are tried again later have it made anew.

Of a workspace that tests share, ``shared-<number>/`` is what the last of them left, of which the next one works in a copy; what a test
has done that was cut off, or whose target failed, is in nobody's way. With ``static`` targets work in the person's own folder, and
``workspace/`` is a copy of what was in it, if it is ever to be put back.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps, without_surrogates
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.core.text import decode
from manyhands.io.files import bytes_written_aside, make_private
from manyhands.io.search_paths import SearchPath, additions
from manyhands.processes.commands import CommandEnd, CommandRunner, failure_of
from manyhands.processes.templates import PREFIX, Spot, quoted, spots
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import Found, Tree, make_folder, open_folder
from manyhands.sandboxes.files.trees import copy_tree as copy_entries
from manyhands.sandboxes.project import is_run_folder
from manyhands.workloads.evals.evalfile.contents import (
    AFTER_ALL,
    AFTER_EACH,
    BEFORE_ALL,
    BEFORE_EACH,
    Hook,
    Requirements,
    Test,
    Workspace,
)
from manyhands.workloads.evals.workspaces.changes import LEFT_OUT
from manyhands.workloads.evals.workspaces.repositories import Repositories, locked

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
    """Runs hooks. A hook gets a JSON object on standard input: ``workspace_path``, ``eval_run_id``, ``test_id`` (of a hook that runs once:
    ``__before_all__`` or ``__after_all__``), and of the test, where it runs for one, ``case_input`` (the question, as text) and
    ``case_metadata``. It may leave it unread. The same stands for ``{{name}}`` in its command. What it leaves running is ended with it."""

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

    async def run(self, stage: str, settings: Workspace, workspace: Path, test: Test | None = None) -> HookEnd | None:
        """Run the hooks of a stage, each to its end or its time limit; None if there are none. Of those that run before tests none follows
        one that failed. Raises ItemError(SANDBOX_LOST) if this machine can't start a further process."""
        ends: list[HookEnd] = []
        for hook in settings.hooks(stage):
            ends.append(await self._run(stage, hook, workspace, test))
            if ends[-1].problem is not None and stage in (BEFORE_ALL, BEFORE_EACH):
                break
        problems = [end.problem for end in ends if end.problem is not None]
        output = "\n".join(end.output for end in ends if end.output)[-MAX_OUTPUT:]
        return HookEnd(output, "; ".join(problems) or None) if ends else None

    async def _run(self, name: str, hook: Hook, workspace: Path, test: Test | None) -> HookEnd:
        if not hook.folder.is_dir():
            return HookEnd("", f"{name}: there is no folder {hook.folder} to start it in")
        try:
            extra = await asyncio.to_thread(additions, hook.folder, self._around, self._environ)
        except UserError as error:
            return HookEnd("", f"{name}: {error}")
        redactor = Redactor.of({**self._environ, **extra})
        limit = hook.seconds or (AFTER_SECONDS if name in (AFTER_ALL, AFTER_EACH) else BEFORE_SECONDS)
        told = self._hook_input(name, workspace, test)
        try:
            argv = filled_argv(hook.argv, {key: _as_argument(value) for key, value in told.items()})
        except ValueError as error:
            return HookEnd("", f"{name}: {error}")
        self._tell(f"{name}: {redactor.text(shlex.join(argv))}")
        try:
            end = await self._runner.run(
                argv,
                folder=hook.folder,
                additions={**extra, **dict.fromkeys(PATH_VARIABLES, str(workspace))},
                input=dumps(told) + b"\n",
                timeout=limit,
            )
        except ItemError as error:
            if error.cause is Cause.SANDBOX_LOST:
                raise
            return HookEnd("", f"{name}: {error.message}")
        return _hook_end(name, end, limit, redactor)

    def _hook_input(self, stage: str, workspace: Path, test: Test | None) -> dict[str, Any]:
        return {
            "workspace_path": str(workspace),
            "test_id": f"__{stage}__" if test is None else test.id,
            "eval_run_id": self._run_id,
            "case_input": None if test is None else test.question,
            "case_metadata": None if test is None else dict(test.metadata),
        }


_NAMED = re.compile(r"\{\{(\w+)\}\}")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SHELL_LINE = re.compile(r"-[a-z]*c")


def filled_argv(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """A command with values in place of ``{{name}}``; other names stay as they are. In a line for a shell a value is one word, whatever is
    in it. Raises ValueError where no quotation would hold it together."""
    words = [_NAMED.sub(lambda found: values.get(found[1], found[0]), word) for word in argv]
    if len(argv) > 2 and Path(argv[0]).name in _SHELLS and _SHELL_LINE.fullmatch(argv[1]):
        words[2] = _filled_line(argv[2], values)
    return words


def _filled_line(line: str, values: Mapping[str, str]) -> str:
    pieces, end = list[str](), 0
    for found, spot in spots(line, _NAMED):
        if found[1] not in values or spot is Spot.COMMENT:
            continue
        if not spot.safe:
            raise ValueError(f"{found[0]} can't be put into {spot.value}; read it from standard input there")
        pieces += [line[end : found.start()], spot.around(quoted(values[found[1]]))]
        end = found.end()
    return "".join([*pieces, line[end:]])


def _as_argument(value: Any) -> str:
    text = value if isinstance(value, str) else "" if not value else dumps(value).decode()
    return without_surrogates(text).replace("\0", "\ufffd")


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
_SHARED, _NEW = "shared-", "new"
_CHECK_SECONDS = 60.0
MAKING_SECONDS = 3600.0
"""How long a process waits for another one that makes a template."""


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
    secrets: bool = False
    """Whether there are secrets in the settings, which are not written."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """The ids of the commits that are checked out, by the paths of their repositories."""


_STATE: TypeAdapter[TemplateState] = TypeAdapter(TemplateState)


class Templates:
    """The templates of a run."""

    def __init__(self, run_folder: Path, hooks: Hooks, repositories: Repositories, runner: CommandRunner) -> None:
        self._run_folder = run_folder.absolute()
        self._hooks = hooks
        self._repositories = repositories
        self._runner = runner
        self._making: dict[str, asyncio.Task[Path]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def ready(self, eval_file: str, workspace: Workspace) -> Path:
        """The folder to copy, for tests of an eval file, or the one to work in; made when it is first requested.

        Raises UserError if ``before_all`` fails, or the template can't be copied: then none of its tests may be executed; ItemError if a
        repository can't be had.
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

    async def finish(self, known: Callable[[str], Workspace | None], *, keep: bool, keep_shared: bool) -> None:
        """No test is left: run what is to run after all of them. ``known``: the settings of a template, by its name, with the secrets that
        are not recorded; ``keep``: the folders stay; ``keep_shared``: those in which tests worked one after the other."""
        for folder, state in template_states(self._run_folder):
            if not state.ended:
                secret = state.secrets and bool(state.workspace.hooks(AFTER_ALL))
                workspace = await asyncio.to_thread(known, folder.name) if secret else state.workspace
                await self._finished(folder, state, workspace)
            if not keep:
                await asyncio.to_thread(remove_tree, folder / TREE)
            if not keep_shared:
                for each in _shared(folder):
                    await asyncio.to_thread(remove_tree, each)

    # --- Shared workspaces

    @asynccontextmanager
    async def turn(self, eval_file: str, workspace: Workspace) -> AsyncIterator[None]:
        """While a test has a shared workspace for itself."""
        key = str(workspace.path) if workspace.in_place else template_name(eval_file, workspace)
        async with self._turns.setdefault(key, asyncio.Lock()):
            yield

    async def latest(self, eval_file: str, workspace: Workspace) -> Path:
        """What the next test finds in a shared workspace, as a folder to copy. Raises as ``ready``."""
        first = await self.ready(eval_file, workspace)
        return next(iter(_shared(self._folder(eval_file, workspace))), first)

    async def pass_on(self, eval_file: str, workspace: Workspace, tree: Path | None) -> None:
        """Have the next test find what is in a folder; None: the beginning. It is all there or nothing, whenever this is cut off. Raises
        OSError."""
        folder = self._folder(eval_file, workspace)
        before = _shared(folder)
        if tree is not None:
            number = int(before[0].name.removeprefix(_SHARED)) + 1 if before else 1
            await asyncio.to_thread(remove_tree, folder / _NEW)
            await asyncio.to_thread(copy_tree, tree, folder / _NEW, whole=True)
            await asyncio.to_thread(os.rename, folder / _NEW, folder / f"{_SHARED}{number}")
        for each in before:
            await asyncio.to_thread(remove_tree, each)

    def first(self, eval_file: str, workspace: Workspace) -> Path:
        """The copy of what was in a shared workspace before its first test."""
        return self._folder(eval_file, workspace) / TREE

    def _folder(self, eval_file: str, workspace: Workspace) -> Path:
        return self._run_folder / FOLDER / template_name(eval_file, workspace)

    # --- How one is made

    async def _made(self, name: str, eval_file: str, workspace: Workspace) -> Path:
        folder = self._run_folder / FOLDER
        await asyncio.to_thread(make_private, folder)
        async with locked(folder / f"{name}.lock", MAKING_SECONDS):
            return await self._made_alone(folder / name, eval_file, workspace)

    async def _made_alone(self, folder: Path, eval_file: str, workspace: Workspace) -> Path:
        in_place, state = workspace.in_place, read_state(folder)
        tree = workspace.path if in_place and workspace.path is not None else folder / TREE
        if state is not None and not state.ended and tree.is_dir():
            return tree
        source = workspace.template and workspace.template.resolve()  # a person's own, which may well be a link
        data = self._run_folder.parent
        try:
            await asyncio.to_thread(remove_tree, folder)
            await asyncio.to_thread(folder.mkdir)
            if in_place:
                await asyncio.to_thread(_begun, source, tree, data)
            else:
                await asyncio.to_thread(copy_tree, source, tree, data)
        except OSError as error:
            what = f"workspace {tree} can't be used" if in_place else f"template {workspace.template} can't be copied"
            raise UserError(f"{eval_file}: the workspace's {what}: {error}") from error
        commits = {
            repo.path: await self._repositories.check_out(repo, tree)
            for repo in workspace.repos or ()
            if not (in_place and (tree / repo.path).exists())
        }
        await self._check(eval_file, workspace.requirements, tree)
        end = await self._hooks.run(BEFORE_ALL, workspace, tree)
        if end is not None and end.problem is not None:
            raise UserError(f"{eval_file}: {end.problem}")
        if not tree.is_dir():
            raise UserError(f"{eval_file}: {BEFORE_ALL}: its workspace is gone")
        if in_place and (workspace.resets(BEFORE_EACH) or workspace.resets(AFTER_EACH)):
            await asyncio.to_thread(copy_tree, tree, folder / TREE, data)
        output = None if end is None else end.output
        await asyncio.to_thread(_write, folder, TemplateState(eval_file, workspace, output, commits=commits))
        return tree

    async def _check(self, eval_file: str, wanted: Requirements | None, tree: Path) -> None:
        """Raises UserError for what is not installed."""
        if wanted is None:
            return
        lacking = [f"the program {name}" for name in wanted.commands if shutil.which(name) is None]
        for name in wanted.modules:
            words = ["python3", "-c", f"import {name}"]
            try:
                end = await self._runner.run(words, folder=tree, additions={}, timeout=_CHECK_SECONDS)
            except ItemError:
                lacking.append("the program python3")
                break
            if end.exit_code != 0:
                lacking.append(f"the Python module {name}")
        if lacking:
            raise UserError(f"{eval_file}: workspace.env requires what is not installed: {', '.join(lacking)}")

    async def _finished(self, folder: Path, state: TemplateState, workspace: Workspace | None) -> None:
        ended = replace(state, ended=True)
        if workspace is None:
            problem = f"{AFTER_ALL}: didn't run: the workspace's settings hold a secret, which is not recorded"
            await asyncio.to_thread(_write, folder, replace(ended, problem=problem))
            return
        tree = workspace.path if workspace.in_place and workspace.path is not None else folder / TREE
        end = await self._hooks.run(AFTER_ALL, workspace, next(iter(_shared(folder)), tree))
        if end is not None:
            ended = replace(ended, after_all_output=end.output, problem=end.problem)
        await asyncio.to_thread(_write, folder, ended)


def _shared(folder: Path) -> list[Path]:
    """What tests have left in a shared workspace, the latest first; it may be more than one where something was cut off."""
    found = [each for each in folder.glob(f"{_SHARED}*") if each.name.removeprefix(_SHARED).isdecimal()]
    return sorted(found, key=lambda each: int(each.name.removeprefix(_SHARED)), reverse=True)


def _begun(source: Path | None, tree: Path, data_folder: Path) -> None:
    """An existing folder, as tests find it: if there is none yet, or an empty one, with what is in the template."""
    if tree.is_dir() and any(tree.iterdir()):
        return
    tree.parent.mkdir(parents=True, exist_ok=True)
    copy_tree(source, tree, data_folder)


def template_name(eval_file: str, workspace: Workspace) -> str:
    """What tells a template from others: the eval file, what is copied, what runs before and after all, and what is shared by whom."""
    contents: dict[str, Any] = {
        "eval_file": eval_file,
        "template": None if workspace.template is None else str(workspace.template),
        **{
            name: None if hook is None or workspace.hooks_enabled is False else _as_json(hook)
            for name, hook in ((BEFORE_ALL, workspace.before_all), (AFTER_ALL, workspace.after_all))
        },
    }
    own = [[name, _as_json(hook)] for _, name, hook in workspace.of_targets if name in (BEFORE_ALL, AFTER_ALL)]
    more: dict[str, Any] = {
        "of_targets": own,
        "repos": [list(astuple(repo)) for repo in workspace.repos or ()],
        "requirements": workspace.requirements and list(astuple(workspace.requirements)),
        "shared": [workspace.target or "", str(workspace.path or "")] if workspace.shared else None,
    }
    contents |= {name: value for name, value in more.items() if value}  # templates of earlier versions keep their names
    return digest("workspace template", contents).hex()[:16]


def _as_json(hook: Hook) -> list[str]:
    return [*hook.argv, str(hook.folder)]


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


def copy_tree(source: Path | None, target: Path, left_out: Path | None = None, *, whole: bool = False) -> None:
    """Copy a folder without what is in ``.git``, folders of runs, sockets, pipes and devices; links stay links, set-id bits are dropped.
    What root copies gets the owner of the folder that ``target`` is made in. ``source``: None for an empty folder; ``left_out``: a folder
    of it that is not copied; ``whole``: it is one of ours, whose repositories are copied. Raises OSError."""
    with open_folder(target.parent, ()) as parent:
        made = make_folder(parent, target.name)
        try:
            if source is not None:
                skipped = inside(source, left_out)
                with Tree(source) as tree:
                    copy_entries(tree, made, lambda found: _left_out(source, found, skipped, whole))
        finally:
            os.close(made)


def _left_out(source: Path, found: Found, skipped: str | None, whole: bool) -> bool:
    if found.name == LEFT_OUT:
        return not whole
    return found.path == skipped or is_run_folder(f"{source}/{found.path}")


def inside(source: Path, folder: Path | None) -> str | None:
    """Where a folder is in another one; None if it is not in it."""
    if folder is None or not folder.resolve().is_relative_to(source.resolve()):
        return None
    return os.fspath(folder.resolve().relative_to(source.resolve()))


def _write(folder: Path, state: TemplateState) -> None:
    plain = _STATE.dump_python(state, mode="json")
    settings = KNOWN.json(plain["workspace"])
    plain |= {"workspace": settings, "secrets": state.secrets or settings != plain["workspace"]}
    with bytes_written_aside(folder / STATE) as file:
        file.write(dumps(plain) + b"\n")
