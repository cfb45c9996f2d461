"""``make crash-test N=100``: kills at random instants, until there were so many.

A batch of prompts is performed against the simulated model over HTTP. Its owner, or a worker process, is killed with SIGKILL at a random
instant (while it works, while the run is made, while the last files are written); the run is resumed and killed again, until it is done.
Then everything is compared with an undisturbed run, and the server's log is searched for requests that should not have been made.

In turn with these, processes of sandboxes are killed (``sandbox_rounds.py``), whole trees of processes, runs in containers, those whose
containers somebody stops or removes (``container_rounds.py``), and jobs over tables: their runner, their workers (the built-in agent, a
command that prints or reports over MCP, a Python function), the terminal that waits, the MCP server; while they are planned, performed, and
exported.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Literal, Protocol

from tests.crash.browser_rounds import BrowserRound
from tests.crash.cluster_rounds import ClusterRound, ClusterSite, ClusterWork, at_random
from tests.crash.container_rounds import Blow, ContainerRound, OutsideRound, UnpackedRound
from tests.crash.container_site import IMAGES, ContainerSite, WorldSite, container_site, unpacked_site
from tests.crash.job_planning import PlanningRound
from tests.crash.job_rounds import JobRound, JobVictim, ServerRound
from tests.crash.job_site import JobSite, Kind
from tests.crash.rounds import Report, Round, Site, Victim, Work, slow_server
from tests.crash.sandbox_rounds import BUBBLEWRAP, LOCAL, SandboxRound
from tests.crash.sandbox_rounds import Kind as Process
from tests.support.commands import SimulatedProcess
from tests.support.engine_keeper import Unavailable
from tests.support.engines import REQUIRED
from tests.support.ray_clusters import two_nodes


class Performer(Protocol):
    """A round that is about to begin."""

    def perform(self, kills: int) -> Report: ...


class Sites:
    """Where batches and jobs are performed. Engines are started when a round needs them."""

    def __init__(self, folder: Path, server: SimulatedProcess, stack: ExitStack) -> None:
        self.batches = Site(folder, server)
        self.jobs = JobSite(folder, server)
        self._engines: dict[str, ContainerSite | Unavailable] = {}
        self.folder, self._server, self._stack = folder, server, stack

    @cached_property
    def unpacked(self) -> WorldSite:
        return unpacked_site(self.folder, self._server)

    @cached_property
    def cluster(self) -> ClusterSite:
        """Its model takes as long to answer as real ones. Raises Unavailable."""
        folder = self.folder / "cluster"
        folder.mkdir()
        server = self._stack.enter_context(SimulatedProcess(folder, latency=1.5, latency_jitter=1.0))
        return ClusterSite(folder, server, self._stack.enter_context(two_nodes()))

    def engine(self, kind: str) -> ContainerSite:
        """Raises Unavailable."""
        if kind not in self._engines:
            try:
                self._engines[kind] = self._stack.enter_context(container_site(kind, self.folder, self._server))
            except Unavailable as error:
                self._engines[kind] = error
        site = self._engines[kind]
        if isinstance(site, Unavailable):
            raise site
        return site


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Who is killed, the executor, the work, and the kills of one round at most."""

    victim: Victim
    executor: str
    work: Work
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        return Round(sites.batches, self.work, self.victim, self.executor, instants)


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """The kind of sandboxes' processes that is killed, the executor, the work, and the kills of one round at most."""

    kind: Process
    executor: str
    work: Work
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        return SandboxRound(sites.batches, self.work, self.kind, self.executor, instants)


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Who is killed (``any``: the owner or a worker, by chance), or what is done to containers from outside; the executor, the work, the
    kills of one round at most, and the requests between two of them at most."""

    victim: ContainerVictim
    executor: str
    work: Work
    most: int
    spread: int = 12

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        site = sites.engine(self.work.sandbox)
        if self.victim in ("stop", "kill", "remove"):
            return OutsideRound(site, self.work, self.victim, self.executor, instants)
        return ContainerRound(site, self.work, self.victim, self.executor, instants, self.spread)


@dataclass(frozen=True, slots=True)
class UnpackedPlan:
    """The same in bubblewrap sandboxes of images."""

    victim: Victim
    executor: str
    work: Work
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        return UnpackedRound(sites.unpacked, self.work, self.victim, self.executor, instants)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Who is killed (``itself``: the runner, by its workers), the kind of worker, how many rows, and the kills of one round at most."""

    victim: JobVictim
    kind: Kind
    rows: int
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        if self.victim == "planning":
            return PlanningRound(sites.jobs, self.rows, instants)
        if self.victim == "server":
            return ServerRound(sites.jobs, self.kind, self.rows, instants)
        return JobRound(sites.jobs, self.kind, self.victim, self.rows, instants)


