"""Tables and jobs that benchmarks measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

JOB_NAME = "job"
JOB_ID = "6f1d2c3b-4a59-4687-9b0a-1c2d3e4f5061"
"""Given to jobs whose prompts, which name it, are to be the same."""
_HEADER = "number,name,note\n"
_ROW = "{number},item {number},a harbour that ships bound for the northern lights leave last\n"


def write_table(path: Path, rows: int) -> None:
    """A table of three columns and that many rows, streamed."""
    with path.open("w", encoding="utf-8") as handle:
        handle.write(_HEADER)
        handle.writelines(_ROW.format(number=number) for number in range(rows))


def agent_settings(table: Path, data_dir: Path, base_url: str, in_flight: int) -> dict[str, Any]:
    """A job of the simulated agent at a server: each row takes one call of a tool that costs nothing, then the report, so two model
    calls."""
    return {
        "csv_path": str(table),
        "data_dir": str(data_dir),
        "job_name": JOB_NAME,
        "instruction": "Say why {name} is {note}. [simulate: tools=1]",
        "toolsets": "todo",
        "model": "simulated",
        "base_url": base_url,
        "max_concurrency": in_flight,
    }


def function_settings(table: Path, data_dir: Path) -> dict[str, Any]:
    """A job of a Python function that does nothing, with everything else as it is by default."""
    function = Path(__file__).with_name("no_op.py")
    return {
        "csv_path": str(table),
        "data_dir": str(data_dir),
        "job_name": JOB_NAME,
        "instruction": "Say nothing of {name}.",
        "worker_function": f"{function}:no_op",
        "output_csv_path": str(data_dir / "results.csv"),
    }
