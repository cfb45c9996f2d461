"""``manyhands resume``: continue any run from its folder alone.

How a workload's runs are continued is in its own command's module, which the registry names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from manyhands.cli.console import out, print_ledger, print_usage, run_meant
from manyhands.cli.execution import execute, print_ending
from manyhands.cli.options import UsageError, help_text, make
from manyhands.core.errors import RunError
from manyhands.core.settings import Settings
from manyhands.engine.journal.reader import JOURNAL
from manyhands.runs.folders import load_recorded, open_reader
from manyhands.runs.making import Opened
from manyhands.runs.options import ResumeSettings, RunOptions, TerminalSettings
from manyhands.runs.registry import resume_command

PROGRAM = "manyhands resume RUN"
_USAGE = "manyhands resume [RUN]"
DESCRIPTION = (
    "Continues a run from its folder: recorded steps are not repeated, failed items are retried (tests of an evaluation "
    "with --retry_errors). RUN is the folder, or the run's name under --data_dir; without it, the latest run there. Options "
    "change settings; settings that are not given stay as they were. A change that would make it another run is rejected unless "
    "--override names it. manyhands resume RUN --help lists all options that the run takes."
)
NOT_FOR_RESUME = ("run_name", "resume", "list_distributions")
SettingsT = TypeVar("SettingsT", bound=Settings)


class AnyRun(RunOptions, TerminalSettings, ResumeSettings):
    """What can be said when a run of any workload is continued."""


def run(argv: list[str]) -> int:
    """Continue the run that the command line names; the exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print_help(AnyRun)
        return 0
    name, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    folder = run_meant(name, data_dir_of(rest))
    with closing(open_reader(folder)) as reader:
        command = resume_command(str(reader.meta("workload")))
    return (command or _resume_any)(folder, rest)


def print_help(settings: type[Settings], without: Sequence[str] = ()) -> None:
    """Print what can be said when a run with such settings is continued. ``without``: settings that are for new runs only."""
    print(help_text(settings, _USAGE, DESCRIPTION, without=(*NOT_FOR_RESUME, *without), recorded=True))


def resumed_settings(
    settings: type[SettingsT], folder: Path, given: Mapping[str, Any], required: Sequence[str]
) -> SettingsT:
    """The settings to continue a run with: what was given, and of the recorded ones those without which there are none."""
    with closing(open_reader(folder)) as reader:
        spec = reader.meta("spec")
    recorded = spec.get("options") if isinstance(spec, dict) else None
    if not isinstance(recorded, dict):
        raise RunError(f"{folder / JOURNAL}: the settings recorded there can't be used")
    folder_settings = {"run_name": folder.resolve().name, "data_dir": str(folder.resolve().parent)}
    return make(settings, {**{name: recorded[name] for name in required}, **given, **folder_settings}, PROGRAM)


def refuse_options(words: Sequence[str], problem: str) -> None:
    """Raises UsageError if there is any option but the data folder."""
    words = [word for word in words if word not in ("--data_dir", "--data-dir", data_dir_of(words))]
    if [word for word in words if not word.startswith(("--data_dir=", "--data-dir="))]:
        raise UsageError(problem)


def data_dir_of(words: Sequence[str]) -> str:
    """The data folder that a command line names."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == "__data_dir":
            return value if equals else "".join(words[index + 1 : index + 2])
    return "data"


def _resume_any(folder: Path, rest: list[str]) -> int:
    """A run of a workload without settings of its own on this command line."""
    refuse_options(rest, f"this kind of run takes no options: {' '.join(rest)}")
    with closing(open_reader(folder)) as reader:
        workload = load_recorded(reader)
    result = execute(Opened(folder, workload))
    print_ledger(out(), result.summary)
    print_usage(out(), result.summary)
    print_ending(result)
    return result.exit_code
