"""A child: what a job of agents is compared with. A bare asyncio loop with the same HTTP library and the same requests, no journal, no
tools, no agents.

Arguments: ``settings`` of ``JobSpec``, ``job_id``. What the agents of this job will send is found out before the clock starts, by
agents whose model is in this process. The loop then sends it: as many tasks as rows in flight take the next row, and post each of its
requests and parse the answer, one after the other. The server's count of different bodies shows that they are the job's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.children import Meter, arguments, report
from manyhands.agents.run_settings import NeverCalled
from manyhands.agents.toolbox import RunTools
from manyhands.core.clock import Clock
from manyhands.engine.contract import Item, Limits
from manyhands.models.openai.request import Endpoint, request_body
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.models.simulated.model import SimulatedModel
from manyhands.processes.event_loop import loop_factory
from manyhands.testing.context import MemoryContext
from manyhands.workloads.csv_jobs.prepared import prepare
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.csv_jobs.workers.agent import AgentWorker
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload

Bodies = list[dict[str, Any]]


class Noting:
    """The simulated model, and what an endpoint would have been sent."""

    simulated = True

    def __init__(self, base_url: str) -> None:
        self._endpoint = Endpoint.of(base_url)
        self._model = SimulatedModel()
        self.bodies: Bodies = []

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        self.bodies.append(request_body(request, self._endpoint))
        return await self._model.complete(request, limits, clock)

    async def close(self) -> None:
        """Nothing to close."""


async def requests(options: JobSpec, job_id: str) -> list[Bodies]:
    """What each row's agent sends, in order."""
    options = options.resolved()
    folder = Path(options.data_dir) / job_id
    workload = CsvJobsWorkload((await prepare(options, job_id)).to_json(), folder)
    tools, model = RunTools.recorded(None).tools(options.toolsets or ()), Noting(str(options.base_url))
    worker = AgentWorker(options, tools, model=model, backend=NeverCalled(), run_folder=folder)
    found: list[Bodies] = []
    for number, planned in enumerate(workload.plan(), 1):
        item = Item(number, planned.key, planned.payload)
        await worker.run(MemoryContext(item=item), workload.assignment(item, job_id))
        found.append(model.bodies)
        model.bodies = []
    return found


async def calls(rows: list[Bodies], base_url: str, in_flight: int) -> None:
    url, left = f"{base_url}/chat/completions", iter(rows)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def slot(left: Iterator[Bodies]) -> None:
            for bodies in left:
                for body in bodies:
                    data = orjson.dumps(body)
                    async with session.post(url, data=data, headers={"Content-Type": "application/json"}) as response:
                        answer = orjson.loads(await response.read())
                        assert answer["choices"][0]["message"]["tool_calls"]

        await asyncio.gather(*(slot(left) for _ in range(in_flight)))


def main() -> None:
    given = arguments()
    options = JobSpec.make(given["settings"])
    rows = asyncio.run(requests(options, given["job_id"]))
    meter = Meter()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(calls(rows, str(options.base_url), options.workers))
    report(**asdict(meter.read()), posts=sum(map(len, rows)))


if __name__ == "__main__":
    main()
