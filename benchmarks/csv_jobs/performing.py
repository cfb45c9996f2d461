"""A child: a job performed in this process, by what its runner is made of.

Argument: the job's ``folder``. Reports seconds, and how many rows were completed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.children import Meter, arguments, report
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.control import RunnerStart
from manyhands.workloads.csv_jobs.service.runner import ReadySignal, run_job
from manyhands.workloads.csv_jobs.service.status import job_status


def main() -> None:
    folder = Path(arguments()["folder"])
    meter = Meter()
    run_on_loop(run_job(folder, RunnerStart(), ReadySignal(None)))
    report(**asdict(meter.read()), completed=job_status(folder).completed_items)


if __name__ == "__main__":
    main()
