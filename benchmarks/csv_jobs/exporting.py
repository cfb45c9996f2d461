"""A child: a job's results written as CSV.

Arguments: ``data_dir``, ``job``. Reports seconds, rows and memory.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.children import Meter, arguments, peak_memory, report
from manyhands.workloads.csv_jobs.service.jobs import JobService


def main() -> None:
    given = arguments()
    data_dir = Path(given["data_dir"])
    desk = JobService(data_dir, environ={})
    meter = Meter()
    exported = desk.export(given["job"], data_dir / "exported.csv")
    report(**asdict(meter.read()), rows=exported.rows, memory=peak_memory())


if __name__ == "__main__":
    main()
