"""One round of kills: a batch is started, killed, resumed, killed … until it is done, and then held against an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from manyhands.core.digests import derive_seed
from manyhands.core.jsonio import Json, line, loads
from manyhands.core.outcomes import ItemState
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import is_made
from tests.support.commands import (
    PROGRAM,
    Command,
    Ended,
    SimulatedProcess,
    children,
    describe,
    marked_processes,
    run,
    write_prompts,
)

WORKERS = 2
CONCURRENCY = 3
SEED = 11
RUN_SECONDS = 90.0
LINGER_SECONDS = 5.0
"""Seconds in which the processes of a killed owner must be gone."""
TRAJECTORIES = "trajectories.jsonl"
MOST_ROUNDS = 4
"""Rounds of a test until something is killed: some instants are so short that they pass unseen on a busy machine."""

Victim = Literal["owner", "worker", "tree", "start", "export"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a round performs."""

    prompts: int
    samples: int = 1
    sandbox: str = "bubblewrap"
    images: int = 0
    """How many images the items name in turn."""
    calm_in: str | None = None
    """The sandbox of the undisturbed run; None: the same. What comes out must not depend on it."""
    concurrency: int = CONCURRENCY
    seconds: float = RUN_SECONDS
    """That a session may take."""

    @property
    def items(self) -> int:
        return self.prompts * self.samples

    def rows(self) -> Iterator[dict[str, Any]]:
        """Varied prompts: with many tools, with none, without reasoning of their own accord, and some of them twice."""
        subjects = ("tides", "prime numbers", "a list of harbours", "leap years", "sorting words")
        for number in range(self.prompts):
            subject = subjects[number % len(subjects)]
            if number % 9 == 8:
                yield {"prompt": f"Say something about {subject}, for the second time or the third."}
            elif number % 4 == 0:
                yield {"prompt": f"Case {number}: work through {subject}. [simulate: tools=3]", "case": number}
            else:
                yield {"prompt": f"Case {number}: what can be said about {subject}?", "case": number}


@dataclass(frozen=True, slots=True)
class Calm:
    """What came out of an undisturbed run, and what it asked."""

    entries: list[str]
    files: dict[str, list[str]]
    requests: Counter[str]
    tools: Json


@dataclass(slots=True)
class Report:
    """What a round found.

    ``extra``: requests beyond those of an undisturbed run; ``allowed``: how many there may be; ``fresh``: attempts begun anew because
    their world was gone; ``lingering``: processes that outlived their owner until the next opening; ``slowest``: seconds until the last
    container of a killed process had ended, None where there were none.
    """

    name: str
    sessions: int = 0
    kills: int = 0
    requests: int = 0
    extra: int = 0
    allowed: int = 0
    fresh: int = 0
    lingering: int = 0
    slowest: float | None = None
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.violations.append(otherwise)


@dataclass(frozen=True, slots=True)
class _Finished:
    """An item that had ended when its run was killed."""

    number: int
    key: str
    state: str
    attempt: int
    performances: int
    steps: int
    finished_at: float | None


def slow_server(folder: Path) -> SimulatedProcess:
    """A server whose answers take long enough to be killed in the middle."""
    return SimulatedProcess(folder, latency=0.05, latency_jitter=0.04)


