"""A child: a job made, its table read and checked and all rows entered in the journal; nothing is performed.

Arguments: ``settings`` of ``JobSpec``, and its ``job_id``. Reports seconds and memory.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.children import Meter, arguments, peak_memory, report
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import JobSpec


def main() -> None:
    given = arguments()
    spec = JobSpec.make(given["settings"])
    desk = JobService(Path(spec.data_dir), environ={})
    meter = Meter()
    spawned = run_on_loop(desk.spawn(spec, notice=lambda text: None, start=False, job_id=given["job_id"]))
    report(**asdict(meter.read()), rows=spawned.total_items, folder=str(spawned.folder), memory=peak_memory())


if __name__ == "__main__":
    main()
