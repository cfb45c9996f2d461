"""``manyhands memory run``: the benchmark, by one or several configurations. ``run_benchmark.py`` takes the same options.

What executes it is imported when it is executed, because ``--help`` must answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from manyhands.cli.main import imported
from manyhands.cli.options import UsageError, help_text, make, parse
from manyhands.core.errors import UserError
from manyhands.workloads.memory.settings import MemorySpec

PROGRAM = "manyhands memory run"
DESCRIPTION = (
    "Benchmarks agents with the tests of a configuration: one conversation per agent, several at once. Interrupted ones are continued. "
    "-c, -a (both repeatable), -m, -y, -l and -i are --configuration, --agent_name, --max_prompt_size, --yes, --local and --isolated."
)
REPEATED = ("configuration", "agent_name")
_SHORT = {
    "-c": "--configuration",
    "-a": "--agent_name",
    "--agent": "--agent_name",
    "-m": "--max_prompt_size",
    "-y": "--yes",
    "-l": "--local",
    "-i": "--isolated",
}
_FLAGS = ("-y", "-l", "-i")
HUMAN = "human"


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(MemorySpec, spelled(argv), PROGRAM, repeated=REPEATED)
    if line.help:
        print(help_text(MemorySpec, PROGRAM, DESCRIPTION))
        return 0
    values: dict[str, Any] = dict(line.values)
    for name, option in (("configuration", "-c"), ("agent_name", "-a")):
        if not line.lists[name]:
            raise UsageError(f"--{name} is required ({option}; see {PROGRAM} --help)")
    values["agent_name"] = line.lists["agent_name"]
    configurations = list(dict.fromkeys(line.lists["configuration"]))
    specs = [make(MemorySpec, {**values, "configuration": each}, PROGRAM) for each in configurations]
    if any(text.strip() == HUMAN for text in values["agent_name"]) and not sys.stdin.isatty():
        raise UserError("--agent_name=human needs a terminal")
    code: int = imported("manyhands.cli.memory.benchmark").execute_specs(specs)
    return code


def spelled(argv: Sequence[str]) -> list[str]:
    """The words with the short options of the GoodAI LTM Benchmark's command line written out."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        words += [f"{_SHORT[name]}{equals}{value}"] if name in _SHORT else _parted(word)
    return words


def _parted(word: str) -> list[str]:
    """A word that holds several short options, or one with its value, as ``-yl`` and ``-m4096``; other words as they are."""
    words = []
    while word[:2] in _FLAGS and len(word) > 2:
        words.append(_SHORT[word[:2]])
        word = f"-{word[2:]}"
    if word in _SHORT:
        return [*words, _SHORT[word]]
    if word[:2] in _SHORT:
        return [*words, f"{_SHORT[word[:2]]}={word[2:]}"]
    return [*words, word]
