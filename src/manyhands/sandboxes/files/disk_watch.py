"""Bounds on the disk space of a sandbox, for file systems that have none.

What a sandbox's folders hold is counted every two seconds while anything runs in it, and after each command. A sandbox that is over its
quota has everything in it killed, and goes on, so that its agent can remove files; one that goes over it again and again, or far over
it, is ended, and its files are removed. Between two counts as much can be written as the machine writes in that time.

Where the whole file system falls below a floor of free space, the sandbox of the run that holds most of it is ended, then, if that was
not enough, the next one; never one that holds less than its share of the floor. Sandboxes of other processes of the run are known by files
``disk_use``, which their processes hold a lock on.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.files import is_full
from manyhands.processes.children import ExecResult
from manyhands.sandboxes.files.walking import DiskUse, disk_use
from manyhands.sandboxes.protocol import SandboxLimits

_EVERY = 2.0
"""Seconds between two counts."""
_TICK = 0.25
"""Seconds between two looks at the free space of the file system while a command runs."""
_MAX_COUNT_SECONDS = 10.0
"""Seconds that a count may take. What can't be counted in that time is over the quota."""
_QUICK = 0.001
"""Seconds of a count that is done in the event loop's thread."""
_DEAR = 0.02
"""Seconds of a count that is not done after each command, unless free space has gone, and otherwise a tenth of the time at most."""
_NOTABLE = 16 << 20
"""Bytes of free space that are gone."""
STRIKES = 3
"""How often a sandbox can be found over its quota, with more in it than the time before, until it is ended."""
FACTOR = 2
"""How many times its quota ends a sandbox at once."""
_REGROWTH = 32
"""Part of the quota by which a sandbox that is over it has to grow to be found over it once more."""
_PATIENCE = 4.0
"""Seconds below the floor until a sandbox is ended that holds less than the whole floor."""
_WAIT_FOR_ROOM = 10.0
_FLOOR = DiskUse(1 << 30, 10_000)
_FLOOR_PART = 50
_PUBLISHED = "disk_use"
_LINE = "{:020d} {:020d}\n"
_GIB = 1 << 30
Result = TypeVar("Result")


