"""Modules that a batch imports though it runs none of their functions, by what their import takes. As a program it prints them all.

Modules that only hold names, types or constants are among them, so that this is a list to look through and has no bound.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import batch_settings
from benchmarks.children import run_child
from benchmarks.limit.comparing import DISTRIBUTION, MODEL, Serving, model_server, options
from benchmarks.prompts import write_prompts

_IMPORT = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")


def unused_imports() -> dict[str, float]:
    """Seconds of each module's own import, by its name, the dearest first. The batch runs in one process (``--executor=local``)."""
    with TemporaryDirectory() as name, model_server(Serving()) as base_url:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", 10)
        settings = batch_settings(folder, "traced", 10, distribution=DISTRIBUTION, base_url=base_url, model=MODEL)
        settings["api_key"] = "none"
        words = ["batch", *options(settings), "--quiet"]
        unused = set(run_child("limit.called_modules", words=words)["never"])
        words[-2:] = ["--run_name=timed", "--quiet", f"--api_key={settings['api_key']}"]
        timed = [sys.executable, "-X", "importtime", "-m", "manyhands", *words]
        said = subprocess.run(timed, capture_output=True, text=True, check=True).stderr
    seconds = {module: int(taken) / 1e6 for taken, module in _IMPORT.findall(said) if module in unused}
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))


def packages(found: dict[str, float]) -> list[tuple[str, float]]:
    """The sums by package, of ours by the package below ``manyhands``, the dearest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for module, seconds in found.items():
        names = module.split(".")
        sums[".".join(names[: 2 if names[0] == "manyhands" else 1])] += seconds
    return sorted(sums.items(), key=lambda each: -each[1])


if __name__ == "__main__":
    print(json.dumps({name: f"{1000 * seconds:.2f} ms" for name, seconds in unused_imports().items()}, indent=0))
