"""SIGKILL at random instants for jobs over tables, as a person's machine would do it: the bounded form of ``make crash-test``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.csv_jobs.service.status import CANCELLED
from tests.crash.campaign import JobPlan, Sites
from tests.crash.job_checks import JobCheck, exported
from tests.crash.job_site import ANSWERED, wait_for
from tests.crash.rounds import MOST_ROUNDS, Report, slow_server
from tests.support.commands import environment, run

PLANS = (
    JobPlan("runner", "function", 20, 2),
    JobPlan("itself", "killing", 2, 2),
    JobPlan("worker", "printing", 6, 1),
    JobPlan("export", "function", 150, 1),
    JobPlan("terminal", "printing", 6, 1),
    JobPlan("server", "agent", 12, 2),
    JobPlan("planning", "function", 8_000, 4),
)
"""One for each victim."""
FURTHER = (
    JobPlan("runner", "reporting", 3, 1),
    JobPlan("itself", "striking", 4, 2),
    JobPlan("runner", "agent", 14, 2),
    JobPlan("worker", "function", 12, 1),
    JobPlan("worker", "reporting", 3, 1),
)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("jobs")
    with slow_server(folder) as server, ExitStack() as stack:
        yield Sites(folder, server, stack)


@pytest.mark.parametrize(
    "plan",
    [*PLANS, *(pytest.param(plan, marks=pytest.mark.slow) for plan in FURTHER)],
    ids=lambda plan: f"{plan.victim}-{plan.kind}",
)
def test_a_killed_job_loses_no_row_and_reports_none_twice(sites: Sites, plan: JobPlan) -> None:
    instants = random.Random(f"{plan.victim}/{plan.kind}")
    for _ in range(MOST_ROUNDS):
        report = plan.round(sites, instants).perform(plan.most)
        assert report.violations == []
        if report.kills:
            return
    raise AssertionError("nothing was killed")


def test_a_second_runner_of_a_live_job_is_refused(sites: Sites) -> None:
    job = sites.jobs.job("function", "alone", 8)
    job.hold()
    report = Report("a second runner")
    try:
        assert run(*job.spawn_words("--detach")).code == 0
        assert wait_for(job.noted, 20.0)
        refused = run_directly(job.folder)
        again = run(*job.words("run", "--detach"))
        job.release()
        assert (refused.returncode, again.code) == (1, 0)
        assert "one process at a time can do that" in refused.stdout
        assert "already running" in again.err
        assert run(*job.words("wait")).code == 0
        JobCheck(job, (), {}, report).all()
        assert (report.violations, report.extra) == ([], 0)
        with closing(JournalReader(job.folder)) as reader:
            session = reader.last_session()
            assert session is not None
            assert session.number == 1
    finally:
        job.end()


def test_what_was_accepted_counts_even_if_the_job_is_stopped_at_once(sites: Sites) -> None:
    job = sites.jobs.job("lingering", "stopped", 4)
    try:
        assert run(*job.spawn_words("--detach")).code == 0
        assert wait_for(lambda: any(noted.event == ANSWERED for noted in job.noted()), 20.0)
        assert run(*job.words("cancel", "--firm")).code == 0
        assert wait_for(job.gone, 20.0)
        assert job.status().state == CANCELLED
        accepted = {(noted.item, noted.word) for noted in job.noted() if noted.accepted}
        results = {
            (row["item_id"], json.loads(row["result_json"])["word"])
            for row in exported(job.output)
            if row["result_json"]
        }
        assert accepted
        assert accepted <= results
    finally:
        job.end()


def run_directly(folder: Path) -> subprocess.CompletedProcess[str]:
    """The process that performs a job, started past all that looks first whether there is one."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from manyhands.workloads.csv_jobs.service.runner import main; sys.exit(main())",
            str(folder),
        ],
        input="",
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
    )
