"""Sessions of the memory benchmark, held by the engine: twenty at once in one process, and what their memory grows by.

As a program (``python -m benchmarks.memory_sessions JSON``) it holds one run and reports what that took.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.children import Meter, arguments, peak_memory, report, run_child
from benchmarks.memory_schedule import DATASETS
from benchmarks.rows import Row
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import execute_run
from manyhands.workloads.memory.opening import open_memory
from manyhands.workloads.memory.settings import MemorySpec

SESSIONS = 20
CONTEXT = 8000
_MEGABYTE = 1 << 20


def memory_sessions(quick: bool) -> Iterator[Row]:
    """Sessions of chat agents with a small and with a large memory span."""
    small, large = 4_000, 16_000 if quick else 64_000
    module = "memory_sessions"
    first, second = run_child(module, span=small), run_child(module, span=large)
    one = run_child(module, span=large, sessions=1)
    each = (second["memory"] - one["memory"]) / (SESSIONS - 1) / _MEGABYTE
    tokens = second["tokens"] / SESSIONS
    sizes = f"{first['memory'] / _MEGABYTE:.0f} MB over {small:,} tokens, {second['memory'] / _MEGABYTE:.0f} MB over {large:,}"
    note = f"{SESSIONS} sessions at once of {tokens:,.0f} tokens each: {second['wall']:.1f} s, {second['messages']:,} messages"
    yield Row("memory: sessions", 1e3 * second["cpu"] / second["messages"], "ms/message", note=note)
    yield Row("memory: a session more", each, "MB", at_most=10.0, note=sizes)
    growth = (second["memory"] - first["memory"]) / (second["tokens"] - first["tokens"])
    yield Row("memory: a token more", growth, "bytes", at_most=50.0, note="the conversation, its log, and the steps")


def main() -> None:
    given = arguments()
    sessions = given.get("sessions", SESSIONS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        entries = [{"name": each} for each in DATASETS]
        universal = {"memory_span": given["span"], "dataset_examples": 2}
        configuration = {"config": {"run_name": "bench"}, "datasets": {"args": universal, "datasets": entries}}
        path = folder / "bench.yml"
        path.write_text(json.dumps(configuration), encoding="utf-8")
        options = MemorySpec.make(
            {
                "configuration": str(path),
                "agent_name": [f"simulated/{number}" for number in range(sessions)],
                "max_prompt_size": CONTEXT,
                "data_dir": str(folder / "data"),
                "judge_model": "simulated",
                "yes": True,
            }
        )
        opened = open_memory(options, environ={}, notice=lambda text: None, ask=lambda question, default: default)
        meter = Meter()
        result = run_on_loop(execute_run(opened))
        took = meter.read()
        if result.ledger["completed"] != sessions:
            raise RuntimeError(f"not all sessions were completed: {result.ledger}")
        logs = list((opened.folder / "results").glob("*/master_log.jsonl"))
        stats = [json.loads((log.parent / "runstats.json").read_text()) for log in logs]
        messages = sum(line.startswith(('{"type": 0', '{"type": 3')) for log in logs for line in log.open())
        report(
            wall=took.wall,
            cpu=took.cpu,
            memory=peak_memory(),
            messages=messages,
            tokens=sum(each["total_tokens"] for each in stats),
        )


if __name__ == "__main__":
    main()
