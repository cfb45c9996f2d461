"""Programs that do next to nothing, as workers of a job and as judges, against starting them by the shortest way there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.children import run_child
from benchmarks.csv_jobs.tables import JOB_NAME, write_table
from benchmarks.evals.evals import judges
from benchmarks.limit.comparing import Measured, in_turns, middle, whole
from benchmarks.rows import Row

AT_ONCE = 8
SCRIPT = "#!/bin/sh\necho '{\"done\":true}'\n"


def programs(quick: bool) -> Iterator[Row]:
    """Wall time of a job against ``xargs -P``, and of judges against interpreters of their own."""
    yield _job(*((300, 2) if quick else (10_000, 5)))
    yield from judges(200 if quick else 1_000, at_least=10.0)


def _job(rows: int, rounds: int) -> Row:
    runs = count()
    with TemporaryDirectory() as name:
        folder = Path(name)
        table, script = folder / "table.csv", folder / "worker"
        write_table(table, rows)
        script.write_text(SCRIPT)
        script.chmod(0o755)
        loop = f"seq {rows} | xargs -P {AT_ONCE} -n 1 {script} > {folder / 'results'}"

        def job() -> Measured:
            run = folder / f"data-{next(runs)}"
            settings = {"csv_path": str(table), "data_dir": str(run), "job_name": JOB_NAME, "max_concurrency": AT_ONCE}
            settings |= {"instruction": "Note {name}.", "worker_command": str(script)}
            return run_child("csv_jobs.command", settings=settings)

        bare, jobs = in_turns(rounds, lambda: whole(["sh", "-c", loop]), job)
    wall, bare_wall = middle(jobs, "wall"), middle(bare, "wall")
    note = (
        f"{rows:,} rows, {AT_ONCE} at once: {wall:.1f} s against {bare_wall:.1f} s; "
        f"CPU {middle(jobs, 'cpu'):.1f} s against {middle(bare, 'cpu'):.1f} s"
    )
    return Row("limit: job of a command", wall / bare_wall, "× xargs -P", at_most=2.0, note=note)
