"""The simulated server in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen


@dataclass(frozen=True, slots=True)
class Server:
    """``base_url`` ends in ``/v1``."""

    base_url: str

    def stats(self) -> dict[str, Any]:
        """What it counted so far."""
        with urlopen(self.base_url.removesuffix("/v1") + "/stats", timeout=30) as response:
            counts: dict[str, Any] = json.load(response)
        return counts


@contextmanager
def simulated_server(*, latency: float = 0.0) -> Iterator[Server]:
    """Serve on a free port until the block ends."""
    command = [sys.executable, "-m", "manyhands", "simulate", "--port=0", f"--latency={latency}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://\S+", said)
        if found is None:
            raise RuntimeError(f"the simulated server did not start: {said}")
        yield Server(found[0])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
