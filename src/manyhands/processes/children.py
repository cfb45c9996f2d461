"""Child processes for an event loop: their start, their end, their output, each with a bound.

The loop learns of an end through a pidfd (pidfd_open(2)) where there are such, so neither a thread nor a signal handler is needed, and the
end is known at once even if a grandchild keeps the output open. Works alike on asyncio's own loop and on uvloop.

``Guard`` is a small process that outlives a killed owner just long enough to end what the owner left running, for commands that do not end
with the process that started them by themselves. It needs a shell and GNU grep; where they are missing, the next opening of the run ends
what is left. ``LoneGuard`` is one for a process without an event loop, whose children somebody else may end with it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.output import Capture, ToFile
from manyhands.processes.strays import Tags, end_session, tagged_words
from manyhands.processes.system import ticks_now

Spawn = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a process as ``subprocess.Popen`` does, with its arguments."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended."""

    exit_code: int | None
    """None if it was stopped at its time limit."""
    output: bytes
    """Stdout and stderr as they came, at most ``max_output`` bytes with head and tail kept."""
    omitted: int = 0
    """Bytes left out between head and tail."""
    timed_out: bool = False
    seconds: float = 0.0


_CHUNK = 1 << 16
_LAST_OUTPUT = 0.3
"""Seconds to wait for the rest of the output once the process itself has ended."""

Result = TypeVar("Result")


class Child:
    """A process in a session of its own, and its end. Must be made in the event loop's thread."""

    def __init__(self) -> None:
        self.started = ticks_now()
        """When it began, or a moment before."""
        self.pid = 0
        """0 before it has begun."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + the number of the signal that ended it, as shells count."""
        return self._ended.result() if self._ended.done() else None

    @property
    def ended(self) -> asyncio.Future[int]:
        """Done when it has ended, with the exit code; nobody may cancel it."""
        return self._ended

    async def wait(self) -> int:
        """Wait for the end; cancelling the wait leaves the process alone."""
        return await asyncio.shield(self._ended)

    async def wait_for(self, seconds: float) -> int | None:
        """Wait for the end, ``seconds`` at most."""
        if self._ended.done():
            return self.exit_code
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), max(0.0, seconds))
        return self.exit_code

    async def stop(self, *, since: int | None = None, grace: float = 0.3) -> None:
        """End the whole session, or what of it started at tick ``since`` or later."""
        self_started = self.started if since is None else since
        await end_session(self.pid, self_started, grace=grace)
        await self.wait_for(1.0)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code if code >= 0 else 128 - code)


class Process(Child):
    """A child of this process.

    ``output`` takes its errors too unless there is a descriptor for ``errors``; ``directory``: where it starts. ``alone``: whatever
    is left of its process group is killed when it ends. ``spawn``: what starts it; ``tag``: see ``processes.strays``. Must be made in the
    event loop's thread.
    Raises ItemError(SANDBOX_LOST) if the system refuses to start it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        output: int,
        errors: int | None = None,
        keep: Sequence[int] = (),
        alone: bool = True,
        directory: str = "/",
        spawn: Spawn = subprocess.Popen,
        tag: int | None = None,
    ) -> None:
        super().__init__()
        try:
            self._child = spawn(
                tagged_words(command, tag, environment, directory),
                env=dict(environment),
                stdin=stdin,
                stdout=output,
                stderr=output if errors is None else errors,
                pass_fds=tuple(keep),
                start_new_session=True,
                cwd=directory,
            )
        except (OSError, ValueError) as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't start a process: {error}") from error
        self.pid = self._child.pid
        self._alone = alone
        self._watch()

    def runs(self) -> bool:
        """Whether it has not ended, also where the loop that would be told of that is closed."""
        return self._child.poll() is None

    def on_end(self, call: Callable[[int], object]) -> None:
        """Have ``call`` called with the exit code, soon after the end."""
        self._ended.add_done_callback(lambda ended: call(ended.result()))

    def kill_group(self) -> None:
        """SIGKILL to the process group, if the process has not been waited for."""
        if not self._ended.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to this one process."""
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        try:
            watch = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
        else:
            self._loop.add_reader(watch, self._pidfd_ready, watch)

    def _pidfd_ready(self, watch: int) -> None:
        self._loop.remove_reader(watch)
        os.close(watch)
        if self._alone:  # before it is waited for: until then its id can't belong to anybody else
            self.kill_group()
        self._end(self._child.wait())

    def _wait_in_thread(self) -> None:
        code = self._child.wait()
        with suppress(RuntimeError):  # the loop may be closed by now
            self._loop.call_soon_threadsafe(self._end, code)


