"""One round of kills of a job: it is spawned, something is killed, it is run again … until it is done; then everything is checked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Literal

from mcp import Client, MCPError

from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.csv_jobs.mcp.declarations import RUN, SPAWN, WAIT
from manyhands.workloads.csv_jobs.service.status import COMPLETED, INTERRUPTED, PENDING, RUNNING
from tests.crash.job_checks import JobCheck, Struck, exported
from tests.crash.job_site import CONCURRENCY, INSTRUCTION, Job, JobSite, Kind, wait_for
from tests.crash.rounds import LINGER_SECONDS, Report
from tests.support.commands import Command, Ended, is_launcher, is_worker
from tests.support.mcp_clients import content, over_streams, server_processes

JobVictim = Literal["runner", "itself", "worker", "export", "terminal", "server", "planning"]
END_SECONDS = 60.0
START_SECONDS = 20.0
_numbers = count(1)
OLD = "what was there before\n"
"""What lies where the output is to be, before the job has written it."""


class JobRound:
    """A job that is killed again and again."""

    def __init__(self, site: JobSite, kind: Kind, victim: JobVictim, rows: int, instants: random.Random) -> None:
        name = f"{victim}-{kind}-{rows}-{instants.getrandbits(32):08x}-{next(_numbers)}"
        self._job = site.job(kind, name, rows, longest=0.02 if victim == "export" else 0.15)
        self._site = site
        self._victim = victim
        self._instants = instants
        self._start = site.server.count()
        self._struck: list[Struck] = []
        self._ended: dict[str, ItemRow] = {}
        self._sockets: set[Path] = set()
        self._sessions = 0
        self._commands: Sequence[Command] = ()
        self._follows = True
        self._over = False
        """Whether the runner was killed when it had recorded the job's end, so that there is nothing to go on with."""
        self.report = Report(f"{victim} {kind} {rows}")

    def perform(self, kills: int) -> Report:
        """Kill so many times at most, let it finish, and check everything."""
        began = time.monotonic()
        self._job.output.write_text(OLD)
        try:
            while not self._session(kills):
                if self.report.sessions > 3 * kills + 10:
                    self.report.violations.append("it does not come to an end")
                    break
            JobCheck(self._job, self._struck, self._ended, self.report, self._start, over=self._over).all()
            left = [str(path) for path in self._sockets if path.exists()]
            self.report.expect(not left or self._over, f"sockets are left over: {left}")
        finally:
            self._job.end()
        self.report.seconds = time.monotonic() - began
        return self.report

    # --- Sessions

    def _session(self, kills: int) -> bool:
        """Start or continue once; whether the job is done."""
        self.report.sessions += 1
        with ExitStack() as stack:
            self._sessions = self._last_session()
            beginnings = self._beginnings()
            self._commands = [stack.enter_context(Command(*words)) for words in beginnings]
            self._follows = beginnings[0][0] == "jobs"
            killed = (self.report.kills < kills or self._victim == "itself") and self._strike(kills)
            self._followed(killed=killed)
        return not killed and self._is_done()

    def _last_session(self) -> int:
        """How often somebody has begun to perform the job."""
        if not self._job.made:
            return 0
        with closing(JournalReader(self._job.folder)) as reader:
            last = reader.last_session()
        return 0 if last is None else last.number

    def _beginnings(self) -> list[list[str]]:
        """How the job is begun: spawned, or gone on with in one of the ways that there are."""
        job = self._job
        if not job.made:
            return [job.spawn_words()]
        again = job.words("run", "--quiet")
        if self._victim == "itself":  # each kill must be seen, so that there must be one runner at a time
            return [again]
        ways = [[again], [again, again], [["mcp", "--http=0", *job.mcp_words()]]]
        # A server goes on with jobs of which somebody was told that they have begun.
        return self._instants.choice(ways if job.status().state == INTERRUPTED else ways[:2])

    def _followed(self, *, killed: bool) -> None:
        """Wait until nobody performs the job any more, and see how those ended that followed it; and that, however many were told to
        perform it at once, one did."""
        job, report = self._job, self.report
        if not killed:
            self._wait_for_runner()
        if job.made and not wait_for(job.gone, END_SECONDS):
            report.violations.append("it was not done in time")
        for command in self._commands if self._follows else ():
            self._check_ended(command.wait(10.0), killed=killed)
        sessions = self._last_session() - self._sessions
        report.expect(killed or sessions <= 1, f"{len(self._commands)} commands at once made {sessions} sessions")

    def _check_ended(self, ended: Ended, *, killed: bool) -> None:
        done = self._job.made and self._job.status().state == COMPLETED
        codes = (0,) if done and not killed else (0, 1) if self._over else (1,)
        if ended.code < 0:
            self.report.expect(self._victim == "terminal", f"a command was ended by signal {-ended.code}")
        else:
            self.report.expect(ended.code in codes, f"a command ended with {ended.code}: {ended.err.strip()[-500:]}")
        self.report.expect("Traceback" not in ended.err, f"a command broke: {ended.err.strip()[-500:]}")

    def _is_done(self) -> bool:
        status = self._job.status()
        if status.state == COMPLETED:
            return True
        if status.state == RUNNING and self._victim == "server":
            return False
        if status.state not in (INTERRUPTED, PENDING):
            self.report.violations.append(f"it is {status.state}: {status.last_error}")
            return True
        return False

    # --- Killing

    def _strike(self, kills: int) -> bool:
        """Kill something at some instant; whether it was the runner."""
        if self._victim == "worker":
            for _ in range(min(3, kills - self.report.kills)):
                self._kill_worker()
            return False
        if self._victim == "terminal":
            self._kill_terminal()
            return False
        instants = {"export": self._while_exporting, "itself": self._while_it_strikes}
        if not instants.get(self._victim, self._while_working)():
            return False
        return self._kill_runner()

    def _kill_runner(self) -> bool:
        """And whoever is just about to take its place, because two were told to perform the job."""
        before = self.report.kills
        while not self.report.violations:
            if (socket := self._job.socket()) is not None:
                self._sockets.add(socket)
            if self._job.kill_runners() or (self._victim == "itself" and before == self.report.kills):
                self.report.kills += 1
                self._after_kill()
            wait_for(lambda: self._job.runners() or not self._waiting(), 10.0)
            if not self._job.runners():
                break
        return self.report.kills > before

    def _waiting(self) -> bool:
        """Whether a command has not ended that would have if the job's end were all it waits for."""
        return self._follows and any(command.running for command in self._commands)

    def _while_working(self) -> bool:
        if self._instants.random() < 0.2:
            self._wait_for_runner()
            time.sleep(self._instants.uniform(0.0, 1.0))
            return bool(self._job.runners())
        return self._after_activity(2 * CONCURRENCY[self._job.kind])

    def _after_activity(self, most: int) -> bool:
        """Wait until workers have done something, and a moment longer; False if the job ended first."""
        job = self._job
        wanted = job.activity() + self._instants.randint(1, most)
        self._wait_for_runner()
        if not wait_for(lambda: job.activity() >= wanted or job.gone(), END_SECONDS):
            self.report.violations.append("nothing happens")
        time.sleep(self._instants.uniform(0.0, 0.12))
        return bool(job.runners())

    def _wait_for_runner(self) -> None:
        """Or until it is done, or there is nobody any more who would start one."""
        job = self._job

        def begun() -> bool:
            over = job.made and job.status().state == COMPLETED
            return over or bool(job.runners()) or not any(command.running for command in self._commands)

        if not wait_for(begun, START_SECONDS):
            self.report.violations.append("no runner was started")

    def _while_it_strikes(self) -> bool:
        """Until a worker has killed the runner, which is counted as if it were killed here."""
        self._wait_for_runner()
        if not wait_for(self._job.gone, END_SECONDS):
            self.report.violations.append("nothing happens")
        return self._job.status().state != COMPLETED

    def _while_exporting(self) -> bool:
        """While the output is written aside."""
        job = self._job
        before = asides(job)
        self._wait_for_runner()
        wait_for(lambda: asides(job) - before or job.gone(), END_SECONDS, pause=0.0005)
        time.sleep(self._instants.uniform(0.0, 2e-5 * job.rows))
        return bool(job.runners())

    def _kill_worker(self) -> None:
        job = self._job
        if self._after_activity(3):
            wait_for(lambda: job.gone() or self._kill_one(job.workers()), START_SECONDS)

    def _kill_one(self, processes: Sequence[int]) -> bool:
        """Kill one of them, if there is one that has not ended meanwhile."""
        if not processes:
            return False
        victim = self._instants.choice(processes)
        try:
            several = is_worker(victim) or is_launcher(victim)
            os.kill(victim, signal.SIGKILL)
        except OSError:
            return False
        self.report.kills += 1
        self.report.allowed += CONCURRENCY[self._job.kind] if several else 1
        return True

    def _kill_terminal(self) -> None:
        """The waiting command goes away, by force or with its terminal; who performs the job does not notice."""
        if not self._after_activity(3):
            return
        before = self._job.socket()
        for command in self._commands:
            number = self._instants.choice((signal.SIGKILL, signal.SIGHUP))
            command.interrupt(number)
            if command.wait(5.0).code == -number:
                self.report.kills += 1
        state = self._job.status().state
        self.report.expect(state in (RUNNING, COMPLETED), f"the job is {state} after its terminal went away")
        self.report.expect(self._job.socket() in (before, None), "another runner has begun")

    def _after_kill(self) -> None:
        """Note what was finished, and look at what the dead runner left."""
        job, report = self._job, self.report
        self._check_output()
        if not job.made:
            return
        state = job.status().state
        report.expect(state in (PENDING, INTERRUPTED, COMPLETED), f"a killed job is said to be {state}")
        self._over |= state == COMPLETED
        if state == COMPLETED:
            report.expect(self._job.output.read_text() != OLD, "the results of a completed job are not written")
        in_flight, reported = set[str](), set[str]()
        for row, has_report in job.items():
            if row.state.final:
                self._ended.setdefault(row.key, row)
            elif row.state == "running":
                (reported if has_report else in_flight).add(row.key)
        self._struck.append(Struck(time.time(), frozenset(in_flight), frozenset(reported)))
        report.allowed += len(in_flight)
        report.expect(len(in_flight) <= CONCURRENCY[job.kind], f"{len(in_flight)} rows were in flight")
        report.violations += [f"outlived its killed runner: {left}" for left in job.wait_gone(LINGER_SECONDS)]

    def _check_output(self) -> None:
        """What was there before, or a whole table."""
        text = self._job.output.read_text()
        if text != OLD:
            self.report.expect(len(exported(self._job.output)) == self._job.rows, "the output is not whole")


