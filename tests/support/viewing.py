"""``manyhands view`` in a process of its own, and what it answers."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.commands import PROGRAM, environment
from tests.support.forked import ForkedProcess

WAIT_SECONDS = 60.0
_LINK = re.compile(r'href="(/runs/[^"#]+)"')
_FILE = re.compile("/(export|download)[?]")
_TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """What is to be read of an HTML page, white space and invisible marks as one blank."""
        return " ".join(html.unescape(_TAG.sub(" ", self.html)).split())

    @property
    def links(self) -> list[str]:
        """The addresses of pages about runs."""
        return list(dict.fromkeys(html.unescape(link) for link in _LINK.findall(self.html)))


class Viewing:
    """A viewer. Use as a context manager: at the end it is killed."""

    def __init__(self, cache: Path, *folders: Path, words: Sequence[str] = (), before: Sequence[str] = ()) -> None:
        """``words``: further ones of the command. ``before``: a program that starts it, with an interpreter of its own; without it, the
        viewer is forked, which is quick."""
        self._errors = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        words = ["view", *map(str, folders), *words]
        environ = {**environment(), "XDG_CACHE_HOME": str(cache)}
        ours, theirs = os.pipe()
        self._out = os.fdopen(ours)
        self.process: ForkedProcess | subprocess.Popen[bytes]
        try:
            if before:
                command = [*before, *PROGRAM, *words]
                self.process = subprocess.Popen(command, stdout=theirs, stderr=self._errors, env=environ)
            else:
                self.process = ForkedProcess(words, None, environ, theirs, self._errors.fileno())
        finally:
            os.close(theirs)
        said = next((line for line in self._out if "http://" in line), None)
        assert said is not None, self.errors
        found = re.search(r"http://\S+", said)
        assert found is not None
        link = urlsplit(found[0])
        self._host, self._port = str(link.hostname), link.port
        self.cookie = ""
        self.refused: dict[str, str] = {}
        """What stood in the place of pages that ``crawl`` was refused, by their addresses."""
        entered = self.get(f"{link.path}?{link.query}")
        self.cookie = entered.headers["set-cookie"].partition(";")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._errors.close()

    @property
    def errors(self) -> str:
        """What it has printed on standard error."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def get(self, path: str) -> Page:
        """Ask for a path. Raises OSError or HTTPException if the answer is cut off."""
        connection = self._asked(path)
        try:
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Page(answer.status, headers, answer.read())
        finally:
            connection.close()

    def page(self, path: str) -> Page:
        """A page that must be there."""
        found = self.get(path)
        assert found.status == 200, (path, found.status, found.words)
        return found

    def json(self, path: str) -> Any:
        """The JSON twin of a page that must be there."""
        return json.loads(self.page(path + ("&" if "?" in path else "?") + "format=json").body)

    def refusal(self, path: str) -> tuple[int, str]:
        """The status and the one line that stands in the place of a page."""
        found = self.get(path + ("&" if "?" in path else "?") + "format=json")
        return found.status, json.loads(found.body)["error"]

    def runs(self) -> dict[str, dict[str, Any]]:
        """The list of runs, by the names of their folders."""
        return {run["run"]: run for run in self.json("/")["runs"]}

    def crawl(self, start: str, most: int) -> Counter[int]:
        """Follow the links from a page to others of the same run, but for files; how many pages there were of each status."""
        run, todo, done = "/".join(start.split("/")[:3]), [start], set[str]()
        found: Counter[int] = Counter()
        while todo and len(done) < most:
            path = todo.pop(0)
            if path not in done:
                done.add(path)
                page = self.get(path)
                found[page.status] += 1
                if page.status >= 400:
                    self.refused[path] = page.words
                if page.headers.get("content-type", "").startswith("text/html"):
                    todo += [link for link in page.links if link.startswith(run) and not _FILE.search(link)]
        return found

    @contextmanager
    def events(self, run: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
        """What is sent of a run, or of the list of runs: names with values. Raises TimeoutError if nothing comes for long."""
        connection = self._asked(f"/events?run={run}")
        try:
            answer = connection.getresponse()
            assert answer.status == 200
            yield _events(answer)
        finally:
            connection.close()

    def _asked(self, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=WAIT_SECONDS)
        headers = {"Cookie": self.cookie, "Sec-Fetch-Site": "same-origin"} if self.cookie else {}
        connection.request("GET", path, headers=headers)
        return connection


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while text := answer.readline().decode():
        kind, _, value = text.rstrip("\n").partition(": ")
        if kind == "event":
            name = value
        elif kind == "data":
            yield name, json.loads(value)
