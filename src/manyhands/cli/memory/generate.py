"""``manyhands memory generate``: the tests of a configuration are made and written, and nothing is run."""

from __future__ import annotations

import os
from typing import Any

from manyhands.cli.console import err, notice, out, print_usage
from manyhands.cli.execution import execute, print_ending
from manyhands.cli.memory.benchmark import spelled
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.cli.plain import shown_path
from manyhands.runs.making import Opened
from manyhands.workloads.memory.datasets.definition_files import read_definitions
from manyhands.workloads.memory.folders import CONFIGURATION
from manyhands.workloads.memory.generation import Generated, generated_tests
from manyhands.workloads.memory.settings import MemorySpec

PROGRAM = "manyhands memory generate"
USAGE = f"{PROGRAM} -c CONFIG"
DESCRIPTION = (
    "Makes the tests of a configuration. Those that a model has to write are asked of --judge_model; a generation that was cut short goes "
    "on where it was."
)
WITHOUT = (
    "agent_name",
    "local",
    "reuse",
    "resume",
    "restart",
    "yes",
    "max_prompt_size",
    "message_timeout",
    "time_travel",
    "start_time",
)


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    line = parse(MemorySpec, spelled(argv), PROGRAM)
    if line.help:
        print(help_text(MemorySpec, USAGE, DESCRIPTION, without=WITHOUT))
        return 0
    if "configuration" not in line.values:
        raise UsageError(f"--configuration is required (-c; see {PROGRAM} --help)")
    values: dict[str, Any] = {"agent_name": ["forgetful"], **line.values}
    options = make(MemorySpec, values, PROGRAM)
    found = generated_tests(options, environ=os.environ, notice=notice)
    if found.workload is not None:
        return _performed(found, options)
    out().print(f"{found.tests} tests are in {shown_path(found.folder)}", markup=False, soft_wrap=True)
    return 0


def _performed(found: Generated, options: MemorySpec) -> int:
    """Have a model write the tests."""
    assert found.workload is not None
    result = execute(Opened(found.folder, found.workload), quiet=options.quiet)
    if (found.folder / CONFIGURATION).is_file():
        made = len(read_definitions(found.folder))
        out().print(f"{made} tests are in {shown_path(found.folder)}", markup=False, soft_wrap=True)
    print_usage(out(), result.summary)
    print_ending(out(), err(), result)
    return result.exit_code
