"""Where the tests of an eval file come from: its own list, and files that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.findings import Findings
from manyhands.io.json_lines import read_jsonl
from manyhands.io.locations import Path as FieldPath
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import Source, read_source
from manyhands.workloads.evals.evalfile.patterns import is_pattern, matching_files

SCHEME = "file://"
YAML_ENDINGS = (".yaml", ".yml")
JSONL_ENDING = ".jsonl"


@dataclass(frozen=True, slots=True)
class RawTest:
    """A test as it stands in a file. ``problem``: why it can't be read, and then there is no value."""

    value: Json
    place: Place
    written: Mapping[FieldPath, str] = field(default_factory=dict)
    problem: str | None = None

    def as_written(self, value: Json, place: Place) -> str:
        """A number of it, at its place, as the person wrote it."""
        return self.written.get(place.path, str(value))


@dataclass(frozen=True, slots=True)
class RawTests:
    """Reads tests. ``folder``: what relative paths start from."""

    folder: Path
    surroundings: Surroundings
    findings: Findings

    def listed(self, source: Source, place: Place) -> Iterator[RawTest]:
        """The tests of a list, or of the file that a path names. ``source``: the file; ``place``: that of its tests."""
        value = source.value
        for step in place.path:
            value = value[step]
        if isinstance(value, str):
            yield from self._named(value, place)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._item(RawTest(item, place.at(index), source.written))
        else:
            self.findings.problem(
                place, f"must be a list of tests, or the path of a file that holds them, not {shown(value)}"
            )

    def lines(self, path: Path) -> Iterator[RawTest]:
        """The tests of a JSON Lines file."""
        with self.findings.catching():
            for line in read_jsonl(path, self.surroundings.shown(path)):
                if isinstance(line, UserError):
                    yield RawTest(None, Place(self.surroundings.shown(path)), problem=str(line))
                else:
                    yield RawTest(line.value, line.place, line.written)

    def _item(self, raw: RawTest) -> Iterator[RawTest]:
        if isinstance(raw.value, str) and raw.value.startswith(SCHEME):
            yield from self._named(raw.value, raw.place)
        else:
            yield raw

    def _named(self, value: str, place: Place) -> Iterator[RawTest]:
        for path in self._paths(value.removeprefix(SCHEME).strip(), place):
            empty, before = True, len(self.findings.problems)
            for raw in self._file(path, place):
                empty = False
                yield raw
            if empty and len(self.findings.problems) == before:
                self.findings.notice(f"{self.surroundings.shown(path)}: holds no tests")

    def _paths(self, named: str, place: Place) -> list[Path]:
        path = self.folder / named
        if named and path.is_file():
            return [path]
        try:
            found = matching_files(named, self.folder) if is_pattern(named) else []
        except ValueError as error:
            self.findings.problem(place, str(error))
            return []
        if not found:
            self.findings.problem(place, f"no file fits {named}" if is_pattern(named) else f"there is no file {path}")
        return found

    def _file(self, path: Path, place: Place) -> Iterator[RawTest]:
        if path.suffix == JSONL_ENDING:
            yield from self.lines(path)
        elif path.suffix in YAML_ENDINGS:
            with self.findings.catching():
                yield from self._yaml(read_source(path, self.surroundings.shown(path)))
        else:
            self.findings.problem(place, f"{path.name}: a file of tests is .yaml, .yml or .jsonl")

    def _yaml(self, source: Source) -> Iterator[RawTest]:
        if not isinstance(source.value, (list, type(None))):
            raise source.place.error(f"must be a list of tests, not {shown(source.value)}")
        for index, item in enumerate(source.value or ()):
            place = source.place.at(index)
            further = isinstance(item, str) and item.startswith(SCHEME)
            problem = (
                place.says(f"{shown(item)}: only the eval file itself may name files of tests") if further else None
            )
            yield RawTest(item, place, source.written, problem)
