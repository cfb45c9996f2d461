"""What is certain to go wrong once an evaluation runs, found before anything is made: targets and judges that can't be used or whose health
check fails, tests that nobody would judge, workspaces that a command can't have which answers all tests at once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from yarl import URL

from manyhands.agents.toolset_tools import ToolOffer
from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.engine.limits.waits import MIN_SECONDS, Wait
from manyhands.io.dotenv_files import additions, environment
from manyhands.io.findings import Findings
from manyhands.io.search_paths import Surroundings
from manyhands.processes.commands import CommandRunner, failure_of
from manyhands.processes.python_functions import load_function
from manyhands.processes.strays import process_mark
from manyhands.processes.templates import CommandTemplate, missing
from manyhands.sandboxes.selection import choose_backend
from manyhands.workloads.evals.targets.choice import Choice, Group, Survey
from manyhands.workloads.evals.targets.command_lines import Values
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.kinds import (
    AgentSettings,
    CliSettings,
    Healthcheck,
    ModelSettings,
    PythonSettings,
    TargetSettings,
)
from manyhands.workloads.evals.workspaces.hooks import AFTER_EACH, BEFORE_EACH

TO_HOLD = "criteria or an expected output to hold the answer against"
NO_JUDGE = "no judge is configured (judge_target of its target, or --judge_target)"


class TargetCheck:
    """Looks at the settings of targets, each once. ``around``: where the command was given; ``environ``: the real environment."""

    def __init__(self, around: Surroundings, environ: Mapping[str, str]) -> None:
        self._around = around
        self._environ = environ
        self._found: dict[tuple[str, str, str], TargetSettings | None] = {}

    def settings(self, target: Target, findings: Findings) -> TargetSettings | None:
        """A target's settings; None if it can't be used, and then ``findings`` says why."""
        key = (str(target.place), str(target.folder), target.name)
        if key not in self._found:
            self._found[key] = None
            with findings.catching():
                self._found[key] = target.resolved(self.environ_of(target)).settings
        return self._found[key]

    def asked(self, target: Target, findings: Findings, *, hooked: bool = False) -> None:
        """Of a target that is put to tests. ``hooked``: it works in workspaces, where hooks may make what it needs."""
        settings = self.settings(target, findings)
        with findings.catching():
            match settings:
                case PythonSettings():
                    load_function(settings.function, settings.folder, target.at("function").error)
                case AgentSettings():
                    _check_tools(settings, target)
                case CliSettings() if not hooked and settings.workspace_template is None:
                    command = settings.command
                    problem = missing(command.template.line or command.template.words, command.folder, self._environ)
                    if problem is not None:
                        written = next(key for key in ("command", "executable", "provider") if key in target.settings)
                        raise target.at(written).error(problem)

    def judging(self, target: Target, findings: Findings) -> None:
        """Of a target that has to judge."""
        settings = self.settings(target, findings)
        if settings is not None and not isinstance(settings, ModelSettings):
            findings.problem(target.place, f"is of kind {target.kind} and can't judge; a judge is a model")

    def environ_of(self, target: Target) -> dict[str, str]:
        """The variables that its settings may name."""
        return environment(target.folder, self._around, self._environ)


def _check_tools(settings: AgentSettings, target: Target) -> None:
    """Raises UserError for an unknown toolset, and for a sandbox that can't be used here."""
    options = settings.options
    if options.mcp_config is not None:
        return  # its tools are known when its servers run
    try:
        tools = ToolOffer.recorded(None).tools(tuple(options.toolsets or ()))
        if any(tool.changes_world for tool in tools):
            choose_backend(options.sandbox, asks_for_image=False)
    except UserError as error:
        raise target.place.error(str(error)) from None


# --- Judges


