"""What differs between a run's tests and its eval files: files are edited, and a run goes on with its tests as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, canonical, dumps, loads
from manyhands.core.redaction import KNOWN
from manyhands.core.text import counted
from manyhands.engine.contract import ItemRow
from manyhands.io.locations import UnknownKeys
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import EvalFile, Test
from manyhands.workloads.evals.evalfile.files import known_by
from manyhands.workloads.evals.evalfile.loading import examine
from manyhands.workloads.evals.evalfile.sources.given import NO_FILE, NOTHING, Given
from manyhands.workloads.evals.prepared import FileTargets, PreparedEval, chosen
from manyhands.workloads.evals.targets.definitions import Target, find_targets

MAX_LISTED = 20
"""Tests of each file that are named to a person."""
MAX_KEPT = 1000
"""Tests of each kind that the summary names."""
_CALLED = {
    "expected_output": "expected output",
    "default_grader": "graders",
    "references": "files",
    "guideline_files": "guidelines",
    "on_dependency_failure": "depends_on",
    "conversation": "turns",
}
"""What messages call fields of tests, if not by their names."""
_OF_FILES = ("threshold", "dataset", "workers", "fail_on_error", "cache")
"""What is written once for all tests of a file, and kept as it was."""
_NOT_COMPARED = ("id", "place", "targets")


@dataclass(slots=True)
class Edits:
    """What is different in an eval file."""

    file: str
    """Its path, as people are shown it."""
    problem: str | None = None
    """Why it can't be compared; None if it can."""
    head: list[str] = field(default_factory=list)
    """What has changed that concerns all tests."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """What of a test has changed, by its id."""
    new: list[str] = field(default_factory=list)
    """Ids of tests that the run would have if it were made now."""
    gone: list[str] = field(default_factory=list)
    """Ids of the run's tests that the file has no more."""
    left: set[str] = field(default_factory=set)
    """Ids of tests that have changed or are gone, and are still to be executed."""
    readers: dict[str, None] = field(default_factory=dict)
    """Targets that read the file themselves, and have tests to answer."""

    def __bool__(self) -> bool:
        return bool(self.problem or self.head or self.changed or self.new or self.gone)

    @property
    def only_graders(self) -> bool:
        """Whether the answers would be the same, as far as can be seen."""
        scored = {"graders", "criteria", "expected output", "threshold", "tags", "metadata"}
        of_tests = all(scored.issuperset(what) for what in self.changed.values())
        return of_tests and not (self.problem or self.new or self.gone or set(self.head) - {"threshold"})

    def to_json(self) -> dict[str, Json]:
        """For the summary."""
        return {
            "path": self.file,
            "problem": self.problem,
            "head": self.head,
            "tests": {"changed": len(self.changed), "new": len(self.new), "gone": len(self.gone)},
            "changed": dict(list(self.changed.items())[:MAX_KEPT]),
            "new": self.new[:MAX_KEPT],
            "gone": self.gone[:MAX_KEPT],
        }

    def lines(self) -> Iterator[str]:
        """For the person: at most ``MAX_LISTED`` tests are named."""
        if self.problem is not None:
            yield f"{self.file} can't be compared with the tests of this run, which goes on with them as they were: {self.problem}"
            return
        yield f"{self.file} is not as it was when this run was made, which goes on with its tests as they were:"
        if self.head:
            yield f"  {', '.join(self.head)} changed: as before in this run"
        for target in self.readers:
            yield f"  target {target} reads the file itself: what it answers from now on is of the file as it is now"
        tests = [*self._test_lines()]
        yield from tests[:MAX_LISTED]
        if len(tests) > MAX_LISTED:
            yield f"  … and {counted(len(tests) - MAX_LISTED, 'more test')}"

    def _test_lines(self) -> Iterator[str]:
        for test_id, what in self.changed.items():
            yield f"  test {test_id} has changed ({', '.join(what)}): {self._becomes(test_id)}"
        for test_id in self.gone:
            yield f"  test {test_id} is gone: {self._becomes(test_id)}"
        for test_id in self.new:
            yield f"  test {test_id} is new: not part of this run"

    def _becomes(self, test_id: str) -> str:
        return "it is executed as it was" if test_id in self.left else "its result is that of the test as it was"


def edits_of(
    rows: Iterable[ItemRow], prepared: PreparedEval, environ: Mapping[str, str], given: Given = NOTHING
) -> list[Edits]:
    """What is different in the eval files of a run, for those that are. ``rows``: its items; ``given``: in Python. Tests that were given
    there once, and are not now, can't be compared. Raises nothing for what is in the files."""
    around = SearchPath.of(Path(prepared.here))
    files = [_Compared.of(file, prepared, around, environ, given) for file in prepared.files]
    for row in rows:
        if not row.left_input and "test" in row.payload:
            files[row.payload["file"]].meet(row)
    return [edits for each in files if (edits := each.edits())]


