"""Resident shells of ours in a world, which run programs and reach files in a hundredth of the time of an engine's ``exec``.

Each takes one request at a time, as lines of script. One is there from the start, up to four are made as requests run beside each other;
what comes beyond them, and what has much input, gets an ``exec`` of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import ExecResult, blocks_of, to_the_end
from manyhands.processes.output import Capture
from manyhands.sandboxes.remote import scripts
from manyhands.sandboxes.remote.place import OwnCommand, Place, result_of
from manyhands.sandboxes.remote.streams import Marked, Stream, is_number

MAX_INPUT = 1 << 16
"""Bytes of input, or of script, that a service shell takes; more gets an ``exec`` of its own."""
_AT_ONCE = 4
_STARTING = 20.0
_GRACE = 0.3
_LOOKS, _DEAR_LOOKS = 200, 30
"""How often what is to stand still is looked for: where every process belongs to it, and where all of a machine have to be looked at."""
_LAST_MOMENTS = 2.0
_IDLE = 0.05
"""Seconds that a shell may take to become idle after a request's end; what takes longer waits for what the request left behind."""
_MAX_REPORT = 1 << 16
_ROUNDS = 10
_LOOKS_AGAIN, _LOOK_PAUSE = 50, 0.05
_LOOKS_IN_VAIN = 5
_ORDER = 30.0


@dataclass(slots=True)
class _Request:
    number: int
    capture: Capture
    tag: int | None
    report: bytes = b""
    code: int | None = None
    marks: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def group(self) -> int:
        """Its process group; 0 if that is not known."""
        return self._said(b"pid ") or 0

    @property
    def exit_code(self) -> int | None:
        return self.code if self.tag is None else self._said(b"code ")

    def _said(self, word: bytes) -> int | None:
        for line in self.report.splitlines():
            if line.startswith(word) and line[len(word) :].isdigit():
                return int(line[len(word) :][:9])
        return None


class _Slot:
    """One such shell."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._token = secrets.token_hex(16)
        self._stream = Stream()
        self._out = Marked(self._token, self._feed_output, self._note)
        self._errors = Marked(self._token, self._feed_report, self._note)
        self._request: _Request | None = None
        self._ready = asyncio.Event()
        self._numbers = 0
        self.processes: set[int] | None = None
        """The ids of the processes of the world when it became idle last; None if that is not known."""
        self.pid = 0
        self.user = 0
        self.free = True

    @property
    def ended(self) -> asyncio.Event:
        return self._stream.ended

    @property
    def exit_code(self) -> int | None:
        return self._stream.exit_code

    async def start(self) -> None:
        """Raises ItemError(SANDBOX_LOST)."""
        place = self._place
        await self._stream.open(
            place.driver,
            place.world.id,
            place.command(scripts.SERVICE),
            output=self._out.feed,
            errors=self._errors.feed,
            environment=place.environment,
        )
        self._request = _Request(0, Capture(1000), None)
        try:
            await self._stream.write(scripts.service_beginning(self._token).encode())
            if not await self._stream.until(self._request.idle, _STARTING):
                text = self._request.capture.joined() + self._request.report
                said = text.decode(errors="replace").strip()[-300:]
                raise ItemError(
                    Cause.SANDBOX_LOST, f"the sandbox's service shell does not start: {said or 'no answer'}"
                )
        except BaseException:
            await to_the_end(self.close())
            raise

    async def close(self) -> None:
        self.free = False
        self._place.own.discard(self.pid)
        await self._stream.close_input()
        await self._stream.close()

    async def begin(self, text: bytes, request: _Request) -> None:
        """Send a request's lines."""
        self._request = request
        self.processes = None
        await self._stream.write(text)

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def ends(self, request: _Request, seconds: float) -> bool:
        return await self._stream.until(request.ended, seconds)

    async def idles(self, request: _Request, seconds: float) -> bool:
        return await self._stream.until(request.idle, seconds)

    def _feed_output(self, data: bytes) -> None:
        if self._request is not None:
            self._request.capture.feed(data)

    def _feed_report(self, data: bytes) -> None:
        if self._request is not None:
            self._request.report = (self._request.report + data)[:_MAX_REPORT]

    def _note(self, words: list[str]) -> None:
        request = self._request
        if words[0] == "ready" and not self.pid and is_number(words[1:2]):
            self.pid = int(words[1][:9])
            self.user = int(words[2][:9]) if is_number(words[2:3]) else 0
        if request is None or words[1:2] != [str(request.number)]:
            return
        if words[0] == "end":
            request.marks += 1
            if is_number(words[2:3]):
                request.code = int(words[2][:9])
            if request.marks == 2:
                request.ended.set()
                self._stream.stir()
        elif words[0] == "idle":
            names = [word.removeprefix("/proc/") for word in words[2:]]
            self.processes = {int(name) for name in names} if all(name.isdecimal() for name in names) else None
            request.idle.set()
            self._stream.stir()


