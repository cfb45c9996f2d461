"""The tests that one command answers, as the journal holds them: their ids in memory, all else read again when it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.jsonio import Json
from manyhands.engine.database import connect
from manyhands.engine.reader import JOURNAL, JournalReader
from manyhands.evals.model import Test, Workspace


@dataclass(frozen=True, slots=True)
class Asked:
    """``ids``: of the tests, in order; ``files``: all their input files, each once; ``known``: further ids of the eval file;
    ``workspace``: the tests' one, which is the same for all that one command answers."""

    ids: tuple[str, ...]
    files: tuple[Path, ...]
    known: frozenset[str]
    workspace: Workspace | None = None


def asked(run_folder: Path, file: int, target: str, trial: int, others: tuple[str, ...]) -> Asked:
    """What a target is asked in a trial. ``others``: ids of the eval file that are not in the run."""
    ids: dict[str, None] = {}
    files: dict[Path, None] = {}
    known = set(others)
    workspace: Workspace | None = None
    with closing(JournalReader(run_folder)) as reader:
        for payload in _payloads(reader, file):
            test = payload["test"]
            known.add(test["id"])
            if payload["target"] == target and payload["trial"] == trial:
                if not ids and test.get("workspace"):
                    workspace = Test.from_json(test).workspace
                ids[test["id"]] = None
                if test.get("references"):
                    files |= dict.fromkeys(Test.from_json(test).files)
    return Asked(tuple(ids), tuple(files), frozenset(known - ids.keys()), workspace)


class Told:
    """What a command is told of tests, an object each. Ids are asked for in the order of the journal, by one thread at a time."""

    def __init__(self, run_folder: Path, file: int) -> None:
        self._folder = run_folder
        self._file = file
        self._left: Iterator[tuple[str, Json]] = iter(())

    def __call__(self, test_id: str) -> dict[str, Json]:
        """Raises KeyError for an id that is not in the run."""
        for _ in range(2):
            for found, test in self._left:
                if found == test_id:
                    return _told(test)
            self._left = self._tests()  # another invocation asks from the beginning again
        raise KeyError(test_id)

    def close(self) -> None:
        """Idempotent."""
        self._left = iter(())

    def _tests(self) -> Iterator[tuple[str, Json]]:
        # Whichever thread asks, one at a time does.
        connection = connect(self._folder / JOURNAL, read_only=True, any_thread=True)
        with closing(JournalReader(self._folder, connection)) as reader:
            for payload in _payloads(reader, self._file):
                yield payload["test"]["id"], payload["test"]


def _payloads(reader: JournalReader, file: int) -> Iterator[Json]:
    """Of the tests of an eval file, without those that are invalid or not in the input any more."""
    for row in reader.items():
        if not row.left_input and row.payload["file"] == file and "test" in row.payload:
            yield row.payload


def _told(test: Json) -> dict[str, Json]:
    return {
        "id": test["id"],
        "input": test["input"],
        "criteria": test.get("criteria", ""),
        "metadata": test.get("metadata", {}),
        "files": [str(path) for path in Test.from_json(test).files] if test.get("references") else [],
    }
