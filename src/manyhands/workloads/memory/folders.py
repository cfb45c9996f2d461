"""The layout of the data folder: runs of the memory benchmark, their definitions and results, and what agents keep.

::

    DATA/tests/RUN/                      the run: its journal (run.db), and
        definitions/config.yml, DATASET/EXAMPLE.def.json
        scores/JUDGE/run.db, scores.json    scores that another judge gave afterwards
        results/AGENT/master_log.jsonl, runstats.json, DATASET/EXAMPLE_0.json
    DATA/persistence/RUN - AGENT/        what an agent itself keeps
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import StorageError, UserError
from manyhands.core.text import suggestion
from manyhands.io.files import folder_name

TESTS = "tests"
DEFINITIONS = "definitions"
RESULTS = "results"
CONFIGURATION = "config.yml"
"""The copy of the configuration, in the folder of definitions."""
PERSISTENCE = "persistence"
SCORES = "scores"
"""The folder, in a run's, of the scores that judges gave afterwards."""
MASTER_LOG = "master_log.jsonl"
RUNSTATS = "runstats.json"
SESSION = "session.json"
"""A file beside those of the GoodAI LTM Benchmark: of which run these results are, and what they were made with."""
ISOLATED = " (isolated)"
"""What is added to the name of a run whose tests are not interleaved."""
_MAX_NAME_BYTES = 130
"""Bytes of an agent's name as part of a folder's: what a run's name leaves of the 255 that most file systems have."""


def run_folder(data_dir: Path, run_name: str, *, isolated: bool = False) -> Path:
    """The folder of a run."""
    return data_dir / TESTS / (run_name + ISOLATED if isolated else run_name)


def find_memory_run(named: str, data_dir: Path, *, with_tests: bool = False) -> Path:
    """The folder of a run that is named by its path, or by its name below the data folder. ``with_tests``: one that has definitions.

    Raises UserError that says which runs there are.
    """
    for folder in (Path(named), data_dir / TESTS / named):
        if (folder / DEFINITIONS / CONFIGURATION).is_file() if with_tests else folder.is_dir():
            return folder
    known = data_dir / TESTS
    runs = sorted(each.name for each in known.iterdir() if each.is_dir()) if known.is_dir() else []
    there = f"runs in {known}: {', '.join(runs[:20])}" if runs else f"there are no runs in {known}"
    raise UserError(f"no run {named!r}{' with tests' * with_tests}{suggestion(named, runs)} ({there})")


@dataclass(frozen=True, slots=True)
class ResultPaths:
    """The paths of one agent's results in a run."""

    folder: Path
    """``results/AGENT``."""

    @classmethod
    def of(cls, run: Path, agent: str) -> ResultPaths:
        return cls(run / RESULTS / folder_name(agent, _MAX_NAME_BYTES))

    @property
    def master_log(self) -> Path:
        return self.folder / MASTER_LOG

    @property
    def runstats(self) -> Path:
        return self.folder / RUNSTATS

    def result(self, dataset: str, example_id: str) -> Path:
        """The result of a test; the number behind its id is that of the repetition, which is always 0."""
        return self.folder / dataset / f"{example_id}_0.json"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises StorageError, naming the path, for what the system says against writing there."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error


def move_aside(folder: Path) -> Path:
    """Rename a folder that something new is about to replace; the path that it has then. Raises StorageError."""
    number = 1
    while (aside := folder.with_name(f"{folder.name} (earlier {number})")).exists():
        number += 1
    with writing(folder):
        folder.rename(aside)
    return aside


def persistence_folder(data_dir: Path, run_name: str, agent: str) -> Path:
    """Where an agent keeps what it wants to keep."""
    return data_dir / PERSISTENCE / f"{run_name} - {folder_name(agent, _MAX_NAME_BYTES)}"
