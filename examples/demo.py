"""``make demo``: the prompts of ``examples/prompts.jsonl`` become trajectories.

A simulated model plays the agent, so this needs no key and costs nothing; its tool calls are real, and run in a sandbox.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path

from manyhands.cli.console import program
from manyhands.cli.main import main

PROMPTS = Path(__file__).parent / "prompts.jsonl"


def demo() -> int:
    run_name = datetime.now().strftime("demo-%Y%m%d-%H%M%S")
    command = [
        "batch",
        f"--dataset_file={PROMPTS.relative_to(Path.cwd()) if PROMPTS.is_relative_to(Path.cwd()) else PROMPTS}",
        "--batch_size=5",
        f"--run_name={run_name}",
        "--model=simulated",
        "--simulated_latency=0.4",
        "--distribution=terminal_only",
        "--seed=7",
        "--num_workers=2",
        "--concurrency=2",
    ]
    print("$ manyhands " + " ".join(command), flush=True)
    code = main(command)
    results = Path("data") / run_name / "trajectories.jsonl"
    if code == 0 and results.is_file():
        show_first(results)
        print(f"\nTo show its steps:  {activation()}{program()} show data/{run_name} 1")
    return code


def activation() -> str:
    """What to type first, where the commands of this virtual environment are not found yet."""
    script = Path(sys.prefix) / "bin/activate"
    if "VIRTUAL_ENV" in os.environ or not script.is_file():
        return ""
    return f". {script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script}; "


def show_first(results: Path) -> None:
    """Print the first trajectory, cut to a few lines a turn."""
    with results.open(encoding="utf-8") as lines:
        entry = json.loads(next(lines))
    print("\nThe first trajectory (simulated model):")
    for turn in entry["conversations"][1:]:
        text = " ".join(turn["value"].split())
        print(f"  {turn['from']:>5}  {text[:150]}{' …' if len(text) > 150 else ''}")


if __name__ == "__main__":
    sys.exit(demo())
