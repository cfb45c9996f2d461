"""Whether tests can depend on what they say they depend on: found out before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from manyhands.core.places import Place
from manyhands.core.settings import shown, suggestion
from manyhands.evals.findings import Findings
from manyhands.evals.model import EvalFile, Invalid, Test
from manyhands.evals.names import spelled_at
from manyhands.evals.target_choice import Choice

DEPENDS_ON = "depends_on"
_LONGEST_CIRCLE = 10
"""Ids of a circle that are named."""


class Dependents:
    """What the tests of a file depend on, by their numbers, for as long as the file is read."""

    def __init__(self) -> None:
        self._tests: dict[str, tuple[int, tuple[str, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._tests)

    def add(self, number: int, test: Test) -> None:
        """Take note of a test, the ``number``-th of its file."""
        if test.depends_on:
            self._tests[test.id] = number, test.depends_on

    def wrong(self, tests: Sequence[Test], known: Collection[str]) -> dict[int, Invalid]:
        """Tests that can't depend on what they name, by number. ``tests``: the file's, in order; ``known``: the ids of all of its tests,
        those included that are invalid."""
        found: dict[int, list[str]] = {}
        for test_id, (number, named) in self._tests.items():
            for place, each in enumerate(named):
                if each == test_id:
                    problem = "is the test's own id"
                elif each not in known:
                    problem = f"no test of the file is called {shown(each)}{suggestion(each, known)}"
                else:
                    continue
                found.setdefault(number, []).append(place_of(tests[number], place).says(problem))
        for circle in _circles({test_id: named for test_id, (_, named) in self._tests.items()}):
            first, *_ = numbers = [self._tests[each][0] for each in circle]
            problem = place_of(tests[first]).says(f"tests depend on each other in a circle: {_drawn(circle)}")
            for number in numbers:  # one problem, which all of them have
                found.setdefault(number, []).append(problem)
        return {
            number: Invalid(tests[number].place, tests[number].id, tuple(problems))
            for number, problems in sorted(found.items())
        }


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


def place_of(test: Test, number: int | None = None) -> Place:
    """Where a test says what it depends on: the whole list, or one entry of it."""
    place = spelled_at(test.place, DEPENDS_ON)
    if number is None:
        return place
    entry = place.at(number)
    return entry if entry.path in entry.lines else place


def _drawn(circle: Sequence[str]) -> str:
    names = [*circle, circle[0]] if len(circle) <= _LONGEST_CIRCLE else [*circle[:_LONGEST_CIRCLE], "…", circle[0]]
    return " → ".join(names)


def _circles(graph: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Circles in a graph, until every test that is in one has been named: without these the rest has an order.

    Whatever depends on nothing is taken out, again and again. Of what is left each test depends on another such, so that following
    them leads into a circle.
    """
    needs = {each: {named for named in graph[each] if named in graph and named != each} for each in graph}
    needed_by: dict[str, list[str]] = {}
    for each, named in needs.items():
        for other in named:
            needed_by.setdefault(other, []).append(each)
    taken = [each for each, named in needs.items() if not named]
    for root in graph:
        while True:
            while taken:
                out = taken.pop()
                needs.pop(out, None)
                for each in needed_by.pop(out, ()):
                    if each in needs:
                        needs[each].discard(out)
                        if not needs[each]:
                            taken.append(each)
            if root not in needs:
                break
            way, each = dict[str, int](), root
            while each not in way:
                way[each] = len(way)
                each = next(named for named in graph[each] if named in needs[each])
            circle = list(way)[way[each] :]
            yield circle
            taken += circle