class Service:
    """The service shells of one running world."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._slots: list[_Slot] = []
        self._opening = 0
        self._given_up = False
        self._owns: set[OwnCommand] = set()
        self.processes: set[int] | None = None
        """The ids of the processes of the world at the end of the last request; None if that is not known."""
        self.user = 0
        """The number of the user who runs commands."""
        self._stopped_ids: list[int] = []
        self.left_behind = False
        """Whether the last program left something that holds its output open."""

    @property
    def broken(self) -> bool:
        """Whether a shell ended that nobody closed, or what runs in the world can't be known any more."""
        for slot in self._slots:
            if slot.ended.is_set():
                return True
        return self._given_up

    async def start(self) -> None:
        """Raises ItemError(SANDBOX_LOST)."""
        slot = await self._made()
        if self._place.world.alone and slot.processes is not None:
            self._place.own |= slot.processes
        self.user = slot.user
        slot.free = True

    async def run(
        self,
        command: Sequence[str],
        directory: str,
        *,
        timeout: float,
        input: bytes | None,
        max_output: int,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program. Raises ItemError."""
        text = None
        tag = self._place.new_tag()
        if user is None and len(input or b"") <= MAX_INPUT:
            text = lambda number: scripts.request(  # noqa: E731
                number, command, directory=directory, soft=tag, input=input, environment=environment
            )
            if len(text(0)) > 4 * MAX_INPUT:
                text = None
        slot = None if text is None else await self._free_slot()
        if slot is None or text is None:
            return await self.run_alone(
                command,
                directory,
                timeout=timeout,
                input=input,
                max_output=max_output,
                user=user,
                environment=environment,
            )
        began = time.monotonic()
        request = _Request(slot.new_number(), Capture(max_output), tag)
        try:
            await slot.begin(text(request.number), request)
            timed_out = not await slot.ends(request, timeout) and not slot.ended.is_set()
            if timed_out:
                await self.end(tag)
                await slot.ends(request, _LAST_MOMENTS)
        except asyncio.CancelledError:
            await to_the_end(self._stopped(slot, request, tag))
            raise
        seconds = time.monotonic() - began
        await self._settle(slot, request)
        return result_of(request.capture, _code(slot, request), timed_out=timed_out, seconds=seconds)

    async def run_alone(
        self,
        command: Sequence[str],
        directory: str,
        *,
        timeout: float,
        input: bytes | BinaryIO | None,
        max_output: int,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program by an ``exec`` of its own. Raises ItemError."""
        began = time.monotonic()
        own = OwnCommand(self._place, Capture(max_output))
        feeding: asyncio.Task[None] | None = None
        try:
            await own.start(command, directory, environment=environment, user=user)
            feeding = asyncio.ensure_future(_feed(own, input))
            timed_out = not await own.wait(timeout)
            if timed_out:
                await self.end(own.tag)
                await own.wait(_LAST_MOMENTS)
        except asyncio.CancelledError:
            if own.stream.exit_code is None:
                await to_the_end(self.end(own.tag, grace=0.1))
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
            await to_the_end(own.close())
        if own.exit_code is None and not timed_out:
            raise ItemError(Cause.SANDBOX_LOST, "the connection to a command broke")
        return result_of(own.capture, own.exit_code, timed_out=timed_out, seconds=time.monotonic() - began)

    async def inner(
        self, script: str, *arguments: str, timeout: float = _ORDER, max_output: int = 1 << 20
    ) -> tuple[int, bytes]:
        """Run a script of ours: its exit code and output. Raises ItemError(SANDBOX_LOST), also if it takes too long."""
        slot = await self._free_slot()
        if slot is None:
            command = ["/bin/sh", "-c", script, "sh", *arguments]
            result = await self.run_alone(command, "/", timeout=timeout, input=None, max_output=max_output)
            if result.exit_code is None:
                raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not answer")
            return result.exit_code, result.output
        return await self._performed(
            slot, lambda number: scripts.inner_request(number, script, arguments), timeout, max_output
        )

    async def order(self, script: str) -> bytes:
        """Run a script of ours that starts no process: what it says. Raises ItemError(SANDBOX_LOST)."""
        slot = await self._free_slot()
        if slot is None:
            return (await self.inner(script))[1]
        return (await self._performed(slot, lambda number: scripts.order(number, script), _ORDER, _MAX_REPORT))[1]

    async def _performed(
        self, slot: _Slot, text: Callable[[int], bytes], timeout: float, max_output: int
    ) -> tuple[int, bytes]:
        request = _Request(slot.new_number(), Capture(max_output), None)
        try:
            await slot.begin(text(request.number), request)
            answered = await slot.ends(request, timeout) and await slot.idles(request, _LAST_MOMENTS)
        except asyncio.CancelledError:
            await to_the_end(self._retire(slot))
            raise
        if not answered or request.code is None:
            await self._drop(slot)
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not answer")
        slot.free = True
        return request.code, request.capture.joined()

    async def spawned(
        self, command: Sequence[str], directory: str, capture: Capture, environment: Mapping[str, str]
    ) -> OwnCommand:
        """Start a program whose streams stay open. Raises ItemError."""
        own = OwnCommand(self._place, capture)
        await own.start(command, directory, environment=environment)
        self._owns.add(own)
        return own

    async def end(self, tag: int, first: Sequence[int] = (), *, grace: float = _GRACE) -> None:
        """End everything with a soft tag: SIGTERM, and after ``grace`` SIGKILL; where that can't be done, everything in the world.
        ``first``: processes to kill before."""
        try:
            await self._end(tag, first, grace)
        except ItemError:
            self.give_up()
            with suppress(ItemError):  # whoever uses the world next learns what is wrong with it
                await self._place.driver.stop(self._place.world.id)

    def give_up(self) -> None:
        """The world has ended, or has to be."""
        self._given_up = True

    async def _end(self, tag: int, first: Sequence[int], grace: float) -> None:
        began = time.monotonic()
        left = await self._signalled("TERM", tag, first)
        pause = 0.01
        while left and time.monotonic() - began < grace:
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)
            left = await self._signalled("0", tag)
        if not left:
            return
        left = await self._signalled("KILL", tag, rounds=_ROUNDS)
        while left and time.monotonic() - began < grace + _LAST_MOMENTS:
            await asyncio.sleep(0.02)
            left = await self._signalled("KILL", tag)
        if left:  # of another user's, as some are whom a program may run as
            raise ItemError(Cause.SANDBOX_LOST, "processes can't be ended")

    async def runs(self, pid: int) -> bool:
        """Whether a process runs."""
        code, line = await self.inner(f'read -r line </proc/{pid}/stat && echo "${{line##*) }}"')
        return code == 0 and line[:1] not in b"ZX"

    async def look(self) -> dict[int, tuple[str, int, int]]:
        """All processes that are seen inside, and belong to the sandbox where others are seen, too: state, parent and session by id."""
        found, _ = await self._looked()
        return found

    async def _looked(self) -> tuple[dict[int, tuple[str, int, int]], set[int]]:
        """The same, and those that ended meanwhile, where no others are seen."""
        _, text = await self.inner(scripts.LOOK)
        found: dict[int, tuple[str, int, int]] = {}
        gone: set[int] = set()
        for fields in (line.split() for line in text.decode(errors="replace").splitlines()):
            if fields[:1] == ["gone"] and is_number(fields[1:]):
                gone.add(int(fields[1]))
            if len(fields) == 4 and fields[0].isdecimal() and fields[2].isdecimal() and fields[3].isdecimal():
                found[int(fields[0])] = (fields[1], int(fields[2]), int(fields[3]))
        if self._place.world.alone:
            return found, gone
        _, tagged = await self.inner(scripts.signalled("0", self._place.hard, None, alone=False))
        ours = {int(word) for word in tagged.split() if word.isdigit()}
        return {pid: process for pid, process in found.items() if pid in ours}, set()

    async def left(self) -> set[int]:
        """What runs in the sandbox that is neither ours nor the world's. Where something ends during each look, a chain of processes may
        run that no look finds, which counts."""
        found: set[int] = set()
        for number in range(_LOOKS_AGAIN):
            before = self._place.opened
            found, gone = await self._seen_left()
            if not found and gone:
                if number + 1 < _LOOKS_IN_VAIN:
                    continue
                found = gone
            if not found or (self._place.opened == before and not self._place.opening):
                break
            await asyncio.sleep(_LOOK_PAUSE)  # what was found may be ours, and just be starting
        return found

    async def _seen_left(self) -> tuple[set[int], set[int]]:
        """What runs, and what has just ended."""
        slots = {slot.pid for slot in self._slots}
        found, gone = await self._looked()
        runs = {
            pid
            for pid, (state, parent, _) in found.items()
            if pid not in self._place.own and parent not in slots and state not in "ZX"
        }
        return runs, gone - self._place.own

    async def freeze(self, also: Sequence[int]) -> bool:
        """Have all that commands started, and ``also``, stand still; whether all of it does."""
        leave = (self._place.own - set(also)) | {slot.pid for slot in self._slots}
        alone = self._place.world.alone
        hard = None if alone else self._place.hard
        try:
            code, said = await self.inner(scripts.frozen(leave, hard, rounds=_LOOKS if alone else _DEAR_LOOKS))
        except ItemError:  # what runs away keeps the machine too busy for an answer
            return False
        self._stopped_ids = [int(word) for word in said.split() if word.isdigit()]
        return code == 0

    async def thaw(self) -> None:
        """Have what was stopped go on."""
        stopped, self._stopped_ids = self._stopped_ids, []
        if stopped:
            await self.inner(f"kill -CONT {' '.join(map(str, stopped))} 2>/dev/null; true")

    async def close(self) -> None:
        """Give up all streams."""
        slots, self._slots = self._slots, []
        owns, self._owns = self._owns, set()
        await asyncio.gather(*(slot.close() for slot in slots), *(own.close() for own in owns))

    async def _signalled(self, signal: str, tag: int, first: Sequence[int] = (), *, rounds: int = 1) -> list[int]:
        place = self._place
        script = scripts.signalled(signal, place.hard, tag, alone=place.world.alone, first=first, rounds=rounds)
        return [int(word) for word in (await self.order(script)).split() if word.isdigit()]

    async def _free_slot(self) -> _Slot | None:
        """A shell that is taken by this; None if all are busy."""
        for slot in self._slots:
            if slot.free and not slot.ended.is_set():
                slot.free = False
                return slot
        if len(self._slots) + self._opening >= _AT_ONCE:
            return None
        return await self._made()

    async def _made(self) -> _Slot:
        slot = _Slot(self._place)
        slot.free = False
        self._opening += 1
        self._place.open()
        try:
            await slot.start()
        finally:
            self._opening -= 1
            self._place.note_open(slot.pid or None)
        self._slots.append(slot)
        return slot

    async def _stopped(self, slot: _Slot, request: _Request, tag: int) -> None:
        await self.end(tag, grace=0.1)
        await self._settle(slot, request)

    async def _settle(self, slot: _Slot, request: _Request) -> None:
        """Have the shell free for the next request; one that is held up by what the request left behind is given up."""
        self.left_behind = False
        if slot.ended.is_set():
            return
        if not await slot.idles(request, _IDLE):
            self.left_behind = True
            kill = f"kill -KILL -- -{request.group}\n" if request.group > 1 else ""
            await self.inner(f"{kill}true")
            if not await slot.idles(request, _IDLE):
                await self._retire(slot)
                return
        self.processes = slot.processes
        slot.free = True

    async def _drop(self, slot: _Slot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
        await slot.close()

    async def _retire(self, slot: _Slot) -> None:
        """End a shell, and what it started to pass on output."""
        pid = slot.pid
        await self._drop(slot)
        await self.inner(
            f"""\
kill -KILL {pid}
for file in /proc/[0-9]*/stat; do
  line=; read -r line <"$file" || continue
  rest=${{line##*) }}; rest=${{rest#? }}
  [ "${{rest%% *}}" = {pid} ] && kill -KILL "${{line%% *}}"
done 2>/dev/null
true
"""
        )


def _code(slot: _Slot, request: _Request) -> int | None:
    """How a request ended. Raises ItemError(SANDBOX_LOST) if that is not known."""
    if request.ended.is_set():
        return 137 if request.exit_code is None else request.exit_code
    if slot.ended.is_set() and slot.exit_code is None:
        raise ItemError(Cause.SANDBOX_LOST, "the connection to a command broke")
    return 137


async def _feed(own: OwnCommand, data: bytes | BinaryIO | None) -> None:
    try:
        async for block in blocks_of(data):
            if not await own.stream.write(block):
                break
    finally:
        await own.stream.close_input()
