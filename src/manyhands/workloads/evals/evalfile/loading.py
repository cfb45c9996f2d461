"""Reads eval files: YAML, and JSON Lines with a sidecar. Whether tests can depend on what they say they depend on is found out here, before
anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.settings import shown, suggestion
from manyhands.io.findings import Findings, told
from manyhands.io.keys import Read, collect, spelled_at
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import Source, read_source
from manyhands.workloads.evals.evalfile.keys import EvalBlock
from manyhands.workloads.evals.evalfile.sources import JSONL_ENDING, SCHEME, YAML_ENDINGS, RawTest, RawTests
from manyhands.workloads.evals.evalfile.suite import Suite, targets_of, trials_of
from manyhands.workloads.evals.evalfile.tests import EvalFile, InlineTargets, Invalid, Test

Notices = Callable[[str], None]
_ABOUT = ("name", "version", "author", "license", "requires", "category", "metadata")


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found in an eval file. ``problems``: what is wrong with the file as a whole; wrong tests are in ``file.invalid``. With
    problems there may be no file."""

    file: EvalFile | None
    problems: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Those of the file and those of its tests."""
        invalid = self.file.invalid if self.file is not None else ()
        return self.problems + tuple(line for test in invalid for line in test.problems)


def load_evals(
    paths: Sequence[Path],
    *,
    root: Path | None = None,
    notices: Notices,
    here: Path | None = None,
    skip_invalid: bool = False,
) -> list[EvalFile]:
    """Eval files, checked. ``root``: where the search for files ends, without it the repository's; ``here``: the current folder;
    ``skip_invalid``: leave tests out that can't be run; they are in ``EvalFile.invalid``. Every notice is told once.

    Raises UserError with a line for every problem of all files (the first 50), each with file, line and field.
    """
    surroundings = Surroundings.of(here or Path.cwd(), root)
    found = [examine(path, surroundings) for path in paths]
    for notice in dict.fromkeys(notice for each in found for notice in each.notices):
        notices(notice)
    problems = [line for each in found for line in (each.problems if skip_invalid else each.all_problems)]
    if problems:
        raise told(list(dict.fromkeys(problems)))
    return [_with_tests(each.file) for each in found if each.file is not None]


def examine(path: Path, surroundings: Surroundings) -> Examined:
    """An eval file with all that is wrong with it. Raises nothing for what is in it."""
    findings = Findings()
    file: EvalFile | None = None
    with findings.catching():
        file = _file(surroundings.here / path, surroundings, findings)
    notices = tuple(findings.notices)
    return Examined(None if file is None else replace(file, notices=notices), tuple(findings.problems), notices)


def _with_tests(file: EvalFile) -> EvalFile:
    if not file.tests:
        raise file.place.error(f"none of its tests is valid: {file.invalid[0].message}")
    return file


def _file(path: Path, surroundings: Surroundings, findings: Findings) -> EvalFile | None:
    place = Place(surroundings.shown(path))
    if path.suffix not in (*YAML_ENDINGS, JSONL_ENDING):
        raise place.error("an eval file is .yaml, .yml or .jsonl")
    if not path.is_file():
        raise place.error("there is no such file")
    lines = path.suffix == JSONL_ENDING
    source = _sidecar(path, surroundings, findings) if lines else read_source(path, surroundings.shown(path))
    _check_shape(source)
    file = collect(EvalBlock, source.value, source.place, findings)
    if file is None:
        return None
    suite = Suite.of(file, path.parent, surroundings, findings)
    reader = RawTests(path.parent, surroundings, findings)
    if lines:
        _check_sidecar(file, path)
    raw = reader.lines(path) if lines else _own_tests(path, file, source, reader, findings)
    tests, invalid, depends, converses = _sorted_out(suite, raw)
    if not tests and not invalid and not findings.problems:
        findings.problem(place, "holds no tests")
    return replace(_eval_file(file, suite, path, tests, invalid), depends=depends, converses=converses)


def _check_shape(source: Source) -> None:
    """Raises UserError that says more of files which are often given by mistake."""
    if source.value is None:
        raise source.place.error("the file is empty")
    if isinstance(source.value, list):
        raise source.place.error(
            "must be a mapping with tests; a list of them is a file that tests of an eval file names"
        )


def _own_tests(
    path: Path, file: Read[EvalBlock], source: Source, reader: RawTests, findings: Findings
) -> Iterable[RawTest]:
    if file.block.tests is None:
        written = file.at("tests")
        if written.path in written.lines:
            findings.problem(written, "must be a list of tests; nothing is there")
            return ()
        of = next((lines for lines in lines_of(path) if lines.is_file()), None)
        hint = "" if of is None else f"; this seems to be the sidecar of {of.name}, which is the eval file"
        findings.problem(file.place, f"tests is required{hint}")
        return ()
    return reader.listed(source, file.at("tests"))


def _sorted_out(suite: Suite, raw: Iterable[RawTest]) -> tuple[tuple[Test, ...], tuple[Invalid, ...], bool, bool]:
    """Tests, invalid ones, whether tests depend on others, and whether some have turns. Of tests with the same id the first is a test, the
    others are invalid."""
    tests, invalid, known, dependents = list[Test](), list[Invalid](), dict[str, int](), Dependents()
    converses = False
    for each in raw:
        found = suite.test(each)
        if isinstance(found, Invalid):
            invalid.append(found)
        elif found.id in known:
            at, first = found.place.at("id"), tests[known[found.id]].place
            where = f"line {first.at('id').line}" + ("" if at.file == first.file else f" of {first.file}")
            again = str(found.place) == str(first)
            said = "comes again, as its file is named twice" if again else f"is the id of another test too, in {where}"
            problem = at.says(f"{shown(found.id)} {said}")
            invalid.append(Invalid(found.place, found.id, (problem,)))
        else:
            known[found.id] = len(tests)
            dependents.add(len(tests), found)
            converses = converses or found.conversation is not None
            tests.append(found)
    if dependents and (wrong := dependents.wrong(tests, {*known, *(each.id for each in invalid if each.id)})):
        invalid += wrong.values()
        tests = [test for number, test in enumerate(tests) if number not in wrong]
    return tuple(tests), tuple(invalid), bool(dependents), converses


def _eval_file(
    file: Read[EvalBlock], suite: Suite, path: Path, tests: tuple[Test, ...], invalid: tuple[Invalid, ...]
) -> EvalFile:
    block, execution = file.block, suite.execution
    if block.target is not None:
        suite.findings.notice(f"{file.place.file}: 'target' is at an obsolete place; it belongs below 'execution'")
    about = {name: value for name in _ABOUT if (value := getattr(block, name)) is not None}
    return EvalFile(
        path=path,
        dataset=block.dataset or path.name.removesuffix(path.suffix),
        tests=tests,
        place=file.place,
        description=block.description,
        targets=None if block.targets is None else InlineTargets(block.targets, file.at("targets")),
        target_names=targets_of(execution.target or block.target, execution.targets) or (),
        trials=trials_of(execution.trials),
        threshold=execution.threshold if block.threshold is None else block.threshold,
        workers=execution.workers,
        budget_usd=execution.budget_usd,
        cache=execution.cache,
        cache_path=None if execution.cache_path is None else path.parent / execution.cache_path,
        fail_on_error=execution.fail_on_error,
        tags=block.tags or (),
        workspace=suite.workspace,
        about=about,
        invalid=invalid,
    )


# --- JSON Lines


def sidecar_of(path: Path) -> Path | None:
    """The file that says what holds for all tests of a JSON Lines file: ``BASE.eval.yaml`` beside it, else ``BASE.yaml``."""
    return next(_sidecars(path), None)


def _sidecars(path: Path) -> Iterator[Path]:
    """All files that could be it, the one that counts first."""
    names = (path.stem + end + ending for end in (".eval", "") for ending in YAML_ENDINGS)
    return (path.with_name(name) for name in names if path.with_name(name).is_file())


def lines_of(path: Path) -> Iterator[Path]:
    """The JSON Lines files of which a file may be the sidecar."""
    stem = path.stem.removesuffix(".eval")
    return (path.with_name(stem + end + JSONL_ENDING) for end in ("", ".eval"))


def _sidecar(path: Path, surroundings: Surroundings, findings: Findings) -> Source:
    """What is in the sidecar; nothing without one."""
    candidates = list(_sidecars(path))
    if not candidates:
        return Source({}, Place(surroundings.shown(path)))
    found, *others = candidates
    if others:
        named, verb = " and ".join(other.name for other in others), "does" if len(others) == 1 else "do"
        findings.notice(f"{surroundings.shown(path)}: its sidecar is {found.name}; {named} beside it {verb} not count")
    source = read_source(found, surroundings.shown(found))
    return source if source.value is not None else Source({}, source.place)


def _check_sidecar(file: Read[EvalBlock], path: Path) -> None:
    """A sidecar may name the file that it belongs to, but have no other tests."""
    tests = file.block.tests
    if tests is None:
        return
    if not isinstance(tests, str) or (path.parent / tests.removeprefix(SCHEME)).resolve() != path.resolve():
        raise file.at("tests").error(f"this is the sidecar of {path.name}, and its tests are other ones")


DEPENDS_ON = "depends_on"
_MAX_CIRCLE = 10
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


def place_of(test: Test, number: int | None = None) -> Place:
    """Where a test says what it depends on: the whole list, or one entry of it."""
    place = spelled_at(test.place, DEPENDS_ON)
    if number is None:
        return place
    entry = place.at(number)
    return entry if entry.path in entry.lines else place


def _drawn(circle: Sequence[str]) -> str:
    names = [*circle, circle[0]] if len(circle) <= _MAX_CIRCLE else [*circle[:_MAX_CIRCLE], "…", circle[0]]
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
