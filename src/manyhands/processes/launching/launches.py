"""Launches of commands by a process of its own, as the event loop sees them: see ``launcher`` for what goes between the two."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import Child, close_all
from manyhands.processes.strays import MARK, Tags

LAUNCHER = Path(__file__).with_name("launcher.py")
ANSWER_SECONDS = 30.0
"""Seconds for which the process may say nothing while it is to launch something."""
LOOK_SECONDS = 2.0
"""How often it is looked whether somebody has stopped the process (SIGSTOP), while commands run."""
_END_SECONDS = 5.0
_LIBRARIES = "LD_LIBRARY_PATH"
_NOT_STARTED = 127
_CHUNK = 1 << 16


class Launch(Child):
    """A command's launch. Made by ``Launcher.new``, and done by ``Launcher.launch``."""

    def __init__(self, process: _LauncherProcess, number: int) -> None:
        super().__init__()
        self._process = process
        self._number = number
        self.tag: int | None = None
        self.left_nothing = False
        """Once it has ended: whether no process of it is left, in whatever session."""
        self._answered: asyncio.Future[int] = self._loop.create_future()
        self._ordered_at = self._loop.time()

    def order(
        self,
        tags: tuple[int | None, int | None],
        words: Sequence[str],
        additions: Mapping[str, str],
        streams: Sequence[int],
        folder: str,
    ) -> None:
        """As of ``Launcher.launch``. ``tags``: as the launcher is given them."""
        self.tag = tags[0]
        self._ordered_at = self._loop.time()
        order = {"launch": self._number, "words": [_plain(word) for word in words], "folder": _plain(folder)}
        self._process.order(self, self._number, {**order, "additions": _variables(additions), "tags": tags}, streams)

    async def answer(self) -> int:
        """0 when the command was started, else the number of the error."""
        looking = self._loop.call_later(ANSWER_SECONDS, self._look)
        try:
            return await asyncio.shield(self._answered)
        finally:
            looking.cancel()

    async def stop(self, *, since: int | None = None, grace: float = 0.3) -> None:
        if await self.answer() == 0 and not self._ended.done():
            await super().stop(since=since, grace=grace)
            await self.wait_for(_END_SECONDS)  # the launcher has to see it, too

    def kill_group(self) -> None:
        """SIGKILL to the process group, if it has not ended."""
        if not self._ended.done():
            self._process.kill_group(self._number)

    def began(self, pid: int) -> None:
        self.pid = pid
        self._answer(0)

    def refused(self, number: int, *, left_nothing: bool = False) -> None:
        """It was not started, as far as is known."""
        self.has_ended(_NOT_STARTED, left_nothing=left_nothing)
        self._answer(number)

    def has_ended(self, code: int, *, left_nothing: bool) -> None:
        self.left_nothing = left_nothing
        self._end(code)

    def _answer(self, number: int) -> None:
        if not self._answered.done():
            self._answered.set_result(number)

    def _look(self) -> None:
        """A launcher that has long said nothing is killed, as it might launch later. One that still launches others has to get its turn."""
        if self._answered.done():
            return
        quiet = self._loop.time() - max(self._ordered_at, self._process.heard_at)
        if quiet < ANSWER_SECONDS:
            self._loop.call_later(ANSWER_SECONDS - quiet, self._look)
            return
        self._process.kill()
        self.refused(errno.ETIMEDOUT)


class Launcher:
    """Launches commands, by a process that there is from the first launch on. If that is killed, its commands end as if they had been, too,
    and the next launch has another one. For one event loop; to be closed."""

    def __init__(self, environment: Mapping[str, str], tags: Tags) -> None:
        """``environment``: what all commands have; ``tags``: what they carry."""
        self._environment = environment
        self._tags = tags
        self._process: _LauncherProcess | None = None
        self._numbers = count(1)

    def new(self) -> Launch:
        """A launch that is to be made; until then it has not ended. Raises ItemError(SANDBOX_LOST) if there can't be a process for it."""
        try:
            return Launch(self._running(), next(self._numbers))
        except OSError as error:
            raise _refusal(error) from error

    async def launch(
        self, launch: Launch, words: Sequence[str], additions: Mapping[str, str], streams: Sequence[int], folder: str
    ) -> None:
        """Start the command in a session of its own. ``additions``: to its environment; ``streams``: the descriptors of its standard
        streams, which stay the caller's; ``folder``: where it starts. Raises ItemError(SANDBOX_LOST), from an OSError that says why."""
        tags = self._tags.new(), self._tags.new()  # each is lower than any before, also for the launcher
        try:
            launch.order(tags, words, additions, streams, folder)
        except (OSError, ValueError) as error:
            launch.refused(getattr(error, "errno", None) or errno.EINVAL)
        if (number := await launch.answer()) != 0:
            refused = OSError(number, os.strerror(number))
            raise _refusal(refused) from refused

    async def close(self) -> None:
        """End the process. Idempotent."""
        if self._process is not None:
            await self._process.close()

    def _running(self) -> _LauncherProcess:
        if self._process is not None and not self._process.alive:
            self._process.reap()
            self._process = None
        if self._process is None:
            self._process = _LauncherProcess(self._environment)
        return self._process


