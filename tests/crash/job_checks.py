"""What must hold of a job that was killed again and again, when it is done."""

from __future__ import annotations

import asyncio
import csv
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manyhands.engine.check import check_run
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from manyhands.workloads.csv_jobs.service.status import COMPLETED
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload
from tests.crash.job_site import ANSWERED, HEADERS, LAUNCHED, Job, cells
from tests.crash.rounds import Report


@dataclass(frozen=True, slots=True)
class Struck:
    """How a job stood when its runner was killed. ``in_flight``: rows begun without a recorded report; ``reported``: those with one."""

    at: float
    in_flight: frozenset[str]
    reported: frozenset[str]


class JobCheck:
    """Everything that must hold of a job that is done."""

    def __init__(
        self,
        job: Job,
        struck: Sequence[Struck],
        ended: dict[str, ItemRow],
        report: Report,
        start: int = 0,
        *,
        over: bool = False,
    ) -> None:
        """``ended``: rows that had ended when it was killed; ``start``: requests that the server had got before; ``over``: its runner was
        killed when it had nothing left to do but to tidy up."""
        self._job = job
        self._struck = struck
        self._before = ended
        self._report = report
        self._start = start
        self._over = over
        self._rows: dict[str, ItemRow] = {}
        self._failures: dict[str, int] = {}
        """How often a performance of a row failed."""

    def all(self) -> None:
        job, report = self._job, self._report
        if not job.made:
            report.violations.append("there is no job")
            return
        with closing(JournalReader(job.folder)) as reader:
            self._rows = {row.key: row for row in reader.items()}
            self._failures = {key: len(reader.failures(row.number)) for key, row in self._rows.items()}
        self._check_counts()
        self._check_kept()
        self._check_export()
        if job.kind in ("agent", "tools"):
            self._check_requests()
        else:
            self._check_launches()
            self._check_words()
        self._check_leftovers()

    def _check_counts(self) -> None:
        status, rows = self._job.status(), self._job.rows
        found = (status.state, status.total_items, status.completed_items, status.runner_active)
        self._report.expect(found == (COMPLETED, rows, rows, False), f"the job ended as {found}")
        expected = [f"row-{number}" for number in range(1, rows + 1)]
        self._report.expect(list(self._rows) == expected, "the rows are not those of the table")

    def _check_kept(self) -> None:
        """What had ended stayed as it was, and what was reported was not reported again."""
        for key, before in self._before.items():
            self._report.expect(self._rows.get(key) == before, f"{key} had ended, and changed afterwards")
        for struck in self._struck:
            for key in struck.reported:
                at = self._rows[key].record["reported_at"]
                self._report.expect(at <= struck.at, f"{key} was reported again, though a report of it was recorded")

    def _check_export(self) -> None:
        """Every row once, in order, with its cells and the result that the journal has."""
        job, report = self._job, self._report
        table = exported(job.output)
        report.expect(
            [(row["name"], row["text"]) for row in table] == cells(job.rows), "the export has not the table's rows"
        )
        report.expect([row["item_id"] for row in table] == list(self._rows), "the export has other rows than the job")
        report.expect({row["status"] for row in table} == {"completed"}, "a row in the export is not completed")
        for row in table:
            item = self._rows[row["item_id"]]
            result = json.loads(row["result_json"] or "null")
            report.expect(result == item.record["result"], f"the export has another result of {item.key}")
            self._check_attempts(row, item)

    def _check_attempts(self, row: dict[str, str], item: ItemRow) -> None:
        """``attempt_count`` has every performance in it, and no more than there can have been."""
        count = int(row["attempt_count"])
        begun = sum(item.key in struck.in_flight | struck.reported for struck in self._struck)
        most = 1 + begun + self._failures[item.key]
        self._report.expect(
            1 <= count <= most, f"{item.key}: attempt_count is {count}, and {most} is the most it can be"
        )

    def _check_launches(self) -> None:
        """A row was launched again only where it was in flight at a kill, or where a launch of it had failed."""
        report = self._report
        launches = Counter(noted.item for noted in self._job.noted() if noted.event == LAUNCHED)
        counts = {row["item_id"]: int(row["attempt_count"]) for row in exported(self._job.output)}
        report.requests = launches.total()
        report.extra = launches.total() - self._job.rows
        for key in self._rows:
            most = 1 + sum(key in struck.in_flight for struck in self._struck) + self._failures[key]
            report.expect(1 <= launches[key] <= most, f"{key} was launched {launches[key]} times; {most} are allowed")
            report.expect(launches[key] <= counts[key], f"{key}: {launches[key]} launches, {counts[key]} attempts")
        report.expect(report.extra <= report.allowed, f"{report.extra} extra launches; {report.allowed} are allowed")

    def _check_words(self) -> None:
        """The result of each row is that of one of its launches; of the one whose report was accepted, if there is one."""
        launched, accepted = set(), Counter[str]()
        results = {key: row.record["result"] for key, row in self._rows.items()}
        for noted in self._job.noted():
            word = (noted.item, noted.word)
            launched.add(word)
            if noted.event == ANSWERED and noted.accepted:
                accepted[noted.item] += 1
                same = results[noted.item]["word"] == noted.word
                self._report.expect(same, f"a report of {noted.item} was accepted, and is not in the export")
        for key, result in results.items():
            self._report.expect((result["item"], result["word"]) in launched, f"nobody has reported this: {result}")
            self._report.expect(result["item"] == key, f"{key} has the result of {result['item']}")
            self._report.expect(accepted[key] <= 1, f"{accepted[key]} reports of {key} were accepted")
        if self._job.kind in ("reporting", "killing"):
            self._report.expect(bool(accepted), "no worker ever saw its report accepted")

    def _check_requests(self) -> None:
        """Calls were made again only where they were in flight; and all that is recorded was asked."""
        report, server = self._report, self._job.site.server
        asked = Counter(asked.digest for asked in server.asked(self._start))
        report.requests = asked.total()
        report.extra = asked.total() - len(asked)
        report.expect(report.extra <= report.allowed, f"{report.extra} extra requests; {report.allowed} are allowed")
        with closing(JournalReader(self._job.folder)) as reader:
            steps = [step.kind for row in self._rows.values() for step in reader.steps(row.number, row.attempt)]
            report.fresh = sum(row.attempt - 1 for row in self._rows.values())
        if not report.fresh:
            recorded = steps.count("model")
            report.expect(
                recorded == len(asked), f"{recorded} calls are recorded, and {len(asked)} different ones were made"
            )

    def _check_leftovers(self) -> None:
        job, report = self._job, self._report
        report.violations += [f"is still there at the end: {left}" for left in job.wait_gone(3.0)]
        files = {path.name for path in (*job.folder.iterdir(), *job.place.iterdir())}
        report.expect(not any(name.endswith(".new") for name in files), f"left over: {sorted(files)}")
        report.expect("runner.json" not in files or self._over, "runner.json is left over")
        report.expect(not any((job.folder / "workspaces").glob("*")), "workspaces are left over")
        with closing(JournalReader(job.folder)) as reader:
            checked = asyncio.run(check_run(reader, CsvJobsWorkload(reader.meta("spec"), job.folder)))
        report.violations += [f"does not fit its journal: {mismatch}" for mismatch in checked.mismatches]
        report.expect(checked.checked == job.rows, f"of {checked.checked} rows the journal holds what was done")


def exported(path: Path) -> list[dict[str, str]]:
    """The rows of an export. Raises AssertionError if its columns are not those of a job's export."""
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle)
        assert rows.fieldnames == [*HEADERS, *OUR_COLUMNS], rows.fieldnames
        return list(rows)
