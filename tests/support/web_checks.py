"""What each option of the web tools does, seen from outside: the same for every workload that has these options."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from tests.support.web_fakes import FakeServices, LocalSite, page

_Server = TypeVar("_Server", FakeServices, LocalSite)
_LONG = "One of many lines of a page.\n" * 400


class Runs(Protocol):
    """Runs of one item each by the built-in agent, which has the web tools."""

    @property
    def path(self) -> Path:
        """What paths are relative to."""
        ...

    def result(self, tool: str, arguments: Mapping[str, Any], *words: str) -> str:
        """What the model got in a new run as the result of one call."""
        ...

    def refused(self, *words: str) -> str:
        """What is said of a command line that is refused before anything is made."""
        ...


@contextmanager
def threaded(server: _Server) -> Iterator[_Server]:
    """The server, in a thread of its own."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        if not ready.wait(10):
            raise RuntimeError("the server did not start")
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@contextmanager
def _services(*names: str) -> Iterator[FakeServices]:
    """Services that this process's environment leads to."""
    made = FakeServices([("On *", "https://*.example/", "All.")], {"*": _LONG})
    with threaded(made) as fakes, patch.dict(os.environ, fakes.environ(*names)):
        yield fakes


WEB_CHECKS: dict[str, Callable[[Runs], None]] = {}


def _option(check: Callable[[Runs], None]) -> None:
    WEB_CHECKS[check.__name__.removeprefix("_")] = check


@_option
def _web_search(runs: Runs) -> None:
    assert "--web_search brave: Brave Search needs BRAVE_API_KEY" in runs.refused("--web_search=brave")
    with _services("exa", "searxng") as fakes:
        assert "https://mills.example/" in runs.result("web_search", {"query": "mills"}, "--web_search=searxng")
        assert fakes.counts == {"searxng/search": 1}


@_option
def _web_extract(runs: Runs) -> None:
    assert "--web_extract exa: Exa needs EXA_API_KEY" in runs.refused("--web_extract=exa")
    with _services("exa") as fakes:
        assert "One of many lines" in runs.result("web_extract", {"urls": ["https://a.example/"]})
        closed = runs.result("web_extract", {"urls": ["http://127.0.0.1/"]}, "--web_extract=direct")
        assert "is a loopback address" in closed
        assert fakes.counts == {"exa/extract": 1}


@_option
def _web_allow_private(runs: Runs) -> None:
    with threaded(LocalSite({"/": page("The mill", "It stands by the river.")})) as site:
        assert "a loopback address" in runs.result("web_extract", {"urls": [site.url]})
        assert "by the river" in runs.result("web_extract", {"urls": [site.url]}, "--web_allow_private")


@_option
def _ignore_robots(runs: Runs) -> None:
    pages = {"/": page("The mill", "It stands by the river."), "/robots.txt": "User-agent: *\nDisallow: /\n"}
    with threaded(LocalSite(pages)) as site:
        private = "--web_allow_private"
        assert "asks programs not to read it" in runs.result("web_extract", {"urls": [site.url]}, private)
        found = runs.result("web_extract", {"urls": [site.url]}, private, "--ignore_robots")
        assert "by the river" in found


@_option
def _web_cache(runs: Runs) -> None:
    with _services("exa") as fakes:
        for cached in (False, True):
            found = runs.result("web_search", {"query": "mills"}, "--web_cache=cache")
            assert ('"cached":true' in found.replace(" ", "")) is cached
        assert fakes.counts == {"exa/search": 1}
    assert list((runs.path / "cache").glob("*/*.json"))


@_option
def _web_summary(runs: Runs) -> None:
    with _services("exa"):
        found = runs.result("web_extract", {"urls": ["https://a.example/"]}, "--web_summary=simulated")
    assert "This is a model's summary" in found