@dataclass(frozen=True, slots=True)
class Judging:
    """Who judges the answers to an eval file's tests. ``own``: of each target that answers, by name, who judges its answers, None if nobody
    does; ``known``: those that graders may name; ``ungraded``: tests without graders and judges are fine; ``workspaces``: targets are run,
    so there may be some."""

    choice: Choice
    own: Mapping[str, Target | None]
    known: Mapping[str, Target]
    ungraded: bool
    workspaces: bool

    def problems(self, survey: Survey) -> Iterator[str]:
        """What is wrong: a line for each test that nothing would grade, and for each grader that could not judge."""
        for group in survey.groups:
            wrong = list(self._without_graders(group) if not group.graded else self._graders(group))
            yield from (test.place.says(f"{who}test {test.id!r} {what}") for test in group.tests for who, what in wrong)

    def needed(self, survey: Survey) -> list[Target]:
        """The judges that will be asked."""
        found: dict[str, Target] = {}
        for group in survey.groups:
            own = self._own(group)
            judges = [
                judge
                for need in group.needs
                if need.certain
                for judge in (own if need.target is None else [self.known.get(need.target)])
            ]
            if not group.graded and None not in own:
                judges += own
            found.update((judge.name, judge) for judge in judges if judge is not None)
        return list(found.values())

    def _own(self, group: Group) -> list[Target | None]:
        return [self.own.get(name) for name in self.choice.of(group.targets)]

    def _without_graders(self, group: Group) -> Iterator[tuple[str, str]]:
        if None not in self._own(group):
            if not group.told:
                yield "", f"has neither graders nor {TO_HOLD}"
        elif not self.ungraded:
            yield "", f"has no graders, and {NO_JUDGE}; --allow_ungraded runs it without a score"

    def _graders(self, group: Group) -> Iterator[tuple[str, str]]:
        for need in (need for need in group.needs if need.certain):
            who = f"grader {need.grader!r} of "
            if need.target is None and None in self._own(group):
                yield who, f"asks a judge, and {NO_JUDGE}"
            elif need.bare and not group.told:
                yield who, f"judges without a prompt, and there are no {TO_HOLD}"
            elif need.workspace and not self._all_placed(group):
                yield who, "looks at a workspace, and there is none: give the target one, or the grader a target"

    def _all_placed(self, group: Group) -> bool:
        if not self.workspaces:
            return False
        targets = {target.name: target for target in self.choice.targets}
        asked = [targets[name] for name in self.choice.of(group.targets)]
        return group.placed or all(target.settings.get("workspace_template") is not None for target in asked)


# --- At the start of a run


async def check_usable(
    targets: Iterable[Target],
    judges: Iterable[Target],
    here: Path,
    environ: Mapping[str, str],
    notice: Callable[[str], None] = lambda text: None,
    *,
    patience: float = MIN_SECONDS,
) -> None:
    """Look at ``targets`` that will be questioned and ``judges`` that will be asked, and ask those that say how whether they can do their
    work, once each. ``here``: the folder where the evaluation was given; ``notice`` is told of those that
    take more than ``patience`` seconds to say so.

    Raises UserError with a line for everything that is wrong.
    """
    check, findings = TargetCheck(Surroundings.of(here), environ), Findings()
    for judge in judges:
        check.judging(judge, findings)
    async with AsyncExitStack() as stack:
        runner: CommandRunner | None = None
        for target in targets:
            settings = check.settings(target, findings)
            health = settings.healthcheck if isinstance(settings, CliSettings) else None
            if health is None:
                continue
            if runner is None and health.url is None:
                mark = process_mark(secrets.token_hex(8))
                runner = await stack.enter_async_context(CommandRunner.opened(mark, environ))
            found = check.environ_of(target)
            extra = additions(target.folder, Surroundings.of(here), environ)
            asked = Health(health, runner, eval_file=target.eval_file, environ=found, additions=extra)
            problem = await _told(asked.problem(), health.seconds, target.name, notice, patience)
            if problem is not None:
                findings.problem(target.at("healthcheck"), f"target {target.name!r} can't be used: {problem}")
    if findings.problems:
        raise UserError("\n".join(findings.problems))


async def _told(
    asked: Coroutine[None, None, str | None],
    seconds: float,
    name: str,
    notice: Callable[[str], None],
    patience: float,
) -> str | None:
    """What a target says of itself. ``seconds``: what it may take for that."""
    clock = SystemClock()
    began, answer = clock.now(), asyncio.ensure_future(asked)
    done, _ = await asyncio.wait([answer], timeout=patience)
    if not done:
        wait = Wait(f"the healthcheck of target {name!r} has not ended", began, began + seconds, 1, "target")
        notice(wait.text(clock.now()))
    return await answer


