"""Rounds in which items work in containers of a real engine.

``ContainerRound`` kills the processes of the run, like any round. Besides, the containers of whoever was killed must end by themselves, and
of a run that has ended the engine may have nothing. ``OutsideRound`` leaves the run alone and stops or removes its containers.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter
from pathlib import Path
from typing import Literal

from tests.crash.container_site import ContainerSite, WorldSite
from tests.crash.rounds import TRAJECTORIES, Calm, Round, Work, entries
from tests.support.commands import Command

STOP_SECONDS = 1.0
"""In which a container must have ended after its owner was killed."""
_WAIT_SECONDS = 20.0
_TURNS = 3
"""Calls of one item at most."""

Blow = Literal["stop", "kill", "remove"]


class ContainerRound(Round):
    """``victim``: as of ``Round``, or ``any``: the owner or a worker, by chance."""

    def __init__(
        self, site: ContainerSite, work: Work, victim: str, executor: str, instants: random.Random, spread: int = 20
    ) -> None:
        """``spread``: requests between two kills at most."""
        super().__init__(site, work, victim, executor, instants)
        self._containers = site
        self._spread = spread
        self._descriptors: list[int] = []
        self._struck_at = 0.0
        self.report.name = f"{work.sandbox}: {self.report.name}"

    @property
    def _kills_workers(self) -> bool:
        return self._victim in ("worker", "any")

    def _strike(self, command: Command, kills: int) -> bool:
        if self._victim != "any":
            return super()._strike(command, kills)
        while self.report.kills < kills and self._instants.random() < 0.6:
            self._kill_worker(command)
            if not command.running:
                return False
        if self.report.kills >= kills or not self._after_requests(command, self._spread):
            return False
        return self._kill_owner(command)

    def _after_requests(self, command: Command, most: int) -> bool:
        return super()._after_requests(command, self._spread)

    def _watch(self, worker: int | None = None) -> None:
        for pid in self._containers.running(self._folder, worker):
            try:
                self._descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:  # its item has just ended
                continue
        self._struck_at = time.monotonic()

    def _watched(self) -> None:
        """Wait until all that had been running then has ended, before anything can sweep it up."""
        descriptors, self._descriptors = self._descriptors, []
        left = select.poll()
        for each in descriptors:
            left.register(each, select.POLLIN)
        ended = 0
        while ended < len(descriptors) and time.monotonic() < self._struck_at + _WAIT_SECONDS:
            for descriptor, _ in left.poll(1000):
                left.unregister(descriptor)
                ended += 1
                self._note_stop(time.monotonic() - self._struck_at)
        for each in descriptors:
            os.close(each)
        self.report.expect(ended == len(descriptors), f"{len(descriptors) - ended} containers outlived their owner")

    def _note_stop(self, seconds: float) -> None:
        self.report.slowest = max(self.report.slowest or 0.0, seconds)
        self.report.expect(seconds <= STOP_SECONDS, f"a container ended {seconds:.2f} s after its owner")

    def _after_kill(self) -> None:
        """Those too that were just being started end without anybody's help."""
        end = time.monotonic() + _WAIT_SECONDS
        while (left := self._containers.containers(self._folder, running=True)) and time.monotonic() < end:
            time.sleep(0.05)
        self.report.violations += [f"runs without an owner: container {each['Id'][:12]}" for each in left]
        super()._after_kill()

    def _check_left(self, run_id: str) -> None:
        self.report.violations += [f"is left at the end: {each}" for each in self._containers.left(run_id)]


class OutsideRound(Round):
    """Somebody stops, kills or removes containers by the engine while the run works."""

    def __init__(self, site: ContainerSite, work: Work, blow: Blow, executor: str, instants: random.Random) -> None:
        super().__init__(site, work, f"{work.sandbox}-{blow}", executor, instants)
        self._containers = site
        self._blow = blow

    def _strike(self, command: Command, kills: int) -> bool:
        while self.report.kills < kills and self._after_requests(command, 8):
            found: list[str] = []

            def look(found: list[str] = found) -> bool:
                listed = self._containers.containers(self._folder, running=True)
                found[:] = sorted(each["Id"] for each in listed)
                return bool(found)

            if not command.wait_until(look, seconds=self._work.seconds, pause=0.02):
                break
            self._note_finished()
            if self._struck(self._instants.choice(found)):
                self.report.kills += 1
                self.report.allowed += _TURNS if self._blow == "remove" else 0
        return False

    def _struck(self, container: str) -> bool:
        """Whether it was there still."""
        ask = self._containers.engine.ask
        if self._blow == "remove":
            return ask("DELETE", f"containers/{container}?force=1", missing=None) is not None
        rest = "stop?t=0" if self._blow == "stop" else "kill?signal=KILL"
        return ask("POST", f"containers/{container}/{rest}", missing=None) is not None

    def _check_requests(self, calm: Calm) -> None:
        """What was recorded of an item is asked again only if its world is gone."""
        report = self.report
        asked = Counter(asked.digest for asked in self._site.server.asked(self._start))
        report.requests = asked.total()
        report.extra = report.requests - len(asked)
        report.expect(report.extra <= report.allowed, f"{report.extra} calls were made again")
        if self._blow != "remove":
            report.expect(report.fresh == 0, f"{report.fresh} attempts were begun anew")

    def _check_outputs(self, calm: Calm) -> None:
        report = self.report
        self._check_whole(self._folder / TRAJECTORIES)
        found = entries(self._folder / TRAJECTORIES)
        report.expect(len(found) == len(calm.entries), f"{len(found)} trajectories, not {len(calm.entries)}")
        differing = sum((Counter(found) - Counter(calm.entries)).values())
        report.expect(differing <= report.kills, f"{differing} trajectories differ after {report.kills} kills")
        report.expect(not any((self._folder / "workspaces").glob("*")), "workspaces are left over")

    def _check_left(self, run_id: str) -> None:
        self.report.violations += [f"is left at the end: {each}" for each in self._containers.left(run_id)]


class UnpackedRound(Round):
    """Items work in bubblewrap sandboxes of images: what is mounted for them must go with whoever is killed."""

    def __init__(self, site: WorldSite, work: Work, victim: str, executor: str, instants: random.Random) -> None:
        super().__init__(site, work, victim, executor, instants)
        self.report.name = f"image: {self.report.name}"

    def _check_left(self, run_id: str) -> None:
        mounts = [each for each in Path("/proc/self/mounts").read_text().splitlines() if f"{self._folder}/" in each]
        self.report.violations += [f"is left at the end: {each[:200]}" for each in mounts]
