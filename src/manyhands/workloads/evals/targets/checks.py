"""Checks before a run is made: targets and judges that can't be used or whose healthcheck fails, tests that nobody would judge, and tests
that their targets can't answer.
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

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.redaction import Redactor
from manyhands.core.settings import shown
from manyhands.core.text import decode
from manyhands.engine.limits.waits import MIN_SECONDS, Wait
from manyhands.io.keys import spelled_at
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath, additions, environment
from manyhands.processes.commands import CommandRunner, failure_of
from manyhands.processes.python_functions import Function
from manyhands.processes.strays import process_mark
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.evals.evalfile.contents import AFTER_EACH, BEFORE_EACH, EvalFile, Test
from manyhands.workloads.evals.evalfile.loading import location_of
from manyhands.workloads.evals.targets.choice import Choice, Group, Survey
from manyhands.workloads.evals.targets.command import Values
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.kinds.protocol import Checking, Healthcheck, TargetSettings

_STANDARD = "criteria or an expected output to hold the answer against"
_NO_JUDGE = "no judge is configured (judge_target of its target, or --judge_target)"


class TargetCheck:
    """Checks the settings of targets, each once."""

    def __init__(
        self, around: SearchPath, environ: Mapping[str, str], functions: Mapping[str, Function] | None = None
    ) -> None:
        """``functions``: those that were given in Python."""
        self._functions = functions or {}
        self._around = around
        self._environ = environ
        self._found: dict[tuple[str, str, str], TargetSettings | None] = {}

    def settings(self, target: Target, findings: Findings) -> TargetSettings | None:
        """A target's settings; None if it can't be used, and then ``findings`` says why."""
        key = (str(target.location), str(target.folder), target.name)
        if key not in self._found:
            self._found[key] = None
            with findings.catching():
                self._found[key] = target.resolved(self.environ_of(target))
        return self._found[key]

    def answering(self, target: Target, findings: Findings, *, hooked: bool = False, images: bool = False) -> None:
        """Check a target that answers tests. ``hooked``: it works in workspaces, where hooks may make what it needs; ``images``: tests
        bring container images."""
        settings = self.settings(target, findings)
        given = target.settings.keys()
        checking = Checking(target.at, target.location, given, self._environ, hooked, images, self._functions)
        with findings.catching():
            if settings is not None:
                settings.check(checking)

    def judging(self, target: Target, findings: Findings) -> None:
        """Check a target that has to judge."""
        settings = self.settings(target, findings)
        if settings is None:
            return
        if not target.facts.judges or target.batching:
            what = "answers all tests in one invocation" if target.batching else f"is of kind {target.kind}"
            findings.problem(target.location, f"{what} and can't judge; a judge answers one prompt after the other")
        elif not target.facts.calls_models:
            checking = Checking(target.at, target.location, target.settings.keys(), self._environ, False)
            with findings.catching():
                settings.check(checking)

    def environ_of(self, target: Target) -> dict[str, str]:
        """The environment variables that its settings may name."""
        return environment(target.folder, self._around, self._environ)


# --- Judges


@dataclass(frozen=True, slots=True)
class Judging:
    """Who judges the answers to an eval file's tests."""

    choice: Choice
    own: Mapping[str, Target | None]
    """Of each target that answers, by name, who judges its answers; None if nobody does."""
    known: Mapping[str, Target]
    """Those that graders may name."""
    ungraded: bool
    """Whether tests without graders and judges are allowed."""
    workspaces: bool
    """Whether targets are run, so that there may be workspaces."""

    def problems(self, survey: Survey) -> Iterator[str]:
        """A line for each test that nothing would grade, and for each grader that could not judge."""
        for group in survey.groups:
            wrong = list(self._without_graders(group) if not group.graded else self._graders(group))
            yield from (
                test.location.says(f"{who}test {test.id!r} {what}") for test in group.tests for who, what in wrong
            )

    def needed(self, survey: Survey) -> list[Target]:
        """The judges that graders will ask."""
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
            if not group.judgeable:
                yield "", f"has neither graders nor {_STANDARD}"
        elif not self.ungraded:
            yield "", f"has no graders, and {_NO_JUDGE}; --allow_ungraded runs it without a score"

    def _graders(self, group: Group) -> Iterator[tuple[str, str]]:
        for need in (need for need in group.needs if need.certain):
            who = f"grader {need.grader!r} of "
            if need.target is None and None in self._own(group):
                yield who, f"asks a judge, and {_NO_JUDGE}"
            elif need.bare and not group.judgeable:
                yield who, f"judges without a prompt, and there are no {_STANDARD}"
            elif need.workspace and not self._all_have_workspaces(group):
                yield who, "looks at a workspace, and there is none: give the target one, or the grader a target"

    def _all_have_workspaces(self, group: Group) -> bool:
        if not self.workspaces:
            return False
        targets = {target.name: target for target in self.choice.targets}
        answering = [targets[name] for name in self.choice.of(group.targets)]
        return group.has_workspace or all(target.has_template for target in answering)


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
    """Check the ``targets`` that will answer and the ``judges`` that will judge, and run healthchecks, once each. ``here``: the folder
    where the evaluation was given; ``notice`` gets healthchecks that take more than ``patience`` seconds.

    Raises UserError with a line for everything that is wrong.
    """
    check, findings = TargetCheck(SearchPath.of(here), environ), Findings()
    for judge in judges:
        check.judging(judge, findings)
    async with AsyncExitStack() as stack:
        runner: CommandRunner | None = None
        for target in targets:
            settings = check.settings(target, findings)
            health = None if settings is None else settings.healthcheck
            if health is None:
                continue
            if runner is None and health.url is None:
                mark = process_mark(secrets.token_hex(8))
                runner = await stack.enter_async_context(CommandRunner.opened(mark, environ))
            found = check.environ_of(target)
            extra = additions(target.folder, SearchPath.of(here), environ)
            checked = health_problem(health, runner, eval_file=target.eval_file, environ=found, additions=extra)
            problem = await _patiently(checked, health.seconds, target.name, notice, patience)
            if problem is not None:
                findings.problem(target.at("healthcheck"), f"target {target.name!r} can't be used: {problem}")
    if findings.problems:
        raise UserError("\n".join(findings.problems))


