"""Where jobs are killed: a folder with tables, workers that keep a log of what they do, and the processes of one job."""

from __future__ import annotations

import csv
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manyhands.core.jsonio import dumps, loads
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import is_made
from manyhands.runs.steering.control import RUNNER
from manyhands.workloads.csv_jobs.service.status import JobStatus, job_status
from tests.support.commands import SimulatedProcess, alive, describe, marked_processes

Kind = Literal["agent", "tools", "printing", "reporting", "killing", "lingering", "function", "striking"]
HEADERS = ("name", "text")
CONCURRENCY: dict[Kind, int] = {
    "agent": 5,
    "tools": 4,
    "printing": 3,
    "reporting": 3,
    "killing": 3,
    "lingering": 2,
    "function": 4,
    "striking": 3,
}
INSTRUCTION = "Say something about {text}."
LAUNCHED, ANSWERED = "launched", "answered"

# Says on a line of the log that it was launched, works a moment, and reports: prints the result, or reports it over MCP and
# says on another line what the answer was. Each launch has a result of its own. "killing": as soon as its report is accepted, it
# kills the runner, which it has asked directly, so that there is next to no time in between. "lingering": it stays for a while then.
_COMMAND = r"""
import json, os, random, signal, socket, subprocess, sys, time

how, log = sys.argv[1:]
item = os.environ["MANYHANDS_ITEM_ID"]
word = f"{os.getpid()}/{time.time_ns()}"


def note(event, **facts):
    line = json.dumps({"event": event, "item": item, "word": word, **facts}) + "\n"
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)


def report_directly(runner, then):
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(runner["socket"])
        message = {"op": "report", "job_id": os.environ["MANYHANDS_JOB_ID"], "item_id": item, "stop": False}
        message |= {"secret": os.environ["MANYHANDS_WORKER"], "result": {"item": item, "word": word}}
        end.sendall(json.dumps(message).encode() + b"\n")
        answer = end.recv(1 << 16)
        accepted = b'"accepted": true' in answer
        if accepted and then == "kill":
            os.kill(runner["process"], signal.SIGKILL)
    note("answered", accepted=accepted, reason=answer.decode())
    if then == "linger":
        time.sleep(2.5)


def report():
    words = [sys.executable, "-m", "manyhands", "mcp", "--model=simulated"]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def say(message):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()

    def ask(number, method, parameters):
        say({"id": number, "method": method, "params": parameters})
        while line := server.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == number:
                return answer["result"]
        sys.exit("the server is gone")

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "worker", "version": "1"}}
    ask(1, "initialize", hello)
    say({"method": "notifications/initialized"})
    arguments = {"job_id": os.environ["MANYHANDS_JOB_ID"], "item_id": item, "result": {"item": item, "word": word}}
    answer = ask(2, "tools/call", {"name": "report_agent_job_result", "arguments": arguments})["structuredContent"]
    note("answered", accepted=answer["accepted"], reason=answer["reason"])
    time.sleep(random.uniform(0, 0.1))
    if not answer["accepted"]:
        sys.exit(answer["reason"])


def its_runner():
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.environ["MANYHANDS_ROW_FILE"])))
    with open(os.path.join(folder, "runner.json")) as handle:
        return json.load(handle)


note("launched")
time.sleep(random.uniform(0, 0.2))
if how == "reporting":
    report()
elif how in ("killing", "lingering"):
    report_directly(its_runner(), "kill" if how == "killing" else "linger")
else:
    print(json.dumps({"item": item, "word": word}))
"""
# The same, quicker. Every third row kills the runner as soon as it is launched for the first time, and does not end by itself then.
_STRIKING = r"""
log=$1 item=$MANYHANDS_ITEM_ID
printf '{"event": "launched", "item": "%s", "word": "%s"}\n' "$item" "$$" >> "$log"
if [ $((${item#row-} % 3)) = 1 ] && [ ! -e "$log.$item" ]; then
  : > "$log.$item"
  read -r _ _ _ runner _ < "/proc/$PPID/stat"
  grep -aqs manyhands.workloads.csv_jobs.service.runner "/proc/$runner/cmdline" && kill -KILL "$runner"
  sleep 60
fi
printf '{"item": "%s", "word": "%s"}\n' "$item" "$$"
"""
# The same as a function.
_FUNCTION = """
import json, os, random, time

LOG, HELD = {log!r}, {held!r}


def work(row, assignment):
    word = f"{{os.getpid()}}/{{time.time_ns()}}"
    line = json.dumps({{"event": "launched", "item": assignment.item_id, "word": word}}) + "\\n"
    handle = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, line.encode())
    os.close(handle)
    time.sleep(random.uniform(0, {longest}))
    while os.path.exists(HELD):
        time.sleep(0.02)
    return {{"item": assignment.item_id, "word": word}}
"""


