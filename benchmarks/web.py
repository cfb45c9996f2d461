"""What an item with the web tools costs: a search and the reading of the page that it finds, on this machine."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.browser import children_cpu
from benchmarks.rows import Row
from manyhands.core.clock import SystemClock
from manyhands.processes.event_loop import run_on_loop
from manyhands.testing.agent_doubles import no_sandbox
from manyhands.testing.context import MemoryContext
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.registry import FunctionTool
from manyhands.tools.services.registry import ToolServices, choose_services, opened_services
from manyhands.tools.services.steps import ToolSteps
from manyhands.tools.services.web.extract import web_extract
from manyhands.tools.services.web.search import web_search
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.web_fakes import FakeServices, LocalSite, page

_TEXT = "The mill stands by the river, and has ground corn since 1712. " * 100


def web(quick: bool) -> Iterator[Row]:
    """An item searches, and reads the page that it found, of 6 kB."""
    with TemporaryDirectory() as folder:
        yield from run_on_loop(_measured(Path(folder), 10 if quick else 50))


async def _measured(folder: Path, count: int) -> list[Row]:
    async with LocalSite({f"/{number}": page("The mill", _TEXT) for number in range(count + 1)}) as site:
        fakes = FakeServices([("The mill", f"{site.url}/*", "Corn.")])
        async with fakes:
            given = {
                "dataset_file": "d",
                "run_name": "r",
                "batch_size": 1,
                "model": "simulated",
                "web_allow_private": True,
            }
            chosen = choose_services(BatchSpec.make(given), fakes.environ("searxng"))
            async with opened_services(chosen, {}, folder) as services:
                await _item(services, 0)
                before, cpu, itself = _memory(), children_cpu(), time.process_time()
                walls = []
                for number in range(1, count + 1):
                    began = time.perf_counter()
                    await _item(services, number)
                    walls.append(time.perf_counter() - began)
                cpu, itself, grown = children_cpu() - cpu, time.process_time() - itself, _memory() - before
    note = f"{1000 * cpu / count:,.0f} ms of CPU of what takes pages apart, {1000 * itself / count:,.0f} ms of this process's"
    return [
        Row("web: item", 1000 * median(walls), "ms", note=f"{note}; median of {count}"),
        Row("web: memory of an item", grown / count / 1e6, "MB", note="of this process, and not given back"),
    ]


async def _item(services: ToolServices, number: int) -> None:
    found = await _called(web_search, {"query": str(number)}, services)
    read = await _called(web_extract, {"urls": [hit["url"] for hit in found["data"]["web"]]}, services)
    assert "since 1712" in read["results"][0]["content"]


async def _called(tool: FunctionTool, arguments: dict[str, Any], services: ToolServices) -> dict[str, Any]:
    context = MemoryContext()
    steps = ToolSteps(tool.name, lambda: context.scope(tool.name), artifacts=services.artifacts)
    result = await tool.call(arguments, ToolEnvironment(no_sandbox, SystemClock(), services=services, steps=steps))
    assert isinstance(result.content, dict)
    assert not result.failed
    return result.content


def _memory() -> float:
    """Bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())
