"""How the commands of a run went that answer all tests at once: kept beside their files, for whoever writes what a run came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps, loads
from manyhands.io.files import bytes_written_aside


class FaultKind(StrEnum):
    """Why a test has no answer. The value is what files show."""

    MISSING = "missing"
    """The command ended well, and wrote no record for it."""
    UNREADABLE = "unreadable"
    """The line that seems to be its record is none."""
    CONTRADICTION = "contradiction"
    """There are two different records for it."""
    TIMEOUT = "timeout"
    """The command was stopped at its time limit before it wrote one."""
    COMMAND_FAILED = "command_failed"
    """The command failed, or could not be started, before it wrote one."""
    NO_OUTPUT = "no_output"
    """The output file is missing or empty."""


_CAUSES = {FaultKind.TIMEOUT: Cause.TIMEOUT, FaultKind.COMMAND_FAILED: Cause.WORKER_ERROR}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a test has no answer."""

    test_id: str
    kind: FaultKind
    message: str

    @property
    def cause(self) -> Cause:
        """The same for the engine's table of failures."""
        return _CAUSES.get(self.kind, Cause.INVALID_OUTPUT)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """How a batch command went, all invocations together; command, exit code, output and ``failure`` are the last one's.

    ``failure``: what went wrong with the command as a whole, None if nothing did; ``notices``: what a person should know, a line each;
    ``missing``: tests without a usable record, in their order; ``retracted``: tests whose record was contradicted by a later one, and how:
    if an answer was taken from the first, it must not count.
    """

    invocations: int
    command: str
    exit_code: int | None
    timed_out: bool
    seconds: float
    failure: str | None
    notices: tuple[str, ...]
    records: int
    missing: tuple[str, ...]
    retracted: Mapping[str, str]
    output: Path | None = None
    stdout: Path | None = None
    stderr: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain object."""
        value = asdict(self)
        paths = {name: None if value[name] is None else str(value[name]) for name in ("output", "stdout", "stderr")}
        return {**value, **paths, "missing": list(self.missing), "notices": list(self.notices)}


TARGETS = "targets"
"""The folder in the run folder where commands' files are kept."""
REPORT = "report.json"


def write_report(folder: Path, report: BatchReport, *, dataset: str, target: str, trial: int) -> None:
    """``folder``: the command's own, in the run folder. Raises StorageError."""
    told = {"dataset": dataset, "target": target, "trial": trial, **report.to_json()}
    with bytes_written_aside(folder / REPORT) as file:
        file.write(dumps(told) + b"\n")


def target_reports(run_folder: Path) -> list[dict[str, Any]]:
    """What ``write_report`` wrote, in order of the eval files and targets. ``notices`` (lines for the person) and ``failure`` (what went
    wrong with the command as a whole, or null) are those of ``BatchReport``. A damaged file counts as none."""
    return list(_read(sorted((run_folder / TARGETS).glob(f"*/{REPORT}"))))


def said(report: dict[str, Any]) -> Iterator[str]:
    """What a person should know of a report, a line each."""
    name = report["target"] + (f", trial {report['trial'] + 1}" if report["trial"] else "")
    for text in (*([report["failure"]] if report["failure"] else []), *report["notices"]):
        yield f"target {name}: {text}"


def _read(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            value = loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            yield value
