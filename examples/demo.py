"""``make demo``: the prompts of ``examples/prompts.jsonl`` become trajectories; then a small run of each other kind, and one that goes on.

A simulated model plays the agent, so this needs no key and costs nothing; its tool calls are real, and run in a sandbox.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path

from manyhands.cli.console import program
from manyhands.cli.main import main

EXAMPLES = Path(__file__).parent
FAILED = 1
"""The exit code of an evaluation of which tests failed."""


def demo() -> int:
    run_name = datetime.now().strftime("demo-%Y%m%d-%H%M%S")
    command = [
        "batch",
        f"--dataset_file={example('prompts.jsonl')}",
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
        code = other_runs(run_name)
    return code


def other_runs(name: str) -> int:
    """A small run of each other kind, a few lines each, and one that goes on in the background; the exit code."""
    job = ("jobs", "spawn", example("csv_jobs/files.csv"), f"--instruction_file={example('csv_jobs/instruction.txt')}")
    schema = f"--output_schema={example('csv_jobs/schema.json')}"
    code = max(
        brief(
            ["eval", example("evals/workspace/edits.yaml"), f"--run_name={name}-eval"],
            ("target", "editor"),
            expected=FAILED,
        ),
        brief([*job, schema, *job_words(f"{name}-job"), "--simulated_latency=0"], ("completed",)),
        brief(["memory", "run", "-c", example("memory/quick.yml"), "-a", "simulated", "-m", "3000"], ("agent", "LLM")),
    )
    live = ("jobs", "spawn", example("prompts.jsonl"), "--instruction={prompt}", *job_words(f"{name}-live"))
    code = max(code, brief([*live, "--simulated_latency=3", "--max_concurrency=4", "--detach"], ("Job",)))
    print("\nFour runs have ended, and one goes on for a minute. To look at them in a browser:")
    print(f"  {activation()}{program()} view data")
    return code


def example(name: str) -> str:
    """A file of this folder, as it would be typed here."""
    path = EXAMPLES / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def job_words(name: str) -> list[str]:
    """The options of a job of that name. Its output is in the data folder, not beside the examples."""
    return ["--model=simulated", f"--job_name={name}", f"--output_csv_path=data/{name}.csv"]


def brief(command: Sequence[str], beginnings: tuple[str, ...], *, expected: int = 0) -> int:
    """Perform a command, and show only the lines that begin like these; everything, if its exit code is not the expected one. 0
    if it is."""
    print("\n$ manyhands " + shlex.join(command), flush=True)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main(command)
    lines = printed.getvalue().splitlines()
    for line in lines:
        if code != expected or line.startswith(beginnings):
            print(f"  {line}", flush=True)
    return 0 if code == expected else code


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
