"""Compare the trajectories of two runs: the same, but for times?

    python examples/compare.py data/one data/other

Ends with 0 if they are the same, with 1 if not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TIMES = ("timestamp", "duration_seconds")


def trajectories(run_folder: str) -> list[dict[str, Any]]:
    """The entries of a run, without their times."""
    with (Path(run_folder) / "trajectories.jsonl").open(encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    for entry in entries:
        for name in TIMES:
            del entry["metadata"][name]
    return entries


def main(one: str, other: str) -> int:
    first, second = trajectories(one), trajectories(other)
    if first == second:
        print(f"{len(first)} trajectories in each, the same but for their times")
        return 0
    different = sum(a != b for a, b in zip(first, second, strict=False))
    print(f"{len(first)} and {len(second)} trajectories; of those at the same place, {different} differ")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