def asides(job: Job) -> set[str]:
    """Files that are being written in place of the output, or were when their writer was killed."""
    return {name for name in os.listdir(job.place) if name.endswith(".new")}


class ServerRound(JobRound):
    """The job is made, followed and gone on with over MCP, and the server is killed while a client waits; sometimes the runner, too."""

    def __init__(self, site: JobSite, kind: Kind, rows: int, instants: random.Random) -> None:
        super().__init__(site, kind, "server", rows, instants)

    def _session(self, kills: int) -> bool:
        self.report.sessions += 1
        asyncio.run(self._used(kills))
        return self._is_done()

    def _is_done(self) -> bool:
        return self._job.made and super()._is_done()

    async def _used(self, kills: int) -> None:
        """A client and a server, until the job is done or the server is killed."""
        before = self.report.kills
        try:
            async with over_streams(*self._job.mcp_words(), folder=self._job.place, forked=False) as client:
                killing = asyncio.create_task(self._kill_server() if before < kills else asyncio.sleep(0))
                try:
                    await self._wait_over(client)
                finally:
                    await killing
        except (BaseExceptionGroup, MCPError):  # which it is when the server is killed, is the SDK's choice
            if self.report.kills == before:
                raise

    async def _wait_over(self, client: Client) -> None:
        job = self._job
        if not job.made:
            table, given = str(job.site.table(job.rows)), {"job_name": job.name, "output_csv_path": str(job.output)}
            await client.call_tool(SPAWN, {"csv_path": table, "instruction": INSTRUCTION, **given})
        elif job.status().state == PENDING:  # whoever made it was killed before its runner had begun
            await client.call_tool(RUN, {"job_id": job.name})
        elif job.status().state == RUNNING:
            said = content(await client.call_tool(RUN, {"job_id": job.name}))
            self.report.expect(not said["started"], "a second runner was started over MCP")
        while True:
            said = content(await client.call_tool(WAIT, {"job_id": job.name, "timeout_ms": 20_000}))
            if said["status"]["state"] not in (RUNNING, INTERRUPTED):
                return
            await asyncio.sleep(0.1)  # the server is about to go on with it

    async def _kill_server(self) -> None:
        (server,) = server_processes()
        await asyncio.sleep(self._instants.uniform(0.0, 1.6))
        socket = self._job.socket()
        os.kill(server, signal.SIGKILL)
        self.report.kills += 1
        if self._instants.random() < 0.4:
            self._kill_runner()
        elif socket is not None:
            self.report.expect(self._job.socket() in (socket, None), "another runner has begun")
