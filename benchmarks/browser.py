"""What an item with a browser costs: its wall time, the processor time of Chromium with its driver, and the memory of a further context."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.rows import Row
from manyhands.core.clock import SystemClock
from manyhands.network.rules import NetworkRules
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.system.linux import children
from manyhands.testing.agent_doubles import no_sandbox
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.browser.chromium import Chromium
from manyhands.tools.services.browser.session import Pool
from manyhands.tools.services.browser.tools import browser_click, browser_navigate, browser_snapshot
from manyhands.tools.services.registry import ToolServices
from tests.support.browsers import CHROMIUM
from tests.support.local_shop import Shop, local_shop

MAX_MEMORY = 400.0
"""MB of a context, from which the default of ``--browser_contexts`` follows."""
_TICK = os.sysconf("SC_CLK_TCK")


def browser(quick: bool) -> Iterator[Row]:
    """An item opens a page, takes a snapshot, and clicks a link."""
    if CHROMIUM is None:
        yield Row("browser: item", float("nan"), note="Chromium is not installed")
        return
    with TemporaryDirectory() as folder:
        yield from run_on_loop(_measured(Path(folder), 3 if quick else 10))


async def _measured(folder: Path, count: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        shop = await stack.enter_async_context(local_shop())
        chromium = Chromium(CHROMIUM, None, folder / "browser", NetworkRules.web(private=True))
        stack.push_async_callback(chromium.close)
        pool = Pool(chromium, asyncio.Semaphore(100), folder / "browser", ArtifactStore(folder))
        began = time.perf_counter()
        await chromium.browser()
        start = time.perf_counter() - began
        await _item(pool, shop, "first", stack=None)
        walls, cpu, itself = [], children_cpu(), time.process_time()
        for number in range(count):
            began = time.perf_counter()
            await _item(pool, shop, str(number), stack=None)
            walls.append(time.perf_counter() - began)
        cpu, itself = children_cpu() - cpu, time.process_time() - itself
        base = _memory()
        for number in range(count):
            await _item(pool, shop, f"open {number}", stack=stack)
        each = (_memory() - base) / count
    note = f"{1000 * cpu / count:,.0f} ms of CPU of the browser, {1000 * itself / count:,.0f} ms of this process's; median of {count}"
    return [
        Row("browser: start", 1000 * start, "ms", note="Chromium, its driver and the proxy"),
        Row("browser: item", 1000 * median(walls), "ms", note=note),
        Row("browser: memory of a context", each / 1e6, "MB", at_most=MAX_MEMORY, note="shared memory counted once"),
    ]


async def _item(pool: Pool, shop: Shop, name: str, *, stack: AsyncExitStack | None) -> None:
    """``stack``: where the context is left open."""
    services = ToolServices(pool.artifacts, [pool])
    environment = ToolEnvironment(no_sandbox, SystemClock(), services=services, call_key=f"run/{name}/1/0/0")
    async with AsyncExitStack() as own:
        await (stack or own).enter_async_context(environment)
        await browser_navigate.call({"url": shop.url}, environment)
        seen = (await browser_snapshot.call({}, environment)).content["snapshot"]
        link = re.search(r'link "Lamp 1".*?\[ref=(\w+)\]', seen)
        assert link is not None
        assert (await browser_click.call({"ref": link[1]}, environment)).content["title"] == "Lamp 1"


def _processes() -> list[int]:
    """All that this process has started, and what that has."""
    found = children(os.getpid())
    for pid in found:
        found += children(pid)
    return found


def children_cpu() -> float:
    """Seconds, of processes that have ended and were waited for, too."""
    total = 0.0
    for pid in _processes():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / _TICK
    return total


def _memory() -> float:
    """Bytes, shared ones counted once."""
    total = 0
    for pid in _processes():
        with suppress(OSError, StopIteration):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) << 10
    return float(total)
