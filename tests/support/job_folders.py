"""CSV jobs as a person makes them: by command lines, with runners of their own, in a folder of a test's own."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from manyhands.runs.steering.control import RUNNER
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from manyhands.workloads.csv_jobs.service.status import job_status
from tests.support.commands import LONGEST, Command, Ended, run

FUNCTION = "--worker_function=work.py:work"
_WORK = '''
"""What rows of tests are worked on with."""

import time
from pathlib import Path


def work(row):
    text = row["text"]
    words = text.split()
    Path(f"begun-{row['name']}").touch()
    if words[0] == "sleep":
        time.sleep(float(words[1]))
    if words[0] == "until":
        while not Path(words[1]).exists():
            time.sleep(0.02)
    if "fail" in words and not Path("mended").exists():
        raise ValueError(f"can't do {text!r}")
    return {"length": len(text), "text": text}
'''


class JobFolder:
    """A folder with a table ``rows.csv`` (columns ``name`` and ``text``) and a worker function in ``work.py``. Use as a context
    manager: at the end the runners that are left are killed.

    The function's result is ``{"length", "text"}`` of the row's text, and it makes a file ``begun-NAME``. A text may say
    ``sleep SECONDS``, ``until FILE`` (waits until there is such a file), and ``fail`` (as long as there is no file ``mended``).
    """

    def __init__(self, path: Path, texts: Iterable[str] = ("one", "two", "three")) -> None:
        self.path = path
        self.write_rows(texts)
        (path / "work.py").write_text(_WORK, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self.path / "data").glob(f"*/{RUNNER}"):
            with suppress(OSError, ValueError, KeyError):
                os.kill(int(json.loads(file.read_bytes())["process"]), signal.SIGKILL)

    def write_rows(self, texts: Iterable[str], name: str = "rows.csv") -> None:
        """Write a table; the names of its rows are a, b, c …"""
        rows = [(chr(ord("a") + number % 26), text) for number, text in enumerate(texts)]
        with (self.path / name).open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows([("name", "text"), *rows])

    def jobs(self, *words: str, seconds: float = LONGEST) -> Ended:
        """Perform ``manyhands jobs …`` here, to its end."""
        return run("jobs", *words, folder=self.path, seconds=seconds)

    def begin(self, *words: str) -> Command:
        """Begin ``manyhands jobs …`` here."""
        return Command("jobs", *words, folder=self.path)

    def spawn_words(self, *options: str) -> list[str]:
        """The words of a job ``j`` over ``rows.csv`` that writes ``out.csv``, with one worker process, as each takes time to begin;
        ``options`` come last and so win."""
        usual = ("--instruction=Say {text}.", "--job_name=j", "--output_csv_path=out.csv", "--num_workers=1")
        return ["spawn", "rows.csv", *usual, *options]

    def spawn(self, *options: str) -> Ended:
        """Make such a job and wait for its end."""
        return self.jobs(*self.spawn_words(*options))

    def status(self, job: str = "j") -> dict[str, Any]:
        """What ``jobs status --json`` says, without a process for it. Raises RunError if there is no such job."""
        return dict(job_status(find_job(self.path / "data", job)).to_json())

    def begun(self, name: str = "a") -> bool:
        """Whether the function has begun with the row of that name."""
        return (self.path / f"begun-{name}").exists()

    def folder(self, name: str = "j") -> Path:
        """The folder of a job."""
        return self.path / "data" / name

    def rows(self, name: str = "out.csv") -> list[dict[str, str]]:
        """The rows of a CSV file."""
        with (self.path / name).open(encoding="utf-8", newline="") as handle:
            return list(csv.DictReader(handle))

    def results(self, name: str = "out.csv") -> list[Any]:
        """The results in an export, None where there is none."""
        return [json.loads(row["result_json"] or "null") for row in self.rows(name)]

    def runner(self, job: str = "j") -> int:
        """The process that performs a job. Raises OSError if there is none."""
        return int(json.loads((self.folder(job) / RUNNER).read_bytes())["process"])


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, also where it is in parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def job_and_item(request: RecordedRequest) -> tuple[str, str]:
    """The ids that the prompt of a request names."""
    lines = next(text_of(message) for message in request.body["messages"] if message["role"] == "user").splitlines()
    found = (next(line for line in lines if line.startswith(label)) for label in ("Job ID: ", "Item ID: "))
    job_id, item_id = (line.partition(": ")[2] for line in found)
    return job_id, item_id


def report(request: RecordedRequest, result: Mapping[str, Any], **more: Any) -> Reply:
    """A model's answer that reports a result for the row of the request."""
    job_id, item_id = job_and_item(request)
    arguments = {"job_id": job_id, "item_id": item_id, "result": result, **more}
    function = {"name": REPORT_TOOL, "arguments": json.dumps(arguments)}
    return chat_response("I report.", tool_calls=[{"id": "report", "type": "function", "function": function}])


def reporting(result: Mapping[str, Any] | None = None) -> Callable[[RecordedRequest], Reply]:
    """A model that reports at once, always the same, and then ends."""

    def reply(request: RecordedRequest) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return chat_response("Done.")
        return report(request, {"ok": True} if result is None else result)

    return reply
