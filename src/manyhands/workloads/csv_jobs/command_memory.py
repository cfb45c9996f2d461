"""How many worker commands are launched at once where nobody says: as many as free memory suffices for, by an estimate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.agents.programs import program_name
from manyhands.core.text import counted
from manyhands.processes.system.memory import free_memory
from manyhands.processes.templates import CommandTemplate
from manyhands.workloads.csv_jobs.spec import AT_ONCE, JobSpec

MIB = 1 << 20
MEMORY_MIB: Mapping[str, int] = MappingProxyType(
    {
        "claude": 350,
        "codex": 150,
        "gemini": 300,
        "qwen": 300,
        "opencode": 450,
        "crush": 150,
        "goose": 150,
        "aider": 250,
        "cursor-agent": 350,
        "copilot": 300,
        "docker": 50,
        "podman": 50,
    }
)
"""MiB of memory that one launch of a program is assumed to take, with what it usually starts: rounded up from what such programs take in
short sessions. Of ``docker`` and ``podman`` only the client."""
OTHER_MIB = 100
"""The same of any other program."""
_SHELLS = frozenset(("bash", "dash", "sh", "zsh"))
_SIGNS = re.compile(r"[\s;&|()'\"]+")
"""What is between the words of a shell's script."""
_STARTERS = frozenset(("timeout", "stdbuf", "setsid", "sudo", "xargs"))
"""Programs that start the one they are given."""


@dataclass(frozen=True, slots=True)
class AtOnce:
    """An estimate."""

    commands: int
    """How many commands at once; at least one, and no more than are launched without an estimate."""
    each: int
    """Bytes that one is assumed to take."""
    free: int
    """Bytes of memory that are free."""

    def __str__(self) -> str:
        return (
            f"{counted(self.commands, 'row')} at once: {self.each // MIB} MiB are assumed for each command, and "
            f"{self.free / (1 << 30):.1f} GiB of memory are free; --max_concurrency sets another number"
        )


def commands_at_once(options: JobSpec, free: int | None = None) -> AtOnce | None:
    """How many rows are executed at once; None where that is requested, no command does the work or does it elsewhere, or free memory is
    not known.

    ``free``: bytes of free memory, where that is known already.
    """
    if options.worker_command is None or options.executor == "ray" or options.requested_concurrency is not None:
        return None
    free = free_memory() if free is None else free
    if free is None:
        return None
    words = CommandTemplate.split(options.worker_command, name="--worker_command").words
    each = _memory_mib(words) * MIB
    return AtOnce(max(1, min(AT_ONCE, free // each)), each, free)


def _memory_mib(words: Sequence[str]) -> int:
    """MiB for one launch of a command; of a shell's script or a program that starts another one, by what stands in it."""
    name, rest = program_name(words)
    if name in _SHELLS:
        rest = [part for word in rest for part in _SIGNS.split(word)]
    elif name not in _STARTERS and not name.startswith("-"):
        return MEMORY_MIB.get(name, OTHER_MIB)
    return max([OTHER_MIB, *(MEMORY_MIB.get(program_name([part])[0], 0) for part in rest)])


def with_memory_limit(options: JobSpec) -> tuple[JobSpec, AtOnce | None]:
    """The settings with as many rows at once as memory suffices for now; and the estimate, if it is what bounds them."""
    found = commands_at_once(options)
    if found is None:
        return options, None
    bounds = found.commands < min(AT_ONCE, options.max_concurrency_limit or AT_ONCE)
    return options.changed({"memory_concurrency": found.commands}), found if bounds else None