class Site:
    """A folder with datasets, runs and one simulated server, and the undisturbed runs that are compared with."""

    def __init__(self, folder: Path, server: SimulatedProcess) -> None:
        self.folder = folder
        self.server = server
        self._calm: dict[Work, Calm] = {}

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables that the commands get."""
        return {}

    def rows(self, work: Work) -> Iterable[Mapping[str, Any]]:
        return work.rows()

    def words(self, work: Work, name: str, executor: str) -> list[str]:
        """The command that makes and performs a run."""
        dataset = self.folder / f"prompts-{work.prompts}-{work.images}.jsonl"
        if not dataset.exists():
            write_prompts(dataset, self.rows(work))
        options: dict[str, Any] = {
            "base_url": self.server.base_url,
            "model": "simulated",
            "dataset_file": dataset,
            "batch_size": 7,
            "run_name": name,
            "data_dir": self.folder,
            "samples": work.samples,
            "distribution": "terminal_only",
            "sandbox": work.sandbox,
            "seed": SEED,
            "executor": executor,
            "num_workers": WORKERS,
            "concurrency": work.concurrency,
        }
        return ["batch", "--quiet", *(f"--{name}={value}" for name, value in options.items())]

    def calm(self, work: Work) -> Calm:
        """The undisturbed run of some work."""
        if work not in self._calm:
            self._calm[work] = self._undisturbed(work)
        return self._calm[work]

    def _undisturbed(self, work: Work) -> Calm:
        start = self.server.count()
        name = f"calm-{work.prompts}-{work.samples}-{work.sandbox}-{work.images}"
        words = self.words(replace(work, sandbox=work.calm_in or work.sandbox), name, "local")
        ended = run(*words, seconds=work.seconds, environ=self.environ)
        if ended.code != 0:
            raise RuntimeError(f"the undisturbed run ended with {ended.code}: {ended.err}")
        requests = Counter(asked.digest for asked in self.server.asked(start))
        if max(requests.values()) > 1:
            raise RuntimeError("the undisturbed run asked the same thing twice")
        folder = self.folder / name
        return Calm(entries(folder / TRAJECTORIES), batch_files(folder), requests, tool_statistics(folder))


class Round:
    """A run that is killed again and again."""

    def __init__(self, site: Site, work: Work, victim: str, executor: str, instants: random.Random) -> None:
        self._site = site
        self._work = work
        self._victim = victim
        self._executor = executor
        self._instants = instants
        self._name = f"{victim}-{executor}-{work.prompts}x{work.samples}-{instants.getrandbits(32):08x}"
        self._folder = site.folder / self._name
        self._kept: dict[int, tuple[_Finished, int]] = {}
        self._start = site.server.count()
        self._resuming = False
        self._left: set[str] = set()
        self.report = Report(f"{victim} {executor} {work.prompts}x{work.samples}")

    def perform(self, kills: int) -> Report:
        """Kill so many times at most, let it finish, and check everything."""
        calm = self._site.calm(self._work)
        began, self._start = time.monotonic(), self._site.server.count()
        while not self._session(kills):
            pass
        self._check(calm)
        self.report.seconds = time.monotonic() - began
        return self.report

    # --- Killing

    def _session(self, kills: int) -> bool:
        """Start or resume once; whether the run is done."""
        self.report.sessions += 1
        words = ["resume", str(self._folder), "--quiet"]
        if not self._resuming:
            words = self._site.words(self._work, self._name, self._executor)
        program = PROGRAM if self._victim == "start" else ()  # whose imports can be struck as well
        with Command(*words, program=program, environ=self._site.environ) as command:
            killed = self._strike(command, kills) if self.report.kills < kills else False
            ended = command.wait(self._work.seconds)
        if killed:
            self._after_kill()
            return False
        return self._is_done(ended)

    def _is_done(self, ended: Ended) -> bool:
        if ended.code == 0:
            return True
        if ended.code == 2 and "exists already" in ended.err and not self._resuming:
            self._resuming = True
            return False
        if ended.code == 1 and self._only_crashes():
            return False
        self.report.violations.append(f"a session ended with {ended.code}: {ended.err.strip()[-500:]}")
        return True

    def _only_crashes(self) -> bool:
        """Whether nothing failed but items that were in a killed worker more often than the engine forgives."""
        self._resuming = True
        summary = self._folder / "summary.json"
        if not self._kills_workers or not summary.exists():
            return False
        failed = json.loads(summary.read_text())["ledger"]["by_cause"].get("failed", {})
        return set(failed) == {"worker_crash"}

    @property
    def _kills_workers(self) -> bool:
        return self._victim == "worker"

    def _strike(self, command: Command, kills: int) -> bool:
        """Kill something at some instant; whether the owner was killed."""
        if self._victim == "worker":
            for _ in range(min(3, kills - self.report.kills)):
                self._kill_worker(command)
            return False
        instant = {"start": self._while_starting, "export": self._while_exporting}
        if not instant.get(self._victim, self._while_working)(command):
            return False
        return self._kill_owner(command)

    def _kill_owner(self, command: Command) -> bool:
        """Whether it was killed, and had not ended before."""
        self._watch()
        below = descendants(command.process.pid) if self._victim == "tree" else []
        command.send(signal.SIGKILL)
        for process in below:
            process.kill()
        if command.wait().code != -signal.SIGKILL:
            return False
        self._watched()
        self.report.kills += 1
        self.report.allowed += WORKERS * self._work.concurrency
        return True

    def _kill_worker(self, command: Command) -> None:
        if not (self._after_requests(command, 12) and (workers := command.workers())):
            return
        self._note_finished()
        victim = self._instants.choice(workers)
        self._watch(victim)
        os.kill(victim, signal.SIGKILL)
        self._watched()
        self.report.kills += 1
        self.report.allowed += self._work.concurrency

    def _watch(self, worker: int | None = None) -> None:
        """Called right before the owner is killed, or a worker."""

    def _watched(self) -> None:
        """Called right after it was."""

    def _while_working(self, command: Command) -> bool:
        if self._instants.random() < 0.25:
            return not command.ends_within(self._instants.uniform(0.0, 1.5))
        return self._after_requests(command, 20)

    def _after_requests(self, command: Command, most: int) -> bool:
        wanted = self._site.server.count() + self._instants.randint(1, most)
        if not command.wait_until(lambda: self._site.server.count() >= wanted, seconds=RUN_SECONDS):
            return False
        return not command.ends_within(self._instants.uniform(0.0, 0.08))

    def _while_starting(self, command: Command) -> bool:
        """While the folder and the journal are made; once they are, while the run is opened."""
        if is_made(self._folder):
            return not command.ends_within(self._instants.uniform(0.1, 0.9))
        if self._instants.random() < 0.7 and not command.wait_until(self._folder.exists, pause=0.0002):
            return False
        return not command.ends_within(self._instants.uniform(0.0, 0.03))

    def _while_exporting(self, command: Command) -> bool:
        """While the last files are written aside and renamed."""
        self._left = {path.name for path in self._folder.glob(".*.new")}
        if not command.wait_until(self._is_exporting, pause=0.0):
            return False
        return not command.ends_within(self._instants.uniform(0.0, 0.008))

    def _is_exporting(self) -> bool:
        try:
            return any(name.endswith(".new") and name not in self._left for name in os.listdir(self._folder))
        except OSError:
            return False

    def _after_kill(self) -> None:
        """Note what was finished, and look at what the dead owner left."""
        made = is_made(self._folder)
        self._resuming = self._resuming or made
        if not made:
            return
        run_id = self._note_finished()
        self._check_whole(self._folder / TRAJECTORIES)
        end = time.monotonic() + LINGER_SECONDS
        while (left := marked_processes(run_id)) and time.monotonic() < end:
            time.sleep(0.02)
        self.report.lingering += len(left)
        self.report.violations += [f"outlived its killed owner: {describe(pid)}" for pid in left if not is_stuck(pid)]

    def _note_finished(self) -> str:
        """Note what is finished at this moment, and how much had been asked by then; the run's identity."""
        reader = JournalReader(self._folder)
        try:
            finished = list(_finished(reader))
            run_id: str = reader.meta("run_id")
        finally:
            reader.close()
        position = self._site.server.count()
        for found in finished:
            self._kept.setdefault(found.number, (found, position))
        return run_id

    # --- Checking

    def _check(self, calm: Calm) -> None:
        report = self.report
        if not (self._folder / TRAJECTORIES).exists():
            report.violations.append("there are no trajectories")
            return
        reader = JournalReader(self._folder)
        try:
            run_id = reader.meta("run_id")
            self._check_finished(reader)
            report.fresh = sum(row.attempt - 1 for row in reader.items())
        finally:
            reader.close()
        self._check_requests(calm)
        self._check_outputs(calm)
        self._check_ledger()
        self._check_left(run_id)
        left = marked_processes(run_id)
        report.violations += [f"is still there at the end: {describe(pid)}" for pid in left]
        checked = run("check", str(self._folder), environ=self._site.environ)
        report.expect(checked.code == 0, f"manyhands check: {checked.out.strip()} {checked.err.strip()}")

    def _check_left(self, run_id: str) -> None:
        """Note what a run that has ended has left elsewhere."""

    def _check_finished(self, reader: JournalReader) -> None:
        """No item that was finished when the run was killed was performed again."""
        now = {found.number: found for found in _finished(reader)}
        seeds = {}
        for before, position in self._kept.values():
            self.report.expect(
                now.get(before.number) == before, f"item {before.number} was finished, and changed afterwards"
            )
            seeds[derive_seed(SEED, before.key, "model")] = position
        for place, asked in enumerate(self._site.server.asked(self._start), self._start):
            finished_at = seeds.get(asked.seed) if asked.seed is not None else None
            again = finished_at is not None and place >= finished_at
            self.report.expect(not again, f"request {place} was made for an item that was finished")

    def _check_requests(self, calm: Calm) -> None:
        report = self.report
        asked = Counter(asked.digest for asked in self._site.server.asked(self._start))
        report.requests = asked.total()
        report.extra = (asked - calm.requests).total()
        report.expect(not (calm.requests - asked), "some requests of the undisturbed run were never made")
        report.expect(
            not (asked.keys() - calm.requests.keys()), "requests were made that the undisturbed run never made"
        )
        report.expect(
            report.extra <= report.allowed, f"{report.extra} extra requests, where {report.allowed} are allowed"
        )

    def _check_outputs(self, calm: Calm) -> None:
        report = self.report
        for path in sorted(self._folder.glob("*.jsonl")):
            self._check_whole(path)
        for path in sorted(self._folder.glob("*.json")):
            report.expect(isinstance(json.loads(path.read_text()), dict), f"{path.name} is damaged")
        leftovers = sorted(path.name for path in self._folder.iterdir() if path.name.endswith(".new"))
        report.expect(not leftovers, f"left over: {leftovers}")
        report.expect(not any((self._folder / "workspaces").glob("*")), "workspaces are left over")
        report.expect(entries(self._folder / TRAJECTORIES) == calm.entries, "the trajectories differ")
        report.expect(batch_files(self._folder) == calm.files, "the batch files differ")
        report.expect(tool_statistics(self._folder) == calm.tools, "the tool statistics differ")

    def _check_whole(self, path: Path) -> None:
        if not path.exists():
            return
        data = path.read_bytes()
        try:
            for text in data.splitlines():
                loads(text)
        except ValueError:
            self.report.violations.append(f"{path.name} has a torn line")
        self.report.expect(data.endswith(b"\n") or not data, f"{path.name} ends in the middle of a line")

    def _check_ledger(self) -> None:
        summary = json.loads((self._folder / "summary.json").read_text())
        ledger = summary["ledger"]
        states = ("completed", "discarded", "failed", "cancelled", "pending")
        adds_up = ledger["items"] == sum(ledger[state] for state in states)
        self.report.expect(adds_up, f"the ledger does not add up: {ledger}")
        self.report.expect(ledger["completed"] == self._work.items, f"not all items are completed: {ledger}")


