"""Measured work happens in processes of its own, so that one measurement can't warm or swell the next."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Self

LONGEST_SECONDS = 3600.0


def run_child(module: str, **arguments: Any) -> dict[str, Any]:
    """Run ``python -m benchmarks.<module>`` with the arguments as JSON; what it reported.

    Raises RuntimeError, with what it said, if it fails.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stdout}{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def arguments() -> dict[str, Any]:
    """In a child: what it was given."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def report(**values: Any) -> None:
    """In a child: say the result."""
    print(json.dumps(values), flush=True)


@dataclass(slots=True)
class Meter:
    """Wall and processor time (user and system, all threads of this process, nobody else's) since it was made."""

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)

    def read(self) -> Self:
        """The seconds since."""
        return type(self)(time.perf_counter() - self.wall, time.process_time() - self.cpu)


def peak_memory() -> int:
    """The most memory that this process had resident so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
