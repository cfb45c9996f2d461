"""Chooses the targets that answer the tests of an eval file, and the judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from manyhands.core.errors import UserError
from manyhands.io.locations import MAX_SHOWN, Findings, Location
from manyhands.workloads.evals.evalfile.contents import (
    EvalFile,
    JudgeNeed,
    Test,
    Trials,
    Workspace,
    entries_of,
    judge_needs,
)
from manyhands.workloads.evals.targets.definitions import Target, TargetFile, naming

_IDS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """The targets that answer the tests of an eval file."""

    usual: tuple[str, ...] = ()
    """The names of those that answer tests which name none."""
    targets: tuple[Target, ...] = ()
    """All of them."""
    given: tuple[str, ...] = ()
    """The names that ``--target`` chose, and then no others answer tests."""

    def of(self, own: Targets) -> tuple[str, ...]:
        """The names of the targets that answer a test. ``own``: those that it names."""
        if own is None:
            return self.usual
        return tuple(name for name in own if not self.given or name in self.given)

    def changes(self, survey: Survey) -> bool:
        """Whether tests are answered by other targets than they say themselves, where none means all."""
        everywhere = {target.name for target in self.targets}
        named = ((group.targets, set(self.of(group.targets))) for group in survey.groups)
        return any((own is None and names != everywhere) or not names for own, names in named)

    def settled(self, test: Test) -> Test:
        """The test with the names of the targets that answer it."""
        return replace(test, targets=self.of(test.targets))


def choose_targets(
    file: EvalFile, survey: Survey, available: TargetFile, given: Sequence[str], findings: Findings
) -> Choice:
    """The targets that answer a file's tests: those ``given`` (``--target``), else each test's own, else the file's. A notice names tests
    whose own targets are not among those given: they are not executed. ``findings`` says what is wrong."""
    choice = Choice(given=tuple(given))
    if given or file.target_names or any(group.targets is None for group in survey.groups):
        with findings.catching():
            choice = replace(choice, usual=available.chosen(file, given))
    for test in survey.own:
        _check_own(test, available, findings)
    names = dict.fromkeys(name for group in survey.groups for name in choice.of(group.targets))
    _tell_left_out(file, survey, choice, findings)
    return replace(choice, targets=_made(names or choice.usual, available, findings))


def usual_judge(file: EvalFile, survey: Survey, available: TargetFile) -> str | None:
    """The judge that all targets of the file's tests name; None if they name none, or not the same."""
    targets = choose_targets(file, survey, available, (), Findings()).targets
    named = {target.judge_target for target in targets}
    return named.pop() if len(named) == 1 else None


def choose_judges(
    survey: Survey,
    choice: Choice,
    wanted: str | None,
    available: TargetFile,
    findings: Findings,
    recorded: Sequence[Target] = (),
    place: str = "--judge_target",
) -> tuple[Target, ...]:
    """Every target that may have to judge: those that graders name; and for graders that name none, and tests without graders, the
    ``judge_target`` of the targets that answer these tests, else ``wanted``, which ``place`` says. ``recorded``: the judges of the run
    that is graded again, which stand for the targets' own."""
    own = _with_own_judge(survey, choice)
    named, known = (
        dict[str, bool](),
        {judge.name for judge in recorded},
    )  # with whether it is certain that they are asked
    for target in choice.targets:
        name, certain = target.judge_target, own.get(target.name)
        if name is not None and name not in known:
            if certain:
                _check_name(name, target.at("judge_target"), available, findings)
            elif not _is_known(name, available):
                findings.notice(target.at("judge_target").says(f"there is no target {name!r}, and no judge is needed"))
                continue
            if certain is not None:
                named[name] = named.get(name, False) or certain
    if wanted is not None and any(own.get(target.name) for target in choice.targets if target.judge_target is None):
        with findings.catching():
            if not available.knows(wanted):
                findings.problems.append(f"{place}: {available.unknown(wanted)}")
        named[wanted] = True
    elif wanted is not None and own and _is_known(wanted, available):
        named.setdefault(wanted, False)
    for group in survey.groups:
        for need in group.needs:
            if need.target is not None and need.target not in {*named, *known}:
                location = group.tests[0].location.at("assert")
                _check_name(need.target, location, available, findings, f"grader {need.grader!r}: ")
                named[need.target] = True
    kept = tuple(judge for judge in recorded if judge.name not in named)
    made = _made([name for name, certain in named.items() if certain], available, findings)
    return (*kept, *made, *_perhaps_made([name for name, certain in named.items() if not certain], available, findings))