class Health:
    """A target's health. However often and by however many it is asked for, the check is made once."""

    def __init__(
        self,
        check: Healthcheck,
        runner: CommandRunner | None = None,
        *,
        eval_file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        additions: Mapping[str, str] | None = None,
    ) -> None:
        """``runner``: starts the command, if the check is one; ``eval_file``: what its placeholders say of it; ``environ``: whose secrets
        are kept out of what is said; ``additions``: to the environment of the command."""
        self._redactor = Redactor.of(environ or {})
        self._check = check
        self._runner = runner
        self._eval_file = eval_file
        self._additions = additions or {}
        self._task: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """Why the target can't be used, in one line; None if it can."""
        if self._task is None:
            self._task = asyncio.create_task(self._found())
        problem = await asyncio.shield(self._task)
        return None if problem is None else self._redactor.text(problem)

    async def _found(self) -> str | None:
        check = self._check
        if check.url is not None:
            return await _problem_at(check.url, check.seconds)
        if self._runner is None or check.template is None:
            raise ValueError("a command can't be checked without a runner")
        return await _problem_of(check.template, check, self._runner, self._eval_file, self._additions)


async def _problem_at(url: str, seconds: float) -> str | None:
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        shown = _without_secrets(URL(url))
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            status = response.status
    except TimeoutError:
        return f"the healthcheck at {shown} timed out after {seconds:g} s"
    except (aiohttp.InvalidURL, ValueError):
        return "the healthcheck's url can't be used: it needs to be like http://HOST/PATH"
    except (aiohttp.ClientError, OSError) as error:
        return f"the healthcheck at {shown} failed: {str(error) or type(error).__name__}"
    return None if 200 <= status < 300 else f"the healthcheck at {shown} failed: it answers with status {status}"


async def _problem_of(
    template: CommandTemplate,
    check: Healthcheck,
    runner: CommandRunner,
    eval_file: Path | None,
    environment: Mapping[str, str],
) -> str | None:
    if not check.folder.is_dir():
        return f"the healthcheck failed: there is no folder {check.folder} to start its command in"
    with TemporaryDirectory(prefix="manyhands-healthcheck-", ignore_cleanup_errors=True) as name:
        values = _values(Path(name), eval_file, check.folder)
        try:
            words = values.filled(template)
            additions = {**environment, **values.environment()}
            end = await runner.run(words, folder=check.folder, additions=additions, timeout=check.seconds)
        except ItemError as error:
            return f"the healthcheck failed: {error.message}"
    limit = check.seconds if end.exit_code is None else None
    failure = failure_of(end.exit_code, limit, decode(end.errors).strip() or decode(end.output))
    return None if failure is None else f"the healthcheck failed: {failure}"


def _values(folder: Path, eval_file: Path | None, workspace: Path) -> Values:
    """Its placeholders stand for empty files, which are gone afterwards."""
    for name in ("prompt.txt", "test_ids.txt", "tests.jsonl"):
        (folder / name).touch()
    return Values(
        eval_id="healthcheck",
        prompt_file=folder / "prompt.txt",
        output_file=folder / "output.jsonl",
        eval_file=eval_file,
        test_ids_file=folder / "test_ids.txt",
        batch_input_file=folder / "tests.jsonl",
        workspace=workspace,
    )


def _without_secrets(url: URL) -> str:
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else "the url"


def workspace_problems(survey: Survey, choice: Choice, targets: Sequence[Target]) -> Iterator[str]:
    """A line for each such target: hooks that run for each test have no moment of their own there, and its tests share one workspace."""
    for target in targets:
        if not target.batching:
            continue
        found = {space: test for (own, space), test in survey.workspaces.items() if target.name in choice.of(own)}
        if target.settings.get("workspace_template") is not None:  # which counts more than the tests' own
            found = {space and replace(space, template=None): test for space, test in found.items()}
        for space, test in found.items():
            hook = next((name for name in (BEFORE_EACH, AFTER_EACH) if getattr(space, name, None) is not None), None)
            if hook is not None:
                yield test.place.at("workspace", hook).says(
                    f"can't run for each test where one invocation answers all of them, as target {target.name} does; "
                    "use before_all and after_all"
                )
                break
        if len(found) > 1:
            test = list(found.values())[1]
            yield test.place.at("workspace").says(
                f"is not the same for all tests that target {target.name} answers in one invocation"
            )