class _LauncherProcess:
    """The process itself. Must be made in the event loop's thread, and closed. Raises OSError if it can't be started."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._launches: dict[int, Launch] = {}
        self._loop = asyncio.get_running_loop()
        self._said = b""
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        try:
            self._child = _start(theirs, environment)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self.heard_at = self._loop.time()
        """When it last said something, by the clock of the loop."""
        self._looking: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._channel, self._receive)
        try:
            self._post({"environment": _variables(environment)})
        except (OSError, ValueError):
            self._gone()
            self.reap()
            raise

    @property
    def alive(self) -> bool:
        return self._channel.fileno() >= 0

    def order(self, launch: Launch, number: int, order: Mapping[str, Any], streams: Sequence[int]) -> None:
        """Order a launch, which is then told what comes of it. Raises OSError."""
        if not self.alive:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        self._launches[number] = launch
        try:
            self._post(order, streams)
        except OSError:
            del self._launches[number]
            raise
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._go_on)

    def kill_group(self, number: int) -> None:
        """SIGKILL to the process group of a launch, if it runs."""
        if self.alive:
            try:
                self._post({"kill": number})
            except OSError:  # the system can't send it: what was launched ends with this process
                self.kill()

    def kill(self) -> None:
        self._child.kill()

    def _go_on(self) -> None:
        """Have it go on if a command has stopped it: nobody would hear of the ends of others."""
        self._looking = None
        if self.alive and self._launches:
            with suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGCONT)
            self._looking = self._loop.call_later(LOOK_SECONDS, self._go_on)

    def reap(self) -> None:
        """Wait for the end of one that is not alive."""
        self._child.kill()
        self._child.wait()

    async def close(self) -> None:
        """End it, and wait for its end. Idempotent."""
        self._gone()
        if self._child.returncode is None:
            await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.reap()

    def _post(self, message: Mapping[str, Any], streams: Sequence[int] = ()) -> None:
        """Send a message, now or as soon as may be."""
        data = json.dumps(message).encode()
        data = len(data).to_bytes(4, "big") + data
        if not self._unsent:
            sent = self._send(data, streams)
            if sent == len(data):
                return
            self._loop.add_writer(self._channel, self._send_rest)
            data, streams = data[sent:], () if sent else streams
        self._unsent.append((data, [os.dup(descriptor) for descriptor in streams]))

    def _send_rest(self) -> None:
        while self._unsent:
            data, streams = self._unsent.popleft()
            try:
                sent = self._send(data, streams)
            except OSError:  # what it was sent of the message is of no use to it
                self._unsent.appendleft((data, streams))
                self.kill()
                return
            if sent < len(data):
                self._unsent.appendleft((data[sent:], () if sent else streams))
            if sent:
                close_all(*streams)
            if sent < len(data):
                return
        self._loop.remove_writer(self._channel)

    def _send(self, data: bytes, streams: Sequence[int]) -> int:
        """How much of it was sent. What is for a process that is gone counts as sent: its end is noticed where answers are read. Raises
        OSError where the system can't send it."""
        try:
            return socket.send_fds(self._channel, [data], streams) if streams else self._channel.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except ConnectionError:
            return len(data)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        self.heard_at = self._loop.time()
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            self._hear(*line.split())

    def _hear(self, word: bytes, number: bytes, value: bytes, left: bytes = b"") -> None:
        if word == b"began":
            self._launches[int(number)].began(int(value))
            return
        launch = self._launches.pop(int(number))
        if word == b"ended":
            launch.has_ended(int(value), left_nothing=left == b"0")
        else:
            launch.refused(int(value), left_nothing=True)

    def _gone(self) -> None:
        """It has ended, or is to end."""
        if not self.alive:
            return
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        while self._unsent:
            close_all(*self._unsent.popleft()[1])
        if self._looking is not None:
            self._looking.cancel()
        for launch in self._launches.values():
            if launch.pid:
                with suppress(OSError):  # what was launched is in a group of its own
                    os.killpg(launch.pid, signal.SIGKILL)
                launch.has_ended(-signal.SIGKILL, left_nothing=False)
            else:
                launch.refused(errno.ESRCH)
        self._launches.clear()


def _start(channel: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program with its end of the channel. It carries the run's mark itself, so that it does not outlive its owner either; of
    everything else it has only what some interpreters need to start."""
    kept = {name: value for name in (MARK, _LIBRARIES) if (value := environment.get(name, os.environ.get(name)))}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER), str(channel.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(channel.fileno(),),
        env=kept,
        cwd="/",
        start_new_session=True,
    )


def _refusal(error: OSError) -> ItemError:
    gone = "the process that launches commands has ended" if error.errno == errno.ESRCH else str(error)
    return ItemError(Cause.SANDBOX_LOST, f"can't start a process: {gone}")


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    return {_plain(name): _plain(value) for name, value in given.items()}


def _plain(text: str) -> str:
    """A text whose characters stand for the bytes that the system gets. Raises ValueError for what can't be in any."""
    if "\0" in text:
        raise ValueError("embedded null byte")
    return os.fsencode(text).decode("latin-1")
