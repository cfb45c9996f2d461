"""What the tests of an eval file want, found in one pass over them: targets of their own, judges, commands before them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from manyhands.evals.findings import MOST_SHOWN
from manyhands.evals.grading import entries_of
from manyhands.evals.judge_needs import JudgeNeed, judge_needs
from manyhands.evals.model import Test, Trials, Workspace

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
