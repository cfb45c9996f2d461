"""``make crash-test N=100``: kills at random instants, until there were so many.

A batch of prompts is performed against the simulated model over HTTP. Its owner, or a worker process, is killed with SIGKILL at a random
instant (while it works, while the run is made, while the last files are written); the run is resumed and killed again, until it is done.
Then everything is compared with an undisturbed run, and the server's log is searched for requests that should not have been made.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from tests.crash.rounds import Report, Round, Site, Victim, Work, slow_server

MANY = Work(54)
SAMPLED = Work(24, samples=2)
ROUNDS: tuple[tuple[Victim, str, Work, int], ...] = (
    ("owner", "processes", MANY, 4),
    ("owner", "local", MANY, 4),
    ("worker", "processes", MANY, 3),
    ("start", "processes", SAMPLED, 3),
    ("owner", "processes", SAMPLED, 5),
    ("export", "local", SAMPLED, 3),
    ("owner", "local", SAMPLED, 5),
    ("worker", "processes", SAMPLED, 4),
    ("start", "local", MANY, 3),
    ("export", "processes", MANY, 3),
)
"""Who is killed, the executor, the work, and the kills of one round at most."""
ROW = "{:<5} {:<26} {:>8} {:>5} {:>8} {:>5} {:>7} {:>5} {:>9} {:>7}  {}"
HEAD = (
    "round",
    "killed, executor, items",
    "sessions",
    "kills",
    "requests",
    "extra",
    "allowed",
    "fresh",
    "lingering",
    "seconds",
    "",
)


def campaign(kills: int, seed: int, folder: Path) -> list[Report]:
    """Perform rounds until there were so many kills, and print a line for each."""
    reports: list[Report] = []
    print(ROW.format(*HEAD), flush=True)
    with slow_server(folder) as server:
        for report in _rounds(Site(folder, server), kills, seed):
            reports.append(report)
            print(_row(len(reports), report), flush=True)
            for violation in report.violations:
                print(f"      VIOLATION: {violation}", flush=True)
    return reports


def _rounds(site: Site, kills: int, seed: int) -> Iterator[Report]:
    done = idle = 0
    for number, (victim, executor, work, most) in enumerate(cycle(ROUNDS)):
        instants = random.Random(f"{seed}/{number}")
        report = Round(site, work, victim, executor, instants).perform(min(most, kills - done))
        done += report.kills
        idle = 0 if report.kills else idle + 1
        yield report
        if done >= kills or idle > len(ROUNDS):
            return


def _row(number: int, report: Report) -> str:
    cells = (number, report.name, report.sessions, report.kills, report.requests, report.extra, report.allowed)
    verdict = "FAILED" if report.violations else "ok"
    return ROW.format(*cells, report.fresh, report.lingering, f"{report.seconds:.1f}", verdict)


def summary(reports: Sequence[Report]) -> str:
    """The campaign in one line."""
    totals = {
        name: sum(getattr(report, name) for report in reports)
        for name in ("kills", "sessions", "requests", "extra", "allowed", "fresh", "lingering")
    }
    violations = sum(len(report.violations) for report in reports)
    return (
        "{kills} kills in {rounds} rounds and {sessions} sessions; {requests} requests, {extra} of them extra (at most {allowed} in flight "
        "when killed); {fresh} fresh attempts; {lingering} processes ended by the next opening only; {violations} violations"
    ).format(rounds=len(reports), violations=violations, **totals)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign; 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign", description="Kill runs at random instants.")
    parser.add_argument("--kills", type=int, default=100, help="how many kills (default: 100)")
    parser.add_argument(
        "--seed", type=int, default=None, help="makes the choices of a campaign repeatable (default: drawn)"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where to keep the runs (default: nowhere)")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}")
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-crash-")))
        folder.mkdir(parents=True, exist_ok=True)
        reports = campaign(options.kills, seed, folder)
    print(summary(reports))
    return 1 if any(report.violations for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
