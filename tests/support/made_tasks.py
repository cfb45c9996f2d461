"""Task folders that tests make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PASS = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


def make_task(
    folder: Path,
    *,
    toml: str = "",
    instruction: str = "Write hello to hello.txt.\n",
    test: str | None = PASS,
    solve: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task in a folder. ``toml``: its ``task.toml``; ``test``: ``tests/test.sh``; ``solve``: ``solution/solve.sh``; ``files``: further
    files by their paths."""
    written = {"task.toml": toml, "instruction.md": instruction, **(files or {})}
    if test is not None:
        written["tests/test.sh"] = test
    if solve is not None:
        written["solution/solve.sh"] = solve
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "environment").mkdir(exist_ok=True)
    return folder