class PipeReader:
    """Reads a pipe as data comes and hands it to ``sink``, until its end or ``close``. Owns the descriptor."""

    def __init__(self, descriptor: int, sink: Callable[[bytes], object]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.sink = sink
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def drain(self, max_bytes: int = 1 << 20) -> None:
        """Take what is there now, ``max_bytes`` bytes at most."""
        while max_bytes > 0 and not self.ended.is_set():
            size = self._read()
            if size == 0:
                return
            max_bytes -= size

    async def finish(self, seconds: float) -> None:
        """Wait for the end of the data, ``seconds`` at most, then close."""
        self.drain()
        if not self.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), seconds)
            self.drain()
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self.ended.set()

    def _read(self) -> int:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if data:
            self.sink(data)
        else:
            self.close()
        return len(data)


class PipeWriter:
    """Writes to a pipe without holding up the loop. Owns the descriptor. Data for a reader that is gone is dropped."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._waits = False

    async def write(self, data: bytes) -> bool:
        """Write all of it; False if nobody reads any more."""
        async with self._turn:
            rest = memoryview(data)
            while rest and self._descriptor >= 0:
                size = self._write(rest)
                if size < 0:
                    self.close()
                elif size == 0:
                    await self._writable()
                else:
                    rest = rest[size:]
            return not rest

    def wrote_all(self, data: bytes) -> bool:
        """Write the first that is written, if it is little enough for any pipe, and close; False if it is not."""
        if len(data) > select.PIPE_BUF:
            return False
        if data:
            self._write(memoryview(data))
        self.close()
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            if self._waits:
                self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data[:_CHUNK])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return -1

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._descriptor, _resolve, ready)
        self._waits = True
        try:
            while not ready.done() and self._descriptor >= 0:
                await asyncio.wait([ready], timeout=0.5)
        finally:
            self._waits = False
            if self._descriptor >= 0:
                self._loop.remove_writer(self._descriptor)


async def run_process(
    start: Callable[[int, int], Process],
    *,
    timeout: float,
    input: bytes | BinaryIO | None,
    max_output: int,
    sink: ToFile | None = None,
) -> ExecResult:
    """Run a process to its end or its time limit and gather its output.

    ``start`` gets the descriptors for standard input and for output, and starts the process. ``input``: bytes, or a file from where it
    stands on; ``sink``: takes the output in place of the result, which then has its end only. What writes more than it takes is killed.
    """
    began = time.monotonic()
    capture = sink or Capture(max_output)
    process, reader, writer = started_with_pipes(start, capture.feed)
    if sink is not None:
        sink.on_full = process.kill_group
    feeding = asyncio.ensure_future(_feed(writer, input))
    try:
        exit_code = await process.wait_for(timeout)
        if exit_code is None:
            await process.stop()
        await reader.finish(_LAST_OUTPUT)
    except asyncio.CancelledError:
        await to_the_end(process.stop(grace=0.1))
        raise
    finally:
        feeding.cancel()
        process.kill_group()
        reader.close()
        writer.close()
    seconds = time.monotonic() - began
    return ExecResult(exit_code, capture.joined(), capture.omitted, timed_out=exit_code is None, seconds=seconds)


def started_with_pipes(
    start: Callable[[int, int], Process], sink: Callable[[bytes], object]
) -> tuple[Process, PipeReader, PipeWriter]:
    """Start a process between two fresh pipes."""
    pipes = fresh_pipes(2)
    (input_end, feed_end), (read_end, output_end) = pipes
    try:
        process = start(input_end, output_end)
    except BaseException:
        close_all(feed_end, read_end)
        raise
    finally:
        close_all(input_end, output_end)
    return process, PipeReader(read_end, sink), PipeWriter(feed_end)


def fresh_pipes(count: int) -> list[tuple[int, int]]:
    """Pipes, as pairs of a read end and a write end. Raises ItemError(SANDBOX_LOST) when descriptors have run out."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())  # noqa: PERF401 - what was made must be known when a later one fails
    except OSError as error:
        for pair in pipes:
            close_all(*pair)
        raise ItemError(Cause.SANDBOX_LOST, f"can't make a pipe: {error.strerror}") from error
    return pipes


