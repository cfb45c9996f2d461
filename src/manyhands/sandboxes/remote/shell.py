"""The persistent shell of a world: a bash, or where there is none a plain ``sh``, behind one of an engine's ``exec`` streams.

Its script comes as its input; its output is what commands write, its errors are its reports (``commands.shell_state``). The two travel
separately and may overtake each other, so that the end of a command is marked in both. After most commands nothing of a bash's state has
changed: the mark in its output says so, and no report comes. A plain ``sh`` has only its directory and its exported variables as its
state, and always reports.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.processes.children import ExecResult, to_the_end
from manyhands.processes.output import Capture
from manyhands.sandboxes.commands.shell import ShellNotStarted
from manyhands.sandboxes.commands.shell_state import (
    Kept,
    Report,
    ShellState,
    StateFile,
    bash_beginning,
    bash_line,
    sh_beginning,
    sh_line,
)
from manyhands.sandboxes.remote import scripts
from manyhands.sandboxes.remote.place import LAST_WORDS, Place, result_of
from manyhands.sandboxes.remote.service import Service
from manyhands.sandboxes.remote.streams import Marked, Stream, is_number

_OUTPUT, _STATUS, _NOW, _BEFORE = 201, 202, 203, 204
_STARTING = 20.0
_ASKED_EVERY = 2.0
"""Seconds after which it is looked whether a shell still lives that has not answered."""
_LEFT_OVER = 1 << 16
_SHORT = 1 << 14
"""Bytes that a connection takes at once."""


class RemoteShell:
    """One shell in a world. ``state``: what it goes on from, and afterwards its last known state; ``fallback``: where it starts if the
    state's directory is gone."""

    def __init__(self, place: Place, service: Service, state: ShellState, fallback: str) -> None:
        self._place = place
        self._service = service
        self._fallback = fallback
        self.state = state
        self.processes: set[int] | None = None
        """The ids of the processes of the world at the end of the last command; None if that is not known."""
        self._token, self._mark = secrets.token_hex(16), secrets.token_hex(16)
        self._stream = Stream()
        self._kind = ""
        self._noise = b""
        self._pid = 0
        self._ready = [asyncio.Event(), asyncio.Event()]
        self._report = Report(begun=True)
        self._same: list[str] | None = None
        """The words of a mark in place of a report: an exit code, and the processes of the world."""
        self._listed: list[str] = []
        self._ids: set[int] | None = None
        self._answered = asyncio.Event()
        """The report has come, or that mark."""
        self._capture = Capture(_LEFT_OVER)
        self._marked = asyncio.Event()
        self._output = Marked(self._mark, lambda data: None, self._output_mark)
        self._starting = Marked(self._mark, self._note_noise, self._status_mark)
        self._named = asyncio.Event()
        self._usable = True
        self._tag = 0

    @property
    def alive(self) -> bool:
        """Whether it can take a command."""
        return self._usable and not self._stream.ended.is_set()

    @property
    def pid(self) -> int:
        """Its id inside."""
        return self._pid

    async def start(self) -> None:
        """Raises ShellNotStarted, or ItemError."""
        place = self._place
        await self._stream.open(
            place.driver,
            place.world.id,
            place.command(scripts.SHELL),
            output=self._output.feed,
            errors=self._feed_status,
            environment=place.environment,
        )
        try:
            async with asyncio.timeout(_STARTING):
                await self._until(self._named)
                await self._stream.write(self._beginning().encode(errors="surrogateescape"))
                for ready in self._ready:
                    await self._until(ready)
        except TimeoutError:
            await self.close()
            raise ShellNotStarted("it does not answer") from None
        except BaseException:
            await to_the_end(self.close())
            raise
        self._output.sink = self._capture_output

    async def run(self, command: str, *, timeout: float, max_output: int) -> ExecResult:
        """Run one command line. Afterwards ``alive`` says whether this shell can take another one. Raises ToolError for text that no
        shell can take, and ItemError(SANDBOX_LOST) if the shell's end is not known."""
        if "\0" in command:
            raise ToolError("the command holds a NUL character, which no shell takes; leave it out")
        began = time.monotonic()
        self._capture = self._with_leftovers(max_output)
        self._marked.clear()
        self._answered.clear()
        self._same = None
        self._tag = self._place.new_tag()
        self.processes = None
        try:
            exit_code = await self._execute(command, began + timeout)
            if exit_code is None:
                await self._abort()
        except asyncio.CancelledError:
            await to_the_end(self._abort())
            raise
        capture, self._capture = self._capture, Capture(_LEFT_OVER)
        return result_of(capture, exit_code, timed_out=exit_code is None, seconds=time.monotonic() - began)

    async def close(self) -> None:
        """Let it end, but leave alone what runs in its background."""
        self._usable = False
        self._place.own.discard(self._pid)
        await self._stream.close_input()
        await self._stream.close()

    async def _execute(self, command: str, deadline: float) -> int | None:
        """The exit code; None if the time limit was reached."""
        line = self._line(command).encode(errors="surrogateescape")
        sending: asyncio.Task[bool] | None = None
        if len(line) <= _SHORT:
            await self._stream.write(line)
        else:  # which the shell may be slow to take
            sending = asyncio.ensure_future(self._stream.write(line))
        try:
            lives = await self._until_answered(deadline)
        finally:
            if sending is not None:
                sending.cancel()
        if self._same is not None:
            return self._read_mark(self._same)
        if self._answered.is_set():
            return await self._read_report()
        if self._stream.ended.is_set():
            return await self._gone(self._stream.exit_code)
        return None if lives else await self._gone(137)  # what it left behind holds its streams open

    async def _until_answered(self, deadline: float) -> bool:
        """Wait for an answer, or the shell's end; whether it lives, as far as is known."""
        while not self._stream.ended.is_set() and (left := deadline - time.monotonic()) > 0:
            if await self._stream.until(self._answered, min(left, _ASKED_EVERY)):
                break
            if left > _ASKED_EVERY and not self._stream.ended.is_set() and not await self._service.runs(self._pid):
                await self._stream.until(self._answered, LAST_WORDS)
                return False
        return True

    def _read_mark(self, words: list[str]) -> int:
        if self.state.jobs:
            self.state = replace(self.state, jobs=False)
        if words[1:] != self._listed:
            self._listed = words[1:]
            self._ids = _ids(self._listed)
        self.processes = self._ids
        return int(words[0])

    async def _read_report(self) -> int:
        fields = self._report.take()
        if fields is None or fields[0] != self._token:  # something else wrote there: trust this shell no further
            await self.close()
            return 1
        kind, code, directory, jobs, script = fields[1:6]
        own, _, listed = jobs.partition("|")
        running = bool(own.strip()) if self._kind == "bash" else "Running" in own or "Stopped" in own
        self.state = ShellState(directory, script or self.state.script, jobs=running)
        self.processes = _ids(listed.split())
        if not await self._stream.until(self._marked, LAST_WORDS):
            await self.close()
        elif kind != "done":
            await asyncio.wait([asyncio.ensure_future(self._stream.ended.wait())], timeout=0.2)
            await self.close()
        return int(code)

    async def _gone(self, exit_code: int | None) -> int:
        """It ended without a report: by ``exec``, by a signal, or with the world."""
        await self.close()
        if exit_code is None:
            raise ItemError(Cause.SANDBOX_LOST, "the connection to the shell broke")
        return exit_code

    async def _abort(self) -> None:
        """Stop the running command, and with it this shell; what earlier commands left in the background goes on."""
        self._usable = False
        await self._service.end(self._tag, [self._pid])
        await self.close()

    def _line(self, command: str) -> str:
        if self._kind == "bash":
            return f"builtin ulimit -S -x {self._tag} >/dev/null 2>&1\n{bash_line(command, _OUTPUT)}"
        tag = f"{{ ulimit -S -w {self._tag} || ulimit -S -x {self._tag}; }} >/dev/null 2>&1\n"
        return tag + sh_line(command)

    def _beginning(self) -> str:
        listing = "printf ' %s' /proc/[0-9]*; " if self._place.world.alone else ""
        if self._kind == "bash":
            same = f'builtin printf \'\\0%s same %s%s\\0\' {self._mark} "$2" "${{__manyhands_said#|}}" >&{_OUTPUT}'
            return bash_beginning(
                self.state,
                token=self._token,
                fallback=self._fallback,
                exports=(),
                output=_OUTPUT,
                status=_STATUS,
                report=2,
                ready=self._marks(f'ready $$" >&{_OUTPUT}', f'ready $$" >&{_STATUS}', "builtin "),
                end=f"builtin printf '\\0%s end\\0' {self._mark} >&{_OUTPUT}; ",
                more=listing.replace("printf", "builtin printf"),
                kept=Kept(_NOW, _BEFORE, same),
            )
        return sh_beginning(
            self.state,
            token=self._token,
            fallback=self._fallback,
            ready=self._marks('ready $$" >&8', 'ready $$" >&9', ""),
            end=f"printf '\\0%s end\\0' {self._mark} >&8; ",
            more=listing,
        )

    def _marks(self, one: str, two: str, builtin: str) -> str:
        return "; ".join(f"{builtin}printf '\\0%s %s\\0' {self._mark} \"{each}" for each in (one, two))

    async def _until(self, event: asyncio.Event) -> None:
        """Wait for it; raises ShellNotStarted if the shell ends before."""
        tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._stream.ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if not event.is_set():
            raise ShellNotStarted(self._noise.decode(errors="replace").strip()[-300:] or "it ended at once")

    def _feed_status(self, data: bytes) -> None:
        if not self._named.is_set():
            line, end, data = (self._noise + data).partition(b"\n")
            self._noise = line
            if not end:
                return
            self._kind, self._noise = line.decode(errors="replace"), b""
            self._named.set()
        if self._ready[1].is_set():
            self._feed_report(data)
        else:
            self._starting.feed(data)

    def _feed_report(self, data: bytes) -> None:
        self._report.feed(data)
        if self._report.arrived.is_set():
            self._answer()

    def _answer(self) -> None:
        self._answered.set()
        self._stream.stir()

    def _note_noise(self, data: bytes) -> None:
        if self._ready[1].is_set():  # came in one piece with the mark
            self._feed_report(data)
        else:
            self._noise = (self._noise + data)[-1000:]

    def _status_mark(self, words: list[str]) -> None:
        if words[0] == "ready" and is_number(words[1:2]):
            self._pid = int(words[1][:9])
            self._ready[1].set()

    def _output_mark(self, words: list[str]) -> None:
        if words[0] == "same" and is_number(words[1:2]) and len(words[1]) <= 9:
            self._same = words[1:]
            self._answer()
            return
        (self._ready[0] if words[0] == "ready" else self._marked).set()
        self._stream.stir()

    def _capture_output(self, data: bytes) -> None:
        self._capture.feed(data)

    def _with_leftovers(self, max_output: int) -> Capture:
        """A fresh capture that begins with what background jobs wrote since the last command."""
        capture = Capture(max_output)
        if self._capture.total:
            capture.feed(self._capture.read(0, self._capture.limit))
        return capture


