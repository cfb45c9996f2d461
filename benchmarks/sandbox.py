"""What a sandbox of each kind costs, side by side in one run: its start, its commands, files and checkpoints, and its end.

Wall times are medians over sandboxes that are made in turns, one of each kind. Processor times are means: of the machine, those of this
process, of what it started, and of the engine with its containers; and of this process alone.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.rows import Row
from manyhands.core.errors import ManyhandsError
from manyhands.processes.event_loop import run_on_loop
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.remote.kept import discard_world
from tests.support.engine_keeper import FULL, Unavailable
from tests.support.engines import engine_of, started
from tests.support.unpacked_images import full_image_pin

COMMANDS = 20
CHANGED = (
    "mkdir -p work && cd work && i=0; while [ $i -lt 100 ]; do head -c 8000 /dev/zero >f$i; i=$((i+1)); done; cd .."
)
"""Changes 0.8 MB."""
ITSELF = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"
KILOBYTE = b"x" * 1023 + b"\n"
START, FIRST, SHELL, OVERHEAD, RUN, READ, WRITE, CHECKPOINT, END = (
    "start",
    "first command",
    "shell command",
    "shell above the command",
    "run",
    "read of 1 kB",
    "write of 1 kB",
    "checkpoint",
    "end",
)
WALL = {OVERHEAD: 2.0, RUN: 5.0, READ: 5.0, WRITE: 5.0, CHECKPOINT: 100.0}
"""Milliseconds that each may take in Docker's containers."""
CLIENT, CHECKPOINT_CPU = 0.15, 60.0
"""Milliseconds of processor time: of this process for a command, and of the machine for a checkpoint, in Docker's containers."""


@dataclass
class _Kind:
    """One kind of sandboxes, and what was measured: seconds of wall, and of the machine's and this process's processor time."""

    label: str
    backend: SandboxBackend
    image: str | None = None
    folder: Path | None = None
    """That of its engine."""
    wall: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, list[float]] = field(default_factory=dict)
    client: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, wall: Sequence[float], machine: float, client: float) -> None:
        self.wall.setdefault(what, []).extend(wall)
        self.machine.setdefault(what, []).append(machine / len(wall))
        self.client.setdefault(what, []).append(client / len(wall))


def sandbox(quick: bool) -> Iterator[Row]:
    """Milliseconds, for all kinds that can be used here."""
    with ExitStack() as stack:
        kinds: list[_Kind] = []
        for label, make in _CANDIDATES.items():
            try:
                kinds.append(made := make(stack))
                problem = made.backend.unavailable()
            except (Unavailable, ManyhandsError, FileNotFoundError) as error:
                problem = str(error)
            if problem is not None:
                kinds = [kind for kind in kinds if kind.label != label]
                yield Row(f"sandbox: {label}", float("nan"), note=f"can't be used here: {problem}")
        run_on_loop(_measured(kinds, 2 if quick else 7))
    for what in (START, FIRST, SHELL, OVERHEAD, RUN, READ, WRITE, CHECKPOINT, END):
        for kind in kinds:
            yield _row(kind, what)
    for kind in kinds:
        if kind.label == "docker":
            yield Row(
                "sandbox: docker client CPU",
                1000 * mean(kind.client[SHELL]),
                "ms",
                at_most=CLIENT,
                note="a shell command",
            )
            figure = 1000 * mean(kind.machine[CHECKPOINT])
            yield Row("sandbox: docker checkpoint CPU", figure, "ms", at_most=CHECKPOINT_CPU, note="of the machine")


def _row(kind: _Kind, what: str) -> Row:
    bound = WALL.get(what) if kind.label == "docker" else None
    figures = kind.wall[what]
    note = f"median of {len(figures)}"
    if what in kind.machine:
        machine, client = (1000 * mean(each[what]) for each in (kind.machine, kind.client))
        of_all = (
            "" if what == END else f"{machine:.1f} ms of the machine's CPU, "
        )  # what ends is not to be seen any more
        note = f"{of_all}{client:.2f} ms of this process's{' CPU' if what == END else ''}; {note}"
    return Row(f"sandbox: {kind.label} {what}", 1000 * median(figures), "ms", at_most=bound, note=note)


def _unpacked(stack: ExitStack) -> _Kind:
    return _Kind("image", BubblewrapBackend(), full_image_pin())


