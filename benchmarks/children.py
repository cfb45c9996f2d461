"""Measured work happens in processes of its own, so that one measurement can't warm or swell the next."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

LONGEST_SECONDS = 3600.0
_LOOK_SECONDS = 0.1


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


class ChildMemory:
    """``peak``: the most memory that children which run a module had resident, each, in bytes. Looked up while they live: use it as a
    context manager. (What the system says of children that have ended counts what they had before they became another program.)"""

    def __init__(self, module: str) -> None:
        self.peak = 0
        self._module = module.encode()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text(encoding="ascii")
            for child in children.split():
                self.peak = max(self.peak, self._peak_of(Path("/proc", child)))

    def _peak_of(self, process: Path) -> int:
        try:
            if self._module not in (process / "cmdline").read_bytes():
                return 0
            found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text(encoding="ascii"))
        except OSError:  # it has just ended
            return 0
        return 0 if found is None else int(found[1]) * 1024
