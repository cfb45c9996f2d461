"""A child: one trajectory batch through the public interface, planning and performing measured apart.

Arguments: ``settings`` of ``BatchSpec``. Reports seconds of wall and processor time for ``plan`` (dataset read twice, journal made, items
entered) and ``perform`` (everything else: lock, claims, calls, journal, accounting, output files, exports, summary), and memory. Imports
belong to neither, as in the bare loop's account; the benchmark ``startup`` and those of ``limit`` count them.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Any

from benchmarks.children import Meter, arguments, peak_memory, report
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import RunResult, execute_run
from manyhands.runs.making import Opened
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload


async def opened(settings: dict[str, Any]) -> Opened[TrajectoryWorkload]:
    options = BatchSpec.make(settings)
    return await open_batch(options, resume=options.resume, notice=lambda text: None, environ={})


async def performed(session: Opened[TrajectoryWorkload]) -> RunResult:
    return await execute_run(session)


def main() -> None:
    settings = arguments()["settings"]
    meter = Meter()
    session = run_on_loop(opened(settings))
    planned, planned_memory = meter.read(), peak_memory()
    for module in session.workload.late_imports:
        import_module(module)
    meter = Meter()
    result = run_on_loop(performed(session))
    report(
        plan=asdict(planned),
        plan_memory=planned_memory,
        perform=asdict(meter.read()),
        memory=peak_memory(),
        ledger=result.ledger,
        stopped=result.stopped,
    )


if __name__ == "__main__":
    main()
