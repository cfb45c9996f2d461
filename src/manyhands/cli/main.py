"""The entry point: ``manyhands COMMAND …``.

Only what every command needs is imported here, so that ``manyhands --help`` answers at once; a command's own module is
imported when it is called. Here alone exceptions become a line for the person and an exit code (``ExitCode``):

====  ==========================================================================================================
0     everything that was requested was done
1     items failed, or storage or the program itself failed
2     bad usage or input
3     ``eval``: tests ended in errors, so that they have no score
130   interrupted; the run can be resumed
141   the reader of the output went away
====  ==========================================================================================================
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from manyhands.processes.interpreters import end_process, freeze_objects, leave_current_folder
from manyhands.runs.exit_codes import ExitCode

_PATH_ERRORS = {errno.ENAMETOOLONG: "the path is too long", errno.EACCES: "permission denied"}
"""What is said of a path that was given and can't be looked at."""
_MAX_PATH = 200
"""Characters of a path that an error shows."""

COMMANDS: dict[str, tuple[str, str]] = {
    "batch": ("manyhands.cli.batch:run", "turn a dataset of prompts into agent trajectories"),
    "eval": (
        "manyhands.cli.evals.run:run",
        "evaluate targets with tests and graders; compare runs; validate eval files",
    ),
    "resume": ("manyhands.cli.resume:run", "continue a run, from its folder alone"),
    "runs": ("manyhands.cli.runs:run", "list runs"),
    "show": ("manyhands.cli.show:run", "show a run, or the steps of one item"),
    "view": ("manyhands.cli.viewing.view:run", "show runs in a browser, live and finished"),
    "report": ("manyhands.cli.viewing.report:run", "write a run as one HTML file, or runs as a folder of pages"),
    "status": ("manyhands.cli.status:run", "show the progress of a run, also while it executes"),
    "export": ("manyhands.cli.exports.export:run", "write conversations of runs in formats for training and analysis"),
    "import": (
        "manyhands.cli.exports.importing:run",
        "make a run of conversations from files, to show, grade and compare them",
    ),
    "set": ("manyhands.cli.steering.changing:run", "change the concurrency or the budget of a run, pause it, go on"),
    "retry": ("manyhands.cli.steering.selecting:retry", "execute items of a run again: by state, cause or key"),
    "cancel": ("manyhands.cli.steering.selecting:cancel", "end items of a run: by state, cause or key"),
    "check": ("manyhands.cli.check:run", "replay recorded items from the journal, and report what differs"),
    "jobs": ("manyhands.cli.jobs:run", "run an agent on each row of a table: create, monitor and control jobs"),
    "memory": ("manyhands.cli.memory:run", "benchmark the long-term memory of agents in one long conversation"),
    "tasks": ("manyhands.cli.tasks:run", "check that the solutions of task folders get the full reward"),
    "worlds": ("manyhands.cli.worlds:run", "list, remove and export what container engines keep of runs"),
    "mcp": ("manyhands.cli.jobs.mcp:run", "serve the tools for jobs over MCP"),
    "tools": ("manyhands.cli.tools.group:run", "list the tools that agents can have here, and try them out"),
    "sandbox": ("manyhands.cli.sandboxes.group:run", "check a kind of sandboxes: what works, and how long it takes"),
    "check-endpoint": ("manyhands.cli.endpoints.check:run", "find out what an endpoint can do, and what to set for it"),
    "simulate": ("manyhands.cli.simulate:run", "serve the simulated model over HTTP"),
}
"""Commands by name: the function that runs it, given the words behind its name, as ``module:function``; and what it does."""

PROGRAM = "manyhands"
_MAX_MESSAGE_CHARS = 1000
_KEY_OPTIONS = ("__api_key", "__token")
_HEADER_OPTION = "__header"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    if argv is None:
        leave_current_folder()
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _dispatch(words), words)


