"""A batch from Python: the prompts become trajectories, and the result says how it went."""

from __future__ import annotations

import sys

from manyhands import BatchRunner, Callbacks, Progress


def show(progress: Progress) -> None:
    print(f"{progress.finished} of {progress.items} ended, {progress.in_flight} in flight")


def main() -> int:
    runner = BatchRunner(
        dataset_file="examples/prompts.jsonl",
        batch_size=5,
        run_name="from_python",
        distribution="terminal_only",
        model="simulated",
        num_workers=2,
        max_samples=4,
        callbacks=Callbacks(on_progress=show, notice=print),
    )
    result = runner.run(resume=runner.output_dir.exists())
    print("ledger:", result.ledger)
    print("results:", runner.output_dir / "trajectories.jsonl")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
