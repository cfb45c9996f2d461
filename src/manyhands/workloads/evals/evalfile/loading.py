"""Reads eval files: YAML, and JSON Lines with a sidecar. Dependencies between tests are checked here, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from manyhands.agents.worlds.settings import Variables
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.json_files import read_jsonl
from manyhands.io.keys import Read, collect, spelled_at
from manyhands.io.locations import Findings, Location, Source, UnknownKeys, problems_error
from manyhands.io.search_paths import SearchPath, environment
from manyhands.io.yaml_files import read_source
from manyhands.workloads.evals.evalfile.agentv5.rendering import with_present_variables
from manyhands.workloads.evals.evalfile.building import RawTest, read_test
from manyhands.workloads.evals.evalfile.contents import EvalFile, InlineTargets, Invalid, Test
from manyhands.workloads.evals.evalfile.files import (
    CSV_ENDING,
    JSON_ENDING,
    JSONL_ENDING,
    TASK_FOLDERS,
    YAML_ENDINGS,
    lines_of,
    sidecars,
)
from manyhands.workloads.evals.evalfile.formats import AUTO, FIFTH, format_of
from manyhands.workloads.evals.evalfile.interpolation import Environment
from manyhands.workloads.evals.evalfile.keys import NAME, EvalBlock, TestBlock
from manyhands.workloads.evals.evalfile.patterns import is_pattern, matching_files
from manyhands.workloads.evals.evalfile.sources.given import NOTHING, Given
from manyhands.workloads.evals.evalfile.sources.scripts import SCRIPT_ENDINGS, read_script
from manyhands.workloads.evals.evalfile.sources.tasks import tasks_file
from manyhands.workloads.evals.evalfile.suite import Suite, target_refs, targets_of, trials_of

if TYPE_CHECKING:
    from manyhands.workloads.evals.evalfile.agentv5.document import Document

Notices = Callable[[str], None]
_EMPTY: Mapping[str, str] = MappingProxyType({})
CASE_FILES = ("case.yaml", "case.yml")
"""The file of a test in a folder of its own."""
SCHEME = "file://"
"""What stands before the path where a list of tests names a file of tests."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of reading an eval file."""

    file: EvalFile | None
    """The file, with its wrong tests in ``invalid``; None if it can't be read, and then there are problems."""
    problems: tuple[str, ...]
    """What is wrong with the file as a whole."""
    notices: tuple[str, ...]

    @property
    def all_problems(self) -> tuple[str, ...]:
        """The problems of the file and of its tests."""
        invalid = self.file.invalid if self.file is not None else ()
        return self.problems + tuple(line for test in invalid for line in test.problems)


def load_evals(
    paths: Sequence[Path],
    search_path: SearchPath,
    *,
    notices: Notices,
    environ: Mapping[str, str] = _EMPTY,
    skip_invalid: bool = False,
    version: str = AUTO,
    findings: Findings | None = None,
    given: Given = NOTHING,
    task_env: Variables = None,
    tasks_run: bool = True,
) -> list[EvalFile]:
    """Eval files, checked. ``environ``: the real environment, to which ``.env`` files are added; ``skip_invalid``: leave tests out that
    can't be executed; they are in ``EvalFile.invalid``; ``version``: of the format, one of ``FORMATS``; ``findings``: takes keys
    without an effect, and what is missing around the files; without it such keys are notices; ``given``: what stands for files, and
    functions that they may name; ``task_env``: the variables of this machine that task folders may have; ``tasks_run``: whether they are
    run, and need these. Every notice is passed once.

    Raises UserError with a line for every problem of all files (the first 50), each with file, line and field.
    """
    shared = findings or Findings(unknown=UnknownKeys())
    found = [
        examine(
            path,
            search_path,
            environ,
            version,
            findings=shared,
            given=given,
            task_env=task_env,
            tasks_run=tasks_run,
        )
        for path in paths
    ]
    for notice in dict.fromkeys(notice for each in found for notice in each.notices):
        notices(notice)
    for notice in shared.all_notices() if findings is None else ():
        notices(notice)
    problems = [line for each in found for line in (each.problems if skip_invalid else each.all_problems)]
    if problems:
        raise problems_error(list(dict.fromkeys(problems)))
    return [_with_tests(each.file) for each in found if each.file is not None]


