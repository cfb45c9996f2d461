"""The tests that one command answers, as the journal holds them: their ids in memory, what the command reads of them in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from manyhands.core.jsonio import Json, exact_line, loads
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.files import bytes_written_aside
from manyhands.workloads.evals.evalfile.tests import Test, Workspace, each_once

FILE = "told.jsonl"


@dataclass(frozen=True, slots=True)
class BatchTests:
    """The tests that one command answers."""

    ids: tuple[str, ...]
    """In order."""
    files: tuple[Path, ...]
    """All their input files, each once."""
    known: frozenset[str]
    """Further ids of the eval file."""
    workspace: Workspace | None = None
    """The one that all of them have."""


@dataclass(frozen=True, slots=True)
class BatchScope:
    """Which tests of a run a command answers: those of an eval file, for a target and one trial."""

    run_folder: Path
    file: int
    """The eval file's index among the run's."""
    target: str
    trial: int
    """From 0."""
    others: tuple[str, ...] = ()
    """Ids of the eval file that are not in the run."""

    def tests(self, path: Path | None = None) -> BatchTests:
        """The tests, read in one pass. ``path``: a file that is written meanwhile, with an object for each of them, a line of JSON each, in
        their order. Raises StorageError if that can't be done."""
        with closing(JournalReader(self.run_folder)) as reader:
            if path is None:
                return self._read(reader, None)
            with bytes_written_aside(path) as lines:
                return self._read(reader, lines)

    def unfinished(self) -> frozenset[str]:
        """The ids of the tests that have not ended."""
        with closing(JournalReader(self.run_folder)) as reader:
            rows = (row for row in reader.items() if not (row.state.final or row.left_input))
            return frozenset(row.payload["test"]["id"] for row in rows if self._covers(row.payload))

    def _covers(self, payload: Json) -> bool:
        return bool(
            payload["file"] == self.file and payload["target"] == self.target and payload["trial"] == self.trial
        )

    def _read(self, reader: JournalReader, lines: BinaryIO | None) -> BatchTests:
        ids: dict[str, None] = {}
        files: dict[Path, None] = {}
        known = set(self.others)
        workspace: Workspace | None = None
        for payload in reader.payloads():
            if payload["file"] != self.file or "test" not in payload:  # of another file, or an invalid one
                continue
            test = payload["test"]
            test_id = test["id"]
            if payload["target"] != self.target or payload["trial"] != self.trial:
                known.add(test_id)
                continue
            if not ids and test.get("workspace"):
                workspace = Test.from_json(test).workspace
            ids[test_id] = None
            named = Test.from_json(test).all_files if test.get("references") else ()
            files |= dict.fromkeys(named)
            if lines is not None:
                lines.write(exact_line(_line(test, named)))
        return BatchTests(tuple(ids), each_once(files), frozenset(known - ids.keys()), workspace)


@dataclass(frozen=True, slots=True)
class TestsFile:
    """The file that ``BatchScope.tests`` has written."""

    __test__: ClassVar[bool] = False  # it is no test of pytest's

    path: Path
    count: int
    """How many tests are in it."""

    def __call__(self, ids: Collection[str]) -> Iterator[bytes]:
        """A line for each of these tests, without its end, in the order of all tests."""
        wanted = None if len(ids) == self.count else frozenset(ids)
        with self.path.open("rb") as lines:
            for line in lines:
                if wanted is None or loads(line)["id"] in wanted:
                    yield line[:-1]


def _line(test: Json, files: Collection[Path]) -> dict[str, Json]:
    return {
        "id": test["id"],
        "input": test["input"],
        "criteria": test.get("criteria", ""),
        "metadata": test.get("metadata", {}),
        "files": [str(path) for path in files],
    }
