"""What is certain to go wrong once an evaluation runs, found before anything is made: targets and judges that can't be used, tests that
nobody would judge, targets that say of themselves that they can't do their work."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from manyhands.agents.command import CommandRunner
from manyhands.agents.functions import load_function
from manyhands.agents.offer import ToolOffer
from manyhands.core.clock import SystemClock
from manyhands.core.errors import UserError
from manyhands.engine.strays import process_mark
from manyhands.engine.waits import LEAST_SECONDS, Wait
from manyhands.evals.file_references import Surroundings
from manyhands.evals.findings import Findings
from manyhands.evals.healthcheck import Health
from manyhands.evals.programs import missing
from manyhands.evals.survey import Group, Survey
from manyhands.evals.target_choice import Choice
from manyhands.evals.target_settings import (
    AgentSettings,
    CliSettings,
    ModelSettings,
    PythonSettings,
    TargetSettings,
)
from manyhands.evals.targets import Target
from manyhands.graders.dotenv_files import additions, environment
from manyhands.sandboxes.selection import choose_backend

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
    patience: float = LEAST_SECONDS,
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
