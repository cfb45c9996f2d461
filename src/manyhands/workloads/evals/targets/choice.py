"""Which targets answer the tests of an eval file, and which may judge the answers, by what the tests want: targets of their own, judges,
commands before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.io.findings import MOST_SHOWN, Findings
from manyhands.io.keys import spelled_at
from manyhands.io.locations import Place
from manyhands.workloads.evals.evalfile.grader_lists import JudgeNeed, entries_of, judge_needs
from manyhands.workloads.evals.evalfile.loading import place_of
from manyhands.workloads.evals.evalfile.tests import EvalFile, Test, Trials, Workspace
from manyhands.workloads.evals.targets.definitions import Target, TargetFile, naming


def check_chosen(tests: Sequence[Test], whole: EvalFile, choice: Choice, chosen_by: str, findings: Findings) -> None:
    """Whether everything that chosen tests depend on is chosen too, for the same targets. ``whole``: the file with all its tests;
    ``chosen_by``: the settings that chose. Tests that are invalid are in the run, and count as errors."""
    put = {test.id: choice.of(test.targets) for test in tests}
    invalid = {each.id for each in whole.invalid}
    for test in tests:
        for number, named in enumerate(test.depends_on):
            if named in invalid:
                continue
            if named not in put:
                problem = f"test {shown(named)} is left out by {chosen_by}, and test {shown(test.id)} depends on it: choose both"
                findings.problem(place_of(test, number), problem)
            elif missing := [target for target in put[test.id] if target not in put[named]]:
                problem = f"test {shown(named)} is not put to target {missing[0]}, as test {shown(test.id)} is, which depends on it"
                findings.problem(place_of(test, number), problem)


def tell_of_batches(file: EvalFile, choice: Choice, findings: Findings) -> None:
    """Say of commands that answer all tests at once that they are not asked in turn."""
    for target in choice.targets:
        if target.batching:
            findings.notice(
                f"{file.place.file}: target {target.name} answers all tests in one invocation, which depends_on can't put in order; "
                "answers of tests whose dependencies fail are not graded"
            )


def check_askable(tests: Iterable[Test], choice: Choice, findings: Findings) -> None:
    """Whether the targets of conversations can be asked turn by turn."""
    unable = {target.name: why for target in choice.targets if (why := _unable(target)) is not None}
    for test in tests if unable else ():
        if test.conversation is not None:
            for name in choice.of(test.targets):
                if name in unable:
                    findings.problem(spelled_at(test.place, "mode"), f"target {name} {unable[name]}")


def _unable(target: Target) -> str | None:
    if target.batching:
        return "answers all tests in one invocation, and can't be asked turn by turn"
    if target.kind == "replay":
        return "has one answer to each test, and can't be asked turn by turn"
    return None


_IDS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """``usual``: the names of those that answer tests which name none; ``targets``: all that answer tests; ``given``: the names that
    ``--target`` chose, and then tests are put to nothing else."""

    usual: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    given: tuple[str, ...] = ()

    def of(self, own: Targets) -> tuple[str, ...]:
        """The names of the targets that a test is put to. ``own``: those that it names."""
        if own is None:
            return self.usual
        return tuple(name for name in own if not self.given or name in self.given)

    def changes(self, survey: Survey) -> bool:
        """Whether tests are put to others than they say themselves, where none means all."""
        everywhere = {target.name for target in self.targets}
        named = ((group.targets, set(self.of(group.targets))) for group in survey.groups)
        return any((own is None and names != everywhere) or not names for own, names in named)

    def settled(self, test: Test) -> Test:
        """The test, saying to which targets it is put."""
        return replace(test, targets=self.of(test.targets))


def choose_targets(
    file: EvalFile, survey: Survey, available: TargetFile, given: Sequence[str], findings: Findings
) -> Choice:
    """The targets that answer a file's tests: those ``given`` (``--target``), else each test's own, else the file's. Tests whose own
    targets are not among those given are not run, which is told. ``findings`` says what is wrong."""
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
    """The name of the judge that all targets name which would answer the file's tests; None if they name none, or not the same."""
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
) -> tuple[Target, ...]:
    """Every target that may have to judge: those that graders name; and where there are graders that name none, or tests without
    graders, those that the targets which answer these tests name, or else the person (``--judge_target``: ``wanted``). Nobody else is
    looked for. ``recorded``: those of the run that is graded again, which are taken for the targets' own."""
    own = _with_own_judge(survey, choice)
    named, known = dict[str, None](), {judge.name for judge in recorded}
    for target in choice.targets:
        name, certain = target.judge_target, own.get(target.name)
        if name is not None and name not in known:
            if certain:
                _check_name(name, target.at("judge_target"), available, findings)
            elif not _is_known(name, available):
                findings.notice(target.at("judge_target").says(f"there is no target {name!r}, and no judge is needed"))
                continue
            if certain is not None:
                named[name] = None
    if wanted is not None and any(own.get(target.name) for target in choice.targets if target.judge_target is None):
        with findings.catching():
            if not available.knows(wanted):
                findings.problems.append(f"--judge_target: {available.unknown(wanted)}")
        named[wanted] = None
    elif wanted is not None and own and _is_known(wanted, available):
        named[wanted] = None
    for group in survey.groups:
        for need in group.needs:
            if need.target is not None and need.target not in {*named, *known}:
                place = group.tests[0].place.at("assert")
                _check_name(need.target, place, available, findings, f"grader {need.grader!r}: ")
                named[need.target] = None
    kept = tuple(judge for judge in recorded if judge.name not in named)
    return (*kept, *_made(named, available, findings))


