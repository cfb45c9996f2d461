"""Tries out a kind of sandboxes, on this machine and the user's own account: whether its sandboxes do what the project relies on, and how
long each thing takes. Every world that is made for it is removed again.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.redaction import describe
from manyhands.processes.strays import process_mark
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.kinds import AUTO, kind_named, part_of
from manyhands.sandboxes.lifecycle.backend import opened_backend
from manyhands.sandboxes.lifecycle.planning import planned_images
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest
from manyhands.sandboxes.remote.driver import RUN, Driver
from manyhands.sandboxes.settings import SandboxSettings

PASSED, FAILED = "passed", "failed"
_CHECK_SECONDS = 300.0
"""How long one check may take."""
_CLEAN_UP_SECONDS = 300.0
_WAIT = 60.0
_TIMED = 10
_SECRET = "MANYHANDS_CHECK_SECRET"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check."""

    name: str
    result: str
    """``passed`` or ``failed``."""
    seconds: float
    detail: str = ""
    """Why it failed."""


@dataclass(slots=True)
class SandboxReport:
    """What was found out."""

    kind: str
    image: str | None
    checks: list[CheckResult] = field(default_factory=list)
    latencies: dict[str, float] = field(default_factory=dict)
    """Medians, in seconds: ``start`` (with the first command), ``command``, ``run``, ``read``, ``write``, ``checkpoint``, ``end``."""
    left: int = 0
    """Worlds and snapshots that could not be removed."""

    @property
    def failed(self) -> int:
        return sum(each.result == FAILED for each in self.checks)

    @property
    def usable(self) -> bool:
        return not self.failed and not self.left


class CheckFailed(Exception):
    """A sandbox did something else than what is relied on."""


async def check_sandboxes(
    options: SandboxSettings, notice: Notice, done: Callable[[CheckResult], None] = lambda result: None
) -> SandboxReport:
    """Check the kind that the settings name. ``done`` is called after each check. Raises UserError if it can't be used at all."""
    pins = await planned_images(options, ImageDemand(), notice)
    name = pins.kind or options.sandbox
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="manyhands-check-"))
    try:
        async with AsyncExitStack() as stack:
            driver = None if name == AUTO else _driver(name, options)
            if driver is not None:
                stack.push_async_callback(driver.close)
            backend = await stack.enter_async_context(opened_backend(options, pins, folder))
            report = SandboxReport(backend.kind, options.image)
            checking = _Checking(backend, folder, report)
            try:
                for check in _CHECKS:
                    result = await _checked(check, checking)
                    report.checks.append(result)
                    done(result)
            finally:
                await checking.clean_up(driver)
            return report
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _driver(name: str, options: SandboxSettings) -> Driver | None:
    kind = kind_named(name)
    driver: Driver | None = None if kind.driver is None else part_of(name, kind.driver, options)
    return driver


class _Checking:
    """What the checks have in common."""

    def __init__(self, backend: SandboxBackend, folder: Path, report: SandboxReport) -> None:
        self.backend = backend
        self.folder = folder
        self.report = report
        self.run = process_mark(f"check-{secrets.token_hex(8)}")
        self._count = 0

    def request(self, **more: Any) -> SandboxRequest:
        self._count += 1
        return SandboxRequest(self.folder / f"world-{self._count}", self.run, name=f"check-{self._count}-1", **more)

    @asynccontextmanager
    async def sandbox(self, request: SandboxRequest | None = None) -> AsyncIterator[Sandbox]:
        sandbox = await self.backend.create(request or self.request())
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def clean_up(self, driver: Driver | None) -> None:
        """Remove all worlds and snapshots of this check; those that stay are counted."""
        if driver is None:
            return
        try:
            async with asyncio.timeout(_CLEAN_UP_SECONDS):
                for each in await driver.listed({RUN: self.run}):
                    await (driver.delete_snapshot if each.snapshot else driver.delete)(each.id)
                self.report.left = len(await driver.listed({RUN: self.run}))
        except (ItemError, TimeoutError):
            self.report.left = max(1, self.report.left)


