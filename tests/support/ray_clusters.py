"""Clusters of Ray for tests, whose nodes are on this machine: each with an address of the loopback interface, and folders of its own.

Nothing of them is stopped by ``ray stop``, which ends all clusters of the machine: a node's processes are known by a variable, and by
being below the one that started them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest

from manyhands.engine.executors.node_folder import FOLDER_VARIABLE
from manyhands.engine.journal.reader import JOURNAL
from tests.support.commands import alive, children
from tests.support.engine_keeper import Unavailable
from tests.support.engines import REQUIRED

START_SECONDS = 90.0
END_SECONDS = 20.0
_MARK = "MANYHANDS_TEST_NODE"
_STARTED = "Ray runtime started"
_QUICK = {
    "RAY_raylet_start_wait_time_s": "80",  # on a busy machine, each of its processes takes seconds to start
    "RAY_num_prestart_python_workers": "0",
    "RAY_worker_niceness": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
"""What ``ray start --block`` has started ends with it."""
_OURS = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")


class Node:
    """A node, as on a machine of its own: it shares no folder with another one. ``close`` ends it, as does ``kill``."""

    def __init__(
        self,
        folder: Path,
        words: list[str],
        address: str,
        *,
        cpus: int = 2,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """``words``: how it gets to its cluster. ``environ``: variables of its processes beside those of a new machine. ``python``: its
        interpreter, which has Ray."""
        folder.mkdir(parents=True)
        self.address = address
        self.folder = folder / "manyhands"
        """What workers keep on it."""
        self.mark = uuid.uuid4().hex
        self._log = folder / "log"
        usual = ["--block", f"--node-ip-address={address}", f"--num-cpus={cpus}", "--disable-usage-stats"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *_ENDS_WITH_US,
                    *(python, "-P", "-m", "ray.scripts.scripts", "start", *words, *usual),
                    "--include-log-monitor=false",
                    "--object-store-memory=80000000",
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **{name: os.environ[name] for name in _OURS if name in os.environ},
                    **_QUICK,
                    _MARK: self.mark,
                    FOLDER_VARIABLE: str(self.folder),
                    **(environ or {}),
                },
            )

    def wait(self) -> None:
        """Until it is part of its cluster. Raises Unavailable."""
        end = time.monotonic() + START_SECONDS
        while _STARTED not in (said := self._log.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise Unavailable(f"a node of Ray did not start: {said[-800:]}")
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """All that it consists of, and what these have started."""
        found = {self._process.pid, *_below(self._process.pid)}
        variable = f"{_MARK}={self.mark}".encode()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with suppress(OSError):
                if variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found |= {pid, *_below(pid)}
        return sorted(filter(alive, found))

    def named(self, text: str) -> list[int]:
        """Those of its processes whose command line matches a pattern."""
        return [pid for pid in self.processes() if re.search(text, command_line(pid))]

    def actors(self) -> list[int]:
        """The processes of Ray that hold a worker each."""
        return self.named(r"^ray::WorkerActor")

    def workers(self) -> list[int]:
        """The worker processes."""
        return self.named(r"manyhands\.engine\.executors\.remote")

    @property
    def works(self) -> bool:
        """Whether it has been given what its workers need of a run."""
        return any(self.folder.glob(f"**/{JOURNAL}"))

    def kill(self) -> None:
        """SIGKILL for all of its processes, as if its machine had lost its power. Those that are just being started, too."""
        end = time.monotonic() + END_SECONDS
        while found := self.processes():
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            if time.monotonic() > end:
                raise TimeoutError(f"processes of a node can't be killed: {found}")
            time.sleep(0.01)
        self._process.wait(END_SECONDS)

    def ids(self) -> list[str]:
        """The names by which Ray may know it: of one node, as it was started."""
        return re.findall(r"--node_id=(\w+)", " ".join(map(command_line, self.processes())))

    @property
    def id(self) -> str:
        """The name by which Ray knows it."""
        return self.ids()[0]


class Cluster:
    """A head, and further nodes. Use as a context manager: nothing is left of it then."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        """``folder``: for all that the nodes write; its path must be short, as those of their sockets. ``environ``: variables of all of
        its processes."""
        self._folder = folder
        self._environ = environ or {}
        self._count = 0
        port = _free_port()
        self.head = self._node(["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"])
        self.nodes = [self.head]
        self.address = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes):
            node.kill()

    def add(self, *words: str, **how: Any) -> Node:
        """Begin to start a further node; see ``Node.wait``. ``words``: further ones of ``ray start``; ``how``: as of ``Node``."""
        node = self._node([f"--address={self.address}", *words], **how)
        self.nodes.append(node)
        return node

    def wait(self) -> None:
        """Until all nodes are there. Raises Unavailable."""
        for node in self.nodes:
            node.wait()

    def listening(self) -> None:
        """Wait until further nodes may be started. Raises Unavailable."""
        end = time.monotonic() + START_SECONDS
        host, _, port = self.address.rpartition(":")
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            time.sleep(0.05)
        raise Unavailable("the head of a Ray cluster did not start")

    def remove(self, node: Node) -> None:
        """Kill a node, and forget it."""
        self.nodes.remove(node)
        node.kill()

    def drain(self, node: Node, seconds: float) -> None:
        """Have Ray take a node away when its time is over, and tell everybody now."""
        words = [
            "drain-node",
            "--address",
            self.address,
            "--node-id",
            node.id,
            "--reason",
            "DRAIN_NODE_REASON_PREEMPTION",
        ]
        more = ["--reason-message", "a test", "--deadline-remaining-seconds", str(int(seconds))]
        subprocess.run(
            [sys.executable, "-P", "-m", "ray.scripts.scripts", *words, *more],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def _node(self, words: list[str], environ: Mapping[str, str] | None = None, **how: Any) -> Node:
        self._count += 1
        folder = self._folder / str(self._count)
        words = [*words, f"--temp-dir={folder}/ray"]
        environ = {**self._environ, **(environ or {})}
        return Node(folder, words, f"127.0.0.{self._count}", environ=environ, **how)


def command_line(pid: int) -> str:
    """The words of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def check_installed() -> None:
    """Raises Unavailable if the extra ``ray`` is not installed."""
    if find_spec("ray") is None:
        raise Unavailable("the extra ray is not installed")


@contextmanager
def two_nodes(environ: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster of two nodes with room for two workers each. ``environ``: variables of its processes. Raises Unavailable."""
    check_installed()
    with (
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        Cluster(Path(folder), environ) as cluster,
    ):
        cluster.listening()
        cluster.add()
        cluster.wait()
        yield cluster


@contextmanager
def required() -> Iterator[None]:
    """Skips where something is Unavailable; fails where that was ordered."""
    try:
        yield
    except Unavailable as error:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"no Ray cluster can be started here: {error}", pytrace=False)
        pytest.skip(f"no Ray cluster can be started here: {error}")


def _below(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _below(child)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