def _engine(name: str) -> Callable[[ExitStack], _Kind]:
    def make(stack: ExitStack) -> _Kind:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mh-"))) / name
        engine = engine_of(name, stack.enter_context(started(name, folder)))
        return _Kind(name, RemoteBackend(ContainerDriver(name, engine.host)), FULL, folder)

    return make


_CANDIDATES: dict[str, Callable[[ExitStack], _Kind]] = {
    "local": lambda stack: _Kind("local", LocalBackend()),
    "bubblewrap": lambda stack: _Kind("bubblewrap", BubblewrapBackend()),
    "image": _unpacked,
    "docker": _engine("docker"),
    "podman": _engine("podman"),
}
"""``image``: bubblewrap with an image."""


async def _measured(kinds: Sequence[_Kind], rounds: int) -> None:
    async with AsyncExitStack() as stack:
        for kind in kinds:
            if isinstance(kind.backend, RemoteBackend):
                stack.push_async_callback(kind.backend.close)
        for number in range(rounds + 1):
            for kind in kinds:  # the first round warms up
                await _one(kind if number else replace(kind, wall={}, machine={}, client={}))


async def _one(kind: _Kind) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name) / "w"
        meter = _Meter(kind)
        made: list[Sandbox] = []

        async def create() -> None:
            made.append(await kind.backend.create(SandboxRequest(folder, "benchmark", image=kind.image)))

        await meter.measure(START, create)
        sandbox = made[0]
        await meter.measure(FIRST, lambda: sandbox.shell("true", timeout=30))
        await meter.measure(SHELL, lambda: sandbox.shell("/bin/true", timeout=30), COMMANDS)
        alone = await sandbox.run(["bash", "-c", ITSELF], timeout=60)
        kind.wall.setdefault(OVERHEAD, []).append(meter.last - alone.seconds / 100)
        await meter.measure(RUN, lambda: sandbox.run(["/bin/true"], timeout=30), COMMANDS)
        await sandbox.write_file("small", KILOBYTE)
        await meter.measure(READ, lambda: sandbox.read_file("small"), COMMANDS)
        await meter.measure(WRITE, lambda: sandbox.write_file("small", KILOBYTE), COMMANDS)
        await _checkpoints(sandbox, meter)

        async def end() -> None:
            await asyncio.shield(sandbox.close())
            if isinstance(kind.backend, RemoteBackend):
                await discard_world(folder, kind.backend.driver)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

        await meter.measure(END, end)


async def _checkpoints(sandbox: Sandbox, meter: _Meter) -> None:
    await sandbox.begin_step("0")
    for number in range(1, 4):
        await sandbox.shell(CHANGED, timeout=60)

        async def checkpoint(address: str = str(number)) -> None:
            await sandbox.end_step()
            await sandbox.begin_step(address)

        await meter.measure(CHECKPOINT, checkpoint)


class _Meter:
    """Notes what is done in one sandbox."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self.last = 0.0
        """Seconds that the last thing took (median)."""

    async def measure(self, what: str, work: Callable[[], Awaitable[Any]], times: int = 1) -> None:
        wall = []
        others, client = _worked(self._kind.folder), _own()
        for _ in range(times):
            began = time.perf_counter()
            await work()
            wall.append(time.perf_counter() - began)
        client = _own() - client
        others = _worked(self._kind.folder) - others
        self.last = median(wall)
        self._kind.note(what, wall, others + client, client)


def _worked(folder: Path | None) -> float:
    """Seconds of processor time of all processes below this one, of those that name the folder of an engine, and of those below these.
    Children that have ended count with who waited for them; this process itself does not."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    roots = {os.getpid()}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if folder is not None and f"{folder}/" in Path(entry.path, "cmdline").read_text(errors="replace"):
                roots.add(int(entry.name))
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        first = 13 if int(entry.name) == os.getpid() else 11  # of this process only what those that have ended took
        used[int(entry.name)] = sum(map(int, fields[first:15])) / os.sysconf("SC_CLK_TCK")
    found = {pid: pid in roots for pid in parents}
    return sum(used[pid] for pid in used if _below(pid, parents, found))


def _below(pid: int, parents: dict[int, int], found: dict[int, bool]) -> bool:
    while pid in parents and not found[pid]:
        pid = parents[pid]
    return found.get(pid, False)


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
