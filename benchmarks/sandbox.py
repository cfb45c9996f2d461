"""What a sandbox costs: started with its first command, each further command in its shell, and each program beside it. For information."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.rows import Row
from manyhands.processes.event_loop import run_on_loop
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest

COMMANDS = 10


def sandbox(quick: bool) -> Iterator[Row]:
    """Milliseconds, for both backends where they can be used."""
    backends: list[SandboxBackend] = [BubblewrapBackend(), LocalBackend()]
    for backend in backends:
        if (problem := backend.unavailable()) is not None:
            yield Row(f"sandbox: {backend.kind}", float("nan"), note=f"can't be used here: {problem}")
            continue
        starts, commands, programs = run_on_loop(_measured(backend, 3 if quick else 15))
        note = f"median of {len(starts)}"
        yield Row(f"sandbox: {backend.kind} start", 1000 * median(starts), "ms", note=f"{note}, with a first command")
        yield Row(f"sandbox: {backend.kind} command", 1000 * median(commands), "ms", note=f"median of {len(commands)}")
        yield Row(f"sandbox: {backend.kind} program", 1000 * median(programs), "ms", note=f"median of {len(programs)}")


async def _measured(backend: SandboxBackend, count: int) -> tuple[list[float], list[float], list[float]]:
    starts: list[float] = []
    commands: list[float] = []
    programs: list[float] = []
    for _ in range(count):
        with TemporaryDirectory() as name:
            began = time.perf_counter()
            made = await backend.create(SandboxRequest(Path(name) / "workspace", "benchmark"))
            try:
                await made.shell("true", timeout=30)
                starts.append(time.perf_counter() - began)
                for _ in range(COMMANDS):
                    began = time.perf_counter()
                    await made.shell("true", timeout=30)
                    commands.append(time.perf_counter() - began)
                    began = time.perf_counter()
                    await made.run(["true"], timeout=30)
                    programs.append(time.perf_counter() - began)
            finally:
                await asyncio.shield(made.close())
    return starts, commands, programs
