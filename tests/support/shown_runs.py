"""Small runs of all workloads, some with failures, and a server that shows them."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from aiohttp import web

from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.io.loopback import Address
from manyhands.runs.folders import find_runs
from manyhands.view.answers import add_headers, failures
from manyhands.view.index.building import build
from manyhands.view.index.database import make_folder, stem_of
from manyhands.view.index.pool import Indexes
from manyhands.view.links import Links
from manyhands.view.pages.page import Site
from manyhands.view.rendering import Renderer
from manyhands.view.server import WebApp
from manyhands.view.source import Runs
from tests.support.batches import BatchFolder
from tests.support.eval_runs import perform_eval
from tests.support.job_folders import FUNCTION, JobFolder
from tests.support.memory_benchmarks import opened, performed, write_configuration
from tests.support.view_servers import server

WAIT_SECONDS = 60.0
PROMPTS = ("Count the files here.", "=1+1", "Write <b>five</b> words.", "Say nothing.")
_OWN = """\
import random

def said(target, asked):
    number = random.Random(f"{SEED} {target} {asked['id']}").random()
    if number < 0.15:
        raise ValueError("no luck")
    return {"text": f"{round(number, 2)}"}

def x(asked): return said("x", asked)
def y(asked): return said("y", asked)

def value(test):
    return {"score": float(test["answer"])}
"""


def make_runs(folder: Path) -> None:
    """Runs ``b1``, ``b2`` (trajectories), ``e1``, ``e2`` (evaluations), ``j``, ``k`` (jobs) and ``small`` (memory)."""
    batches = BatchFolder(_made(folder / "batches"), PROMPTS)
    for name, seed, more in (("b1", 1, ["--samples=2"]), ("b2", 2, [])):
        options = ("--model=simulated", "--simulated_latency=0", f"--run_name={name}", f"--seed={seed}")
        ran = batches.batch(*options, *more)
        assert ran.code == 0, ran
    for seed in (1, 2):
        asyncio.run(_evaluated(_made(folder / f"evals{seed}"), f"e{seed}", seed))
    texts = ["one", "a text to fail", "=cmd()", "two words"]
    with JobFolder(_made(folder / "jobs"), texts) as jobs:
        for name, code in (("j", 1), ("k", 0)):
            words = (FUNCTION, f"--job_name={name}", f"--output_csv_path={name}.csv", "--executor=local", "--quiet")
            ended = jobs.spawn(*words)
            assert ended.code == code, ended
            (jobs.path / "mended").touch()
    place = _made(folder / "memory")
    write_configuration(place, ["colours", "shopping", "trigger_response", "name_list"], span=3000, examples=2)
    asyncio.run(performed(opened(place, ["perfect", "forgetful"], max_prompt_size=600)))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _evaluated(folder: Path, name: str, seed: int) -> None:
    (folder / "own.py").write_text(f"SEED = {seed}\n{_OWN}")
    tests = [{"id": f"t{number}", "input": "hi", "criteria": "a number"} for number in range(8)]
    suite: dict[str, Any] = {
        "targets": [{"name": target, "provider": "python", "function": f"own.py:{target}"} for target in "xy"],
        "execution": {"targets": ["x", "y"]},
        "assert": [{"type": "python", "name": "value", "function": "own.py:value"}],
        "tests": tests,
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))
    await perform_eval(folder, name, max_attempts=1)


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_page(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/html")


class Shown:
    """A server that shows runs."""

    def __init__(self, folder: Path, address: Address) -> None:
        self.folder = folder
        self.address = address

    def get(self, target: str, method: str = "GET") -> Got:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, target)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Got(answer.status, headers, answer.read())
        finally:
            connection.close()

    def twin(self, target: str) -> Any:
        """A page as JSON. It must be there."""
        got = self.get(f"{target}{'&' if '?' in target else '?'}format=json")
        assert got.status == 200, (target, got.text)
        return got.json

    def ids(self) -> dict[str, str]:
        """The ids of runs by the names of their folders."""
        return {run["run"]: run["run_id"] for run in self.twin("/")["runs"]}


@contextmanager
def shown_runs(folder: Path, cache: Path, *, with_index: bool = True) -> Iterator[Shown]:
    """Show the runs of ``make_runs``. ``cache``: a folder for indexes, which are made beforehand."""
    folders = sorted(folder.glob("*/data"))
    if with_index:
        make_folder(cache)
        for run in (found for each in folders for found in find_runs(each, sub_runs=True)):
            with closing(JournalReader(run)) as reader:
                build(reader, stem_of(run, run_id_of(run), cache), lambda: None)
    links, indexes = Links(), Indexes(cache, 1.0, is_on=with_index)
    site = Site(Runs(folders), links, folders, indexes)

    def application(_: Address) -> web.Application:
        made = web.Application(middlewares=[failures])
        made.on_response_prepare.append(add_headers)
        WebApp(site, Renderer(links)).add_to(made)
        return made

    try:
        with server(application) as address:
            yield Shown(folder, address)
    finally:
        indexes.close()
        site.runs.close()


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [value for name in ("href", "src", "data-href") if (value := values.get(name)) is not None]
        if (name := values.get("id")) is not None:
            self.ids.append(name)


def links_in(page: str) -> tuple[list[str], list[str]]:
    """The addresses that a page leads to, in order, and the ids in it."""
    parser = _Links()
    parser.feed(page)
    return parser.found, parser.ids
