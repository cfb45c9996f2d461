"""Trajectory batches in tests: run by command line, in this process, against a real server in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from manyhands.cli.main import main
from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, ScriptedServer, chat_response

REASONED = chat_response("Done.", reasoning="I think so.")
"""An answer that passes the filter for trajectories without reasoning."""


class ServerThread:
    """A ``ScriptedServer`` for tests that are no coroutines. Use as a context manager."""

    def __init__(self, responses: Iterable[Reply] | Handler = (REASONED,)) -> None:
        self._server = ScriptedServer(responses)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def base_url(self) -> str:
        """Ends in ``/v1``."""
        return self._server.base_url

    @property
    def openrouter_url(self) -> str:
        """An address that is taken for OpenRouter's, because it has that word in it."""
        return self._server.base_url.replace("/v1", "/openrouter/v1")

    @property
    def requests(self) -> list[RecordedRequest]:
        return self._server.requests

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked, in order."""
        return [request.body for request in self._server.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the server did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with self._server:
            self._ready.set()
            await self._stop.wait()


def prompt_of(request: RecordedRequest) -> str:
    """The text that the conversation of a request began with."""
    return next(str(message["content"]) for message in request.body["messages"] if message["role"] == "user")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def run_command(folder: Path, *words: str) -> Ran:
    """Perform ``manyhands …`` in this process, with ``folder`` as the current one."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Ran(code, out.getvalue(), err.getvalue())


class BatchFolder:
    """A folder with a dataset ``d.jsonl``, in which batches are run."""

    def __init__(self, path: Path, rows: Iterable[str | Mapping[str, Any]] = ("one", "two", "three")) -> None:
        self.path = path
        self.write_rows(rows)

    def write_rows(self, rows: Iterable[str | Mapping[str, Any]], name: str = "d.jsonl") -> None:
        """Write a dataset; a text is a row with that prompt."""
        objects = ({"prompt": row} if isinstance(row, str) else row for row in rows)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
        (self.path / name).write_text(text, encoding="utf-8")

    def batch(self, *options: str) -> Ran:
        """``manyhands batch``, with what these tests mostly want; ``options`` come last and so win."""
        usual = ("--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--distribution=terminal_only")
        return run_command(self.path, "batch", *usual, "--sandbox=local", "--executor=local", "--quiet", *options)

    def run(self, name: str = "r") -> Path:
        """The run folder of that name."""
        return self.path / "data" / name

    def lines(self, file: str = "trajectories.jsonl", name: str = "r") -> list[dict[str, Any]]:
        """A file of JSON lines in a run folder."""
        return read_lines(self.run(name) / file)

    def json(self, file: str, name: str = "r") -> Any:
        """A JSON file in a run folder."""
        return json.loads((self.run(name) / file).read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(text) for text in lines]


def without_times(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A trajectory but for what may differ between two runs of the same settings: times, and how long things took."""
    metadata = {key: value for key, value in entry["metadata"].items() if key not in ("timestamp", "duration_seconds")}
    return {**entry, "metadata": metadata}
