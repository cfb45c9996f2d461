"""The Ray actor that holds one worker process on a node.

It is sent to nodes as it stands here, and imports nothing of this package before it has said which version of it there is: that may be
another one, or none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from importlib import metadata
from typing import Any, TextIO

LINES, MAX_LINE = 20, 1000
"""Lines that a worker printed last, and characters of each, that are told to the owner at most."""
MAX_READ = 1 << 16
"""Characters of a line that are read at once."""
PATIENCE = 1.0
"""Seconds that the rest of its output may take once a worker has ended."""


class WorkerActor:
    """Starts a worker process, waits for its end, and clears away what it left. The process dies with the actor, and a guard clears away
    then what is left of both."""

    def about(self) -> dict[str, Any]:
        """What is here: versions, the node and its address."""
        import ray

        try:
            version = metadata.version("manyhands")
        except metadata.PackageNotFoundError:
            version = None
        return {
            "manyhands": version,
            "python": ".".join(map(str, sys.version_info[:2])),
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        }

    def work(self, run_id: str, call: str) -> tuple[int, str]:
        """Have a worker process answer a call (``remote.Call`` as JSON): its exit code, negative for a signal, and what it printed last."""
        from manyhands.processes.children import LoneGuard
        from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command
        from manyhands.processes.strays import MARK, kill_marked, kill_strays, process_mark

        inherited = process_mark(run_id)
        process = subprocess.Popen(
            python_command("manyhands.engine.executors.remote"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, MARK: inherited, PYTHONPATH: module_path()},
            text=True,
            errors="replace",
        )
        guard = LoneGuard([f"{MARK}={mark}" for mark in (inherited, process_mark(run_id, process.pid))])
        printed: deque[str] = deque(maxlen=LINES)
        reader = threading.Thread(target=_pass_on, args=(process.stdout, printed), daemon=True)
        reader.start()
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(call)
        code = process.wait()
        kill_strays(run_id, process.pid)
        kill_marked(MARK, inherited)  # what it started with its own environment
        guard.dismiss()
        reader.join(PATIENCE)
        return code, "".join(printed)


def _pass_on(stream: TextIO, printed: deque[str]) -> None:
    """What a worker prints goes to the log that Ray keeps of its actor."""
    while line := stream.readline(MAX_READ):
        printed.append(line[-MAX_LINE:])
        with suppress(OSError):  # a full disk must not keep the worker from printing
            sys.stderr.write(line)