async def _checked(check: Callable[[_Checking], Awaitable[None]], checking: _Checking) -> CheckResult:
    name = check.__name__.removeprefix("_").replace("_", " ")
    began = time.monotonic()
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await check(checking)
    except TimeoutError:
        detail = f"not done within {_CHECK_SECONDS:.0f} s"
    except (CheckFailed, ItemError, ToolError) as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001 - the boundary to a client of others, which may raise anything
        detail = describe(error)
    else:
        return CheckResult(name, PASSED, time.monotonic() - began)
    return CheckResult(name, FAILED, time.monotonic() - began, detail)


async def _said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.shell(command, timeout=_WAIT)
    if result.exit_code != 0:
        raise CheckFailed(f"{command!r} ended with {result.exit_code}: {result.output[-300:].decode(errors='replace')}")
    return result.output.decode(errors="replace").strip()


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {str(found)[:200]!r} instead of {str(wanted)[:200]!r}")


# --- The checks


async def _start_and_end(checking: _Checking) -> None:
    starts, ends = [], []
    for _ in range(3):
        began = time.monotonic()
        sandbox = await checking.backend.create(checking.request())
        try:
            _expect(await _said(sandbox, "echo begun"), "begun", "the first command")
            starts.append(time.monotonic() - began)
        finally:
            began = time.monotonic()
            await sandbox.close()
            ends.append(time.monotonic() - began)
    checking.report.latencies |= {"start": statistics.median(starts), "end": statistics.median(ends)}


async def _latencies(checking: _Checking) -> None:
    data = secrets.token_bytes(1000)
    async with checking.sandbox() as sandbox:
        await sandbox.write_file("timed", data)

        async def read() -> None:
            _expect(await sandbox.read_file("timed"), data, "a file")

        timed: dict[str, Callable[[], Awaitable[object]]] = {
            "command": lambda: _said(sandbox, "/bin/true"),
            "run": lambda: sandbox.run(["/bin/true"], timeout=_WAIT),
            "write": lambda: sandbox.write_file("timed", data),
            "read": read,
        }
        for name, call in timed.items():
            checking.report.latencies[name] = await _median(call)


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    took = []
    for _ in range(_TIMED):
        began = time.monotonic()
        await call()
        took.append(time.monotonic() - began)
    return statistics.median(took)


async def _commands(checking: _Checking) -> None:
    async with checking.sandbox() as sandbox:
        result = await sandbox.run(["sh", "-c", "cat; echo bad >&2; exit 7"], timeout=_WAIT, input=b"\x00\xff\n")
        _expect((result.exit_code, result.output), (7, b"\x00\xff\nbad\n"), "a program's exit code and output")
        large = await sandbox.run(["head", "-c", "300000", "/dev/zero"], timeout=_WAIT, max_output=10_000)
        _expect(len(large.output) + large.omitted >= 300_000, True, "all of a large output counted")
        await _said(sandbox, "mkdir -p there; cd there; variable=kept")
        _expect(await _said(sandbox, 'echo "$variable"; pwd'), f"kept\n{sandbox.workspace}/there", "the shell's state")
        _expect((await sandbox.shell("exit 9", timeout=_WAIT)).exit_code, 9, "the shell's exit code")


async def _commands_at_the_same_time(checking: _Checking) -> None:
    async with checking.sandbox() as sandbox:
        results = await asyncio.gather(*(sandbox.run(["echo", str(each)], timeout=_WAIT) for each in range(8)))
        _expect([each.output for each in results], [b"%d\n" % each for each in range(8)], "eight programs' output")


async def _files(checking: _Checking) -> None:
    data = bytes(range(256)) * 1000
    async with checking.sandbox() as sandbox:
        await sandbox.write_file("new/folder/file.bin", data)
        _expect(await sandbox.read_file(f"{sandbox.workspace}/new/folder/file.bin"), data, "a file of 256 kB")
        try:
            await sandbox.read_file("missing")
        except ToolError:
            return
        raise CheckFailed("a missing file could be read")


