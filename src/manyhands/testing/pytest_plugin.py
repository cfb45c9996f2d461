"""The plug-in of pytest: an eval file is collected as tests, one for each of its tests and targets.

It is imported whenever pytest starts, so that it imports the rest of manyhands only once there is an eval file.
"""

from __future__ import annotations

import fnmatch
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from manyhands.testing.pytest_evals import EvalFile, RunningEvals

_ENDINGS = (".yaml", ".yml", ".jsonl")
_FILES, _DATA_DIR = "manyhands_eval_files", "manyhands_data_dir"
_EVALS = "manyhands.testing.pytest_evals"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, each of which means what that of ``manyhands eval`` does."""
    group = parser.getgroup("manyhands", "evaluations (manyhands)")
    group.addoption("--manyhands-target", metavar="NAME", help="targets to evaluate, with commas between them")
    group.addoption("--manyhands-judge-target", metavar="NAME", help="target that judges where targets name none")
    group.addoption("--manyhands-threshold", type=float, metavar="SCORE", help="minimum score to pass")
    group.addoption("--manyhands-workers", type=int, metavar="N", help="maximum concurrent tests of a file")
    group.addoption("--manyhands-max-cost", type=float, metavar="USD", help="maximum cost of the run of a file")
    group.addoption("--manyhands-dry-run", action="store_true", help="made-up answers in place of those of targets")
    group.addoption(
        "--manyhands-run",
        metavar="NAME",
        help="name of the runs (behind it the file's name); continues those that are there, and calls nothing again",
    )
    parser.addini(_FILES, "globs of eval files that are collected wherever pytest looks for tests", type="args")
    parser.addini(_DATA_DIR, "folder for run folders (default: manyhands in pytest's cache folder)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> EvalFile | None:
    """An eval file that was named on the command line, or that the configuration names: a plain ``pytest`` calls nothing that costs."""
    if file_path.suffix not in _ENDINGS:
        return None
    chosen = any(_matches(file_path, parent.config.rootpath, glob) for glob in parent.config.getini(_FILES))
    if not chosen and not parent.session.isinitpath(file_path):
        return None
    from manyhands.testing.pytest_evals import EvalFile, is_eval_file

    if not chosen and not is_eval_file(file_path):
        return None  # of somebody else, perhaps
    file: EvalFile = EvalFile.from_parent(parent, path=file_path)
    return file


def _matches(path: Path, root: Path, glob: str) -> bool:
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    return fnmatch.fnmatch(path.name if "/" not in glob else shown, glob)


def _running(config: pytest.Config) -> RunningEvals | None:
    """The evaluations of a session, if it has some."""
    if _EVALS not in sys.modules:
        return None
    from manyhands.testing.pytest_evals import RUNNING

    return config.stash.get(RUNNING, None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Runs that nobody waits for any more (-x, Ctrl-C) are ended in good order."""
    running = _running(session.config)
    if running is not None:
        running.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where results are, and what a person should know."""
    running = _running(config)
    if running is not None and running.lines():
        terminalreporter.section("evaluations")
        for line in running.lines():
            terminalreporter.write_line(line)
