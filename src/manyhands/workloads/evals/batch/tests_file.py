"""The tests that one command answers, as the journal holds them: their ids in memory, what it is told of them in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import StorageError
from manyhands.core.jsonio import Json, exact_line, loads
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.files import bytes_written_aside
from manyhands.workloads.evals.evalfile.tests import Test, Workspace, each_once

TOLD = "told.jsonl"


@dataclass(frozen=True, slots=True)
class Asked:
    """``ids``: of the tests, in order; ``files``: all their input files, each once; ``known``: further ids of the eval file;
    ``workspace``: the tests' one, which is the same for all that one command answers."""

    ids: tuple[str, ...]
    files: tuple[Path, ...]
    known: frozenset[str]
    workspace: Workspace | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked in a run: of a target, about the tests of an eval file, in a trial. ``others``: ids of the file that are not in the
    run."""

    run_folder: Path
    file: int
    target: str
    trial: int
    others: tuple[str, ...] = ()

    def asked(self, told: Path | None = None) -> Asked:
        """The tests, read in one pass. ``told``: a file that is written meanwhile, with an object for each of them, a line of JSON each, in
        their order. Raises StorageError if that can't be done."""
        with closing(JournalReader(self.run_folder)) as reader:
            if told is None:
                return self._read(reader, None)
            try:
                told.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{told.parent}: can't be made ({error.strerror})") from error
            with bytes_written_aside(told) as lines:
                return self._read(reader, lines)

    def left(self) -> frozenset[str]:
        """The ids of those that have not ended."""
        with closing(JournalReader(self.run_folder)) as reader:
            rows = (row for row in reader.items() if not (row.state.final or row.left_input))
            return frozenset(row.payload["test"]["id"] for row in rows if self._is_about(row.payload))

    def _is_about(self, payload: Json) -> bool:
        return bool(
            payload["file"] == self.file and payload["target"] == self.target and payload["trial"] == self.trial
        )

    def _read(self, reader: JournalReader, lines: BinaryIO | None) -> Asked:
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
                lines.write(exact_line(_told(test, named)))
        return Asked(tuple(ids), each_once(files), frozenset(known - ids.keys()), workspace)


@dataclass(frozen=True, slots=True)
class Told:
    """What a command is told of tests. ``path``: the file that ``Asking.asked`` has written, with ``count`` tests."""

    path: Path
    count: int

    def __call__(self, ids: Collection[str]) -> Iterator[bytes]:
        """A line for each of these tests, without its end, in the order of all tests."""
        wanted = None if len(ids) == self.count else frozenset(ids)
        with self.path.open("rb") as lines:
            for line in lines:
                if wanted is None or loads(line)["id"] in wanted:
                    yield line[:-1]


def _told(test: Json, files: Collection[Path]) -> dict[str, Json]:
    return {
        "id": test["id"],
        "input": test["input"],
        "criteria": test.get("criteria", ""),
        "metadata": test.get("metadata", {}),
        "files": [str(path) for path in files],
    }
