"""A child: steps recorded in a journal as fast as it takes them.

Arguments: ``folder``, ``steps``, ``in_flight``. Reports seconds and commits.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.children import Meter, arguments, report
from manyhands.core.clock import SystemClock
from manyhands.core.digests import digest
from manyhands.core.usage import Usage
from manyhands.engine.journal.records import StepRow, pack
from manyhands.engine.journal.store import Store
from manyhands.processes.event_loop import run_on_loop

OUTPUT = {"message": {"role": "assistant", "content": "An answer of ordinary length. " * 8}, "finish_reason": "stop"}


async def recorded(given: dict[str, Any]) -> dict[str, Any]:
    folder, clock = Path(given["folder"]), SystemClock()
    folder.mkdir()
    store = Store(folder, clock, print)
    store.begin()
    numbers = iter(range(given["steps"]))
    usage = Usage(calls=1, input_tokens=100, output_tokens=60)

    async def slot() -> None:
        for number in numbers:
            request = {"number": number}
            now = clock.now()
            row = StepRow(
                number, 1, "", 0, "model", digest("model", request), pack(request), pack(OUTPUT), usage, now, now
            )
            await store.record(row)

    meter = Meter()
    await asyncio.gather(*(slot() for _ in range(given["in_flight"])))
    spent, commits = meter.read(), store.writer.commits
    await store.end("finished")
    store.close()
    return {**asdict(spent), "commits": commits}


if __name__ == "__main__":
    report(**run_on_loop(recorded(arguments())))