@dataclass(slots=True)
class _Space:
    """What is free of a file system, and the floor of that."""

    free: DiskUse
    floor: DiskUse

    @classmethod
    def of(cls, folder: Path, min_free: int | None) -> _Space:
        """Raises OSError."""
        found = os.statvfs(folder)
        size = found.f_blocks * found.f_frsize
        # A file system without a fixed number of files has none to run out of.
        free = DiskUse(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else _FLOOR.entries)
        entries = min(_FLOOR.entries, found.f_files // _FLOOR_PART)
        return cls(free, DiskUse(min(_FLOOR.size, size // _FLOOR_PART) if min_free is None else min_free, entries))

    @property
    def low(self) -> bool:
        return self.free.size < self.floor.size or self.free.entries < self.floor.entries

    @property
    def gone(self) -> bool:
        """Whether next to nothing is left, so that also the run's own files can't be written."""
        return self.free.size <= self.floor.size // 8 or self.free.entries <= self.floor.entries // 8


async def with_space(work: Callable[[], Awaitable[Result]]) -> Result:
    """The outcome of work that can be done again if it fails because a disk is full: for some seconds, as somebody may be about to be ended
    who has filled it. Raises what ``work`` raises."""
    began = time.monotonic()
    while True:
        try:
            return await work()
        except (OSError, ItemError) as error:
            cause = error.__cause__ if isinstance(error, ItemError) else error
            if not is_full(cause) or time.monotonic() - began > _WAIT_FOR_ROOM:
                raise
        await asyncio.sleep(0.1)


class DiskWatch:
    """The watch over one sandbox. ``trees``: the folders in ``folder`` that commands write to; ``processes``: the ids of what runs in it,
    called in another thread; ``running``: whether anything may run in it; ``kill``: kills everything in it; ``clear``: removes its files,
    called in another thread. Made, used and closed in one event loop's thread."""

    def __init__(
        self,
        folder: Path,
        trees: Sequence[str],
        limits: SandboxLimits,
        *,
        processes: Callable[[], Collection[int]],
        running: Callable[[], bool],
        kill: Callable[[], Awaitable[None]],
        clear: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._trees = [folder / tree for tree in trees]
        self._quota = DiskUse(limits.disk, limits.files)
        self._min_free = limits.min_free
        self._processes = processes
        self._running = running
        self._kill = kill
        self._clear = clear
        self._published = -1
        self._commands = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._counted = 0.0
        """When the last count ended."""
        self._took = 0.0
        self._free: int | None = None
        """Bytes that were free then."""
        self._low_since: float | None = None
        self._sent_since: float | None = None
        """Since when each count has found descriptors on their way in sockets."""
        self._strikes = 0
        self._struck: DiskUse | None = None
        self._excess: str | None = None
        self._failure: ItemError | None = None

    def check(self) -> None:
        """Raises ItemError(SANDBOX_LIMIT) if the sandbox was ended."""
        if self._failure is not None:
            raise ItemError(self._failure.cause, self._failure.message)

    @contextmanager
    def command(self) -> Iterator[None]:
        """A command runs as long as this is open."""
        self._watch()
        self._commands += 1
        try:
            yield
        finally:
            self._commands -= 1

    def background(self) -> None:
        """Something runs from now on, maybe, for whose end nobody waits."""
        self._watch()

    @property
    def strikes(self) -> int:
        """How often the sandbox was found over its quota."""
        return self._strikes

    async def judged(self, result: ExecResult, strikes: int = -1) -> ExecResult:
        """The result of a command, with a line at its end if the sandbox is over its quota (and, given the ``strikes`` that there were
        before it, was found to be so since). Raises as ``check``."""
        if self._due():
            await self._count(nameless=self._low_since is not None)
        self.check()
        if self._excess is None or strikes == self._strikes:
            return result
        line = f"disk quota exceeded: {self._excess}; remove files".encode()
        return replace(result, output=(result.output.rstrip(b"\n") + b"\n" + line).lstrip(b"\n"))

    async def wait_for_space(self) -> None:
        """Wait until the run's own files can be written, if the file system has just been filled: whoever did it is being ended."""
        began = time.monotonic()
        while time.monotonic() - began < _WAIT_FOR_ROOM and self._failure is None:
            space = _Space.of(self._folder, self._min_free)
            self._note_low(space)
            if not space.gone or (self._low_since is not None and began - self._low_since > _WAIT_FOR_ROOM):
                return
            self._watch()
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Everything in the sandbox has been ended. Raises nothing for a sandbox that was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._failure is not None:
            with suppress(OSError):  # what is left of it is removed by the engine, or named by it
                await asyncio.to_thread(self._clear)
        if self._published >= 0:
            with suppress(OSError):
                (self._folder / _PUBLISHED).unlink()
            os.close(self._published)
            self._published = -1

    # The watching

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            if self._published < 0:
                self._publish(DiskUse())
            self._task = asyncio.ensure_future(self._go_on())

    async def _go_on(self) -> None:
        began = time.monotonic()
        while self._failure is None:
            await asyncio.sleep(_TICK if self._commands else _EVERY)
            if not (self._commands or self._running()):
                return
            with suppress(OSError):
                space = _Space.of(self._folder, self._min_free)
                self._note_low(space)
                since = time.monotonic() - max(self._counted, began)
                if since >= max(_EVERY, 10 * self._took) or (space.low and since >= max(_TICK, 2 * self._took)):
                    await self._count()

    def _due(self) -> bool:
        """Whether there must be a count after a command."""
        if self._took < _DEAR or self._excess is not None or self._free is None:
            return True
        with suppress(OSError):
            space = _Space.of(self._folder, self._min_free)
            return space.low or space.free.size < self._free - _NOTABLE
        return True

    def _note_low(self, space: _Space) -> None:
        if not space.low:
            self._low_since = None
        elif self._low_since is None:
            self._low_since = time.monotonic()

    async def _count(self, *, nameless: bool = True) -> None:
        """``nameless``: also count files without a name. They can be left to the count to come: they are gone with their processes."""
        async with self._turn:
            if self._failure is not None:
                return
            began = time.monotonic()
            with suppress(OSError):  # no descriptors left, or the like: nothing that the sandbox is to blame for
                use, space = await self._counted_somewhere(nameless)
                if nameless:
                    use = self._with_sent(use)
                self._free = space.free.size
                self._note_low(space)
                if not await self._over_quota(use) and space.low:
                    await self._below_floor(use, space)
            self._counted = time.monotonic()
            self._took = self._counted - began

    async def _counted_somewhere(self, nameless: bool) -> tuple[DiskUse, _Space]:
        """Next to nothing is counted here: to have it done by another thread would take as long again."""
        if not nameless and self._took < _QUICK:
            use, space = self._counted_now(nameless, seconds=_QUICK)
            if use.whole:
                return use, space
        return await asyncio.to_thread(self._counted_now, nameless)

    def _counted_now(self, nameless: bool, seconds: float = _MAX_COUNT_SECONDS) -> tuple[DiskUse, _Space]:
        limit = DiskUse(FACTOR * self._quota.size, FACTOR * self._quota.entries)
        use = disk_use(self._trees, self._processes() if nameless else (), limit=limit, seconds=seconds)
        self._publish(use)
        return use, _Space.of(self._folder, self._min_free)

    # The quota

    def _with_sent(self, use: DiskUse) -> DiskUse:
        """What is on its way for an instant is nothing to mind; files can be kept in a socket for ever, where nobody can count them."""
        now = time.monotonic()
        self._sent_since = (self._sent_since or now) if use.sent else None
        stays = self._sent_since is not None and now - self._sent_since >= _EVERY
        return replace(use, whole=False) if stays else use

    async def _over_quota(self, use: DiskUse) -> bool:
        """Do what is due if the quota is exceeded; whether it is."""
        self._excess = excess = _excess(use, self._quota)
        if excess is None:
            self._struck = None
            return False
        far = use.size > FACTOR * self._quota.size or use.entries > FACTOR * self._quota.entries
        if self._struck is None or far or _grown(self._struck, use, self._quota):
            self._strikes += 1
            self._struck = use
            if far or self._strikes >= STRIKES:
                times = "" if far else f" (found {STRIKES} times)"
                await self._end(f"disk quota exceeded: {excess}{times}")
            else:
                await self._kill()
        return True

    # The floor

    async def _below_floor(self, use: DiskUse, space: _Space) -> None:
        others = await asyncio.to_thread(lambda: dict(self._others()))
        for name, unit in (("size", size_in_words), ("entries", _files)):
            mine, free, floor = (getattr(each, name) for each in (use, space.free, space.floor))
            if free >= floor or mine * (len(others) + 1) < floor:
                continue
            if any((getattr(theirs, name), other) > (mine, self._folder.name) for other, theirs in others.items()):
                continue
            if mine >= floor or self._low_for(_PATIENCE):
                await self._end(
                    f"the disk is nearly full ({unit(free)} free, {unit(floor)} are to stay free), and this sandbox holds "
                    f"{unit(mine)}, more than any other of the run"
                )
                return

    def _low_for(self, seconds: float) -> bool:
        return self._low_since is not None and time.monotonic() - self._low_since >= seconds

    async def _end(self, why: str) -> None:
        """End the sandbox, and free its space at once."""
        self._failure = ItemError(Cause.SANDBOX_LIMIT, f"{why}; its files were removed")
        await self._kill()
        with suppress(OSError):  # something may still be ending in it: ``close`` tries again
            await asyncio.to_thread(self._clear)
        await asyncio.to_thread(self._publish, DiskUse())

    def _publish(self, use: DiskUse) -> None:
        """Have other processes know. Lines have one length, so that this needs no space on a full disk."""
        with suppress(OSError):
            if self._published < 0:
                self._published = os.open(self._folder / _PUBLISHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._published, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._published, _LINE.format(use.size, use.entries).encode(), 0)

    def _others(self) -> Iterator[tuple[str, DiskUse]]:
        """The other living sandboxes of the run, and what they hold."""
        for path in self._folder.parent.glob(f"*/{_PUBLISHED}"):
            if path.parent != self._folder:
                use = _published(path)
                if use is not None:
                    yield path.parent.name, use


def _published(path: Path) -> DiskUse | None:
    """What a sandbox's process says; None if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        size, entries = os.read(descriptor, 100).split() or (b"0", b"0")
        return DiskUse(int(size), int(entries))
    finally:
        os.close(descriptor)


def _excess(use: DiskUse, quota: DiskUse) -> str | None:
    """What is over the quota, in words."""
    more = "" if use.whole else "more than "
    if use.size > quota.size:
        return f"{more}{size_in_words(use.size)} of {size_in_words(quota.size)}"
    if use.entries > quota.entries:
        return f"{more}{_files(use.entries)} of {quota.entries:,}"
    return (
        None
        if use.whole
        else "its files can't be counted (too many changes, folders that can't be opened, or descriptors left in sockets)"
    )


def _grown(before: DiskUse, now: DiskUse, quota: DiskUse) -> bool:
    return now.size > before.size + quota.size // _REGROWTH or now.entries > before.entries + quota.entries // _REGROWTH


def size_in_words(size: int) -> str:
    """Bytes, in GiB or MiB."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.1f} MiB"


def _files(count: int) -> str:
    return f"{count:,} files"