def manyhands() -> NoReturn:
    """The console script ``manyhands``."""
    end_process(main())


def batch_runner() -> NoReturn:
    """The console script ``batch_runner``: ``manyhands batch``."""
    end_process(main(["batch", *sys.argv[1:]]))


def run_benchmark() -> NoReturn:
    """The console script ``run_benchmark``: ``manyhands memory run``."""
    end_process(main(["memory", "run", *sys.argv[1:]]))


def guarded(command: Callable[[], int], argv: Sequence[str]) -> int:
    """Call ``command`` and turn whatever it raises into a line on standard error and an exit code.

    Tracebacks are shown only with ``--verbose`` among the words of ``argv``, or with MANYHANDS_DEBUG=1.
    """
    try:
        code = command()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the boundary of the program: everything must end in an exit code
        return _exit_code(error, argv)
    return code


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        return _print(f"{PROGRAM} {_version()}")
    if not words:
        return _print(_GROUP.help_text())
    name, rest = _GROUP.find(words)
    if name is None:
        return _print(_GROUP.help_text())
    command = load_command(COMMANDS[name][0])
    from manyhands.core.redaction import protect, protect_environment
    from manyhands.processes.output import safe_streams

    protect_environment(os.environ)
    protect(_typed_keys(rest))
    with safe_streams():
        return command(rest)


# --- Finding commands


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The commands behind one or several words; runs the one that is typed, and explains them all."""

    program: str
    """The words before a command, as ``manyhands jobs``."""
    about: tuple[str, ...]
    """Lines of the help before the commands."""
    commands: Mapping[str, tuple[str, str]]
    """As ``COMMANDS``."""
    notes: tuple[str, ...]
    """Lines of the help after the commands."""

    def find(self, words: Sequence[str]) -> tuple[str | None, list[str]]:
        """The command that is typed and the words behind it; None for the help of all. Raises UserError if there is no such command."""
        command, *rest = words or [""]
        if command in ("-h", "--help", "help"):
            return (rest[0], ["--help"]) if rest and rest[0] in self.commands else (None, [])
        if command not in self.commands:
            raise _unknown_command(command, self.commands, self.program)
        return command, rest

    def run(self, words: Sequence[str]) -> int:
        """Run the command that is typed; the exit code."""
        command, rest = self.find(words)
        return _print(self.help_text()) if command is None else load_command(self.commands[command][0])(rest)

    def help_text(self) -> str:
        """What ``--help`` prints."""
        width = max(map(len, self.commands)) + 2
        lines = [f"  {name:<{width}}{description}" for name, (_, description) in self.commands.items()]
        return "\n".join(
            [f"{self.program} COMMAND [OPTIONS]", "", *self.about, "", "Commands:", *lines, "", *self.notes]
        )


_GROUP = CommandGroup(
    PROGRAM,
    ("Runs thousands of LLM-agent tasks; after a crash, at most the calls in flight are made again.",),
    COMMANDS,
    (
        f"To begin:  {PROGRAM} batch prompts.jsonl --model NAME",
        f"{PROGRAM} COMMAND --help explains a command; {PROGRAM} --version prints the version.",
    ),
)


def load_command(target: str) -> Callable[[list[str]], int]:
    """A command's function by ``module:function``."""
    module, _, function = target.partition(":")
    command: Callable[[list[str]], int] = getattr(imported(module), function)
    return command