def examine(
    path: Path,
    search_path: SearchPath,
    environ: Mapping[str, str] = _EMPTY,
    version: str = AUTO,
    *,
    findings: Findings | None = None,
    given: Given = NOTHING,
    task_env: Variables = None,
    tasks_run: bool = True,
) -> Examined:
    """An eval file with everything that is wrong with it. ``version``: of the format; the others: as of ``load_evals``.
    Raises nothing for its content."""
    findings = (findings or Findings(unknown=UnknownKeys())).of_file()
    path = search_path.here / path
    variables = Environment(partial(environment, path.parent, search_path, environ), findings)
    file: EvalFile | None = None
    with findings.catching():
        if path.name == TASK_FOLDERS and not path.exists():
            values = variables.variables() if tasks_run else None
            file = tasks_file(path, search_path, values, findings, task_env)
        else:
            file = _file(path, search_path, findings, variables, version, given)
    variables.tell()
    notices = tuple(findings.notices)
    return Examined(None if file is None else replace(file, notices=notices), tuple(findings.problems), notices)


def _with_tests(file: EvalFile) -> EvalFile:
    if not file.tests:
        raise file.location.error(f"none of its tests is valid: {file.invalid[0].message}")
    return file


def _file(
    path: Path, search_path: SearchPath, findings: Findings, variables: Environment, version: str, given: Given
) -> EvalFile | None:
    in_python = given.sources.get(path)
    location = Location(search_path.shown(path)) if in_python is None else in_python.location
    if in_python is None and path.suffix not in (*YAML_ENDINGS, JSONL_ENDING, *SCRIPT_ENDINGS):
        raise location.error("an eval file is .yaml, .yml or .jsonl, or a program: .eval.ts")
    if in_python is None and not path.is_file():
        raise location.error("there is no such file")
    lines = path.suffix == JSONL_ENDING
    source = in_python or _source(path, search_path, findings)
    _check_shape(source)
    later = _in_later_words(source, path.parent, search_path, findings, version)
    source = source if later is None else later.source
    value = variables.filled(source.value, source.location, _own_variables(source.value))
    source = replace(source, value=value)
    file = collect(EvalBlock, source.value, source.location, findings)
    if file is None:
        return None
    words = None if later is None else later.graders
    suite = Suite.of(file, path.parent, search_path, findings, variables, words, given.functions)
    reader = RawTests(path.parent, search_path, findings, variables)
    if lines:
        _check_sidecar(file, path)
    raw = reader.lines(path) if lines else _own_tests(path, file, source, reader, findings)
    raw = raw if later is None else later.tests(raw)
    tests, invalid, depends, converses = _sorted_out(suite, raw)
    if not tests and not invalid and not findings.problems:
        findings.problem(location, "holds no tests")
    return replace(_eval_file(file, suite, path, tests, invalid), depends=depends, converses=converses)


def _in_later_words(
    source: Source, folder: Path, search_path: SearchPath, findings: Findings, version: str
) -> Document | None:
    """A file that is in words of version 5, translated; None for others. Raises UserError."""
    if format_of(source, version, findings) != FIFTH:
        return None
    from manyhands.workloads.evals.evalfile.agentv5.document import Document

    return Document(replace(source, value=with_present_variables(source.value)), folder, search_path, findings)


def _source(path: Path, search_path: SearchPath, findings: Findings) -> Source:
    """What stands in an eval file, or for JSON Lines in its sidecar."""
    name = search_path.shown(path)
    if path.suffix == JSONL_ENDING:
        return _sidecar(path, search_path, findings)
    if path.suffix not in SCRIPT_ENDINGS:
        return read_source(path, name)
    source, functions = read_script(path, name)
    if functions:
        findings.notice(f"{name}: functions in it have no effect: {', '.join(functions)}")
    return source


def _check_shape(source: Source) -> None:
    """Raises UserError for files that are often given by mistake, with what they seem to be."""
    if source.value is None:
        raise source.location.error("the file is empty")
    if isinstance(source.value, list):
        raise source.location.error(
            "must be a mapping with tests; a list of them is a file that tests of an eval file names"
        )
    if isinstance(source.value, Mapping) and "jobs" in source.value and "on" in source.value:
        raise source.location.error("is a workflow of GitHub Actions, not an eval file")


