"""``manyhands eval``: evaluates targets with tests and graders.

Also: options by AgentV's names, and options of other commands that an evaluation doesn't have, each with what to do instead. What
executes an evaluation is imported when one is executed, because ``--help`` must answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.cli.main import imported, load_command
from manyhands.cli.options import CommandLine, UsageError, help_text, make, parse
from manyhands.core.settings import FALSE_WORDS, TRUE_WORDS
from manyhands.core.text import json_text
from manyhands.runs.folders import is_made
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
    line = parse(
        EvalSpec,
        present_names(with_retried_run(_without_run(argv))),
        PROGRAM,
        positional="eval_files",
        repeated=REPEATED,
    )
    if line.help:
        print(help_text(EvalSpec, USAGE, DESCRIPTION, positional="eval_files"))
        return 0
    values = given_values(line)
    code: int = imported("manyhands.cli.evals.executing").execute_eval(make(EvalSpec, values, PROGRAM))
    return code


def given_values(line: CommandLine) -> dict[str, Any]:
    """What was typed, with all values of what was given several times. Raises UsageError for a folder that can't be the run's."""
    lists = {name: ",".join(values) if name in _WORDS else values for name, values in line.lists.items() if values}
    values = {**line.values, **lists}
    folders = [path for path in values.get("output", ()) if _is_folder(path)]
    if not folders:
        return values
    if len(folders) > 1:
        raise UsageError("--output names two folders; the folder of a run is one")
    files = [path for path in values["output"] if path not in folders]
    kept = {name: value for name, value in values.items() if name != "output"}
    return {**kept, **({"output": files} if files else {}), **_run_in(folders[0], values, "--output=FOLDER")}


def _run_in(folder: str, values: Mapping[str, Any], option: str) -> dict[str, str]:
    """The settings of a run in a folder."""
    given = next((name for name in ("run_name", "data_dir") if values.get(name)), None)
    if given is not None:
        raise UsageError(f"{option} says where the run is; leave --{given} out (see {PROGRAM} --help)")
    path = Path(folder)
    return {"data_dir": str(path.parent), "run_name": path.name}


def _is_folder(path: str) -> bool:
    """Whether a value of ``--output`` is the folder of the run, as in AgentV, and not a file for results."""
    return not Path(path).suffix or path.endswith("/")


def _without_run(argv: Sequence[str]) -> list[str]:
    """The words of a command line without AgentV's ``run`` before the files. Raises UsageError if that is also a file here."""
    if not argv or argv[0] != RUN:
        return list(argv)
    if os.path.exists(RUN):
        raise UsageError(
            f"`run` may be the file of that name, or AgentV's word for {PROGRAM}: write ./run, or leave it out"
        )
    return list(argv[1:])


def _print_schema(argv: list[str]) -> int:
    from manyhands.workloads.evals.schema import eval_schema, targets_schema

    kinds = {"eval": eval_schema, "targets": targets_schema}
    _, equals, value = argv[0].partition("=")
    words = [value, *argv[1:]] if equals else argv[1:] or ["eval"]
    if len(words) != 1 or words[0] not in kinds:
        raise UsageError(f"--schema takes one of {', '.join(kinds)} (see {PROGRAM} --help)")
    print(json_text(kinds[words[0]](), indent=2))
    return 0


RUN = "run"
"""AgentV's word for an evaluation."""
RETRIED = "retry_errors"
ALIASES = {
    "-o": "--output",
    "--eval_id": "--test_id",
    "--budget_usd": "--max_cost",
    "--transcript": "--from_output",
    "--providers": "--targets",
    "--provider": "--target",
}
"""Names of options in AgentV, with underscores."""
CACHE_PATH = "--cache_path"


def present_names(argv: Sequence[str]) -> list[str]:
    """The words of a command line with today's names of options."""
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
        if name == CACHE_PATH:  # which turns the cache on, too
            words += ["--cache", f"--cache_dir{equals}{value}"]
        else:
            words.append(f"{ALIASES[name]}{equals}{value}" if name in ALIASES else word)
    return words


def with_retried_run(argv: Sequence[str]) -> list[str]:
    """The words with the run that AgentV's ``--retry-errors`` names, as ``--output`` of a run to go on with."""
    words = list(argv)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") != f"__{RETRIED}" or value in TRUE_WORDS | FALSE_WORDS - {""}:
            continue
        following = "".join(words[index + 1 : index + 2])
        named = value if equals else following
        if _is_made(named):
            rest = words[index + (1 if equals else 2) :]
            return [*words[:index], "--resume", "--retry_errors", f"--output={_folder_of(named)}", *rest]
    return words


def _folder_of(named: str) -> str:
    """The folder of a run that is named by it, or by a file in it."""
    return named if os.path.isdir(named) else os.path.dirname(named) or "."


def _is_made(named: str) -> bool:
    """Whether a word names an existing run, or a file of one."""
    return bool(named) and os.path.exists(named) and is_made(Path(_folder_of(named)))