MANY = Work(54)
SAMPLED = Work(24, samples=2)
BATCHES = (
    BatchPlan("owner", "processes", MANY, 4),
    BatchPlan("owner", "local", MANY, 4),
    BatchPlan("worker", "processes", MANY, 3),
    BatchPlan("start", "processes", SAMPLED, 3),
    BatchPlan("owner", "processes", SAMPLED, 5),
    BatchPlan("export", "local", SAMPLED, 3),
    BatchPlan("owner", "local", SAMPLED, 5),
    BatchPlan("worker", "processes", SAMPLED, 4),
    BatchPlan("start", "local", MANY, 3),
    BatchPlan("export", "processes", MANY, 3),
    BatchPlan("tree", "processes", MANY, 5),
    BatchPlan("tree", "local", SAMPLED, 4),
)
UNCONFINED = Work(54, sandbox="local")
SANDBOXES = (
    *(SandboxPlan(kind, executor, MANY, 6) for kind in BUBBLEWRAP for executor in ("processes", "local")),
    *(SandboxPlan(kind, "processes", UNCONFINED, 6) for kind in LOCAL),
)
UNPACKED = Work(40)
JOBS = (
    JobPlan("runner", "agent", 60, 5),
    JobPlan("runner", "reporting", 15, 5),
    JobPlan("itself", "killing", 6, 6),
    JobPlan("itself", "striking", 16, 6),
    JobPlan("worker", "printing", 30, 5),
    JobPlan("server", "agent", 40, 4),
    JobPlan("runner", "function", 80, 6),
    JobPlan("worker", "reporting", 12, 5),
    JobPlan("planning", "function", 40_000, 6),
    JobPlan("runner", "printing", 40, 6),
    JobPlan("terminal", "printing", 12, 2),
    JobPlan("worker", "function", 50, 4),
    JobPlan("export", "function", 200, 3),
    JobPlan("server", "reporting", 8, 3),
    JobPlan("runner", "tools", 25, 4),
)
IN_DOCKER, IN_PODMAN = (Work(20, sandbox=kind, images=4) for kind in ("docker", "podman"))
ContainerVictim = Victim | Literal["any"] | Blow
CONTAINERS: tuple[ContainerPlan | UnpackedPlan, ...] = (
    ContainerPlan("owner", "processes", IN_DOCKER, 3),
    ContainerPlan("worker", "processes", IN_PODMAN, 3),
    UnpackedPlan("owner", "processes", UNPACKED, 3),
    ContainerPlan("stop", "processes", IN_DOCKER, 3),
    ContainerPlan("tree", "processes", IN_PODMAN, 3),
    ContainerPlan("worker", "processes", IN_DOCKER, 3),
    ContainerPlan("remove", "local", IN_PODMAN, 3),
    UnpackedPlan("worker", "processes", UNPACKED, 3),
    ContainerPlan("tree", "processes", IN_DOCKER, 3),
    ContainerPlan("owner", "local", IN_PODMAN, 3),
    ContainerPlan("remove", "processes", IN_DOCKER, 3),
    UnpackedPlan("tree", "local", UNPACKED, 3),
    ContainerPlan("kill", "local", IN_DOCKER, 3),
    ContainerPlan("stop", "processes", IN_PODMAN, 3),
)
MANY_CONTAINERS = (
    ContainerPlan(
        "any",
        "processes",
        Work(1000, sandbox="docker", images=IMAGES, calm_in="bubblewrap", concurrency=8, seconds=3600.0),
        20,
        spread=150,
    ),
)
ROW = "{:<5} {:<28} {:>8} {:>5} {:>8} {:>5} {:>7} {:>5} {:>9} {:>7} {:>7}  {}"
HEAD = (
    "round",
    "killed, performed by, items",
    "sessions",
    "kills",
    "requests",
    "extra",
    "allowed",
    "fresh",
    "lingering",
    "stop",
    "seconds",
    "",
)