@dataclass(frozen=True, slots=True)
class Noted:
    """What a worker wrote into its log. ``word``: in the result of this launch alone; ``accepted``: the answer to its report."""

    event: str
    item: str
    word: str
    accepted: bool = False
    reason: str | None = None


class JobSite:
    """A folder for jobs and one simulated server."""

    def __init__(self, folder: Path, server: SimulatedProcess) -> None:
        self.folder = folder
        self.server = server
        self.data = folder / "data"

    def table(self, rows: int) -> Path:
        """A table with so many rows."""
        path = self.folder / f"rows-{rows}.csv"
        if not path.exists():
            with path.open("w", encoding="utf-8", newline="") as handle:
                csv.writer(handle).writerows([HEADERS, *cells(rows)])
        return path

    def job(self, kind: Kind, name: str, rows: int, *, longest: float = 0.15) -> Job:
        """A job that is not made yet. ``longest``: seconds that a function takes for a row at most."""
        return Job(self, kind, name, rows, longest)


class Job:
    """One job, from outside."""

    def __init__(self, site: JobSite, kind: Kind, name: str, rows: int, longest: float) -> None:
        self.site = site
        self.kind: Kind = kind
        self.name = name
        self.rows = rows
        self.folder = site.data / name
        self.place = site.folder / f"{name}.files"
        """A folder for its output and its workers' log."""
        self.output = self.place / "out.csv"
        self._longest = longest
        self._log = self.place / "launches"
        self._held = self.place / "held"
        self.place.mkdir()

    def settings(self) -> dict[str, object]:
        """What makes the worker."""
        concurrency: dict[str, object] = {"max_concurrency": CONCURRENCY[self.kind], "max_attempts": 50}
        return {**concurrency, **self._worker(), "data_dir": self.site.data}

    def spawn_words(self, *more: str) -> list[str]:
        """The words of the command that makes it."""
        options = {"job_name": self.name, "instruction": INSTRUCTION, "output_csv_path": self.output}
        words = [f"--{name}={value}" for name, value in {**options, **self.settings()}.items()]
        return ["jobs", "spawn", str(self.site.table(self.rows)), "--quiet", *words, *more]

    def words(self, command: str, *more: str) -> list[str]:
        """The words of another command about it."""
        return ["jobs", command, str(self.folder), *more]

    def mcp_words(self) -> list[str]:
        """The options of an MCP server over its data folder."""
        return [f"--{name}={value}" for name, value in self.settings().items()]

    def _worker(self) -> dict[str, object]:
        if self.kind in ("agent", "tools"):
            tools = "terminal" if self.kind == "tools" else "none"
            return {"base_url": self.site.server.base_url, "model": "simulated", "toolsets": tools, "seed": 5}
        if self.kind == "function":
            code = _FUNCTION.format(log=str(self._log), held=str(self._held), longest=self._longest)
            (self.place / "calls.py").write_text(code, encoding="utf-8")
            return {"worker_function": f"{self.place}/calls.py:work", "num_workers": 2}
        if self.kind == "striking":
            (self.place / "worker.sh").write_text(_STRIKING, encoding="utf-8")
            return {"worker_command": shlex.join(["/bin/sh", f"{self.place}/worker.sh", str(self._log)])}
        (self.place / "worker.py").write_text(_COMMAND, encoding="utf-8")
        command = [sys.executable, "-S", "-E", f"{self.place}/worker.py", self.kind, str(self._log)]
        return {"worker_command": shlex.join(command)}

    # --- What is known about it

    @property
    def made(self) -> bool:
        return is_made(self.folder)

    def status(self) -> JobStatus:
        return job_status(self.folder)

    def noted(self) -> list[Noted]:
        """The lines of the workers' log. Raises ValueError for a line that is damaged."""
        try:
            lines = self._log.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [Noted(**loads(line)) for line in lines]

    def activity(self) -> int:
        """Grows with what the job does."""
        if self.kind in ("agent", "tools"):
            return self.site.server.count()
        return len(self.noted())

    def items(self) -> Iterator[tuple[ItemRow, bool]]:
        """The rows as the journal has them; and whether a report of the present attempt is recorded."""
        with closing(JournalReader(self.folder)) as reader:
            for row in reader.items():
                steps = reader.steps(row.number, row.attempt) if row.performances else ()
                yield row, any(_holds_report(step.output) for step in steps)

    def runners(self) -> list[int]:
        """The processes that perform it, or are about to."""
        words = (b"manyhands.workloads.csv_jobs.service.runner", os.fsencode(self.folder))
        return [pid for pid, line in _processes() if all(word in line.split(b"\0") for word in words) and alive(pid)]

    def gone(self) -> bool:
        """Whether nobody performs it, nor is about to."""
        # Twice, because a runner forks itself as it begins, and may slip through while one looks.
        return not (self.made and is_owned(self.folder)) and not self.runners() and not self.runners()

    def hold(self) -> None:
        """Have its function not come back until ``release``."""
        self._held.touch()

    def release(self) -> None:
        self._held.unlink()

    def processes(self) -> list[int]:
        """All that belongs to it: runners, what they started, and what watches over that."""
        job_id = self._job_id()
        named = [pid for pid, line in _processes() if job_id is not None and job_id.encode() in line and alive(pid)]
        marked = [] if job_id is None else marked_processes(job_id)
        return sorted({*self.runners(), *named, *marked})

    def workers(self) -> list[int]:
        """The processes that perform rows: worker commands and what they started, or worker processes of the engine."""
        job_id = self._job_id()
        return [] if job_id is None else marked_processes(job_id)

    def socket(self) -> Path | None:
        """The folder of its runner's socket."""
        with suppress(OSError, ValueError):
            return Path(loads((self.folder / RUNNER).read_bytes())["socket"]).parent
        return None

    def kill_runners(self) -> bool:
        """SIGKILL for whoever performs it; whether there was somebody. Waits for their end."""
        found = self.runners()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: all(map(_dead, found)), 10.0)
        return bool(found)

    def wait_gone(self, seconds: float) -> list[str]:
        """Wait until none of its processes is left; what is left, described."""
        wait_for(lambda: not self.processes(), seconds)
        return [describe(pid) for pid in self.processes()]

    def end(self) -> None:
        """Leave nothing behind, whatever went wrong."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _job_id(self) -> str | None:
        if not self.made:
            return None
        with closing(JournalReader(self.folder)) as reader:
            return str(reader.meta("run_id"))


def cells(rows: int) -> list[tuple[str, str]]:
    """The cells of a table."""
    return [(f"name {number}", f'case {number}, "quoted"') for number in range(rows)]


def wait_for(condition: Callable[[], object], seconds: float, pause: float = 0.02) -> bool:
    """Wait until something holds; whether it does in the end."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def _holds_report(output: Any) -> bool:
    """Whether a step's output is, or has in it, a report that was accepted."""
    text = dumps(output)
    return b'"reported_at":' in text and b'"reported_at":null' not in text


def _dead(pid: int) -> bool:
    """Whether a process has ended with all its threads, so that it holds no lock any more."""
    try:
        return not alive(pid) and len(os.listdir(f"/proc/{pid}/task")) < 2
    except OSError:
        return True


def _processes() -> Iterator[tuple[int, bytes]]:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid != os.getpid():
                yield pid, line