async def _patiently(
    checked: Coroutine[None, None, str | None],
    seconds: float,
    name: str,
    notice: Callable[[str], None],
    patience: float,
) -> str | None:
    """The result of a healthcheck. ``seconds``: its time limit."""
    clock = SystemClock()
    began, answer = clock.now(), asyncio.ensure_future(checked)
    done, _ = await asyncio.wait([answer], timeout=patience)
    if not done:
        wait = Wait(f"the healthcheck of target {name!r} has not ended", began, began + seconds, 1, "target")
        notice(wait.text(clock.now()))
    return await answer


async def health_problem(
    check: Healthcheck,
    runner: CommandRunner | None = None,
    *,
    eval_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    additions: Mapping[str, str] | None = None,
) -> str | None:
    """Why a target can't be used, in one line; None if it can. ``runner``: starts the command, if the check is one; ``eval_file``: for its
    placeholders; ``environ``: whose secrets are redacted; ``additions``: to the environment of the command."""
    if check.url is not None:
        problem = await _problem_at(check.url, check.seconds)
    elif runner is None or check.template is None:
        raise ValueError("a command can't be checked without a runner")
    else:
        problem = await _problem_of(check.template, check, runner, eval_file, additions or {})
    return None if problem is None else Redactor.of(environ or {}).text(problem)


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
    """Placeholders for temporary, empty files."""
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


# --- What tests and targets can't have together


