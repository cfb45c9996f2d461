"""The real viewer over some folders, in a thread of its own, and a client that was let in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from manyhands.io.loopback import Address
from manyhands.view.server import ViewOptions, serve

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class View:
    """A viewer that is going on. Used by one thread."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.base = f"http://{parts.netloc}"
        self._connection = HTTPConnection(parts.netloc, timeout=WAIT_SECONDS)
        self.cookie = ""
        """What a browser sends that was let in: ``NAME=VALUE``."""
        self.cookie = self.get(f"{parts.path}?{parts.query}").headers["set-cookie"].partition(";")[0]

    def get(self, target: str) -> Got:
        """What a GET of a path with its query is answered."""
        try:
            answer = self._answer(target)
        except RemoteDisconnected:  # it has waited for too long; the next request connects again
            answer = self._answer(target)
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Got(answer.status, headers, answer.read())

    def close(self) -> None:
        self._connection.close()

    def _answer(self, target: str) -> HTTPResponse:
        self._connection.request("GET", target, headers={"Cookie": self.cookie})
        return self._connection.getresponse()


@contextmanager
def served(folders: Sequence[Path], cache: Path, **options: Any) -> Iterator[View]:
    """The viewer over these folders. ``cache``: its own folder; ``options``: of ViewOptions."""
    links: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def be_ready(link: str, note: str | None) -> None:
        links.append(link)
        ready.set()

    async def serving() -> None:
        chosen = ViewOptions(list(folders), Address("127.0.0.1", 0), cache, **options)
        task = asyncio.ensure_future(serve(chosen, be_ready))
        await stop.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serving())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(WAIT_SECONDS)
        view = View(links[0])
        try:
            yield view
        finally:
            view.close()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
