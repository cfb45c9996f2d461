"""``manyhands eval``: evaluates targets with tests and graders.

Also: options by AgentV's names, and options of other commands that an evaluation doesn't have, each with what to do instead. What
executes an evaluation is imported when one is executed, because ``--help`` must answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyhands.cli.main import imported, load_command
from manyhands.cli.options import CommandLine, UsageError, help_text, make, parse
from manyhands.core.text import json_text
from manyhands.workloads.evals.settings import EvalSpec

PROGRAM = "manyhands eval"
USAGE = f"{PROGRAM} FILE…"
DESCRIPTION = (
    "Runs the tests of eval files on targets and grades the answers. Exit code: 0 all tests passed, 1 some are below the threshold, "
    "2 invalid usage or files, 3 some tests ended in errors (see --fail_on), 130 interrupted. Also: manyhands eval validate PATH…, "
    "manyhands eval compare BASE CANDIDATE, manyhands eval report RUN, manyhands eval --schema [eval|targets]."
)
COMMANDS = {
    "validate": "manyhands.cli.evals.validation:validate_files",
    "compare": "manyhands.cli.evals.compare:run",
    "report": "manyhands.cli.evals.report:write_report",
}
"""The functions of subcommands, as ``module:function``. A file of such a name is given as ``./validate``."""
REPEATED = ("eval_files", "test_id", "tag", "exclude_tag", "target", "output")
"""Options that may be given several times."""
_WORDS = ("tag", "exclude_tag", "target")


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    if argv and argv[0] in COMMANDS:
        return load_command(COMMANDS[argv[0]])(argv[1:])
    if argv and argv[0].partition("=")[0] == "--schema":
        return _print_schema(argv)
    line = parse(EvalSpec, present_names(argv), PROGRAM, positional="eval_files", repeated=REPEATED)
    if line.help:
        print(help_text(EvalSpec, USAGE, DESCRIPTION, positional="eval_files"))
        return 0
    code: int = imported("manyhands.cli.evals.executing").execute_eval(make(EvalSpec, given_values(line), PROGRAM))
    return code


def given_values(line: CommandLine) -> dict[str, Any]:
    """What was typed, with all values of what was given several times."""
    lists = {name: ",".join(values) if name in _WORDS else values for name, values in line.lists.items() if values}
    return {**line.values, **lists}


def _print_schema(argv: list[str]) -> int:
    from manyhands.workloads.evals.schema import eval_schema, targets_schema

    kinds = {"eval": eval_schema, "targets": targets_schema}
    _, equals, value = argv[0].partition("=")
    words = [value, *argv[1:]] if equals else argv[1:] or ["eval"]
    if len(words) != 1 or words[0] not in kinds:
        raise UsageError(f"--schema takes one of {', '.join(kinds)} (see {PROGRAM} --help)")
    print(json_text(kinds[words[0]](), indent=2))
    return 0


ALIASES = {"-o": "--output", "--eval-id": "--test_id", "--eval_id": "--test_id"}
"""Names of options in AgentV."""


def present_names(argv: Sequence[str]) -> list[str]:
    """The words of a command line with today's names of options."""
    return [_present(word) for word in argv]


def _present(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{ALIASES.get(name, name)}{equals}{value}"
