"""What CSV jobs and datasets make of the same files: numbers, values and messages, on which the keys of items depend.

What is expected is in ``tests/data/io/readings.json``; ``python -m tests.io.test_reading`` writes that file anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.io.reading_cases import CASES, as_dataset, as_table

READINGS = Path(__file__).parents[1] / "data" / "io" / "readings.json"
EXPECTED: dict[str, dict[str, Any]] = json.loads(READINGS.read_text(encoding="utf-8")) if READINGS.is_file() else {}


def reading(folder: Path, case: str) -> dict[str, Any]:
    """A case as both workloads read it, as it comes back from JSON."""
    name, content = CASES[case]
    path = folder / name
    path.write_bytes(content)
    found: dict[str, Any] = json.loads(json.dumps({"table": as_table(path), "dataset": as_dataset(path)}))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_read_as_ever(tmp_path: Path, case: str) -> None:
    assert reading(tmp_path, case) == EXPECTED[case]


def write_readings() -> None:
    """Write what is expected from what is read now."""
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = reading(Path(folder), case)
    READINGS.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{json.dumps(case)}: {json.dumps(each)}" for case, each in found.items())
    READINGS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_readings()
