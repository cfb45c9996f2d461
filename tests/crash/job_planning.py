"""A round of kills while a large table becomes a job, and while its results are exported."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing

from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.csv_jobs.service.status import CANCELLED, COMPLETED
from tests.crash.job_checks import exported
from tests.crash.job_rounds import asides
from tests.crash.job_site import JobSite, cells, wait_for
from tests.crash.rounds import Report
from tests.support.commands import Command, run

_PLANNED_SECONDS = 60.0


class PlanningRound:
    """A table of many rows is spawned and killed: there is no job then, or one that goes on and has all rows."""

    def __init__(self, site: JobSite, rows: int, instants: random.Random) -> None:
        self._job = site.job("function", f"planning-{rows}-{instants.getrandbits(32):08x}", rows)
        self._instants = instants
        self.report = Report(f"planning function {rows}")

    def perform(self, kills: int) -> Report:
        """Kill so many times: half of them, or a few more, while the job is made, the others while it is exported."""
        began = time.monotonic()
        try:
            while self.report.kills < (kills + 1) // 2 and self.report.sessions < 3 * kills:
                self._make()
            self._go_on()
            while self.report.kills < kills and self.report.sessions < 6 * kills:
                self._export()
            self._check_rows()
            self.report.violations += [f"is still there at the end: {left}" for left in self._job.wait_gone(3.0)]
        finally:
            self._job.end()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _make(self) -> None:
        """Spawn, or go on with what was half made, and kill that."""
        job, report = self._job, self.report
        report.sessions += 1
        again = job.made
        with Command(*(job.words("run", "--detach") if again else job.spawn_words("--detach"))) as command:
            begun, longest = self._moment(again=again)
            command.wait_until(begun, pause=0.001)
            if not command.ends_within(self._instants.uniform(0.0, longest)):
                command.kill()
                report.kills += 1
            if again and job.kill_runners():
                report.kills += 1
        if job.made:
            state = job.status().state
            report.expect(state != COMPLETED, f"a job of which nothing was performed is {state}")
        else:
            listed = run("jobs", "list", f"--data_dir={job.site.data}", "--json")
            report.expect((listed.code, job.name in listed.out) == (0, False), f"a half-made job is listed: {listed}")

    def _moment(self, *, again: bool) -> tuple[Callable[[], object], float]:
        """From when on to kill, and how much later at most: before it is a job, or just when it is, without any row; then at any time."""
        job = self._job
        if again:
            return job.runners, 0.5
        early = ((job.folder.exists, 0.03), (lambda: job.made, 0.03))
        return early[self.report.kills] if self.report.kills < len(early) else (job.folder.exists, 0.5)

    def _go_on(self) -> None:
        """See to it that all rows are planned, then end the job, as it would take too long to perform them all."""
        job, report = self._job, self.report
        begun = run(*(job.words("run", "--detach") if job.made else job.spawn_words("--detach")))
        report.expect(begun.code == 0, f"it did not go on: {begun.err}")
        report.expect(wait_for(self._is_planned, _PLANNED_SECONDS), "it was not planned to the end")
        ended = run(*job.words("cancel", "--firm"))
        report.expect(ended.code == 0, f"it could not be cancelled: {ended.err}")
        report.expect(wait_for(lambda: not is_owned(job.folder), 20.0), "it did not end")
        report.expect(job.status().state == CANCELLED, f"it is {job.status().state}")

    def _is_planned(self) -> bool:
        with closing(JournalReader(self._job.folder)) as reader:
            return reader.meta("planned") is not None

    def _export(self) -> None:
        """Export once more, in another format than before; kill that while it writes."""
        job, report = self._job, self.report
        report.sessions += 1
        target, before = job.place / "again", asides(job)
        old = target.read_bytes() if target.exists() else None
        kind = self._instants.choice(("csv", "jsonl"))
        with Command(*job.words("export", f"--output_csv_path={target}", f"--format={kind}")) as command:
            command.wait_until(lambda: asides(job) - before, pause=0.001)
            if not command.ends_within(self._instants.uniform(0.0, 0.3)):
                command.kill()
                report.kills += 1
        new = target.read_bytes() if target.exists() else None
        whole = new == old or (new is not None and new.count(b"\n") == job.rows + (kind == "csv"))
        report.expect(whole, "an export is there in part")

    def _check_rows(self) -> None:
        """All rows once, in order, with what is known of each."""
        job, report = self._job, self.report
        ended = run(*job.words("export"))
        report.expect(ended.code == 0, f"it could not be exported: {ended.err}")
        table, total = exported(job.output), job.status().total_items
        report.expect(total == len(table) == job.rows, f"{total} rows of {job.rows}, and {len(table)} in the export")
        report.expect([(row["name"], row["text"]) for row in table] == cells(job.rows), "the rows are others")
        report.expect([row["row_index"] for row in table] == [str(place) for place in range(job.rows)], "the order")
        with closing(JournalReader(job.folder)) as reader:
            results = {found.item.key for found in reader.finished("completed")}
        report.expect({row["item_id"] for row in table if row["result_json"]} == results, "results are missing")
        report.requests = len(job.noted())
        ended = run(*job.words("export", f"--output_csv_path={job.place / 'again'}"))
        report.expect(not asides(job) and ended.code == 0, "what killed exports had begun is left over")
