"""Rounds in which a run is spread over the nodes of a Ray cluster, and actors, worker processes, whole nodes or the owner are killed.

A node's death kills all that runs on it, and its folder is never seen again; another node, which is new, joins meanwhile.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.workspaces import WORKSPACES
from tests.crash.rounds import LINGER_SECONDS, Calm, Found, Round, Site, Work, descendants
from tests.support.commands import Command, SimulatedProcess, describe
from tests.support.ray_clusters import Cluster

Victim = Literal["actor", "worker", "node", "owner"]
VICTIMS: tuple[Victim, ...] = ("actor", "worker", "node", "owner")
WORKERS = 4
TURNS = 3
_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClusterWork(Work):
    """Items of three turns each: two with tools, and the answer. ``sandbox``: ``none`` for items without a world."""

    spread: int = 30
    """Requests between two kills at most."""

    def rows(self) -> Iterator[dict[str, Any]]:
        for number in range(self.prompts):
            yield {"prompt": f"Case {number}: count to {number % 7}. [simulate: tools={TURNS - 1}]", "case": number}


class ClusterSite(Site):
    """A cluster, and a folder with its runs."""

    def __init__(self, folder: Path, server: SimulatedProcess, cluster: Cluster) -> None:
        super().__init__(folder, server)
        self.cluster = cluster

    @property
    def environ(self) -> Mapping[str, str]:
        return {"RAY_ADDRESS": self.cluster.address}

    def words(self, work: Work, name: str, executor: str) -> list[str]:
        words = [*super().words(work, name, executor), f"--num_workers={WORKERS}"]
        if executor == "local":
            words.append("--concurrency=50")
        if work.sandbox != "none":
            return words
        return [*(each for each in words if not each.startswith(("--sandbox=", "--distribution="))), "--tools=todo"]


class ClusterRound(Round):
    """One run; each kill strikes the next of ``victims``, as far as there is one."""

    def __init__(
        self,
        site: ClusterSite,
        work: ClusterWork,
        victims: Iterable[Victim],
        instants: random.Random,
        *,
        replaces_nodes: bool = True,
    ) -> None:
        """``replaces_nodes``: whether another node joins where one was killed."""
        super().__init__(site, work, "cluster", "ray", instants)
        self._cluster = site.cluster
        self._spread = work.spread
        self._victims = iter(victims)
        self._replaces_nodes = replaces_nodes
        self._struck = Counter[str]()
        self._orphans: list[Found] = []

    @property
    def _kills_workers(self) -> bool:
        return True

    def _strike(self, command: Command, kills: int) -> bool:
        while self.report.kills < kills and self._after_requests(command, self._spread):
            victim = next(self._victims)
            self._struck[victim] += 1
            if victim == "owner":
                return self._kill_owner(command)
            if not self._kill_part(command, victim):
                return False
        return False

    def _kill_part(self, command: Command, victim: Victim) -> bool:
        """Kill an actor, a worker or a node; False if the run ended before there was one."""
        choice: list[int] = []

        def is_there() -> bool:
            nodes = (
                [each for each in self._cluster.nodes[1:] if each.works] if victim == "node" else self._cluster.nodes
            )
            choice[:] = [pid for node in nodes for pid in (node.actors() if victim == "actor" else node.workers())]
            return bool(choice)

        if not command.wait_until(is_there, seconds=_READY_SECONDS, pause=0.1):
            return False
        self._note_finished()
        pid = self._instants.choice(choice)
        lost = 1
        if victim == "node":
            node = next(each for each in self._cluster.nodes if pid in each.processes())
            lost = len(node.actors())
            self._cluster.remove(node)
            if self._replaces_nodes:
                self._cluster.add()
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.report.kills += 1
        self.report.allowed += lost * self._work.concurrency
        return True

    def _watch(self, worker: int | None = None) -> None:
        """Called right before the owner is killed: what must end with it, as its processes on the nodes must."""
        actors = (Found.of(pid, 0) for node in self._cluster.nodes for pid in node.actors())
        self._orphans = [each for each in actors if each is not None]

    def _kill_owner(self, command: Command) -> bool:
        below = descendants(command.process.pid)
        if not super()._kill_owner(command):
            return False
        self._orphans += below
        self.report.allowed += (WORKERS - 2) * self._work.concurrency  # of which Round counts two
        return True

    def _after_kill(self) -> None:
        began = time.monotonic()
        super()._after_kill()
        end = began + LINGER_SECONDS
        while (left := [each for each in self._orphans if each.alive]) and time.monotonic() < end:
            time.sleep(0.02)
        self.report.lingering += len(left)
        self.report.violations += [f"outlived its killed owner: {describe(each.pid)}" for each in left]
        self._orphans = []
        for node in self._cluster.nodes:  # as if the owner had died before it could say that an attempt is over
            for place in node.folder.rglob(WORKSPACES):
                (place / "1-9").mkdir(exist_ok=True)

    def _check(self, calm: Calm) -> None:
        counted = " ".join(f"{self._struck[victim]} {victim}" for victim in VICTIMS if self._struck[victim])
        self.report.name = f"ray: {counted}, {self._work.items}"
        super()._check(calm)

    def _check_requests(self, calm: Calm) -> None:
        """What was recorded of an item is asked again only if its world was on a node that is gone."""
        self.report.allowed += self._recorded_in_vain()
        super()._check_requests(calm)

    def _recorded_in_vain(self) -> int:
        """Model calls that abandoned attempts have recorded."""
        reader = JournalReader(self._folder)
        try:
            return sum(
                step.kind == "model"
                for row in reader.items()
                for attempt in range(1, row.attempt)
                for step in reader.steps(row.number, attempt)
            )
        finally:
            reader.close()

    def _check_left(self, run_id: str) -> None:
        for node in self._cluster.nodes:
            left = [path for path in (node.folder / run_id).rglob("*") if path.is_file()]
            self.report.violations += [f"is left at the end: {each}" for each in left]
            self.report.violations += [f"is left at the end: {describe(pid)}" for pid in node.workers()]


def at_random(instants: random.Random) -> Iterator[Victim]:
    """Victims at random."""
    while True:
        yield instants.choice(VICTIMS)