def imported(name: str) -> ModuleType:
    """A module. What is imported is no garbage, and searching for some, meanwhile or later, takes a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collects:
            freeze_objects()
            gc.enable()


def _print(text: str) -> int:
    print(text)
    return 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        return "(not installed)"


def _unknown_command(command: str, known: Iterable[str], program: str) -> Exception:
    from manyhands.core.errors import UserError
    from manyhands.core.text import suggestion

    if not command:
        return UserError(f"no command given; choose from {', '.join(known)} (see {program} --help)")
    if command.startswith("-"):
        return UserError(f"unknown option {command} before a command (see {program} --help)")
    return UserError(f"unknown command {command!r}{suggestion(command, known)} (see {program} --help)")


# --- Exceptions


def _exit_code(error: BaseException, argv: Sequence[str]) -> int:
    from manyhands.core.errors import StorageError, UserError

    if isinstance(error, SystemExit):
        return _system_exit(error)
    if isinstance(error, BrokenPipeError) and _output_is_closed():
        return ExitCode.OUTPUT_CLOSED
    if isinstance(error, KeyboardInterrupt):
        _say("interrupted")
        return ExitCode.INTERRUPTED
    if isinstance(error, UserError):
        _say(*(f"error: {line}" for line in str(error).splitlines()))
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS and isinstance(error.filename, str):
        _say(f"error: {_beginning(_without_keys(_one_line(error.filename), argv))}: {_PATH_ERRORS[error.errno]}")
        return ExitCode.USAGE
    if _wants_traceback(argv):
        _print_traceback(error, argv)
    if isinstance(error, StorageError):
        _say(f"error: {_one_line(str(error))}")
        return ExitCode.FAILED
    hint = "" if _wants_traceback(argv) else " (set MANYHANDS_DEBUG=1 to see where)"
    _say(f"internal error: {type(error).__name__}: {_without_keys(_one_line(str(error)), argv)}{hint}")
    return ExitCode.FAILED


def _beginning(path: str) -> str:
    return path if len(path) <= _MAX_PATH else f"{path[:_MAX_PATH]}…"


def _system_exit(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or ExitCode.DONE
    _say(f"error: {error.code}")
    return ExitCode.USAGE


def _say(*lines: str) -> None:
    try:
        sys.stderr.write("".join(f"{PROGRAM}: {_shown(line)}\n" for line in lines))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # the reader is gone; the exit code still reports it


def _shown(text: str) -> str:
    """The message of an error without secrets, passwords in addresses, and control characters."""
    from manyhands.core.redaction import KNOWN, without_user_info
    from manyhands.core.text import printable

    return printable(without_user_info(KNOWN.text(text)))


def _output_is_closed() -> bool:
    """Whether standard output itself is broken; if so, nothing more is written to it."""
    import select

    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        closed = bool(output.poll(0))
        if closed:
            # The interpreter flushes once more at its end, and would complain then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False  # Standard output is no file, or the system can't tell.
    return closed


def _wants_traceback(argv: Sequence[str]) -> bool:
    from_environment = os.environ.get("MANYHANDS_DEBUG", "") not in ("", "0")
    return from_environment or "--verbose" in argv or "--verbose=true" in argv


def _print_traceback(error: BaseException, argv: Sequence[str]) -> None:
    import traceback

    sys.stderr.write(_shown(_without_keys("".join(traceback.format_exception(error)), argv)))


def _one_line(text: str) -> str:
    from manyhands.core.redaction import KNOWN

    return " ".join(KNOWN.text(text).split())[:_MAX_MESSAGE_CHARS]


def _without_keys(text: str, argv: Sequence[str]) -> str:
    """The text without a key that was typed on the command line."""
    for key in _typed_keys(argv):
        text = text.replace(key, "***")
    return text


def _typed_keys(argv: Sequence[str]) -> list[str]:
    found = []
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        option = name.replace("-", "_").lower()
        if option in (*_KEY_OPTIONS, _HEADER_OPTION):
            typed = value if equals else "".join(argv[index + 1 : index + 2])
            found += _secrets_of_header(typed) if option == _HEADER_OPTION else [typed]
    return [key for key in found if key]


def _secrets_of_header(typed: str) -> list[str]:
    from manyhands.models.headers import secrets_in

    name, _, value = typed.partition(":")
    return list(secrets_in({name: value.strip()}))


if __name__ == "__main__":
    sys.exit(main())