class _Compared:
    """An eval file as it is now, and as the run has it."""

    def __init__(
        self,
        edits: Edits,
        file: EvalFile | None,
        usual: Sequence[str] | None = None,
        wanted: Sequence[str] = (),
        reading: Collection[str] = (),
    ) -> None:
        """``usual``: the targets of tests that name none; None where the run's settings chose among those of all tests; ``wanted``: ids of
        the tests that the run's settings choose; ``reading``: the targets that read the file themselves."""
        self._edits = edits
        self._file = file
        self._usual = usual
        self._wanted = wanted
        tests = () if file is None else file.tests
        self._now = {test.id: (index, _digest(_written(test)), test.targets) for index, test in enumerate(tests)}
        self._invalid = {} if file is None else {each.id: each.message for each in file.invalid}
        self._met: set[str] = set()
        self._reading = reading

    @classmethod
    def of(
        cls,
        recorded: FileTargets,
        prepared: PreparedEval,
        around: SearchPath,
        environ: Mapping[str, str],
        given: Given,
    ) -> _Compared:
        path = Path(recorded.path)
        edits = Edits(around.shown(known_by(path)))
        if path.name == NO_FILE and path not in given.sources:
            return cls(edits, None)
        options = prepared.options
        found = examine(
            path,
            around,
            environ,
            options.format,
            given=given,
            task_env=options.task_env,
            tasks_run=options.asks_targets,
        )
        if found.file is None or found.problems:
            edits.problem = (found.problems or ("it can't be read",))[0]
            return cls(edits, None)
        file, stands_in = found.file, not options.asks_targets
        edits.head += [name for name in _OF_FILES if _given(file, name) != _given(recorded, name)]
        if not stands_in:
            edits.head += _changed_targets(file, recorded, prepared, around, environ, given)
        settled = bool(stands_in or options.target)
        usual = None if settled or not recorded.usual else recorded.usual
        reading = {target.name for target in recorded.targets if not stands_in and _reads_the_file(target)}
        return cls(edits, file, usual, [test.id for test in chosen(file, options, given).tests], reading)

    def meet(self, row: ItemRow) -> None:
        """One of the run's items."""
        if self._file is None:
            return
        test: dict[str, Json] = row.payload["test"]
        test_id: str = test["id"]
        edits = self._edits
        if test_id not in self._met:
            self._met.add(test_id)
            if test_id in self._now:
                if what := self._difference(test):
                    edits.changed[test_id] = what
            elif test_id in self._invalid:
                edits.changed[test_id] = [f"can't be run: {self._invalid[test_id]}"]
            else:
                edits.gone.append(test_id)
        if row.state.final:
            return
        if test_id in edits.changed or test_id not in self._now:
            edits.left.add(test_id)
        if row.payload["target"] in self._reading:
            edits.readers[row.payload["target"]] = None

    def edits(self) -> Edits:
        self._edits.new = [test_id for test_id in self._wanted if test_id not in self._met]
        return self._edits

    def _difference(self, test: dict[str, Json]) -> list[str]:
        index, digest, targets = self._now[test["id"]]
        if digest == _digest(test) and targets is None and "targets" not in test:
            return []
        assert self._file is not None
        now, before = _written(self._file.tests[index]), Test.from_json(test).to_json()  # as this version writes it
        named = [*dict.fromkeys((*before, *now))]
        found = [name for name in named if name not in _NOT_COMPARED and before.get(name) != now.get(name)]
        if not self._same_targets(before.get("targets"), now.get("targets")):
            found.append("targets")
        return [*dict.fromkeys(_CALLED.get(name, name) for name in found)]

    def _same_targets(self, before: Any, now: Any) -> bool:
        """What a test names itself. A run that was made with a choice among them has written that down instead."""
        return self._usual is None or before == now or (now is None and before == list(self._usual))


def _given(of: EvalFile | FileTargets, name: str) -> Any:
    """What is written, where false is as good as nothing."""
    value = getattr(of, name)
    return None if value is False else value


def _written(test: Test) -> dict[str, Json]:
    """A test as a journal would hold it."""
    written: dict[str, Json] = loads(dumps(KNOWN.json(test.to_json())))
    return written


def _digest(test: Mapping[str, Json]) -> bytes:
    compared = {name: value for name, value in test.items() if name not in _NOT_COMPARED}
    return hashlib.blake2b(canonical(compared), digest_size=16).digest()


def _changed_targets(
    file: EvalFile,
    recorded: FileTargets,
    prepared: PreparedEval,
    around: SearchPath,
    environ: Mapping[str, str],
    given: Given,
) -> list[str]:
    """The targets and judges of a run whose settings are others now, and those that the file asks for now."""
    options = prepared.options
    found = []
    known = {target.name for target in recorded.targets}
    if not options.target and file.target_names and not known.issuperset(file.target_names):
        found.append("target")
    try:
        option = None if options.targets is None else Path(options.targets)
        available = find_targets(file, option, environ, search_path=around, unknown=UnknownKeys(), given=given.targets)
        for target in {each.name: each for each in (*recorded.targets, *recorded.judges)}.values():
            if not available.knows(target.name):
                found.append(f"target {target.name} (gone)")
            elif what := _other_settings(target, available.resolve(target.name)):
                found.append(f"target {target.name} ({', '.join(what)})")
    except UserError as error:
        found.append(f"targets (they can't be read: {str(error).splitlines()[0]})")
    return found


def _reads_the_file(target: Target) -> bool:
    """Whether a command gets the path of the eval file."""
    return "EVAL_FILE" in str(target.settings.get("command"))


def _other_settings(before: Target, now: Target) -> list[str]:
    was, is_now = (loads(dumps(KNOWN.json(dict(target.settings)))) for target in (before, now))
    return [name for name in dict.fromkeys((*was, *is_now)) if was.get(name) != is_now.get(name)]