class Shells:
    """The shells of one running world: the persistent one, and one for each command that comes while that is busy. ``state``: what the
    persistent one goes on from, and where its state is kept; ``fallback``: where shells start if that directory is gone."""

    def __init__(self, place: Place, service: Service, state: StateFile, fallback: str) -> None:
        self._place = place
        self._service = service
        self._state = state
        self._fallback = fallback
        self._persistent: RemoteShell | None = None
        self._busy = False
        self._beside: set[RemoteShell] = set()

    @property
    def pids(self) -> list[int]:
        """The id inside of the persistent one, if there is one."""
        return [] if self._persistent is None else [self._persistent.pid]

    async def start(self) -> None:
        """Have the persistent one ready. Raises ShellNotStarted, or ItemError."""
        await self.give_back(await self.take())

    async def take(self) -> RemoteShell:
        """A shell for one command, to be given back. Raises ShellNotStarted, or ItemError."""
        if self._busy:
            beside = await self._new()
            self._beside.add(beside)
            return beside
        self._busy = True
        shell = self._persistent
        if shell is not None and shell.alive:
            return shell
        try:
            if shell is not None:
                await shell.close()
            self._persistent = await self._new()
        except BaseException:
            self._busy = False
            raise
        return self._persistent

    async def give_back(self, shell: RemoteShell) -> None:
        """Keep the persistent one and its state, and end any other. Raises ItemError(SANDBOX_LOST) if the state can't be kept."""
        if shell in self._beside:
            self._beside.remove(shell)
            await to_the_end(shell.close())
            return
        self._busy = False
        if shell.state is not self._state.last:
            self._state.take(shell.state)

    async def close(self) -> None:
        """Give up the persistent one."""
        shell, self._persistent = self._persistent, None
        if shell is not None:
            await shell.close()

    async def _new(self) -> RemoteShell:
        shell = RemoteShell(self._place, self._service, self._state.last, self._fallback)
        self._place.open()
        try:
            await shell.start()
        finally:
            self._place.note_open(shell.pid or None)
        return shell


def _ids(folders: list[str]) -> set[int] | None:
    """The processes that the folders belong to; None if that is no list of such."""
    names = [folder.removeprefix("/proc/") for folder in folders]
    return {int(name) for name in names} if names and all(name.isdecimal() for name in names) else None