async def _archives(checking: _Checking) -> None:
    given, taken = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=given, mode="w") as tar:
        entry = tarfile.TarInfo("folder/file")
        entry.size, entry.mode = 100_000, 0o751
        tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    given.seek(0)
    async with checking.sandbox() as sandbox:
        await sandbox.put(given, sandbox.workspace)
        _expect(await _said(sandbox, "ls -l folder/file | cut -c1-10"), "-rwxr-x--x", "a file's mode")
        await sandbox.get(f"{sandbox.workspace}/folder", taken, max_bytes=1 << 20)
    taken.seek(0)
    with tarfile.open(fileobj=taken) as tar:
        _expect(sorted(tar.getnames()), ["folder", "folder/file"], "an archive's names")


async def _time_limit(checking: _Checking) -> None:
    long = f"sleep {secrets.randbelow(10**6) + 10**6}"  # nobody else's, where commands see the whole machine
    async with checking.sandbox() as sandbox:
        result = await sandbox.run(["sh", "-c", f"{long} & {long}"], timeout=1)
        _expect(result.timed_out, True, "stopped at the time limit")
        result = await sandbox.shell(f"{long} | {long}", timeout=1)
        _expect(result.timed_out, True, "the shell's command stopped at the time limit")
        pattern = long.replace(" ", "[ ]")  # which does not find itself
        found = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{pattern}'; true"
        _expect(await _said(sandbox, found), "0", "processes that outlived their time limit")


async def _processes_in_the_background(checking: _Checking) -> None:
    async with checking.sandbox() as sandbox:
        process = await sandbox.spawn("cat; exit 3")
        await process.write(b"to it\n")
        await process.close_input()
        _expect(await process.wait(_WAIT), 3, "its exit code")
        _expect(process.output()[0], b"to it\n", "its output")
        lasting = await sandbox.spawn("sleep 4323")
        _expect(await lasting.wait(0.2), None, "a process that lasts")
        await lasting.kill()
        _expect(await lasting.wait(_WAIT) is None, False, "the end of a killed process")


async def _environment(checking: _Checking) -> None:
    request = checking.request(environment={_SECRET: "it's\nhere"})
    async with checking.sandbox(request) as sandbox:
        _expect(await _said(sandbox, f'printf %s "${_SECRET}"'), "it's\nhere", "a variable")
    async with checking.sandbox() as sandbox:
        _expect(
            await _said(sandbox, "env | grep -ci 'API_KEY\\|TOKEN\\|PASSWORD'; true"), "0", "keys in the environment"
        )


async def _nothing_shared(checking: _Checking) -> None:
    async with checking.sandbox() as one, checking.sandbox() as other:
        await one.write_file("mine", b"of one")
        try:
            await other.read_file("mine")
        except ToolError:
            return
        raise CheckFailed("a sandbox has another one's file")


async def _a_step_cut_off(checking: _Checking) -> None:
    """The world is brought back as it was before it, as after the death of the process."""
    request = checking.request()
    async with checking.sandbox(request) as sandbox:
        await sandbox.begin_step("main/1")
        await sandbox.write_file("kept", b"before")
        took = []
        for number in range(2, 5):
            await sandbox.write_file(f"file-{number}", b"before")
            began = time.monotonic()
            await sandbox.begin_step(f"main/{number}")
            took.append(time.monotonic() - began)
        await _said(sandbox, "rm kept; echo after >new")
    checking.report.latencies["checkpoint"] = statistics.median(took)
    async with checking.sandbox(request) as sandbox:
        _expect(sandbox.open_step, "main/4", "the step that was begun")
        _expect(await sandbox.reattach(False, "main/4"), True, "brought back")
        _expect(await _said(sandbox, "ls; cat kept"), "file-2\nfile-3\nfile-4\nkept\nbefore", "the files of before")


async def _nothing_left_running(checking: _Checking) -> None:
    async with checking.sandbox() as sandbox:
        await _said(sandbox, "sleep 4324 >/dev/null 2>&1 & echo begun")
    processes = getattr(checking.backend, "processes", None)
    if processes is not None:
        _expect(await processes(checking.run), [], "what runs after the end")


_CHECKS: tuple[Callable[[_Checking], Awaitable[None]], ...] = (
    _start_and_end,
    _latencies,
    _commands,
    _commands_at_the_same_time,
    _files,
    _archives,
    _time_limit,
    _processes_in_the_background,
    _environment,
    _nothing_shared,
    _a_step_cut_off,
    _nothing_left_running,
)