def _with_own_judge(survey: Survey, choice: Choice) -> dict[str, bool]:
    """The names of the targets whose judge may have to judge, and whether that is certain."""
    found: dict[str, bool] = {}
    for group in survey.groups:
        asks = [need.certain for need in group.needs if need.target is None] + ([] if group.graded else [True])
        for name in choice.of(group.targets) if asks else ():
            found[name] = found.get(name, False) or any(asks)
    return found


def _is_known(name: str, available: TargetFile) -> bool:
    """Whether there is a target of that name; False if the targets file is wrong."""
    try:
        return available.knows(name)
    except UserError:
        return False


def _check_name(name: str, location: Location, available: TargetFile, findings: Findings, before: str = "") -> None:
    with findings.catching():
        if not available.knows(name):
            findings.problem(location, before + available.unknown(name))


def _check_own(test: Test, available: TargetFile, findings: Findings) -> None:
    names = test.targets or ()
    for name in names:
        _check_name(name, naming(test.location, names, name), available, findings)


def _tell_left_out(file: EvalFile, survey: Survey, choice: Choice, findings: Findings) -> None:
    groups = [group for group in survey.groups if group.targets is not None and not choice.of(group.targets)]
    count = sum(group.count for group in groups)
    if choice.given and count:
        ids = [test.id for group in groups for test in group.tests][:_IDS_SHOWN]
        more = f" and {count - len(ids)} more" if count > len(ids) else ""
        findings.notice(
            f"{file.location.file}: not run, as --target chose none of the targets that they name: {', '.join(ids)}{more}"
        )


def _made(names: Iterable[str], available: TargetFile, findings: Findings) -> tuple[Target, ...]:
    found = []
    for name in names:
        with findings.catching():
            if available.knows(name):
                found.append(available.resolve(name, findings))
    return tuple(found)


def _perhaps_made(names: Iterable[str], available: TargetFile, findings: Findings) -> tuple[Target, ...]:
    """Judges that may not be asked: what is wrong with one is a notice."""
    inner = findings.inner()
    made = _made(names, available, inner)
    for problem in inner.problems:
        findings.notice(f"{problem} (a judge that may not be needed)")
    return made


Targets = tuple[str, ...] | None
"""The targets that a test names; None: those of its file."""


@dataclass(slots=True)
class Group:
    """Tests that need the same."""

    targets: Targets
    needs: tuple[JudgeNeed, ...]
    graded: bool
    """Whether they have graders."""
    judgeable: bool
    """Whether they have criteria or an expected output, as far as somebody judges by these alone."""
    has_workspace: bool
    tests: list[Test] = field(default_factory=list)
    """The first of them, as many as a message may name."""
    count: int = 0
    """The number of all of them."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the tests of an eval file need."""

    groups: tuple[Group, ...] = ()
    """In the order of their first tests."""
    hooked: bool = False
    """Whether any of the tests has a workspace, in which there may be anything by then."""
    trials: frozenset[Trials] = frozenset()
    """What they say of trials."""
    images: bool = False
    """Whether any of them brings a container image."""
    workspaces: Mapping[tuple[Targets, Workspace | None], Test] = field(default_factory=dict)
    """Those of tests that name the same targets, each with the first of its tests."""

    @classmethod
    def of(cls, tests: Iterable[Test]) -> Survey:
        groups: dict[tuple[object, ...], Group] = {}
        hooked, images, trials = False, False, set[Trials]()
        workspaces: dict[tuple[Targets, Workspace | None], Test] = {}
        for test in tests:
            if test.trials is not None:
                trials.add(test.trials)
            needs, graded = tuple(judge_needs(test.all_graders)), _is_graded(test)
            judgeable = (graded and not any(need.bare for need in needs)) or _is_judgeable(test)
            wanted = (test.targets, needs, graded, judgeable, test.workspace is not None)
            group = groups.setdefault(wanted, Group(*wanted))
            group.count += 1
            if len(group.tests) <= MAX_SHOWN:
                group.tests.append(test)
            hooked = hooked or test.workspace is not None
            images = images or has_image(test)
            workspaces.setdefault((test.targets, test.workspace), test)
        return cls(tuple(groups.values()), hooked, frozenset(trials), images, workspaces)

    @property
    def own(self) -> Iterator[Test]:
        """The first test of each group whose tests name targets."""
        return (group.tests[0] for group in self.groups if group.targets is not None)


def has_image(test: Test) -> bool:
    """Whether a test brings a container image."""
    own = None if test.workspace is None else test.workspace.image
    return (own or test.task.get("image")) is not None


def _is_graded(test: Test) -> bool:
    return bool(test.all_graders or entries_of(test, judged=False))


def _is_judgeable(test: Test) -> bool:
    turns = () if test.conversation is None else test.conversation.turns
    return bool(test.criteria.strip() or test.reference_answer.strip() or any(turn.expected_output for turn in turns))