def _own_variables(value: Json) -> frozenset[str]:
    """The keys of an eval file below which variables are put in elsewhere: its targets, whose secrets nobody may see."""
    return (
        frozenset(word for word in value if EvalBlock.key_of(word) == "targets")
        if isinstance(value, Mapping)
        else frozenset()
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
        findings.problem(file.location, f"tests is required{hint}")
        return ()
    return reader.listed(source, file.at("tests"))


def _sorted_out(suite: Suite, raw: Iterable[RawTest]) -> tuple[tuple[Test, ...], tuple[Invalid, ...], bool, bool]:
    """The tests, the invalid ones, whether tests depend on others, and whether some have turns. Of tests with the same id the first is a
    test, the others are invalid."""
    tests, invalid, known = list[Test](), list[Invalid](), dict[str, int]()
    for each in raw:
        found = read_test(suite, each)
        if isinstance(found, Invalid):
            invalid.append(found)
        elif found.id in known:
            at, first = found.location.at("id"), tests[known[found.id]].location
            where = f"line {first.at('id').line}" + ("" if at.file == first.file else f" of {first.file}")
            again = str(found.location) == str(first)
            said = "comes again, as its file is named twice" if again else f"is the id of another test too, in {where}"
            problem = at.says(f"{shown(found.id)} {said}")
            invalid.append(Invalid(found.location, found.id, (problem,)))
        else:
            known[found.id] = len(tests)
            tests.append(found)
    depends = any(test.depends_on for test in tests)
    converses = any(test.conversation is not None for test in tests)
    if depends and (wrong := wrong_dependencies(tests, {*known, *(each.id for each in invalid if each.id)})):
        invalid += wrong.values()
        tests = [test for number, test in enumerate(tests) if number not in wrong]
    return tuple(tests), tuple(invalid), depends, converses


def _eval_file(
    file: Read[EvalBlock], suite: Suite, path: Path, tests: tuple[Test, ...], invalid: tuple[Invalid, ...]
) -> EvalFile:
    block, execution = file.block, suite.execution
    if block.target is not None:
        suite.findings.notice(
            f"{file.location.file}: 'target' is at an obsolete location; it belongs below 'execution'"
        )
    refs = target_refs(execution, path.parent, file.at("execution", "targets"), suite.findings)
    if block.name is not None and not NAME.fullmatch(block.name):
        said = "is no name by which AgentV would take the file: 1 to 64 lower-case letters, digits and hyphens"
        suite.findings.notice(file.at("name").says(f"{shown(block.name)} {said}"))
    return EvalFile(
        path=path,
        dataset=block.dataset or path.name.removesuffix(path.suffix),
        tests=tests,
        location=file.location,
        targets=None if block.targets is None else InlineTargets(block.targets, file.at("targets")),
        target_names=targets_of(execution.target or block.target, tuple(ref.name for ref in refs)) or (),
        target_refs=refs,
        trials=trials_of(execution.trials),
        threshold=execution.threshold if block.threshold is None else block.threshold,
        workers=suite.config.execution.workers if execution.workers is None else execution.workers,
        budget_usd=execution.budget_usd,
        cache=execution.cache,
        cache_path=None if execution.cache_path is None else path.parent / execution.cache_path,
        fail_on_error=execution.fail_on_error,
        workspace=suite.workspace,
        invalid=invalid,
        judge_target=block.judge_target,
    )


# --- Where tests stand


@dataclass(frozen=True, slots=True)
class RawTests:
    """Reads tests as they stand in files."""

    folder: Path
    """What relative paths start from."""
    search_path: SearchPath
    findings: Findings
    environment: Environment

    def listed(self, source: Source, location: Location) -> Iterator[RawTest]:
        """The tests of a list, or of the file that a path names. ``source``: the file; ``location``: that of its tests."""
        value = source.value
        for step in location.path:
            value = value[step]
        if isinstance(value, str):
            yield from self._named(value, location)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._item(RawTest(item, location.at(index), source.written))
        else:
            self.findings.problem(
                location, f"must be a list of tests, or the path of a file that holds them, not {shown(value)}"
            )

    def lines(self, path: Path) -> Iterator[RawTest]:
        """The tests of a JSON Lines file."""
        with self.findings.catching():
            for line in read_jsonl(path, self.search_path.shown(path)):
                if isinstance(line, UserError):
                    yield RawTest(None, Location(self.search_path.shown(path)), problem=str(line))
                else:
                    yield RawTest(self.environment.filled(line.value, line.location), line.location, line.written)

    def _item(self, raw: RawTest) -> Iterator[RawTest]:
        if isinstance(raw.value, str) and raw.value.startswith(SCHEME):
            yield from self._named(raw.value, raw.location)
        else:
            yield raw

    def _named(self, value: str, location: Location) -> Iterator[RawTest]:
        folder = self.folder / value.removeprefix(SCHEME).strip()
        if folder.is_dir():
            yield from self._folder(folder, location)
            return
        for path in self._paths(value.removeprefix(SCHEME).strip(), location):
            empty, before = True, len(self.findings.problems)
            for raw in self._file(path, location):
                empty = False
                yield raw
            if empty and len(self.findings.problems) == before:
                self.findings.notice(f"{self.search_path.shown(path)}: holds no tests")

    def _folder(self, folder: Path, location: Location) -> Iterator[RawTest]:
        """A test for each folder within one that holds a case file."""
        empty = True
        for each in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            path = next((each / name for name in CASE_FILES if (each / name).is_file()), None)
            if path is None:
                self.findings.notice(f"{self.search_path.shown(each)}: no test, as there is no {CASE_FILES[0]} in it")
                continue
            empty = False
            with self.findings.catching():
                yield self._case(read_source(path, self.search_path.shown(path)), each)
        if empty:
            self.findings.problem(location, f"no folder in {folder} holds a {CASE_FILES[0]}")

    def _case(self, source: Source, folder: Path) -> RawTest:
        """The test of a case file: its id is the folder's name, and a folder ``workspace`` beside it the template of its workspace,
        unless it says otherwise."""
        value = self.environment.filled(source.value, source.location)
        if not isinstance(value, Mapping):
            raise source.location.error(f"must be a mapping, which is one test, not {shown(value)}")
        keys = {TestBlock.key_of(word) for word, entry in value.items() if entry is not None}
        added: dict[str, Json] = {} if "id" in keys else {"id": folder.name}
        template = folder / "workspace"
        if "workspace" not in keys and template.is_dir():
            added["workspace"] = {"template": str(template.absolute())}
        kept = {word: entry for word, entry in value.items() if TestBlock.key_of(word) not in added}
        return RawTest({**kept, **added}, source.location, source.written)

    def _paths(self, named: str, location: Location) -> list[Path]:
        path = self.folder / named
        if named and path.is_file():
            return [path]
        try:
            found = matching_files(named, self.folder) if is_pattern(named) else []
        except ValueError as error:
            self.findings.problem(location, str(error))
            return []
        if not found:
            self.findings.problem(
                location, f"no file fits {named}" if is_pattern(named) else f"there is no file {path}"
            )
        return found

    def _file(self, path: Path, location: Location) -> Iterator[RawTest]:
        if path.suffix == JSONL_ENDING:
            yield from self.lines(path)
        elif path.suffix in (*YAML_ENDINGS, JSON_ENDING):
            with self.findings.catching():
                yield from self._yaml(read_source(path, self.search_path.shown(path)))
        elif path.suffix == CSV_ENDING:
            from manyhands.workloads.evals.evalfile.sources.csv_tests import csv_tests

            with self.findings.catching():
                yield from csv_tests(path, self.search_path.shown(path))
        else:
            self.findings.problem(location, f"{path.name}: a file of tests is .yaml, .yml, .json, .jsonl or .csv")

    def _yaml(self, source: Source) -> Iterator[RawTest]:
        if source.location.file.endswith(JSON_ENDING) and isinstance(source.value, Mapping) and "tests" in source.value:
            source = replace(source, value=source.value["tests"], location=source.location.at("tests"))
        if not isinstance(source.value, (list, type(None))):
            raise source.location.error(f"must be a list of tests, not {shown(source.value)}")
        for index, written in enumerate(source.value or ()):
            location = source.location.at(index)
            item = self.environment.filled(written, location)
            further = isinstance(item, str) and item.startswith(SCHEME)
            problem = (
                location.says(f"{shown(item)}: only the eval file itself may name files of tests") if further else None
            )
            yield RawTest(item, location, source.written, problem)


# --- Sidecars of JSON Lines files


def _sidecar(path: Path, search_path: SearchPath, findings: Findings) -> Source:
    """The content of the sidecar; an empty mapping without one."""
    candidates = list(sidecars(path))
    if not candidates:
        return Source({}, Location(search_path.shown(path)))
    found, *others = candidates
    if others:
        named, verb = " and ".join(other.name for other in others), "does" if len(others) == 1 else "do"
        findings.notice(f"{search_path.shown(path)}: its sidecar is {found.name}; {named} beside it {verb} not count")
    source = read_source(found, search_path.shown(found))
    return source if source.value is not None else Source({}, source.location)


def _check_sidecar(file: Read[EvalBlock], path: Path) -> None:
    """Raises UserError if a sidecar has tests other than the file that it belongs to."""
    tests = file.block.tests
    if tests is None:
        return
    if not isinstance(tests, str) or (path.parent / tests.removeprefix(SCHEME)).resolve() != path.resolve():
        raise file.at("tests").error(f"this is the sidecar of {path.name}, and its tests are other ones")


# --- Dependencies

DEPENDS_ON = "depends_on"
_MAX_CIRCLE = 10
"""Ids of a circle that are named."""


def wrong_dependencies(tests: Sequence[Test], known: Collection[str]) -> dict[int, Invalid]:
    """The tests whose dependencies are unknown or lead in a circle, by their index. ``tests``: the file's, in order; ``known``: the ids of
    all its tests, invalid ones included."""
    numbers = {test.id: number for number, test in enumerate(tests) if test.depends_on}
    found: dict[int, list[str]] = {}
    for test_id, number in numbers.items():
        for index, named in enumerate(tests[number].depends_on):
            if named == test_id:
                problem = "is the test's own id"
            elif named not in known:
                problem = f"no test of the file is called {shown(named)}{suggestion(named, known)}"
            else:
                continue
            found.setdefault(number, []).append(location_of(tests[number], index).says(problem))
    for circle in _circles({test_id: tests[number].depends_on for test_id, number in numbers.items()}):
        within = [numbers[each] for each in circle]
        problem = location_of(tests[within[0]]).says(f"tests depend on each other in a circle: {_drawn(circle)}")
        for number in within:  # one problem, which all of them have
            found.setdefault(number, []).append(problem)
    return {
        number: Invalid(tests[number].location, tests[number].id, tuple(problems))
        for number, problems in sorted(found.items())
    }


def location_of(test: Test, number: int | None = None) -> Location:
    """The location of a test's dependencies: the whole list, or the entry of an index."""
    location = spelled_at(test.location, DEPENDS_ON)
    if number is None:
        return location
    entry = location.at(number)
    return entry if entry.path in entry.lines else location


def _drawn(circle: Sequence[str]) -> str:
    names = [*circle, circle[0]] if len(circle) <= _MAX_CIRCLE else [*circle[:_MAX_CIRCLE], "…", circle[0]]
    return " → ".join(names)


def _circles(graph: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Circles in a graph, until every node that is in one has been named: without these the rest has an order.

    Nodes that depend on nothing are removed, again and again. Each of those that are left depends on another one that is left, so that
    following them leads into a circle.
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


def distinctly_named(files: Sequence[EvalFile]) -> tuple[EvalFile, ...]:
    """The files, with datasets changed where several have the same one and tests of the same id in it: their folders' names go before it,
    and numbers behind it where that does not help."""
    named_alike = Counter(file.dataset for file in files)
    alike = [file for file in files if named_alike[file.dataset] > 1]
    shared = Counter((file.dataset, test.id) for file in alike for test in file.tests)
    datasets = {dataset for (dataset, _), count in shared.items() if count > 1}
    if not datasets:
        return tuple(files)
    named = [f"{file.folder.name}/{file.dataset}" if file.dataset in datasets else file.dataset for file in files]
    used: Counter[str] = Counter()
    for index, name in enumerate(named):
        used[name] += 1
        if used[name] > 1 and files[index].dataset in datasets:
            named[index] = f"{name}-{used[name]}"
    return tuple(replace(file, dataset=name) for file, name in zip(files, named, strict=True))