def close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Let work end even if the caller is cancelled meanwhile; the cancellation follows after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()
        raise asyncio.CancelledError
    return task.result()


async def _feed(writer: PipeWriter, data: bytes | BinaryIO | None) -> None:
    try:
        async for block in blocks_of(data):
            if not await writer.write(block):
                break
    finally:
        writer.close()


async def blocks_of(data: bytes | BinaryIO | None) -> AsyncIterator[bytes]:
    """What a process gets as its input: bytes as they are, a file in pieces of a megabyte. Raises OSError."""
    if isinstance(data, bytes):
        if data:
            yield data
    elif data is not None:
        while block := await asyncio.to_thread(data.read, 1 << 20):
            yield block


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# Ends at a line on its input. At the end of its input without one, its owner is gone: it kills every process whose
# environment holds a line of $1 (with $3, -x: as a whole entry), or whose tag begins with $2, as often as it finds one (at most ten times).
_SCRIPT = """\
trap '' HUP INT QUIT TERM
read -r word && exit 0
round=0
while [ "$round" -lt 10 ]; do
  round=$((round + 1))
  found=$(grep -lsazF $3 -e "$1" /proc/[0-9]*/environ 2>/dev/null
    [ -z "$2" ] || grep -ls -e " $2[0-9][0-9]* " /proc/[0-9]*/limits 2>/dev/null)
  [ -n "$found" ] || exit 0
  for file in $found; do
    process=${file#/proc/}
    kill -KILL "${process%/*}" 2>/dev/null
  done
done
"""

# Waits as the script above does, then kills the process groups that are its arguments.
_GROUPS_SCRIPT = """\
trap '' HUP INT QUIT TERM
read -r word && exit 0
for group; do kill -KILL "-$group" 2>/dev/null; done
"""


class Guard:
    """Kills every process that carries ``mark`` (``NAME=value`` in its environment; with ``family``, the beginning of that), or one of
    ``tags``, when this process ends without ``dismiss``; or, with ``groups``, all of these process groups.

    Must be made in the event loop's thread. Raises ItemError(SANDBOX_LOST).
    """

    def __init__(
        self, mark: str = "", tags: Tags | None = None, *, family: bool = False, groups: Sequence[int] | None = None
    ) -> None:
        ((watched, self._lifeline),) = fresh_pipes(1)
        nowhere = -1
        try:
            nowhere = _open_nowhere()
            marked = [_SCRIPT, "sh", mark, "" if tags is None else tags.text, "" if family else "-x"]
            words = marked if groups is None else [_GROUPS_SCRIPT, "sh", *map(str, groups)]
            command = ["/bin/sh", "-c", *words]
            self._process = Process(command, {"PATH": os.defpath}, stdin=watched, output=nowhere)
        except BaseException:
            close_all(self._lifeline)
            raise
        finally:
            close_all(watched, nowhere)

    @property
    def alive(self) -> bool:
        """Whether nobody has ended it."""
        return self._process.runs()

    async def dismiss(self) -> None:
        """End it: everything has been ended. Idempotent."""
        if self._lifeline < 0:
            return
        lifeline, self._lifeline = self._lifeline, -1
        with suppress(OSError):  # somebody may have killed it
            os.write(lifeline, b"\n")
        close_all(lifeline)
        if await self._process.wait_for(2.0) is None:
            self._process.kill()


_ALONE = 'exec 3<&0; /bin/sh -c "$0" sh "$@" <&3 3<&- &'
"""Starts the script above so that it is no child of whoever starts this."""


class LoneGuard:
    """Kills every process with one of ``marks`` (``NAME=value``) in its environment when this process ends without ``dismiss``. It is none
    of this process's children, so that it is spared where these are ended before it, as Ray does it. Raises OSError, SubprocessError."""

    def __init__(self, marks: Sequence[str]) -> None:
        watched, self._lifeline = os.pipe()
        try:
            subprocess.run(
                ["/bin/sh", "-c", _ALONE, _SCRIPT, "\n".join(marks), "", "-x"],
                stdin=watched,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,
                check=True,
                timeout=30.0,
            )
        except BaseException:
            close_all(self._lifeline)
            raise
        finally:
            close_all(watched)

    def dismiss(self) -> None:
        """End it: everything has been ended. To be called once."""
        with suppress(OSError):  # somebody may have killed it
            os.write(self._lifeline, b"\n")
        close_all(self._lifeline)


def _open_nowhere() -> int:
    try:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't open {os.devnull}: {error.strerror}") from error
