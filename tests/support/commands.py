"""``manyhands`` as a person uses it: real processes, which tests may kill at any instant."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self

from manyhands.core.jsonio import loads
from manyhands.engine.executors.processes import WORKER, WORKER_NAME
from manyhands.engine.journal.reader import JOURNAL
from manyhands.processes.launching.launches import LAUNCHER
from manyhands.processes.strays import MARK
from manyhands.runs.ledger import ORDER
from tests.support.forked import ForkedProcess

PROGRAM = (sys.executable, "-P", "-m", "manyhands")
"""``manyhands`` with an interpreter of its own."""
LONGEST = 120.0
"""Seconds after which a command that should have ended is killed."""


def environment() -> dict[str, str]:
    """The environment of commands: this interpreter's packages, no keys, no debugging."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    kept.pop("MANYHANDS_DEBUG", None)
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended (``code`` is negative if a signal ended it), what it printed, and after how many seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines on standard error."""
        return self.err.splitlines()

    @property
    def to_go_on(self) -> list[str]:
        """The words of the command that it named for going on; none if it named none."""
        return shlex.split(self.out.partition("To continue:  ")[2].partition("\n")[0])


class Command:
    """A ``manyhands …`` that runs, in a process group of its own. Use as a context manager: at the end it is killed."""

    def __init__(
        self,
        *words: str,
        folder: Path | None = None,
        program: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``folder``: its current one. ``program``: what stands before the words; without it, ``manyhands`` is forked, which is quick.
        ``environ``: variables beside those of ``environment``."""
        self._out, self._err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._began = time.monotonic()
        self.process = self._begun(words, folder, program, {**environment(), **(environ or {})})

    def _begun(
        self, words: Sequence[str], folder: Path | None, program: Sequence[str], environ: Mapping[str, str]
    ) -> ForkedProcess | subprocess.Popen[bytes]:
        if not program:
            return ForkedProcess(words, folder, environ, self._out.fileno(), self._err.fileno())
        return subprocess.Popen(
            [*program, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            env=environ,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._out.close()
        self._err.close()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """What it has printed on standard error so far."""
        return self._read(self._err)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, as ``kill`` does."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to the whole process group, as a terminal does at Ctrl-C."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> Ended:
        """SIGKILL for the process itself; its children must see to it that they end."""
        self.send(signal.SIGKILL)
        return self.wait()

    def wait(self, seconds: float = LONGEST) -> Ended:
        """Wait for the end. Raises TimeoutError, having killed it, if it takes longer."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            said = self._read(self._err)
            raise TimeoutError(f"{self.process.args!r} took more than {seconds:g} s: {said}") from None
        return Ended(code, self._read(self._out), self._read(self._err), time.monotonic() - self._began)

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends by itself in that time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))
        return not self.running

    def wait_until(self, condition: Callable[[], object], seconds: float = 30.0, pause: float = 0.005) -> bool:
        """Wait for a condition while the command runs; False if it ended first. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.running:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"waited for {seconds:g} s: {self._read(self._err)}")
            time.sleep(pause)
        return True

    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        started = children(self.process.pid)
        return sorted(
            pid for pid in (*started, *(fork for each in started for fork in children(each))) if is_worker(pid)
        )

    def _read(self, file: Any) -> str:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace")


def run(
    *words: str,
    folder: Path | None = None,
    seconds: float = LONGEST,
    program: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``manyhands …`` to its end; see ``Command``."""
    with Command(*words, folder=folder, program=program, environ=environ) as command:
        return command.wait(seconds)


def batch_words(folder: Path, **options: object) -> list[str]:
    """The words of ``manyhands batch`` for a run ``r`` in ``folder``, whose dataset is ``prompts.jsonl`` there."""
    usual: dict[str, object] = {
        "dataset_file": folder / "prompts.jsonl",
        "batch_size": 10,
        "run_name": "r",
        "data_dir": folder,
        "model": "simulated",
        "distribution": "terminal_only",
        "sandbox": "bubblewrap",
        "quiet": True,
    }
    return ["batch", *(f"--{name}={value}" for name, value in {**usual, **options}.items())]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the simulated server logged it."""

    digest: str
    seed: int | None
    fault: str | None


class SimulatedProcess:
    """``manyhands simulate`` in a process of its own, with a log of all requests. Use as a context manager."""

    def __init__(self, folder: Path, *, port: int = 0, **options: float | int) -> None:
        """``options``: those of the command. The log is kept in ``folder``."""
        self._log = folder / f"requests-{time.monotonic_ns()}.jsonl"
        words = [f"--{name}={value}" for name, value in options.items()]
        self._command = Command("simulate", f"--port={port}", f"--log_file={self._log}", *words)
        self.base_url = ""

    def __enter__(self) -> Self:
        found = self._command.wait_until(self._announced)
        if not found:
            raise RuntimeError(f"the simulated server did not start: {self._command.wait().err}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._command.send(signal.SIGTERM)
        self._command.ends_within(5.0)
        self._command.__exit__(kind, error, trace)

    def stats(self) -> dict[str, Any]:
        """What ``GET /stats`` says."""
        with urllib.request.urlopen(self.base_url.replace("/v1", "/stats"), timeout=10) as answer:
            counts: dict[str, Any] = json.load(answer)
        return counts

    @contextmanager
    def held(self) -> Iterator[None]:
        """Answers nothing meanwhile: what is in flight stays so."""
        self._command.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._command.send(signal.SIGCONT)

    def asked(self, start: int = 0) -> list[Asked]:
        """The requests so far, in order, from the ``start``-th on."""
        lines = _read(self._log).split(b"\n")[start:-1]
        entries = (loads(line) for line in lines)
        return [Asked(entry["digest"], entry["seed"], entry["fault"]) for entry in entries]

    def count(self) -> int:
        """How many requests have come."""
        return _read(self._log).count(b"\n")

    def _announced(self) -> bool:
        words = self._command._read(self._command._out).split()
        self.base_url = next((word for word in words if word.startswith("http")), "")
        return bool(self.base_url)


def write_prompts(path: Path, rows: Iterable[str | Mapping[str, Any]]) -> Path:
    """Write a dataset; a text is a row with that prompt."""
    objects = ({"prompt": row} if isinstance(row, str) else row for row in rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in objects), encoding="utf-8")
    return path


def one_line(ended: Ended) -> str:
    """The only line that a command printed on standard error. Raises AssertionError if there is none, more, or a traceback."""
    if len(ended.errors) != 1 or not ended.err.startswith("manyhands: "):
        raise AssertionError(f"expected one line on standard error, not {ended.err!r}")
    return ended.errors[0]


def ledger(run_folder: Path) -> dict[str, Any]:
    """A run's ledger. Raises AssertionError if it does not add up."""
    found: dict[str, Any] = loads((run_folder / "summary.json").read_bytes())["ledger"]
    if found["items"] != sum(found[state] for state in ORDER):
        raise AssertionError(f"the ledger does not add up: {found}")
    return found


def trajectories(run_folder: Path) -> int:
    """How many trajectories a run has. Raises ValueError if a line of the file is damaged."""
    lines = (run_folder / "trajectories.jsonl").read_bytes().splitlines()
    return sum(isinstance(loads(text), dict) for text in lines)


def children(pid: int) -> list[int]:
    """The ids of a process's children."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, _read(thread).split())
    return found


def marked_processes(run_id: str) -> list[int]:
    """The processes of a run that are alive (a zombie is not)."""
    mark = f"{MARK}={run_id}".encode()
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if (_is_marked(pid, mark) or _works_for(pid, run_id)) and alive(pid)]


def is_worker(pid: int) -> bool:
    """Whether a process is a worker process of the engine: forked, or an interpreter of its own."""
    return _is_fork(pid) or WORKER.encode() in _read(Path(f"/proc/{pid}/cmdline"))


def is_launcher(pid: int) -> bool:
    """Whether a process is the one that launches people's commands, which end with it."""
    return os.fsencode(LAUNCHER) in _read(Path(f"/proc/{pid}/cmdline"))


def describe(pid: int) -> str:
    """A process in one line: its id, state, parent, and command line."""
    words = _read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode(errors="replace")
    status = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()[:2]
    return f"process {pid} (state {b' with parent '.join(status).decode()}): {words[:300]}"


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    state = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


def _is_fork(pid: int) -> bool:
    return _read(Path(f"/proc/{pid}/comm")).strip() == WORKER_NAME.encode()


def _works_for(pid: int, run_id: str) -> bool:
    """Whether a process is a forked worker of a run. Its environment in ``/proc`` is that of the process that it was forked from, but what
    it prints goes into the run's folder."""
    if not _is_fork(pid):
        return False
    with (
        suppress(OSError, sqlite3.Error),
        closing(sqlite3.connect(_journal_beside(f"/proc/{pid}/fd/1"), uri=True)) as journal,
    ):
        found = journal.execute("SELECT value FROM meta WHERE name = 'run_id'").fetchone()
        return found is not None and run_id in str(found[0])
    return False


def _journal_beside(link: str) -> str:
    printed_to = os.readlink(link)
    if not printed_to.startswith("/"):
        raise FileNotFoundError(f"{link} is {printed_to}: the process has no file to print to yet")
    return f"{(Path(printed_to).parent / JOURNAL).as_uri()}?mode=ro"


def _is_marked(pid: int, mark: bytes) -> bool:
    variables = _read(Path(f"/proc/{pid}/environ")).split(b"\0")
    return any(variable == mark or variable.startswith(mark + b".") for variable in variables)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
