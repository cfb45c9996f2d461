"""The entry point: ``manyhands COMMAND …``.

Only what every command needs is imported here, so that ``manyhands --help`` answers at once; a command's own module is
imported when it is called. Here is also the one place where exceptions become a line for the person and an exit code:

====  ==========================================================================================================
0     everything that was asked for was done
1     items failed, or storage or the program itself failed
2     bad usage or input
3     ``eval``: tests ended in errors, so that they have no score
130   interrupted; the run can be resumed
141   whoever read the output went away
====  ==========================================================================================================
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import ModuleType

from manyhands.processes.interpreters import leave_current_folder

COMMANDS: dict[str, tuple[str, str]] = {
    "batch": ("manyhands.cli.batch", "turn a dataset of prompts into agent trajectories"),
    "eval": ("manyhands.cli.evals.run", "put tests to targets and score the answers; compare runs; check eval files"),
    "resume": ("manyhands.cli.resume", "continue a run, from its folder alone"),
    "runs": ("manyhands.cli.runs", "list runs"),
    "show": ("manyhands.cli.show", "look at a run, or at one item's steps"),
    "status": ("manyhands.cli.status", "how far a run is, also while it is going on"),
    "check": ("manyhands.cli.check", "perform recorded items again from the journal, and name what differs"),
    "jobs": ("manyhands.cli.jobs", "an agent for each row of a table: make jobs, follow and steer them"),
    "memory": ("manyhands.cli.memory", "test what agents remember, in one long conversation"),
    "mcp": ("manyhands.cli.mcp", "offer the tools for jobs to agents, over MCP"),
    "simulate": ("manyhands.cli.simulate", "serve the simulated model over HTTP"),
}
"""Commands by name: the module whose ``run(argv) -> int`` performs it, and what it does."""

PROGRAM = "manyhands"
_LONGEST_MESSAGE = 1000
_KEY_OPTIONS = ("__api_key", "__token")


def main(argv: Sequence[str] | None = None) -> int:
    """Perform one command line; the exit code."""
    if argv is None:
        leave_current_folder()
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _dispatch(words), words)


def batch_runner() -> int:
    """The console script of the original's name: ``manyhands batch``."""
    return main(["batch", *sys.argv[1:]])


def run_benchmark() -> int:
    """The console script of the original's name: ``manyhands memory run``."""
    return main(["memory", "run", *sys.argv[1:]])


def guarded(perform: Callable[[], int], argv: Sequence[str]) -> int:
    """Call ``perform`` and turn whatever it raises into a line on standard error and an exit code.

    Tracebacks are shown only with ``--verbose`` among the words of ``argv``, or with MANYHANDS_DEBUG=1.
    """
    try:
        code = perform()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the boundary of the program: everything must end in an exit code
        return _exit_code(error, argv)
    return code


def _dispatch(words: list[str]) -> int:
    command, *rest = words or [""]
    if command in ("-h", "--help", "help"):
        return _dispatch([rest[0], "--help"]) if rest and rest[0] in COMMANDS else _print(help_text())
    if command == "--version":
        return _print(f"{PROGRAM} {_version()}")
    if command not in COMMANDS:
        raise unknown_command(command, COMMANDS, PROGRAM)
    run: Callable[[list[str]], int] = imported(COMMANDS[command][0]).run
    from manyhands.core.redaction import protect, protect_environment
    from manyhands.processes.output import safe_streams

    protect_environment(os.environ)
    protect(_typed_keys(rest))
    with safe_streams():
        return run(rest)


def imported(name: str) -> ModuleType:
    """A command's module. What is imported is no garbage, and to look for some meanwhile takes a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if collects:
            gc.enable()


def help_text() -> str:
    """What ``manyhands --help`` prints."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{description}" for name, (_, description) in COMMANDS.items()]
    return "\n".join(
        [
            f"{PROGRAM} COMMAND [OPTIONS]",
            "",
            "Runs thousands of LLM-agent tasks; after a crash, at most the calls in flight are made again.",
            "",
            "Commands:",
            *lines,
            "",
            f"{PROGRAM} COMMAND --help explains a command; {PROGRAM} --version prints the version.",
        ]
    )


def _print(text: str) -> int:
    print(text)
    return 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        return "(not installed)"


def unknown_command(command: str, known: Iterable[str], program: str) -> Exception:
    """What to raise for a word that is no command of ``program``."""
    from manyhands.core.errors import UserError
    from manyhands.core.text import closest

    if not command:
        return UserError(f"no command given; choose from {', '.join(known)} (see {program} --help)")
    if command.startswith("-"):
        return UserError(f"unknown option {command} before a command (see {program} --help)")
    near = closest(command, known)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UserError(f"unknown command {command!r}{hint} (see {program} --help)")


# --- Exceptions


def _exit_code(error: BaseException, argv: Sequence[str]) -> int:
    from manyhands.core.errors import StorageError, UserError

    if isinstance(error, SystemExit):
        return _system_exit(error)
    if isinstance(error, BrokenPipeError) and _output_is_closed():
        return 141
    if isinstance(error, KeyboardInterrupt):
        _say("interrupted")
        return 130
    if isinstance(error, UserError):
        _say(*(f"error: {line}" for line in str(error).splitlines()))
        return 2
    if _wants_traceback(argv):
        _print_traceback(error, argv)
    if isinstance(error, StorageError):
        _say(f"error: {_one_line(str(error))}")
        return 1
    hint = "" if _wants_traceback(argv) else " (set MANYHANDS_DEBUG=1 to see where)"
    _say(f"internal error: {type(error).__name__}: {_without_keys(_one_line(str(error)), argv)}{hint}")
    return 1


def _system_exit(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    _say(f"error: {error.code}")
    return 2


def _say(*lines: str) -> None:
    try:
        sys.stderr.write("".join(f"{PROGRAM}: {_shown(line)}\n" for line in lines))
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # Nobody listens any more; the exit code still says it.


def _shown(text: str) -> str:
    """What is said of an error, without secrets, passwords in addresses, and what a terminal would obey."""
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

    return " ".join(KNOWN.text(text).split())[:_LONGEST_MESSAGE]


def _without_keys(text: str, argv: Sequence[str]) -> str:
    """The text without a key that was typed on the command line."""
    for key in _typed_keys(argv):
        text = text.replace(key, "***")
    return text


def _typed_keys(argv: Sequence[str]) -> list[str]:
    found = []
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("-", "_").lower() in _KEY_OPTIONS:
            found.append(value if equals else "".join(argv[place + 1 : place + 2]))
    return [key for key in found if key]


if __name__ == "__main__":
    sys.exit(main())
