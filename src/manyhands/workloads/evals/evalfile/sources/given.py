"""What a program gives an evaluation in Python, in place of files: tests, targets, functions, and a choice of tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.io.locations import Source
from manyhands.processes.python_functions import Function
from manyhands.workloads.evals.evalfile.contents import InlineTargets

NO_FILE = "tests=…"
"""What stands for the name of a file where tests were given in Python."""


@dataclass(frozen=True, slots=True)
class Given:
    """What was given in Python. Nothing of it is recorded but what tests and targets become of it."""

    sources: Mapping[Path, Source] = field(default_factory=dict)
    """What eval files would hold, by the paths that stand for them."""
    targets: InlineTargets | None = None
    """Targets, which take precedence over those of files."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """By what they are recorded as."""
    chosen: Mapping[Path, Mapping[str, Collection[str]]] | None = None
    """The tests of each file that are executed, by their ids, with the names of the targets that answer them; None: all."""


NOTHING = Given()
