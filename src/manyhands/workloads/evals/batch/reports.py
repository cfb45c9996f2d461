"""How the commands of a run went that answer all tests at once: kept beside their files, for the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict, cast

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
        """The cause of failure, by the engine's table of failures."""
        return _CAUSES.get(self.kind, Cause.INVALID_OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """How a batch command went, all its invocations together."""

    invocations: int
    """How often it was invoked."""
    command: str
    """The last invocation's, as it was run, without secrets."""
    exit_code: int | None
    """The last invocation's, as shells count; None if it was stopped or never started."""
    timed_out: bool
    """Whether the last invocation was stopped at its time limit."""
    seconds: float
    """How long all invocations took."""
    failure: str | None
    """What went wrong with the last invocation as a whole; None if nothing did."""
    notices: tuple[str, ...]
    """What a person should know, a line each."""
    records: int
    """Records in all outputs."""
    missing: tuple[str, ...]
    """The tests without a usable record, in their order."""
    retracted: Mapping[str, str]
    """The tests whose record was contradicted by a later one, and how: an answer that was taken from the first must not count."""
    output: Path | None = None
    """The last invocation's output file."""
    stdout: Path | None = None
    """What the last invocation printed, where the command was run."""
    stderr: Path | None = None
    """What it printed to standard error."""

    def share_ms(self, tests: int) -> int:
        """The command's time in milliseconds divided by its tests: the duration of a test whose record gives none."""
        return round(1000 * self.seconds / max(1, tests))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        value = asdict(self)
        paths = {name: None if value[name] is None else str(value[name]) for name in ("output", "stdout", "stderr")}
        return {**value, **paths, "missing": list(self.missing), "notices": list(self.notices)}


class CommandFigures(TypedDict):
    """How a command that answers all tests went, as summaries have it. See ``BatchReport``."""

    dataset: str
    target: str
    trial: int
    """Which sample of the tests it answered, from 0."""
    invocations: int
    exit_code: int | None
    timed_out: bool
    seconds: float
    failure: str | None
    notices: list[str]
    records: int
    missing: int
    """How many tests have no usable record."""


TARGETS = "targets"
"""The folder in the run folder where commands' files are kept."""
REPORT = "report.json"


def write_report(folder: Path, report: BatchReport, *, dataset: str, target: str, sample: int) -> None:
    """``folder``: the command's own, in the run folder. Raises StorageError."""
    value = {"dataset": dataset, "target": target, "trial": sample, **report.to_json()}
    with bytes_written_aside(folder / REPORT) as file:
        file.write(dumps(value) + b"\n")


def command_figures(run_folder: Path) -> list[CommandFigures]:
    """Of all reports in a run folder, in order of the eval files and targets. A damaged file counts as none."""
    return list(_read(sorted((run_folder / TARGETS).glob(f"*/{REPORT}"))))


def report_lines(command: CommandFigures) -> Iterator[str]:
    """What a person should know of a command, a line each."""
    name = command["target"] + (f", trial {command['trial'] + 1}" if command["trial"] else "")
    for text in (*([command["failure"]] if command["failure"] else []), *command["notices"]):
        yield f"target {name}: {text}"


def _read(paths: list[Path]) -> Iterator[CommandFigures]:
    for path in paths:
        try:
            value = loads(path.read_bytes())
            figures = {name: value[name] for name in CommandFigures.__annotations__}
            yield cast(CommandFigures, {**figures, "missing": len(value["missing"])})
        except (OSError, ValueError, KeyError, TypeError):
            continue