@dataclass(frozen=True, slots=True)
class Found:
    """A process below one that the campaign started, known by its id and when it started."""

    pid: int
    parent: int
    started: int
    words: tuple[str, ...]
    inside: int
    """Its id in the innermost namespace of processes that it is in; 0 if that is ours."""

    @classmethod
    def of(cls, pid: int, parent: int) -> Found | None:
        """None if it has ended."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None
        fields = stat.rpartition(b")")[2].split()
        ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if fields[0] in (b"Z", b"X"):
            return None
        inside = int(ids[-1]) if len(ids) > 1 else 0
        return cls(pid, parent, int(fields[19]), tuple(words.decode(errors="replace").split("\0")), inside)

    @property
    def alive(self) -> bool:
        """Whether it is there still, and not another one of the same id."""
        now = Found.of(self.pid, self.parent)
        return now is not None and now.started == self.started

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def descendants(pid: int) -> list[Found]:
    """Every process below one."""
    found = []
    for child in children(pid):
        process = Found.of(child, pid)
        if process is not None:
            found += [process, *descendants(child)]
    return found


def is_stuck(pid: int) -> bool:
    """Whether a process is a sandbox that never came to life: bubblewrap's outer process was killed between starting the inner one and
    telling it to go on, so that this one waits for ever and does nothing. The next opening of the run must end it."""
    return not children(pid) and "/bwrap --args" in describe(pid)


def entries(path: Path) -> list[str]:
    """A file's trajectories, without what may differ from run to run."""
    return [line(_without_times(loads(text))) for text in path.read_bytes().splitlines()]


def batch_files(folder: Path) -> dict[str, list[str]]:
    """The lines of all batch files, whose order is that in which items ended."""
    return {path.name: sorted(entries(path)) for path in sorted(folder.glob("batch_*.jsonl"))}


def tool_statistics(folder: Path) -> Json:
    return json.loads((folder / "statistics.json").read_text())["tool_statistics"]


def _without_times(entry: Mapping[str, Any]) -> dict[str, Any]:
    changing = ("timestamp", "duration_seconds", "attempt")
    return {**entry, "metadata": {key: value for key, value in entry["metadata"].items() if key not in changing}}


def _finished(reader: JournalReader) -> Iterator[_Finished]:
    """Items that no resume takes up again, as it does those that failed (in killed workers more often than the engine forgives)."""
    for row in reader.items():
        if row.state.final and row.state is not ItemState.FAILED:
            steps = len(reader.recorded_outputs(row.number, row.attempt))
            yield _Finished(row.number, row.key, row.state, row.attempt, row.performances, steps, row.finished_at)
