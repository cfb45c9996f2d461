"""``manyhands view`` in a process of its own, asked as a browser asks it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.startup import program

_SECONDS = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PART = 1 << 20


class Viewer:
    """A viewer of a folder. Use as a context manager: at the end it is killed."""

    def __init__(self, folder: Path, cache: Path, *words: str) -> None:
        """``words``: further ones of the command."""
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [*program(), "view", str(folder), *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if "http://" in line), "")
        found = re.search(r"http://\S+", line)
        assert found is not None, "the viewer did not start"
        parts = urlsplit(found[0])
        self._host, self._port, self._headers = str(parts.hostname), parts.port, {}
        self.base = f"http://{parts.netloc}"
        connection = self._asked(f"{parts.path}?{parts.query}")
        name, _, value = str(connection.getresponse().getheader("Set-Cookie")).partition(";")[0].partition("=")
        connection.close()
        self.cookie = (name, value)
        self._headers = {"Cookie": f"{name}={value}", "Sec-Fetch-Site": "same-origin"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def get(self, path: str) -> bytes:
        """A page. Raises RuntimeError if it is refused."""
        return b"".join(self.parts(path))

    def json(self, path: str) -> Any:
        """The JSON twin of a page."""
        return json.loads(self.get(path + ("&" if "?" in path else "?") + "format=json"))

    def parts(self, path: str) -> Iterator[bytes]:
        """A page or a file, as it comes."""
        connection = self._asked(path)
        try:
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise RuntimeError(f"{path}: {answer.status} {answer.read()[-500:].decode(errors='replace')}")
            while part := answer.read(_PART):
                yield part
        finally:
            connection.close()

    def seconds(self, path: str) -> float:
        """How long a page takes."""
        began = time.perf_counter()
        self.get(path)
        return time.perf_counter() - began

    def cpu(self) -> float:
        """Seconds of processor time of its process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self, *, peak: bool = False) -> float:
        """MB that its process has resident, or had at the most."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    @contextmanager
    def listened(self, run: str, listeners: int, take: Callable[[str, Any], None] | None = None) -> Iterator[None]:
        """Pages that listen to a run meanwhile. ``take``: is given the name and the value of each event of the first one."""
        connections = [self._asked(f"/events?run={run}") for _ in range(listeners)]
        threads = [
            threading.Thread(target=_listen, args=(connection, None if number else take), daemon=True)
            for number, connection in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join(_SECONDS)

    def _asked(self, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        connection.request("GET", path, headers=self._headers)
        return connection


def _listen(connection: http.client.HTTPConnection, take: Callable[[str, Any], None] | None) -> None:
    name, answer = "", connection.getresponse()
    while text := answer.readline():
        kind, _, value = text.rstrip(b"\n").partition(b": ")
        if kind == b"event":
            name = value.decode()
        elif kind == b"data" and take is not None:
            take(name, json.loads(value))
        if name == "ended" and kind == b"data":
            break
    connection.close()
