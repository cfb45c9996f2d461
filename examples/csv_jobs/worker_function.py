"""A Python function as a worker (``--worker_function=examples/csv_jobs/worker_function.py:score``).

It is called with each row, a dict of its cells, and returns the result. What it raises fails the row, and is recorded.
"""

from __future__ import annotations

import re
from pathlib import Path

SIGNALS = (
    "subprocess",
    "environ",
    "eval",
    "exec",
    "open",
    "read_text",
    "write_text",
    "socket",
    "token",
    "password",
    "run",
)


def score(row: dict[str, str]) -> dict[str, object]:
    """How much a file has to do with security, by the words in its first 200 lines."""
    text = "\n".join(Path(row["path"]).read_text(encoding="utf-8").splitlines()[:200])
    found = [signal for signal in SIGNALS if re.search(rf"\b{signal}\b", text)]
    return {
        "path": row["path"],
        "score": min(10, 1 + 2 * len(found)),
        "rationale": f"{len(found)} of {len(SIGNALS)} words are in it",
        "signals": found,
    }