def workspace_problems(survey: Survey, choice: Choice, targets: Sequence[Target]) -> Iterator[str]:
    """A line for each command that answers all tests at once and whose tests have hooks for each test, or different workspaces; for
    each agent with a sandbox that is to work in an existing folder; and for each target that would work outside of a test's container."""
    for target in targets:
        found = {space: test for (own, space), test in survey.workspaces.items() if target.name in choice.of(own)}
        outside = next((test for space, test in found.items() if space is not None and space.image is not None), None)
        if outside is not None and (why := _why_outside(target)) is not None:
            problem = f"test {outside.id!r} brings a container, and target {target.name} {why}; leave docker out, or choose an agent"
            yield outside.location.at("workspace", "docker").says(problem)
        if target.kind == "agent":
            yield from (
                test.location.at("workspace", "path").says(
                    f"target {target.name} works in a sandbox, and can't work in an existing folder; use template"
                )
                for space, test in found.items()
                if space is not None and space.in_place
            )
        if not target.batching:
            continue
        if target.has_template:  # which counts more than the tests' own
            found = {space and replace(space, template=None): test for space, test in found.items()}
        for space, test in found.items():
            own = None if space is None else space.of(target.name)
            hook = next((name for name in (BEFORE_EACH, AFTER_EACH) if own is not None and own.hooks(name)), None)
            if hook is not None:
                yield test.location.at("workspace", hook).says(
                    f"can't run for each test where one invocation answers all of them, as target {target.name} does; "
                    "use before_all and after_all"
                )
                break
        if len(found) > 1:
            test = list(found.values())[1]
            yield test.location.at("workspace").says(
                f"is not the same for all tests that target {target.name} answers in one invocation"
            )


def _why_outside(target: Target) -> str | None:
    """Why a target can't work in a test's container; None if it can, or does nothing at all."""
    if target.kind == "agent":
        return None if target.settings.get("toolsets") else "has no toolsets to work in it with"
    works = not (target.facts.one_file_for_all or target.facts.simulated)
    return f"is of kind {target.kind}, which works outside of it" if works else None


def check_chosen(tests: Sequence[Test], whole: EvalFile, choice: Choice, chosen_by: str, findings: Findings) -> None:
    """Check that the dependencies of chosen tests are chosen too, for the same targets. ``whole``: the file with all its tests;
    ``chosen_by``: the options that chose. Invalid tests are in the run, as errors."""
    answering = {test.id: choice.of(test.targets) for test in tests}
    invalid = {each.id for each in whole.invalid}
    for test in tests:
        for number, named in enumerate(test.depends_on):
            if named in invalid:
                continue
            if named not in answering:
                problem = f"test {shown(named)} is left out by {chosen_by}, and test {shown(test.id)} depends on it: choose both"
                findings.problem(location_of(test, number), problem)
            elif lacking := [target for target in answering[test.id] if target not in answering[named]]:
                problem = f"test {shown(named)} is not executed with target {lacking[0]}, as test {shown(test.id)} is, which depends on it"
                findings.problem(location_of(test, number), problem)


def tell_of_batches(file: EvalFile, choice: Choice, findings: Findings) -> None:
    """Give a notice of commands that answer all tests at once, whose order ``depends_on`` can't decide."""
    for target in choice.targets:
        if target.batching:
            findings.notice(
                f"{file.location.file}: target {target.name} answers all tests in one invocation, which depends_on can't put in order; "
                "answers of tests whose dependencies fail are not graded"
            )


def check_askable(tests: Iterable[Test], choice: Choice, findings: Findings) -> None:
    """Check that the targets of conversations can answer turn by turn."""
    unable = {target.name: why for target in choice.targets if (why := _unable(target)) is not None}
    for test in tests if unable else ():
        if test.conversation is not None:
            for name in choice.of(test.targets):
                if name in unable:
                    findings.problem(spelled_at(test.location, "mode"), f"target {name} {unable[name]}")


def _unable(target: Target) -> str | None:
    if target.batching:
        return "answers all tests in one invocation, and can't be asked turn by turn"
    if target.facts.one_file_for_all:
        return "has one answer to each test, and can't be asked turn by turn"
    return None