@dataclass(frozen=True, slots=True)
class BrowserPlan:
    """How many items have a browser, and the kills of one round at most."""

    items: int
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        return BrowserRound(sites.folder, self.items, instants)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The work that is spread over a cluster of two nodes, and the kills of one round at most."""

    work: ClusterWork
    most: int

    def round(self, sites: Sites, instants: random.Random) -> Performer:
        return ClusterRound(sites.cluster, self.work, at_random(instants), instants)


BROWSERS = (BrowserPlan(200, 20),)
ON_CLUSTER, IN_SANDBOXES = (
    ClusterWork(1000, sandbox=sandbox, concurrency=8, seconds=1800.0, spread=150) for sandbox in ("none", "bubblewrap")
)
Plan = BatchPlan | SandboxPlan | ContainerPlan | UnpackedPlan | JobPlan | BrowserPlan | ClusterPlan
KINDS: dict[str, Sequence[Plan]] = {
    "batches": BATCHES,
    "sandboxes": SANDBOXES,
    "containers": CONTAINERS,
    "jobs": JOBS,
}
ALONE: dict[str, Sequence[Plan]] = {
    "many-containers": MANY_CONTAINERS,
    "browsers": BROWSERS,
    "ray": (ClusterPlan(ON_CLUSTER, 20),),
    "ray-sandboxes": (ClusterPlan(IN_SANDBOXES, 20),),
}
"""What is performed only if it is asked for."""


def plans(only: str | None = None) -> list[Plan]:
    """The rounds of a campaign: batches, sandboxes, containers and jobs in turn, or those of one kind."""
    if only is not None:
        return list({**KINDS, **ALONE}[only])
    return [plan for several in zip_longest(*KINDS.values()) for plan in several if plan is not None]


def campaign(kills: int, seed: int, folder: Path, only: str | None = None) -> list[Report]:
    """Perform rounds until there were so many kills, and print a line for each."""
    reports: list[Report] = []
    print(ROW.format(*HEAD), flush=True)
    with slow_server(folder) as server, ExitStack() as stack:
        for report in _rounds(Sites(folder, server, stack), kills, seed, plans(only)):
            reports.append(report)
            print(_row(len(reports), report), flush=True)
            for violation in report.violations:
                print(f"      VIOLATION: {violation}", flush=True)
    return reports


def _rounds(sites: Sites, kills: int, seed: int, rounds: Sequence[Plan]) -> Iterator[Report]:
    done = idle = 0
    for number, plan in enumerate(cycle(rounds)):
        instants = random.Random(f"{seed}/{number}")
        try:
            report = plan.round(sites, instants).perform(min(plan.most, kills - done))
        except Unavailable as error:
            if os.environ.get(REQUIRED) == "1":
                raise
            report = Report(f"left out: {error}")
        done += report.kills
        idle = 0 if report.kills else idle + 1
        yield report
        if done >= kills or idle > len(rounds):
            return


def _row(number: int, report: Report) -> str:
    cells = (number, report.name, report.sessions, report.kills, report.requests, report.extra, report.allowed)
    verdict = "FAILED" if report.violations else "ok"
    slowest = "–" if report.slowest is None else f"{report.slowest:.2f}"
    return ROW.format(*cells, report.fresh, report.lingering, slowest, f"{report.seconds:.1f}", verdict)


def summary(reports: Sequence[Report]) -> str:
    """The campaign in one line."""
    totals = {
        name: sum(getattr(report, name) for report in reports)
        for name in ("kills", "sessions", "requests", "extra", "allowed", "fresh", "lingering")
    }
    violations = sum(len(report.violations) for report in reports)
    stops = [report.slowest for report in reports if report.slowest is not None]
    slowest = f"the slowest container ended {max(stops):.2f} s after its owner; " if stops else ""
    return (
        "{kills} kills in {rounds} rounds and {sessions} sessions; {requests} requests and launches, {extra} of them extra (at most "
        "{allowed} in flight when killed); {fresh} fresh attempts; {lingering} processes ended by the next opening only; "
        "{slowest}{violations} violations"
    ).format(rounds=len(reports), violations=violations, slowest=slowest, **totals)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign; 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign", description="Kill runs at random instants.")
    parser.add_argument("--kills", type=int, default=100, help="how many kills (default: 100)")
    parser.add_argument(
        "--seed", type=int, default=None, help="makes the choices of a campaign repeatable (default: drawn)"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where to keep the runs (default: nowhere)")
    parser.add_argument("--only", choices=(*KINDS, *ALONE), help="what to kill (default: all in turn)")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}")
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="manyhands-crash-")))
        folder.mkdir(parents=True, exist_ok=True)
        reports = campaign(options.kills, seed, folder, options.only)
    print(summary(reports))
    return 1 if any(report.violations for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