def _with_own_judge(survey: Survey, choice: Choice) -> dict[str, bool]:
    """The names of the targets whose answers their own judge may have to judge, and whether that is certain."""
    found: dict[str, bool] = {}
    for group in survey.groups:
        asks = [need.certain for need in group.needs if need.target is None] + ([] if group.graded else [True])
        for name in choice.of(group.targets) if asks else ():
            found[name] = found.get(name, False) or any(asks)
    return found


def _is_known(name: str, available: TargetFile) -> bool:
    """Whether there is a target of that name, where it does not matter much."""
    try:
        return available.knows(name)
    except UserError:
        return False


def _check_name(name: str, place: Place, available: TargetFile, findings: Findings, before: str = "") -> None:
    with findings.catching():
        if not available.knows(name):
            findings.problem(place, before + available.unknown(name))


def _check_own(test: Test, available: TargetFile, findings: Findings) -> None:
    names = test.targets or ()
    for name in names:
        _check_name(name, naming(test.place, names, name), available, findings)


def _tell_left_out(file: EvalFile, survey: Survey, choice: Choice, findings: Findings) -> None:
    groups = [group for group in survey.groups if group.targets is not None and not choice.of(group.targets)]
    count = sum(group.count for group in groups)
    if choice.given and count:
        ids = [test.id for group in groups for test in group.tests][:_IDS_SHOWN]
        more = f" and {count - len(ids)} more" if count > len(ids) else ""
        findings.notice(
            f"{file.place.file}: not run, as --target chose none of the targets that they name: {', '.join(ids)}{more}"
        )


def _made(names: Iterable[str], available: TargetFile, findings: Findings) -> tuple[Target, ...]:
    found = []
    for name in names:
        with findings.catching():
            if available.knows(name):
                found.append(available.resolve(name))
    return tuple(found)


Targets = tuple[str, ...] | None
"""The targets that a test names; None: those of its file."""


@dataclass(slots=True)
class Group:
    """Tests that want the same. ``graded``: they have graders; ``told``: they have criteria or an expected output, which is looked at where
    somebody judges by these alone; ``placed``: they have a workspace; ``tests``: the first of them, as many as a message may name;
    ``count``: all."""

    targets: Targets
    needs: tuple[JudgeNeed, ...]
    graded: bool
    told: bool
    placed: bool
    tests: list[Test] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """``groups``: in the order of their first tests; ``hooked``: whether any of the tests has a workspace, in which there may be anything
    by then; ``trials``: what they say of trials; ``workspaces``: those of tests that name the same targets, each with the first of its
    tests."""

    groups: tuple[Group, ...] = ()
    hooked: bool = False
    trials: frozenset[Trials] = frozenset()
    workspaces: Mapping[tuple[Targets, Workspace | None], Test] = field(default_factory=dict)

    @classmethod
    def of(cls, tests: Iterable[Test]) -> Survey:
        groups: dict[tuple[object, ...], Group] = {}
        hooked, trials = False, set[Trials]()
        workspaces: dict[tuple[Targets, Workspace | None], Test] = {}
        for test in tests:
            if test.trials is not None:
                trials.add(test.trials)
            needs, graded = tuple(judge_needs(test.all_graders)), _is_graded(test)
            told = (graded and not any(need.bare for need in needs)) or _is_told(test)
            wants = (test.targets, needs, graded, told, test.workspace is not None)
            group = groups.setdefault(wants, Group(*wants))
            group.count += 1
            if len(group.tests) <= MOST_SHOWN:
                group.tests.append(test)
            hooked = hooked or test.workspace is not None
            workspaces.setdefault((test.targets, test.workspace), test)
        return cls(tuple(groups.values()), hooked, frozenset(trials), workspaces)

    @property
    def own(self) -> Iterator[Test]:
        """The first test of each group whose tests name targets."""
        return (group.tests[0] for group in self.groups if group.targets is not None)


def _is_graded(test: Test) -> bool:
    return bool(test.all_graders or entries_of(test, judged=False))


def _is_told(test: Test) -> bool:
    turns = () if test.conversation is None else test.conversation.turns
    return bool(test.criteria.strip() or test.reference_answer.strip() or any(turn.expected_output for turn in turns))
